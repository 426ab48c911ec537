"""All ways to stream an operator: forms, what of it goes to storage, sizes of chunks. In closed form: nothing runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import lcm
from typing import TYPE_CHECKING

from poetopt.errors import UnsupportedOpError
from poetopt.graph import Operator, Tensor
from poetopt.runtimes.c.kernel import ALIGNMENT
from poetopt.runtimes.c.steps import Step, as_run, placed, steps
from poetopt.runtimes.c.tiles import windows
from poetopt.runtimes.c.tiles.forms import Form, forms
from poetopt.runtimes.c.tiles.tiling import INNER
from poetopt.runtimes.contract import InnerLayout, Variant

if TYPE_CHECKING:
    from poetopt.graph import Array

COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
"""How many chunks are tried."""
LEAST_BYTES = windows.BLOCK_BYTES
"""What takes no more is not streamed."""
MOST_GROUPS = 5


@dataclass(frozen=True, slots=True)
class Streamed:
    """What the code of a variant is written from.

    form, outer, inner
        The loops, and the sizes of their chunks; 0 for a loop that isn't there.
    streamed
        What goes to storage and comes from there, by name, in the order of their buffers in the workspace.
    offsets
        Where these buffers begin.
    layout
        Where temporaries and scratch lie, as large as a chunk.
    """

    form: Form
    outer: int
    inner: int
    streamed: tuple[str, ...]
    offsets: tuple[int, ...]
    layout: InnerLayout


def variants(
    operator: Operator,
    tensors: Mapping[str, Tensor],
    alignment: int = ALIGNMENT,
    *,
    movable: Collection[str],
    values: Mapping[str, Array] | None = None,
) -> Iterator[Variant]:
    """The ways to stream an operator, beside the plain one; none where a step can't be run at all.

    movable
        What may lie on storage, by name.
    values
        Constants, as far as they are known.
    """
    if not movable or operator.view:
        return
    try:
        run = steps(operator, tensors, values, alignment)
    except UnsupportedOpError:
        return
    for number, form in enumerate(forms(operator, run)):
        found = _Enumerated(operator, tensors, alignment, run, form)
        yield from found.variants(f"{number}", movable)


class _Enumerated:
    """The variants of one form."""

    def __init__(
        self, operator: Operator, tensors: Mapping[str, Tensor], alignment: int, run: Sequence[Step], form: Form
    ) -> None:
        self.operator, self.tensors, self.alignment, self.form = operator, tensors, alignment, form
        self.ran = as_run(operator, tensors)
        self.run = run
        self.old = {new: old for old, new in operator.updates}
        inside = {n for step in run for n in (*step.call.node.inputs, *step.call.node.outputs)}
        outside = {*operator.inputs, *operator.outputs}
        self.temporaries = tuple(n for n in form.slices if n in inside and n not in outside)

    def groups(self) -> list[tuple[str, ...]]:
        """What can be streamed: what is updated together, everything else on its own; outputs last."""

        def may(name: str) -> bool:
            return name in self.form.slices and self.tensors[name].nbytes > LEAST_BYTES

        updated = tuple(old for old, _ in self.operator.updates if may(old))
        inputs = [(n,) for n in self.operator.inputs if may(n) and n not in updated]
        later = {t.name for step in self.run[len(self.form.tilings) :] for t in step.call.inputs if t is not None}
        outputs = [(n,) for n in self.operator.outputs if may(n) and n not in self.old and n not in later]
        return [group for group in (updated, *inputs, *outputs) if group]

    def variants(self, name: str, movable: Collection[str]) -> Iterator[Variant]:
        """Each subset of the groups, with each pair of chunk sizes."""
        form, groups = self.form, self.groups()
        must = {n for n, taken in form.slices.items() if form.fixed and taken.pieces > 1} - set(self.temporaries)
        must -= set(self.old)
        plain = placed(self.ran, self.tensors, self.alignment).total_bytes
        for size in range(1, min(len(groups), MOST_GROUPS) + 1):
            for chosen in combinations(range(len(groups)), size):
                streamed = tuple(n for k in chosen for n in groups[k])
                if not must <= set(streamed) or not all(n in movable for n in streamed):
                    continue
                mask = sum(1 << k for k in chosen)
                for outer, inner in self.chunks(streamed):
                    found = self.one(f"{name}.{mask:x}.{outer}.{inner}", streamed, outer, inner)
                    saved = sum(self.tensors[n].nbytes for n in streamed)
                    if found.workspace.total_bytes < saved + plain:
                        yield found

    def chunks(self, streamed: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Sizes of chunks: more than one in all, and pieces of whole blocks."""
        multiples = []
        for level, loop in enumerate((self.form.outer, self.form.inner)):
            multiple = loop.multiple if loop is not None else 1
            for name in streamed:
                taken = self.form.slices[name]
                if taken.level == level and taken.pieces > 1 and loop is not None:
                    whole = windows.piece_multiple(loop.extent, taken.unit_bytes)
                    if not whole:
                        return
                    multiple = lcm(multiple, whole)
            multiples.append(multiple)
        outers, inners = (
            _sizes(loop.extent, multiple) if loop is not None else [0]
            for loop, multiple in zip((self.form.outer, self.form.inner), multiples, strict=True)
        )
        for outer in outers:
            for inner in inners:
                whole_outer = self.form.outer is None or outer >= self.form.outer.extent
                whole_inner = self.form.inner is None or inner >= self.form.inner.extent
                if not (whole_outer and whole_inner):
                    yield outer, inner

    def one(self, name: str, streamed: tuple[str, ...], outer: int, inner: int) -> Variant:
        """A variant with its figures."""
        form = self.form
        cut = form.chunked(self.tensors, self.temporaries, outer) if self.temporaries else self.tensors
        if self.temporaries:  # an output's bytes may hold a temporary
            cut = form.chunked(cut, [n for n in self.operator.outputs if n in form.slices], outer)
        layout = placed(self.ran, cut, self.alignment)
        reads: Counter[int] = Counter()
        writes: Counter[int] = Counter()
        offsets: list[int] = []
        end = layout.total_bytes
        olds = {old for old, _ in self.operator.updates}
        for n in streamed:
            taken = form.slices[n]
            loop = form.loop(taken.level)
            chunk = (outer, inner)[taken.level]
            passes = 1
            if taken.level == INNER and form.outer is not None and (inner < loop.extent or taken.pieces > 1):
                passes = -(-form.outer.extent // outer)
            is_output = n in self.operator.outputs and n not in self.operator.inputs
            does = not is_output, is_output or n in olds
            traffic = (
                windows.run(self.tensors[n].nbytes, chunk * taken.unit_bytes, passes, *does)
                if taken.pieces == 1
                else windows.pieces(loop.extent, taken.unit_bytes, taken.pieces, chunk, passes, *does)
            )
            end = -(-end // ALIGNMENT) * ALIGNMENT
            offsets.append(end)
            end += traffic.buffer_bytes
            reads.update(traffic.reads)
            writes.update(traffic.writes)
        detail = Streamed(form, outer, inner, streamed, tuple(offsets), layout)
        whole = InnerLayout(layout.storage, layout.offsets, end, (), (), end, layout.kept_bytes)
        return Variant(
            name,
            whole,
            tuple(n for n in streamed if n in self.operator.inputs),
            tuple(n for n in streamed if n not in self.operator.inputs),
            tuple(sorted(reads.items())),
            tuple(sorted(writes.items())),
            detail,
        )


def _sizes(extent: int, multiple: int) -> list[int]:
    """Sizes of chunks in a geometric range, largest first, each once."""
    units = -(-extent // multiple)
    found = dict.fromkeys(min(extent, multiple * -(-units // count)) for count in COUNTS if count <= units)
    return list(found)
