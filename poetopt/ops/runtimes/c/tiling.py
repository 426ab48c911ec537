"""Describes how a call of a kernel is taken apart: one loop or two over chunks of its operands.

A tiling says which operand goes through which loop, and writes the C of one chunk. Sums keep the plain kernel's order:
where a loop goes over what is summed up, its chunks are multiples of the parts in which the plain kernel sums.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from poetopt.graph import Tensor, bytes_of_elements
from poetopt.ops.runtimes.c.kernel import Arguments, Call

OUTER, INNER = 0, 1
FROM = ("po_o", "po_i")
"""C variables: where the chunk of each loop begins."""
COUNT = ("po_os", "po_is")
"""And how long it is."""


def no_code(call: Call, chunk: Chunk) -> str:
    """Of a tiling in rounds."""
    return ""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop in steps of chunks.

    extent
        What it goes over: rows, channels, ...
    multiple
        Chunks are multiples of it, but for the last.
    most
        The largest chunk that is worth it; 0 for any.
    """

    extent: int
    multiple: int = 1
    most: int = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """Says which rows of an operand the steps o to o + n of a loop take, where these aren't rows o to o + n.

    From (o * step + low) / per to ((o + n) * step + high) / per, as far as there are any. So neighbouring chunks may
    take the same rows: those that a convolution's taps reach, or a matrix for many rows of another.

    extent
        How many rows there are.
    """

    extent: int
    step: int = 1
    per: int = 1
    low: int = 0
    high: int = 0

    @classmethod
    def read(cls, extent: int, step: int, before: int, reach: int) -> Rows:
        """The rows that windows read, of so many: windows are `step` apart, and the first begins `before` rows early.

        reach
            How many rows the last tap is behind the first.
        """
        return cls(extent, step, 1, -before, reach + 1 - before - step)

    @classmethod
    def meeting(cls, extent: int, step: int, before: int, reach: int) -> Rows:
        """The other way round: the windows, of so many, that read a row."""
        return cls(extent, 1, step, before - reach + step - 1, before - 1 + step)

    def span(self, begin: int, end: int) -> tuple[int, int]:
        """The first row, and the one after the last, of steps `begin` to `end`."""
        first, last = (begin * self.step + self.low) // self.per, (end * self.step + self.high) // self.per
        return min(max(first, 0), self.extent), min(max(last, 0), self.extent)

    def in_c(self, begin: str, end: str) -> tuple[str, str]:
        """The same in C."""
        return self._bound(begin, self.low), self._bound(end, self.high)

    def _bound(self, at: str, more: int) -> str:
        rows = f"({at}) * {self.step} + {more}".replace("+ -", "- ")
        return f"po_within({rows if self.per == 1 else f'({rows}) / {self.per}'}, {self.extent})"


@dataclass(frozen=True, slots=True)
class ChunkSlice:
    """Holds what of an operand a chunk of a loop takes.

    level
        OUTER or INNER.
    unit_bytes
        Of the operand, for each step of the loop, or for each of its rows.
    pieces
        How many runs of bytes that is, as far apart as the whole loop's bytes.
    rows
        Which rows it takes. Then pieces move on as windows do: chunks need not be whole blocks, a piece must be.
    picks
        How many of its steps all chunks together read, one by one, in an order that another operand says; 0 where
        chunks take steps in a row. RAM holds one, and the tiling's code reads it (`Part.read`): it is always streamed.
    """

    level: int
    unit_bytes: int
    pieces: int = 1
    rows: Rows | None = None
    picks: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """Says where a chunk of an operand begins, in C, and how many elements lie between the begins of its pieces.

    picks
        Where its steps are read one by one: the statement that reads step `@` to `at`.
    """

    at: str
    apart: str
    picks: str = ""

    def read(self, step: str) -> str:
        """Gives what has a step in RAM, by its number in C; nothing where the operand is."""
        return self.picks.replace("@", step)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Operands of the code of one chunk, "" for what is absent, and each loop's begin and count.

    A count is a number where the tiling is `fixed`.
    """

    inputs: tuple[Part, ...]
    outputs: tuple[Part, ...]
    begin: tuple[str, str]
    count: tuple[str, str]
    scratch: str = ""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One pass over some steps of the inner loop.

    begin, end
        Which steps; chunks begin there.
    inputs, outputs
        Which operands it takes, by position: the others that go through the loop wait.
    code
        The C statement of one chunk.
    """

    begin: int
    end: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    code: Callable[[Call, Chunk], str]


