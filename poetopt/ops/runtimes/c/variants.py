"""All variants that stream an operator: loops over its steps, streamed tensors, sizes of chunks.

A loop has a tiling of each of the first steps. The next step reads the chunk that a step writes, so that temporaries
between them are as large as a chunk. Steps behind them run on whole tensors after the loop. All figures are in closed
form: no kernel runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import lcm
from typing import TYPE_CHECKING, NamedTuple

from poetopt.graph import Operator, Role, Tensor, inner_storage
from poetopt.ops.runtimes.c import windows
from poetopt.ops.runtimes.c.kernel import ALIGNMENT
from poetopt.ops.runtimes.c.steps import KernelStep, as_run, placed, steps
from poetopt.ops.runtimes.c.tiling import INNER, OUTER, ChunkSlice, Loop, Rows, Tiling
from poetopt.ops.runtimes.contract import InnerLayout, RuntimeVariant
from poetopt.util.errors import UnsupportedOpError

if TYPE_CHECKING:
    from poetopt.graph import Array


@dataclass(frozen=True, slots=True)
class _StepLoop:
    """The steps of an operator that run in a loop.

    Attributes
    ----------
    tilings
        Tilings of the first steps; the steps behind them run whole afterwards.
    slices
        Slice of each tensor of a loop, by name.
    outer, inner
        The loops; the inner loop belongs to one step.
    """

    tilings: tuple[Tiling, ...]
    slices: Mapping[str, ChunkSlice]
    outer: Loop | None
    inner: Loop | None

    @property
    def fixed(self) -> bool:
        """Return whether the code is written for one number of steps of the outer loop."""
        return any(tiling.fixed for tiling in self.tilings)

    def loop(self, level: int) -> Loop:
        """Return the outer or the inner loop, which must exist."""
        loop = (self.outer, self.inner)[level]
        assert loop is not None
        return loop

    def chunked(self, tensors: Mapping[str, Tensor], names: Sequence[str], outer: int) -> Mapping[str, Tensor]:
        """Return `tensors` with those of `names` as large as a chunk of the outer loop."""
        cut = dict(tensors)
        for name in names:
            one = self.slices[name]
            nbytes = one.unit_bytes * one.pieces * outer
            width = tensors[name].nbytes // max(1, tensors[name].size)
            cut[name] = replace(tensors[name], shape=(nbytes // width,))
        return cut


def forms(operator: Operator, steps: Sequence[KernelStep]) -> Iterator[_StepLoop]:
    """Yield the loops over the first steps of an operator; `steps` are all its kernel calls."""
    if operator.view or not steps:
        return
    same = inner_storage(operator)
    options = [step.kernel.tilings(step.call) for step in steps]
    for first in options[0]:
        if first.outer is None:
            loop = _join_tilings(steps[:1], [first], same)
            if loop is not None and _can_finish(loop, steps, 1, operator, same):
                yield loop
            continue
        for tilings in _tiling_chains([first], options, steps, same):
            loop = _join_tilings(steps, tilings, same)
            if loop is not None and _can_finish(loop, steps, len(tilings), operator, same):
                yield loop
                break  # the longest chain comes first


def _tiling_chains(
    prefix: list[Tiling], options: Sequence[Sequence[Tiling]], steps: Sequence[KernelStep], same: Mapping[str, str]
) -> Iterator[list[Tiling]]:
    """Yield lists of tilings of consecutive steps that agree, the longest first."""
    if len(prefix) < len(options):
        for option in options[len(prefix)]:
            longer = [*prefix, option]
            if option.inner is None and _join_tilings(steps, longer, same) is not None:
                yield from _tiling_chains(longer, options, steps, same)
    yield prefix


def _join_tilings(steps: Sequence[KernelStep], tilings: Sequence[Tiling], same: Mapping[str, str]) -> _StepLoop | None:
    """Return the loop of these tilings; None if two of them need different chunks of a tensor."""
    slices: dict[str, ChunkSlice] = {}
    whole: set[str] = set()
    outer, inner = tilings[0].outer, tilings[0].inner
    for step, tiling in zip(steps, tilings, strict=False):
        if (tiling.outer is None) != (outer is None):
            return None
        if tiling.outer is not None and outer is not None:
            if tiling.outer.extent != outer.extent:
                return None
            outer = Loop(outer.extent, lcm(outer.multiple, tiling.outer.multiple))
        operands = zip((*step.call.inputs, *step.call.outputs), (*tiling.inputs, *tiling.outputs), strict=True)
        for tensor, one in operands:
            if tensor is None:
                continue
            name = same.get(tensor.name, tensor.name)
            if one is None:
                whole.add(name)
            elif slices.setdefault(name, one) != one:
                return None
    return None if whole & set(slices) else _StepLoop(tuple(tilings), slices, outer, inner)


def _can_finish(
    form: _StepLoop, steps: Sequence[KernelStep], count: int, operator: Operator, same: Mapping[str, str]
) -> bool:
    """Return whether the steps behind the loop read no tensor that exists only in chunks."""
    outside = {*operator.inputs, *operator.outputs}
    for step in steps[count:]:
        for tensor in (*step.call.inputs, *step.call.outputs):
            name = "" if tensor is None else same.get(tensor.name, tensor.name)
            if name in form.slices and (name not in outside or tensor not in step.call.inputs):
                return False
    return True


COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
"""Numbers of chunks of a loop that are tried."""
READ_BYTES, WRITE_BYTES = 1_000, 5_000
"""Fixed cost of a transfer in bytes: an SD card's 1 and 5 ms at 1 MB/s."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """Data from which the code of a variant is written.

    Attributes
    ----------
    form, outer, inner
        The loops, and the sizes of their chunks; 0 for a loop that isn't there.
    streamed
        Names of the tensors that move to and from storage, in the order of their buffers in the workspace.
    offsets
        Offsets of these buffers.
    pitches
        For each streamed tensor the bytes between the begins of its pieces' windows; 0 if it has one window, or none.
    layout
        Layout of temporaries and scratch, as large as a chunk.
    scratch_offset
        Offset of the tilings' own scratch.
    block
        Bytes that move to and from storage at once.
    """

    form: _StepLoop
    outer: int
    inner: int
    streamed: tuple[str, ...]
    offsets: tuple[int, ...]
    pitches: tuple[int, ...]
    layout: InnerLayout
    scratch_offset: int
    block: int


class StreamCandidate(NamedTuple):
    """A variant that streams an operator, with the figures by which it is chosen.

    Attributes
    ----------
    streamed
        Tensors that move to or from storage.
    workspace_bytes
        RAM that it needs beside the tensors that are whole in RAM.
    traffic
        Bytes that it moves, and the fixed costs of transfers in bytes.
    """

    streamed: tuple[str, ...]
    workspace_bytes: int
    traffic: int
    form: int
    outer: int
    inner: int


class StreamWays:
    """All variants that stream an operator; none if no kernel runs one of its steps.

    Parameters
    ----------
    movable
        Names of the tensors that may lie on storage.
    listed
        Tables by rows that may lie on storage, too: each row is one transfer.
    values
        Known constants.
    block
        Bytes that are moved at once.
    """

    def __init__(
        self,
        operator: Operator,
        tensors: Mapping[str, Tensor],
        alignment: int = ALIGNMENT,
        *,
        movable: Collection[str],
        listed: Collection[str] = (),
        values: Mapping[str, Array] | None = None,
        block: int = windows.BLOCK_BYTES,
    ) -> None:
        run: Sequence[KernelStep] = ()
        if (movable or listed) and not operator.view:
            try:
                run = steps(operator, tensors, values, alignment)
            except UnsupportedOpError:
                run = ()
        self.kernels = tuple(step.kernel for step in run)
        loops = forms(as_run(operator, tensors), run)
        self.forms = [_LoopVariants(operator, tensors, alignment, run, form, movable, listed, block) for form in loops]

    def candidates(self) -> Iterator[StreamCandidate]:
        """Yield all candidates with their figures."""
        for number, form in enumerate(self.forms):
            yield from form.candidates(number)

    def variant(self, candidate: StreamCandidate) -> RuntimeVariant:
        """Return the variant of a candidate, with all figures."""
        return self.forms[candidate.form].variant(candidate)


class _LoopVariants:
    """The variants with one loop."""

    def __init__(
        self,
        operator: Operator,
        tensors: Mapping[str, Tensor],
        alignment: int,
        run: Sequence[KernelStep],
        form: _StepLoop,
        movable: Collection[str],
        listed: Collection[str],
        block: int,
    ) -> None:
        self.operator, self.tensors, self.alignment, self.form, self.run = operator, tensors, alignment, form, run
        self.ran = as_run(operator, tensors)
        self.movable, self.listed, self.block = movable, listed, block
        self.old = {new: old for old, new in operator.updates}
        inside = {n for step in run for n in (*step.call.node.inputs, *step.call.node.outputs)}
        outside = {*operator.inputs, *operator.outputs}
        self.temporaries = tuple(n for n in form.slices if n in inside and n not in outside)
        self._layouts: dict[int, InnerLayout] = {}

    def sets(self) -> list[tuple[str, ...]]:
        """Return the sets that can be streamed together.

        Of updated tensors, the states come first, which are used once a step; then all.
        """

        def may(name: str) -> bool:
            if name not in self.form.slices or self.tensors[name].nbytes <= self.block:
                return False
            return name in self.movable or (name in self.listed and self.by_rows(name))

        olds = [old for old, _ in reversed(self.operator.updates) if may(old)]
        olds.sort(key=lambda old: self.tensors[old].role is not Role.OPTIMIZER_STATE)
        inputs = [n for n in self.operator.inputs if may(n) and n not in olds]
        later = {t.name for step in self.run[len(self.form.tilings) :] for t in step.call.inputs if t is not None}
        outputs = [n for n in self.operator.outputs if may(n) and n not in self.old]
        inputs, outputs = ([n for n in names if n not in later] for names in (inputs, outputs))
        # of the tensors that aren't updated, only the largest four are streamed
        others = sorted((*inputs, *outputs), key=lambda n: -self.tensors[n].nbytes)[:4]
        others = [n for n in (*inputs, *outputs) if n in others]
        subsets = [[n for k, n in enumerate(others) if mask >> k & 1] for mask in range(1 << len(others))]
        return [(*olds[:count], *some) for count in range(len(olds) + 1) for some in subsets if count or some]

    def candidates(self, number: int) -> Iterator[StreamCandidate]:
        """Yield each set with each pair of chunk sizes."""
        form, sets = self.form, self.sets()
        names = tuple(dict.fromkeys(chain(*sets)))
        cut = form.fixed
        must = {n for n, s in form.slices.items() if s.picks or (cut and s.pieces > 1 and s.rows is None)}
        must -= {*self.temporaries, *self.old}
        plain = placed(self.ran, self.tensors, self.alignment).total_bytes
        allowed = [streamed for streamed in sets if must <= set(streamed)]
        saved = [sum(self.tensors[n].nbytes for n in streamed) for streamed in allowed]
        for outer, inner in self.chunks(names):
            begin = self.layout(outer).total_bytes
            scratch = max(tiling.scratch_bytes(outer) for tiling in form.tilings)
            traffics = {n: self.traffic(n, outer, inner) for n in names}
            room = {n: _aligned(t.buffer_bytes) for n, t in traffics.items() if t is not None}
            cost = {n: _transfer_cost(t) for n, t in traffics.items() if t is not None}
            for streamed, spared in zip(allowed, saved, strict=True):
                if all(n in room for n in streamed):
                    workspace = _aligned(begin) + sum(room[n] for n in streamed) + scratch
                    if workspace < spared + plain:
                        yield StreamCandidate(streamed, workspace, sum(cost[n] for n in streamed), number, outer, inner)

    def chunks(self, names: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Yield sizes of chunks that make more than one chunk, unless steps are read one by one anyway."""
        form = self.form
        picks = any(one.picks for one in form.slices.values())
        sizes: list[list[int]] = []
        for level, loop in enumerate((form.outer, form.inner)):
            if loop is None:
                sizes.append([0])
                continue
            multiples = {loop.multiple}
            for name in names:
                one = form.slices[name]
                if name in self.listed and not one.picks:
                    multiples.add(lcm(loop.multiple, loop.extent // self.tensors[name].shape[0]))
                if one.level == level and one.pieces > 1 and one.rows is None:
                    whole = windows.piece_multiple(self.block, loop.extent, one.unit_bytes)
                    multiples.add(lcm(loop.multiple, whole or 1))
            # with two loops, fewer numbers of chunks are tried
            counts = COUNTS if form.outer is None or form.inner is None else (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
            sizes.append(_chunk_sizes(loop.extent, multiples, loop.most, counts))
        for outer in sizes[0]:
            for inner in sizes[1]:
                whole_outer = form.outer is None or outer >= form.outer.extent
                whole_inner = form.inner is None or inner >= form.inner.extent
                if picks or not (whole_outer and whole_inner):
                    yield outer, inner

    def layout(self, outer: int) -> InnerLayout:
        """Return the layout of temporaries and scratch for chunks of `outer` steps of the outer loop."""
        key = outer if self.temporaries else 0
        if key not in self._layouts:
            cut = self.tensors
            if self.temporaries:  # a temporary may lie in an output's bytes
                names = (*self.temporaries, *(n for n in self.operator.outputs if n in self.form.slices))
                cut = self.form.chunked(self.tensors, names, outer)
            self._layouts[key] = placed(self.ran, cut, self.alignment)
        return self._layouts[key]

    def traffic(self, name: str, outer: int, inner: int) -> windows.Traffic | None:
        """Return the transfers and the buffer of a streamed tensor; None if its pieces aren't whole blocks."""
        form = self.form
        one = form.slices[name]
        extent = form.loop(one.level).extent
        chunk = (outer, inner)[one.level]
        is_output = name in self.operator.outputs and name not in self.operator.inputs
        directions = not is_output, is_output or name in self.old.values()
        if name in self.rounds:
            return windows.visits(
                self.block, self.tensors[name].nbytes, one.unit_bytes, self.rounds[name], chunk, *directions
            )
        passes = 1
        if one.level == INNER and form.outer is not None and (inner < extent or one.pieces > 1):
            passes = -(-form.outer.extent // outer)
        if one.picks:
            return windows.picked(self.block, self.tensors[name].nbytes, one.unit_bytes, one.picks, *directions)
        if name in self.listed:
            count = self.tensors[name].shape[0]
            steps = extent // count
            whole = chunk % steps == 0
            return (
                windows.steps(self.block, one.unit_bytes * steps, count, chunk // steps, *directions) if whole else None
            )
        if one.rows is not None or one.pieces == 1:
            rows = one.rows or Rows(extent)
            return windows.rows(self.block, rows, one.unit_bytes, one.pieces, extent, chunk, passes, *directions)
        multiple = windows.piece_multiple(self.block, extent, one.unit_bytes)
        if not multiple or (chunk % multiple and chunk < extent):
            return None
        return windows.pieces(extent, one.unit_bytes, one.pieces, chunk, passes, *directions)

    @cached_property
    def rounds(self) -> Mapping[str, windows.Visits]:
        """The rounds with sweeps that move a tensor, by name; empty if the loop has no rounds."""
        call, rounds = self.run[0].call, self.form.tilings[0].rounds  # a tiling in rounds is its form's only one
        if not rounds:
            return {}
        same = inner_storage(self.ran)
        by_name: dict[str, windows.Visits] = {}
        for name in self.form.slices:
            inputs, outputs = (
                [k for k, t in enumerate(of) if t is not None and same.get(t.name, t.name) == name]
                for of in (call.inputs, call.outputs)
            )
            turns = [(one.times, one.sweeps(inputs, outputs)) for one in rounds]
            by_name[name] = tuple((times, sweeps) for times, sweeps in turns if sweeps)
        return {name: visits for name, visits in by_name.items() if visits}

    def by_rows(self, name: str) -> bool:
        """Return whether chunks can be rows of a table, or its rows are read one by one."""
        one, tensor = self.form.slices[name], self.tensors[name]
        if one.picks:
            return one.unit_bytes * tensor.shape[0] == tensor.nbytes
        extent = self.form.loop(one.level).extent
        return one.level == OUTER and one.pieces == 1 and one.rows is None and extent % tensor.shape[0] == 0

    def variant(self, candidate: StreamCandidate) -> RuntimeVariant:
        """Return the variant of a candidate with its figures."""
        layout = self.layout(candidate.outer)
        reads: Counter[int] = Counter()
        writes: Counter[int] = Counter()
        reads_of: dict[str, tuple[tuple[int, int], ...]] = {}
        offsets: list[int] = []
        pitches: list[int] = []
        end = _aligned(layout.total_bytes)
        for n in candidate.streamed:
            traffic = self.traffic(n, candidate.outer, candidate.inner)
            assert traffic is not None
            one = self.form.slices[n]
            has_windows = one.rows is not None and one.pieces > 1
            pitches.append(traffic.buffer_bytes // one.pieces if has_windows else 0)
            offsets.append(end)
            end += _aligned(traffic.buffer_bytes)
            reads.update(traffic.reads)
            reads_of[n] = tuple(sorted(traffic.reads.items()))
            writes.update(traffic.writes)
        places = tuple(offsets), tuple(pitches)
        detail = Streamed(
            self.form, candidate.outer, candidate.inner, candidate.streamed, *places, layout, end, self.block
        )
        end = candidate.workspace_bytes
        whole = InnerLayout(layout.storage, layout.offsets, end, (), (), end, layout.kept_bytes)
        return RuntimeVariant(
            f"{candidate.form}.{candidate.outer}.{candidate.inner}." + ".".join(candidate.streamed),
            whole,
            tuple(n for n in candidate.streamed if n in self.operator.inputs),
            tuple(n for n in candidate.streamed if n not in self.operator.inputs),
            tuple(sorted(reads.items())),
            tuple(sorted(writes.items())),
            detail,
            reads_of,
        )


def _transfer_cost(traffic: windows.Traffic) -> int:
    reads = sum(count * (nbytes + READ_BYTES) for nbytes, count in traffic.reads.items())
    return reads + sum(count * (nbytes + WRITE_BYTES) for nbytes, count in traffic.writes.items())


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _chunk_sizes(extent: int, multiples: Iterable[int], most: int, counts: Sequence[int]) -> list[int]:
    """Return sizes of chunks in a geometric range, largest first, each once."""
    sizes: dict[int, None] = {}
    for multiple in sorted(multiples):
        units = -(-extent // multiple)
        tried = (*counts, units) if units <= counts[-1] else counts
        sizes.update(dict.fromkeys(min(extent, multiple * -(-units // count)) for count in tried if count <= units))
    return sorted((size for size in sizes if not most or size <= most), reverse=True)
