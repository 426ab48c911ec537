"""A module as torch.fx's program, and what each of its nodes calls."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import SAC_IGNORED_OPS

from poetopt.torch.counterparts import Call
from poetopt.util.errors import PlanError

EMPTY = frozenset({"arange", "empty", "empty_like", "full", "full_like", "ones", "ones_like", "zeros", "zeros_like"})
"""Functions that make something of nothing."""


def name_of(function: Any) -> str:
    """A function's name, without `aten::` and overload."""
    return str(function._schema.name).removeprefix("aten::")


def program_of(module: Any) -> Any:
    """The module's program, with its own layers, parameters and buffers. Raises PlanError where torch.fx has none."""
    try:
        return torch.fx.symbolic_trace(module)
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise PlanError(
            f"{type(module).__name__}: torch.fx can't trace it ({first}); a forward that branches on values or shapes "
            "has no program to checkpoint parts of"
        ) from error


class _Calls(TorchDispatchMode):
    """Lists what is called, by the node that runs."""

    def __init__(self, buffers: Sequence[Any]) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.in_place: dict[int, str] = {}
        self.node, self.place, self.scope = 0, "", ""
        self._buffers = {tensor.untyped_storage()._cdata for tensor in buffers}
        self._fresh: set[int] = set()

    def enter(self, node: int, place: str, scope: str) -> None:
        self.node, self.place, self.scope, self._fresh = node, place, scope, set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in SAC_IGNORED_OPS:
            return result
        given = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        made = {_storage(leaf) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)} - given
        name = name_of(func)
        for argument, value in zip(func._schema.arguments, args, strict=False):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and isinstance(value, torch.Tensor) and _storage(value) not in self._buffers | self._fresh:
                self.in_place.setdefault(self.node, f"{name} of {self.place}")
                made = {_storage(value)}
        self._fresh |= made
        self.calls.append(Call(name, self.place, self.scope, self.node, moves=not made or name in EMPTY))
        return result


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


class _Nodes(torch.fx.Interpreter):
    def __init__(self, program: Any, calls: _Calls) -> None:
        super().__init__(program)
        self._calls = calls
        self.nbytes: dict[int, int] = {}
        self._numbers = {node: number for number, node in enumerate(program.graph.nodes)}

    def run_node(self, n: Any) -> Any:
        place = str(n.target) if n.op == "call_module" else n.name
        scope = next(reversed(n.meta.get("nn_module_stack") or {"": None}), "")
        self._calls.enter(self._numbers[n], place, place if n.op == "call_module" else str(scope))
        result = super().run_node(n)
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.nbytes[self._numbers[n]] = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
        return result


@dataclass(frozen=True)
class Trace:
    """What a program did with an example.

    calls
        In their order.
    in_place
        By node: the function that writes over what others may read.
    nbytes
        By node: the bytes of what it returns.
    """

    calls: tuple[Call, ...]
    in_place: Mapping[int, str]
    nbytes: Mapping[int, int]


def trace_of(program: Any, example: Sequence[Any]) -> Trace:
    """Runs a copy of the program on the example, in the mode that it is in."""
    twin = copy.deepcopy(program)
    calls = _Calls(list(twin.buffers()))
    given = [argument.detach().clone() if isinstance(argument, torch.Tensor) else argument for argument in example]
    with torch.enable_grad(), calls:
        nodes = _Nodes(twin, calls)
        nodes.run(*given)
    return Trace(tuple(calls.calls), calls.in_place, nodes.nbytes)
