"""An operator that streams operands, as one C function: loops over chunks, around the same kernels."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from poetopt.backends.c.operators import PREFIX, WORKSPACE, OperatorCode, Still, Writer, comment, identifier, shown
from poetopt.backends.c.storage import list_of
from poetopt.backends.step.places import Places
from poetopt.graph import DTYPE_BYTES, Operator, Tensor, TrainingGraph, inner_storage
from poetopt.graph.problem import Problem
from poetopt.ops.runtimes.c import windows
from poetopt.ops.runtimes.c.kernel import INCLUDE
from poetopt.ops.runtimes.c.steps import KernelStep, as_run, steps
from poetopt.ops.runtimes.c.tiling import COUNT, FROM, INNER, OUTER, Chunk, ChunkSlice, Part, Round, Sweep, Tiling
from poetopt.ops.runtimes.c.variants import Streamed

BEGUN = "begun"
"""Parameter that is 0 in the first part of a batch, whose sums of gradients are zeros and not read."""


def streamed_code(
    index: int, number: int, graph: TrainingGraph, problem: Problem, places: Places, still: Still, state_at: int,
    prefix: str = PREFIX,
) -> OperatorCode:  # fmt: skip
    """Return the function of operator `index` of `problem` by its variant `number`, from 1.

    Its name begins with `prefix`. Raise `PlanError` where the runtime has another variant of that number.
    """
    operator = places.operators[problem.operators[index].name]
    detail = places.variant(operator, index, number).detail
    assert isinstance(detail, Streamed)
    writer = Writer(operator, graph, places, still, detail.layout)
    run = steps(operator, graph.tensors, graph.constants, problem.alignment)
    sums = {name for name in detail.streamed if name in graph.sums.values()}
    body_writer = Function(operator, graph.tensors, writer, detail, run, _lists(detail, graph, places), sums)
    lines = list(body_writer.lines())
    function = f"{prefix}_{index}_v{number}_{identifier(operator.name)}"
    blocks = tuple(places.index[graph.root(name)] for name in detail.streamed)
    parameters = [f"void *t{k}" for k in range(len(writer.tensors))]
    parameters += [f"void *{WORKSPACE}"]
    parameters += ["uint32_t *state"] if body_writer.state else []
    parameters += [f"uint32_t b{k}" for k in range(len(blocks))]
    parameters += [f"int {BEGUN}"] if sums else []
    told = [f"t{k}: {comment(problem.tensors[i].name)}" for k, i in enumerate(writer.tensors)]
    told += [f"b{k}: {comment(name)}, on storage" for k, name in enumerate(detail.streamed)]
    head = f"/* operator {index}, variant {number}: {comment(operator.name)} ({comment(operator.kind)})"
    head += "".join(f"\n   {line}" for line in told) + " */"
    body = "".join(f"    {line}\n" if line else "\n" for line in lines)
    text = f"{head}\nPO_STREAMED {function}({', '.join(parameters)})\n{{\n{body}    return 0;\n}}\n"
    headers = {(INCLUDE, "po_stream.h"): None}
    headers.update(dict.fromkeys((step.kernel.include, header) for step in run for header in step.kernel.headers))
    return OperatorCode(
        operator.name, function, tuple(writer.tensors), True, text, tuple(headers), tuple(body_writer.state), state_at,
        stored=blocks, sums=bool(sums),
    )  # fmt: skip


def _lists(detail: Streamed, graph: TrainingGraph, places: Places) -> dict[str, str]:
    """Return the C list of rows of each streamed table by rows."""
    roots = {name: graph.root(name) for name in detail.streamed}
    return {name: list_of(root, graph, places) for name, root in roots.items() if root in graph.rows}


@dataclass(frozen=True, slots=True)
class _Moved:
    """Streamed tensor: its number among the streamed ones, its buffer, and its use.

    Attributes
    ----------
    pitch
        Distance from the window of one of its pieces to the next one's; 0 where there are none.
    block
        Bytes of one transfer to or from storage.
    rows, row_bytes
        C list of its rows, where it is a table by rows, and their size; "" and 0 for others.
    sum
        Whether it is a sum of gradients, which is zeros in the first part of a batch.
    """

    number: int
    name: str
    taken: ChunkSlice
    extent: int
    nbytes: int
    offset: int
    pitch: int
    reads: bool
    writes: bool
    block: int
    rows: str = ""
    row_bytes: int = 0
    sum: bool = False

    @property
    def window(self) -> bool:
        """Return whether it goes through a window: chunks are contiguous bytes, or each piece has its own window."""
        if self.rows or self.taken.picks:
            return False
        return self.taken.pieces == 1 or self.taken.rows is not None

    def declared(self) -> str:
        """Return the declaration of its window."""
        pieces, at = self.taken.pieces, f"PO_AT({WORKSPACE}, {self.offset}u)"
        return (
            f"po_window po_w{self.number} = "
            f"{{{at}, b{self.number}, {self.nbytes // pieces}u, {pieces}u, {self.pitch}u, 0u, 0u}};"
        )

    def span(self, count: str) -> tuple[str, str]:
        """Return its chunk's first byte, and the one after its last."""
        at = FROM[self.taken.level]
        first, last = _rows(self.taken, at, f"({at} + {count})")
        return f"(uint32_t){first} * {self.taken.unit_bytes}u", f"(uint32_t){last} * {self.taken.unit_bytes}u"

    def enter(self, count: str) -> Iterator[str]:
        """Yield statements that bring its chunk into RAM, or make room for it."""
        begin, end = self.span(count)
        if self.window:
            reads = f"{BEGUN} ? 1 : 2" if self.sum else int(self.reads)
            yield f"PO_TRY(po_window_to(&po_w{self.number}, {begin}, {end}, {reads}));"
        elif self.rows and self.reads and not self.taken.picks:
            yield self._read(f"po_listed_in({self._listed(count)})", f"(uint32_t){count} * {self.taken.unit_bytes}u")
        elif self.reads and not self.taken.picks:
            nbytes = f"(uint32_t){count} * {self.taken.unit_bytes * self.taken.pieces}u"
            yield self._read(f"po_pieces_in({self._pieces(count)})", nbytes)

    def _read(self, call: str, nbytes: str) -> str:
        """Return the statement that reads a chunk, or fills it with zeros."""
        read = f"PO_TRY({call});"
        return f"if ({BEGUN}) {{ {read} }} else {{ (void)memset({self.at}, 0, {nbytes}); }}" if self.sum else read

    def leave(self, count: str) -> Iterator[str]:
        """Yield statements that write its chunk."""
        if self.writes and self.window:
            at = f"({FROM[self.taken.level]} + {count})"
            done, _ = _rows(self.taken, at, at)  # what the next chunk doesn't begin before
            begin, end = self.span(count)
            there = f"if ({begin} < {end}) " if self.taken.rows is not None else ""
            line = f"PO_TRY(po_window_out(&po_w{self.number}, (uint32_t){done} * {self.taken.unit_bytes}u));"
            yield f"{there}{{ {line} }}" if there else line
        elif self.writes and self.rows:
            yield f"PO_TRY(po_listed_out({self._listed(count)}));"
        elif self.writes:
            yield f"PO_TRY(po_pieces_out({self._pieces(count)}));"

    def picks(self) -> str:
        """Return the statement that reads its step `@`; "" where chunks are read."""
        if not self.taken.picks:
            return ""
        unit, number = self.taken.unit_bytes, f"{self.rows}[1 + (@)]" if self.rows else "(uint32_t)(@)"
        if unit % self.block:
            blocks = f"{-(-self.nbytes // self.block)}u, {windows.step_blocks(self.block, unit)}u"
            call = f"po_step_in(b{self.number}, {blocks}, {number} * {unit}u, {self.at}, {unit}u)"
            return self._read(call, f"{unit}u")
        block = f"b{self.number} + {number} * {unit // self.block}u"
        return self._read(f"po_read({block}, {self.at}, {unit}u)", f"{unit}u")

    def _listed(self, count: str) -> str:
        at, steps = FROM[self.taken.level], self.row_bytes // self.taken.unit_bytes
        return f"{self.rows}, b{self.number}, {self.at}, {self.row_bytes}u, {at} / {steps}, ({at} + {count}) / {steps}"

    def _pieces(self, count: str) -> str:
        unit = self.taken.unit_bytes
        begin = f"b{self.number} + (uint32_t){FROM[self.taken.level]} * {unit}u / {self.block}u"
        apart = f"{self.extent * unit // self.block}u"
        return (
            f"{begin}, {apart}, PO_AT({WORKSPACE}, {self.offset}u), (uint32_t){count} * {unit}u, {self.taken.pieces}u"
        )

    @property
    def at(self) -> str:
        """C address of its chunk."""
        if self.window:
            return f"po_window_at(&po_w{self.number}, {self.span('0')[0]})"
        return f"PO_AT({WORKSPACE}, {self.offset}u)"