@dataclass(frozen=True, slots=True)
class Round:
    """Sweeps and what is between them, `times` times over; each of `parts` that is no sweep writes a C statement.

    head
        The head of a C loop, where it is more than once.
    """

    parts: tuple[Sweep | Callable[[Call, Chunk], str], ...]
    times: int = 1
    head: str = ""

    def sweeps(self, inputs: Collection[int], outputs: Collection[int]) -> tuple[tuple[int, int], ...]:
        """Begin and end of those that take one of these operands."""
        return tuple(
            (part.begin, part.end)
            for part in self.parts
            if isinstance(part, Sweep) and (set(inputs) & set(part.inputs) or set(outputs) & set(part.outputs))
        )


@dataclass(frozen=True, slots=True)
class Tiling:
    """A way to take a call apart.

    outer, inner
        The loops; either may be missing. What goes through the outer one may be shared with other calls of the same
        operator.
    inputs, outputs
        Of each operand; None: it is whole for all chunks.
    code
        The C statement of one chunk.
    fixed
        Whether the code is written for one number of steps of the outer loop. Then pieces lie side by side.
    scratch_bytes
        What it needs beside the kernel's own scratch, by the steps of the outer loop in a chunk.
    rounds
        Where the inner loop is gone through more than once: how. Then it is the only loop, and there is no other code.
    """

    outer: Loop | None
    inner: Loop | None
    inputs: tuple[ChunkSlice | None, ...]
    outputs: tuple[ChunkSlice | None, ...]
    code: Callable[[Call, Chunk], str]
    fixed: bool = False
    scratch_bytes: Callable[[int], int] = lambda outer: 0
    rounds: tuple[Round, ...] = ()


def sliced(tensor: Tensor, axis: int, level: int = OUTER) -> ChunkSlice:
    """Chunks of an axis."""
    inner = bytes_of_elements(prod(tensor.shape[axis + 1 :]), tensor.dtype)
    return ChunkSlice(level, inner, prod(tensor.shape[:axis]))


ELEMENT_BYTES = 4
PART = 64
"""PO_PART: so many products are summed up before they join a sum of such sums."""


WHOLE = ("", "")
"""No loops: all at once."""


def whole(arguments: Arguments) -> Chunk:
    """All of the operands as one chunk."""
    inputs, outputs = (tuple(Part(at, "0") for at in of) for of in (arguments.inputs, arguments.outputs))
    return Chunk(inputs, outputs, ("0", "0"), ("0", "0"), arguments.scratch)


