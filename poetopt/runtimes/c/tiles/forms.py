"""How the steps of an operator go through one loop together, chunk by chunk.

A form is a tiling of each of the first steps, so that what one writes of a chunk is what the next one reads of it; what
is temporary between them is as large as a chunk. Steps behind them run on whole tensors once the loop is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm

from poetopt.graph import Operator, Tensor, inner_storage
from poetopt.runtimes.c.steps import Step
from poetopt.runtimes.c.tiles.tiling import Loop, Slice, Tiling


@dataclass(frozen=True, slots=True)
class Form:
    """Steps in a loop.

    tilings
        Of the first steps; those behind them run whole afterwards.
    slices
        Of each tensor that goes through a loop, by name.
    outer, inner
        The loops; the inner one is one step's.
    """

    tilings: tuple[Tiling, ...]
    slices: Mapping[str, Slice]
    outer: Loop | None
    inner: Loop | None

    @property
    def fixed(self) -> bool:
        """Whether the code is written for one number of steps of the outer loop."""
        return any(tiling.fixed for tiling in self.tilings)

    def loop(self, level: int) -> Loop:
        """The outer or the inner loop, which must be there."""
        found = (self.outer, self.inner)[level]
        assert found is not None
        return found

    def chunked(self, tensors: Mapping[str, Tensor], names: Sequence[str], outer: int) -> Mapping[str, Tensor]:
        """`tensors` with those of `names` as large as a chunk of the outer loop."""
        found = dict(tensors)
        for name in names:
            taken = self.slices[name]
            nbytes = taken.unit_bytes * taken.pieces * outer
            width = tensors[name].nbytes // max(1, tensors[name].size)
            found[name] = replace(tensors[name], shape=(nbytes // width,))
        return found


def forms(operator: Operator, steps: Sequence[Step]) -> Iterator[Form]:
    """The forms of an operator, with what is run for its nodes, whose steps are `steps`."""
    if operator.view or not steps:
        return
    same = inner_storage(operator)
    options = [step.kernel.tilings(step.call) for step in steps]
    for first in options[0]:
        if first.outer is None:
            found = _joined(steps[:1], [first], same)
            if found is not None and _ends(found, steps, 1, operator, same):
                yield found
            continue
        for chosen in _chains([first], options, steps, same):
            found = _joined(steps, chosen, same)
            if found is not None and _ends(found, steps, len(chosen), operator, same):
                yield found
                break  # the longest


def _chains(
    chosen: list[Tiling], options: Sequence[Sequence[Tiling]], steps: Sequence[Step], same: Mapping[str, str]
) -> Iterator[list[Tiling]]:
    """Tilings of more and more steps that agree, the longest first."""
    if len(chosen) < len(options):
        for option in options[len(chosen)]:
            longer = [*chosen, option]
            if option.inner is None and _joined(steps, longer, same) is not None:
                yield from _chains(longer, options, steps, same)
    yield chosen


def _joined(steps: Sequence[Step], chosen: Sequence[Tiling], same: Mapping[str, str]) -> Form | None:
    """The form of these tilings; None where two of them take other chunks of a tensor."""
    slices: dict[str, Slice] = {}
    whole: set[str] = set()
    outer, inner = chosen[0].outer, chosen[0].inner
    for step, tiling in zip(steps, chosen, strict=False):
        if (tiling.outer is None) != (outer is None):
            return None
        if tiling.outer is not None and outer is not None:
            if tiling.outer.extent != outer.extent:
                return None
            outer = Loop(outer.extent, lcm(outer.multiple, tiling.outer.multiple))
        operands = zip((*step.call.inputs, *step.call.outputs), (*tiling.inputs, *tiling.outputs), strict=True)
        for tensor, taken in operands:
            if tensor is None:
                continue
            name = same.get(tensor.name, tensor.name)
            if taken is None:
                whole.add(name)
            elif slices.setdefault(name, taken) != taken:
                return None
    return None if whole & set(slices) else Form(tuple(chosen), slices, outer, inner)


def _ends(form: Form, steps: Sequence[Step], count: int, operator: Operator, same: Mapping[str, str]) -> bool:
    """Whether the steps behind the loop read nothing that is there by chunks alone."""
    outside = {*operator.inputs, *operator.outputs}
    for step in steps[count:]:
        for tensor in (*step.call.inputs, *step.call.outputs):
            name = "" if tensor is None else same.get(tensor.name, tensor.name)
            if name in form.slices and (name not in outside or tensor not in step.call.inputs):
                return False
    return True