class Function:
    """Statements of a function."""

    def __init__(
        self,
        operator: Operator,
        tensors: Mapping[str, Tensor],
        writer: Writer,
        detail: Streamed,
        run: Sequence[KernelStep],
        lists: Mapping[str, str] | None = None,
        sums: Collection[str] = (),
    ) -> None:
        self.operator, self.tensors, self.writer, self.detail, self.run = operator, tensors, writer, detail, run
        self.ran = as_run(operator, tensors)
        self.same = inner_storage(self.ran)
        self.old = {new: old for old, new in operator.updates}
        self.state: list[int] = []
        form = detail.form
        self.moved: dict[str, _Moved] = {}
        for k, (name, offset) in enumerate(zip(detail.streamed, detail.offsets, strict=True)):
            chunk_slice = form.slices[name]
            is_output = name not in operator.inputs
            writes = is_output or name in self.old.values()
            extent = form.loop(chunk_slice.level).extent
            pitch = detail.pitches[k]
            rows = (lists or {}).get(name, "")
            nbytes = tensors[name].nbytes
            row_list = rows, nbytes // tensors[name].shape[0] if rows else 0
            flags = not is_output, writes, detail.block, *row_list, name in sums
            self.moved[name] = _Moved(k, name, chunk_slice, extent, nbytes, offset, pitch, *flags)

    def lines(self) -> Iterator[str]:
        """Yield all statements."""
        form, detail = self.detail.form, self.detail
        for moved in self.moved.values():
            if moved.window:
                yield moved.declared()
        if form.outer is None:
            yield from self.step(0, form.tilings[0], "0")
        elif not form.fixed:
            head = _loop(OUTER, form.outer.extent, detail.outer)
            yield from _block(head, self.chunk(COUNT[OUTER]))
        else:
            extent, size = form.outer.extent, detail.outer
            whole, rest = divmod(extent, size)
            at = FROM[OUTER]
            yield from _block(
                [f"for (int32_t {at} = 0; {at} < {whole * size}; {at} += {size}) {{"], self.chunk(str(size))
            )
            if rest:
                yield from _block(["{", f"    const int32_t {at} = {whole * size};"], self.chunk(str(rest)))
        for step in self.run[len(form.tilings) :]:
            words = step.kernel.state(step.call)
            arguments = self.writer.arguments(step, len(self.state) if words else None)
            self.state += words
            yield f"/* {shown(step.call)} */"
            yield from step.kernel.code(step.call, arguments).splitlines()

    def chunk(self, count: str) -> Iterator[str]:
        """Yield a chunk of the outer loop."""
        moved_here = [moved for moved in self.moved.values() if moved.taken.level == OUTER]
        tilings = enumerate(self.detail.form.tilings)
        yield from _around(moved_here, count, (line for k, tiling in tilings for line in self.step(k, tiling, count)))

    def step(self, number: int, tiling: Tiling, count: str) -> Iterator[str]:
        """Yield a step's part of a chunk."""
        step = self.run[number]
        yield f"/* {shown(step.call)} */"
        for turn in tiling.rounds:
            yield from self.round(step, tiling, turn)
        if tiling.rounds:
            return
        if tiling.inner is None:
            yield from tiling.code(step.call, self.taken(step, tiling, (count, "0"))).splitlines()
            return
        moved_here = [moved for moved in self.moved.values() if moved.taken.level == INNER]
        code = tiling.code(step.call, self.taken(step, tiling, (count, COUNT[INNER])))
        head = _loop(INNER, tiling.inner.extent, self.detail.inner)
        yield from _block(head, _around(moved_here, COUNT[INNER], code.splitlines()))

    def round(self, step: KernelStep, tiling: Tiling, turn: Round) -> Iterator[str]:
        """Yield sweeps of the inner loop, and the code between them."""

        def body() -> Iterator[str]:
            for part in turn.parts:
                if isinstance(part, Sweep):
                    yield from self.sweep(step, tiling, part)
                else:
                    yield from part(step.call, self.taken(step, tiling, ("0", "0"), whole=True)).splitlines()

        yield from _block([turn.head], body()) if turn.head else body()

    def sweep(self, step: KernelStep, tiling: Tiling, part: Sweep) -> Iterator[str]:
        """Yield one pass of the inner loop, with its transfers."""
        operands = [step.call.inputs[k] for k in part.inputs] + [step.call.outputs[k] for k in part.outputs]
        names = {self.same.get(t.name, t.name) for t in operands if t is not None}
        moved_here = [moved for moved in self.moved.values() if moved.name in names]
        code = part.code(step.call, self.taken(step, tiling, ("0", COUNT[INNER])))
        head = _loop(INNER, part.end, self.detail.inner, part.begin)
        yield from _block(head, _around(moved_here, COUNT[INNER], code.splitlines()))

    def taken(self, step: KernelStep, tiling: Tiling, counts: tuple[str, str], *, whole: bool = False) -> Chunk:
        """Return the operands of a tiling's code; with `whole`, outside of its loops, without sliced operands."""

        def parts(operands: Sequence[Tensor | None], slices: Sequence[ChunkSlice | None]) -> tuple[Part, ...]:
            return tuple(
                Part("", "0")
                if t is None or (whole and s is not None)
                else Part(self.writer.of(t.name), "0")
                if s is None
                else self.part(t, s, counts)
                for t, s in zip(operands, slices, strict=True)
            )

        scratch = f"PO_AT({WORKSPACE}, {self.scratch_offset(step)}u)" if step.scratch_bytes else ""
        if tiling.scratch_bytes(self.detail.outer):
            scratch = f"PO_AT({WORKSPACE}, {self.detail.scratch_offset}u)"
        begin = (FROM[OUTER] if self.detail.form.outer is not None else "0", FROM[INNER] if tiling.inner else "0")
        return Chunk(
            parts(step.call.inputs, tiling.inputs), parts(step.call.outputs, tiling.outputs), begin, counts, scratch
        )

    def scratch_offset(self, step: KernelStep) -> int:
        """Return the offset of a kernel's own scratch among temporaries of a chunk's size."""
        return self.detail.layout.kernel_offsets[self.ran.nodes.index(step.call.node)]

    def part(self, tensor: Tensor, taken: ChunkSlice, counts: tuple[str, str]) -> Part:
        """Return the address and pitch of a chunk of a tensor."""
        width = DTYPE_BYTES[tensor.dtype]
        side_by_side = f"{counts[taken.level]} * {taken.unit_bytes // width}"
        name = self.same.get(tensor.name, tensor.name)
        layout = self.detail.layout
        if name in layout.offsets:
            return Part(self.writer.of(name), side_by_side)
        name = layout.storage.get(name, name)
        moved = self.moved.get(self.old.get(name, name))
        if moved is not None:
            return Part(moved.at, str(moved.pitch // width) if moved.pitch else side_by_side, moved.picks())
        extent = self.detail.form.loop(taken.level).extent if taken.rows is None else taken.rows.extent
        first, _ = _rows(taken, FROM[taken.level], "0")
        at = f"PO_AT({self.writer.of(name)}, (uint32_t){first} * {taken.unit_bytes}u)"
        return Part(at, str(extent * taken.unit_bytes // width))


def _rows(taken: ChunkSlice, begin: str, end: str) -> tuple[str, str]:
    """Return the first step, or row, of an operand for steps `begin` to `end` of a loop, and the end."""
    return (begin, end) if taken.rows is None else taken.rows.in_c(begin, end)


def _loop(level: int, extent: int, size: int, begin: int = 0) -> list[str]:
    """Return the head of a loop from `begin` to `extent`, and the declaration of its chunk's length."""
    at, count = FROM[level], COUNT[level]
    rest = f"{extent} - {at}"
    return [
        f"for (int32_t {at} = {begin}; {at} < {extent}; {at} += {size}) {{",
        f"    const int32_t {count} = {rest} < {size} ? {rest} : {size};"
        if (extent - begin) % size
        else f"    const int32_t {count} = {size};",
    ]


def _around(tensors: Sequence[_Moved], count: str, body: Iterable[str]) -> Iterator[str]:
    """Yield `body` between statements that read chunks of `mine` and that write them."""
    for moved in tensors:
        yield from moved.enter(count)
    yield from body
    for moved in tensors:
        yield from moved.leave(count)


def _block(head: Sequence[str], body: Iterator[str]) -> Iterator[str]:
    yield from head
    for line in body:
        yield f"    {line}" if line else line
    yield "}"