@dataclass(frozen=True, slots=True)
class LetterWays:
    """Axes of a computation, and which of them each operand has, outermost first; None for what stays whole.

    sizes
        Of each axis, by its letter.
    inputs, outputs
        The letters of each operand.
    summed
        What is summed up: it can be the inner loop's alone.
    multiples
        What the chunks of an axis are multiples of.
    fine
        Whether chunks of what is summed up are shorter than the parts that the plain kernel sums up: then the first
        output's sums so far of a part lie beside it, or in its place where `alone`.
    alone
        Whether all that is summed up is one part.
    buffers
        How many more buffers there are beside the first output, as large as its chunk.
    """

    sizes: Mapping[str, int]
    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]
    summed: str = ""
    multiples: Mapping[str, int] = field(default_factory=dict)
    fine: bool = False
    alone: bool = False
    buffers: int = 0

    def slice(self, letters: str | None, loops: tuple[str, str]) -> ChunkSlice | None:
        """Gives what an operand's chunk is: of the outermost of its axes that has a loop."""
        for place, letter in enumerate(letters or ""):
            if letter in loops:
                assert letters is not None
                unit = prod(self.sizes[other] for other in letters[place + 1 :])
                pieces = prod(self.sizes[other] for other in letters[:place])
                return ChunkSlice(loops.index(letter), ELEMENT_BYTES * unit, pieces)
        return None

    def loop(self, letter: str) -> Loop | None:
        """The loop over an axis."""
        if not letter:
            return None
        return Loop(self.sizes[letter], self.multiples.get(letter, 1), PART - 1 if self._pieces(letter) else 0)

    def _pieces(self, letter: str) -> bool:
        return self.fine and letter == self.summed

    def tilings(
        self, pairs: Sequence[tuple[str, str]], code: Callable[[LetterWays, tuple[str, str], Call, Chunk], str]
    ) -> tuple[Tiling, ...]:
        """Those of `pairs` (outer, inner; "" for none) that take anything apart, and write each output once."""
        found: list[Tiling] = []
        for loops in pairs:
            if any(letter and self.sizes[letter] <= self.multiples.get(letter, 1) for letter in loops):
                continue
            ins = tuple(self.slice(letters, loops) for letters in self.inputs)
            outs = tuple(self.slice(letters, loops) for letters in self.outputs)
            again = loops[OUTER] and any(s is not None and s.level == INNER for s in outs)
            if not again and any((*ins, *outs)):

                def one(call: Call, chunk: Chunk, loops: tuple[str, str] = loops) -> str:
                    return code(self, loops, call, chunk)

                def part_bytes(outer: int, loops: tuple[str, str] = loops) -> int:
                    buffers = self.buffers + (self._pieces(loops[INNER]) and not self.alone)
                    letters = self.outputs[0] or ""
                    return (
                        ELEMENT_BYTES * buffers * prod(outer if x == loops[OUTER] else self.sizes[x] for x in letters)
                    )

                loop = self.loop(loops[OUTER]), self.loop(loops[INNER])
                found.append(Tiling(*loop, ins, outs, one, scratch_bytes=part_bytes))
        return tuple(found)

    def count(self, letter: str, loops: tuple[str, str], chunk: Chunk) -> str:
        """Says how many steps of an axis a chunk has, in C."""
        return chunk.count[loops.index(letter)] if letter in loops else str(self.sizes[letter])

    def begin(self, letter: str, loops: tuple[str, str], chunk: Chunk) -> str:
        """Says where a chunk begins on an axis, in C; "0" for an axis without a loop."""
        return chunk.begin[loops.index(letter)] if letter in loops else "0"

    def operand(self, letters: str, part: Part, loops: tuple[str, str], chunk: Chunk) -> tuple[str, dict[str, str]]:
        """Locates a chunk of an operand, as a C expression of a float pointer, with what lies between steps."""
        own = self.slice(letters, loops)
        cut = next((place for place, letter in enumerate(letters) if letter in loops), -1)
        apart: dict[str, str] = {}
        for place, letter in enumerate(letters):
            inner = prod(self.sizes[other] for other in letters[place + 1 :])
            before_cut = own is not None and own.pieces > 1 and place < cut
            if before_cut:
                between = prod(self.sizes[other] for other in letters[place + 1 : cut])
                apart[letter] = part.apart if between == 1 else f"{between} * ({part.apart})"
            else:
                apart[letter] = str(inner)
        terms = [
            f"{chunk.begin[loops.index(letter)]} * {apart[letter]}"
            for place, letter in enumerate(letters)
            if letter in loops and place != cut
        ]
        at = f"(float *){part.at}" if not terms else f"(float *){part.at} + {' + '.join(terms)}"
        return at, apart
