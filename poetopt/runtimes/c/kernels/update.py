"""Updates of parameters and optimizer states, each in one pass over them."""

from __future__ import annotations

from poetopt.graph import OWN_DOMAIN
from poetopt.runtimes.c.kernel import Arguments, Call, Kernel
from poetopt.runtimes.c.loops import block
from poetopt.runtimes.c.write import called, read, refuse_types

HEADER = "po_update.h"


def _real(call: Call) -> str | None:
    return refuse_types(call, "float32")


def _update(call: Call, arguments: Arguments, function: str, states: int, scalars: str) -> str:
    """`function` of the new parameter and states, the old ones with the gradient, and scalars by letter.

    Inputs are parameter, gradient, states, then what each letter of `scalars` names; a digit is written as it is.
    """
    first = 2 + states
    letters = [letter for letter in scalars if letter.isalpha()]
    declared = [read(n, call.input(first + k), arguments.inputs[first + k]) for k, n in enumerate(letters)]
    rates = (f"{letter}.0f" if letter.isdigit() else f"{letter}[0]" for letter in scalars)
    line = called(function, *arguments.outputs, *arguments.inputs[:first], call.output().size, *rates)
    return block(*declared, line)


def _sgd(call: Call, arguments: Arguments) -> str:
    return _update(call, arguments, "po_sgd", 0, "ab")


def _momentum(call: Call, arguments: Arguments) -> str:
    return _update(call, arguments, "po_momentum", 1, "abc")


def _adam(call: Call, arguments: Arguments) -> str:
    return _update(call, arguments, "po_adam", 2, "abcdefgh1")


def _adamw(call: Call, arguments: Arguments) -> str:
    return _update(call, arguments, "po_adam", 2, "abcdefg0h")


KERNELS: tuple[Kernel, ...] = (
    Kernel("sgd.update", _sgd, OWN_DOMAIN, _real, in_place=(0, 1), headers=(HEADER,)),
    Kernel("momentum.update", _momentum, OWN_DOMAIN, _real, in_place=(0, 1), headers=(HEADER,)),
    Kernel("adam.update", _adam, OWN_DOMAIN, _real, in_place=(0, 1), headers=(HEADER,)),
    Kernel("adamw.update", _adamw, OWN_DOMAIN, _real, in_place=(0, 1), headers=(HEADER,)),
)
