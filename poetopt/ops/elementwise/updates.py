"""Kernels that update parameters by their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poetopt.graph import OWN_DOMAIN
from poetopt.ops.runtimes.c.axes import flat
from poetopt.ops.runtimes.c.kernel import UPDATE, Arguments, Call, Kernel, block, called, read, real


@dataclass(frozen=True)
class Rule:
    """The call of an optimizer's update in C.

    Attributes
    ----------
    name
        Its name in the header.
    states
        Number of states of a parameter.
    scalars
        The scalars in the header's order: a letter for each that the op reads, in its order, or a number.
    """

    name: str
    states: int
    scalars: str


RULES: Mapping[str, Rule] = {
    "sgd": Rule("PO_SGD", 0, "ab"),
    "momentum": Rule("PO_MOMENTUM", 1, "abc"),
    "adam": Rule("PO_ADAM", 2, "abcdefgh1"),
    "adamw": Rule("PO_ADAM", 2, "abcdefg0h"),
}


def update_inputs(optimizer: str, gradient: int) -> int:
    """Return the number of inputs of an update whose gradient has `gradient` inputs."""
    rule = RULES[optimizer]
    return gradient + 1 + rule.states + sum(letter.isalpha() for letter in rule.scalars)


def declared(call: Call, arguments: Arguments, optimizer: str, places: tuple[int, ...], scalars: int) -> list[str]:
    """Return the declaration `const po_update u = ...` and those of its operands.

    Parameters
    ----------
    places, scalars
        Positions of the inputs that are the parameter and its states, and the position of the first scalar.
    """
    rule = RULES[optimizer]
    letters = [letter for letter in rule.scalars if letter.isalpha()]
    reads = [read(f"by_{n}", call.input(scalars + k), arguments.inputs[scalars + k]) for k, n in enumerate(letters)]
    missing = ["NULL"] * (2 - rule.states)
    old = [arguments.inputs[place] for place in places] + missing
    new = [*arguments.outputs[: 1 + rule.states], *missing]
    values = (f"by_{letter}[0]" if letter.isalpha() else f"{letter}.0f" for letter in rule.scalars)
    return [*reads, f"const po_update u = {{{rule.name}, {', '.join((*old, *new))}, {{{', '.join(values)}}}}};"]


def _kernel(optimizer: str) -> Kernel:
    states, plain = RULES[optimizer].states, update_inputs(optimizer, 1)

    def code(call: Call, arguments: Arguments) -> str:
        places = (0, *range(2, 2 + states))
        lines = declared(call, arguments, optimizer, places, 2 + states)
        g, size = arguments.inputs[1], call.output().size
        if len(call.inputs) == plain:
            return block(*lines, called("po_update_all", "&u", g, size))
        scale = read("scale", call.input(plain), arguments.inputs[plain])
        return block(*lines, scale, called("po_update_scaled", "&u", g, size, "scale[0]"))

    def refuses(call: Call) -> str | None:
        if len(call.inputs) not in (plain, plain + 1):
            return f"an update by {optimizer} of {len(call.inputs)} operands is not supported"
        return real(call)

    return Kernel(
        f"{optimizer}{UPDATE}", code, OWN_DOMAIN, refuses, in_place=(0, 1), tilings=lambda call: flat(code, call),
        headers=("po_update.h",),
    )  # fmt: skip


KERNELS: tuple[Kernel, ...] = tuple(_kernel(optimizer) for optimizer in RULES)
