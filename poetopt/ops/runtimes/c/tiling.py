"""Tilings of a kernel's call: one loop or two over chunks of its operands.

A tiling assigns operands to loops, and writes the C of one chunk. Sums keep the plain kernel's order: if a loop goes
over an axis that is summed up, its chunks are multiples of the parts in which the plain kernel sums.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from poetopt.graph import Tensor, bytes_of_elements
from poetopt.ops.runtimes.c.kernel import Arguments, Call

OUTER, INNER = 0, 1
FROM = ("po_o", "po_i")
"""C variables of the begin of each loop's chunk."""
COUNT = ("po_os", "po_is")
"""C variables of the length of each loop's chunk."""


def no_code(call: Call, chunk: Chunk) -> str:
    """Return "": a tiling in rounds has no code of its own."""
    return ""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop in steps of chunks.

    Attributes
    ----------
    extent
        Its steps: rows, channels, ...
    multiple
        All chunks but the last are multiples of it.
    most
        The largest useful chunk; 0 for any.
    """

    extent: int
    multiple: int = 1
    most: int = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of an operand that steps o to o + n of a loop need, if these aren't rows o to o + n.

    They are rows (o * step + low) / per to ((o + n) * step + high) / per, clipped to the operand. So neighbouring
    chunks may share rows: those that a convolution's taps reach, or a matrix for many rows of another.

    Attributes
    ----------
    extent
        Number of rows.
    """

    extent: int
    step: int = 1
    per: int = 1
    low: int = 0
    high: int = 0

    @classmethod
    def read(cls, extent: int, step: int, before: int, reach: int) -> Rows:
        """Return the rows of `extent` that windows read, `step` apart; the first begins `before` rows early.

        Parameters
        ----------
        reach
            Rows from the first tap to the last.
        """
        return cls(extent, step, 1, -before, reach + 1 - before - step)

    @classmethod
    def meeting(cls, extent: int, step: int, before: int, reach: int) -> Rows:
        """Return the windows of `extent` that read a row: the inverse of `read`."""
        return cls(extent, 1, step, before - reach + step - 1, before - 1 + step)

    def span(self, begin: int, end: int) -> tuple[int, int]:
        """Return the first row, and the one after the last, of steps `begin` to `end`."""
        first, last = (begin * self.step + self.low) // self.per, (end * self.step + self.high) // self.per
        return min(max(first, 0), self.extent), min(max(last, 0), self.extent)

    def in_c(self, begin: str, end: str) -> tuple[str, str]:
        """Return `span` as C expressions."""
        return self._bound(begin, self.low), self._bound(end, self.high)

    def _bound(self, at: str, more: int) -> str:
        rows = f"({at}) * {self.step} + {more}".replace("+ -", "- ")
        return f"po_within({rows if self.per == 1 else f'({rows}) / {self.per}'}, {self.extent})"


@dataclass(frozen=True, slots=True)
class ChunkSlice:
    """The slice of an operand that a chunk of a loop needs.

    Attributes
    ----------
    level
        OUTER or INNER.
    unit_bytes
        Bytes of the operand for each step of the loop, or for each of its rows.
    pieces
        Number of runs of bytes; their begins are the whole loop's bytes apart.
    rows
        The rows that it needs. Then pieces move on like windows: chunks need not be whole blocks, but a piece must.
    picks
        Number of single steps that all chunks together read, in an order that another operand has; 0 if chunks read
        consecutive steps. RAM has one step, and the tiling's code reads it (`Part.read`): it is always streamed.
    """

    level: int
    unit_bytes: int
    pieces: int = 1
    rows: Rows | None = None
    picks: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """The address of a chunk of an operand in C, and the elements between the begins of its pieces.

    Attributes
    ----------
    picks
        If its steps are read one by one, the statement that reads step `@` to `at`.
    """

    at: str
    apart: str
    picks: str = ""

    def read(self, step: str) -> str:
        """Return the C that reads a step into RAM, by its number in C; empty if the operand is in RAM."""
        return self.picks.replace("@", step)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Operands of the code of one chunk ("" for absent ones), and each loop's begin and count.

    A count is a number if the tiling is `fixed`.
    """

    inputs: tuple[Part, ...]
    outputs: tuple[Part, ...]
    begin: tuple[str, str]
    count: tuple[str, str]
    scratch: str = ""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One pass over some steps of the inner loop.

    Attributes
    ----------
    begin, end
        Its steps; chunks begin at `begin`.
    inputs, outputs
        Positions of the operands that it moves through the loop: the others wait.
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
    """Sweeps and the statements between them, repeated `times` times; a part that is no sweep writes a C statement.

    Attributes
    ----------
    head
        The head of a C loop, if `times` is more than 1.
    """

    parts: tuple[Sweep | Callable[[Call, Chunk], str], ...]
    times: int = 1
    head: str = ""

    def sweeps(self, inputs: Collection[int], outputs: Collection[int]) -> tuple[tuple[int, int], ...]:
        """Return begin and end of the sweeps that move one of these operands."""
        return tuple(
            (part.begin, part.end)
            for part in self.parts
            if isinstance(part, Sweep) and (set(inputs) & set(part.inputs) or set(outputs) & set(part.outputs))
        )


@dataclass(frozen=True, slots=True)
class Tiling:
    """A decomposition of a call into chunks.

    Attributes
    ----------
    outer, inner
        The loops; either may be missing. Other calls of the same operator may share tensors of the outer loop.
    inputs, outputs
        The slice of each operand; None if it is whole for all chunks.
    code
        Writes the C statement of one chunk.
    fixed
        Whether the code is written for one number of steps of the outer loop. Then pieces are adjacent.
    scratch_bytes
        Bytes that it needs beside the kernel's own scratch, by the steps of the outer loop in a chunk.
    rounds
        The rounds of the inner loop, if it runs more than once. Then it is the only loop, and there is no other code.
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
    """Return the slice of a chunk along an axis."""
    inner = bytes_of_elements(prod(tensor.shape[axis + 1 :]), tensor.dtype)
    return ChunkSlice(level, inner, prod(tensor.shape[:axis]))


ELEMENT_BYTES = 4
PART = 64
"""PO_PART: the number of products that are summed up before they join a sum of such sums."""


WHOLE = ("", "")
"""The axes of no loops."""


def whole(arguments: Arguments) -> Chunk:
    """Return the whole operands as one chunk."""
    inputs, outputs = (tuple(Part(at, "0") for at in of) for of in (arguments.inputs, arguments.outputs))
    return Chunk(inputs, outputs, ("0", "0"), ("0", "0"), arguments.scratch)


@dataclass(frozen=True, slots=True)
class LetterWays:
    """Axes of a computation, and those of each operand.

    Attributes
    ----------
    sizes
        Size of each axis, by its letter.
    inputs, outputs
        The letters of each operand, outermost first; None for one that stays whole.
    summed
        The axis that is summed up: only the inner loop can go over it.
    multiples
        The chunks of an axis are multiples of this number.
    fine
        Whether chunks of the summed axis are shorter than the parts that the plain kernel sums up. Then a part's
        partial sums of the first output lie beside it, or in its place if `alone`.
    alone
        Whether the summed axis is one part.
    buffers
        Number of further buffers beside the first output, as large as its chunk.
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
        """Return an operand's slice along the outermost of its axes that has a loop; None if none has."""
        for place, letter in enumerate(letters or ""):
            if letter in loops:
                assert letters is not None
                unit = prod(self.sizes[other] for other in letters[place + 1 :])
                pieces = prod(self.sizes[other] for other in letters[:place])
                return ChunkSlice(loops.index(letter), ELEMENT_BYTES * unit, pieces)
        return None

    def loop(self, letter: str) -> Loop | None:
        """Return the loop over an axis; None for ""."""
        if not letter:
            return None
        return Loop(
            self.sizes[letter], self.multiples.get(letter, 1), PART - 1 if self._has_short_chunks(letter) else 0
        )

    def _has_short_chunks(self, letter: str) -> bool:
        return self.fine and letter == self.summed

    def tilings(
        self, pairs: Sequence[tuple[str, str]], code: Callable[[LetterWays, tuple[str, str], Call, Chunk], str]
    ) -> tuple[Tiling, ...]:
        """Return the tilings by `pairs` (outer, inner; "" for none) that cut an operand and write each output once."""
        result: list[Tiling] = []
        for loops in pairs:
            if any(letter and self.sizes[letter] <= self.multiples.get(letter, 1) for letter in loops):
                continue
            ins = tuple(self.slice(letters, loops) for letters in self.inputs)
            outs = tuple(self.slice(letters, loops) for letters in self.outputs)
            rewrites = loops[OUTER] and any(s is not None and s.level == INNER for s in outs)
            if not rewrites and any((*ins, *outs)):

                def one(call: Call, chunk: Chunk, loops: tuple[str, str] = loops) -> str:
                    return code(self, loops, call, chunk)

                def part_bytes(outer: int, loops: tuple[str, str] = loops) -> int:
                    buffers = self.buffers + (self._has_short_chunks(loops[INNER]) and not self.alone)
                    letters = self.outputs[0] or ""
                    return (
                        ELEMENT_BYTES * buffers * prod(outer if x == loops[OUTER] else self.sizes[x] for x in letters)
                    )

                loop = self.loop(loops[OUTER]), self.loop(loops[INNER])
                result.append(Tiling(*loop, ins, outs, one, scratch_bytes=part_bytes))
        return tuple(result)

    def count(self, letter: str, loops: tuple[str, str], chunk: Chunk) -> str:
        """Return the number of steps of an axis in a chunk, in C."""
        return chunk.count[loops.index(letter)] if letter in loops else str(self.sizes[letter])

    def begin(self, letter: str, loops: tuple[str, str], chunk: Chunk) -> str:
        """Return the begin of a chunk on an axis, in C; "0" for an axis without a loop."""
        return chunk.begin[loops.index(letter)] if letter in loops else "0"

    def operand(self, letters: str, part: Part, loops: tuple[str, str], chunk: Chunk) -> tuple[str, dict[str, str]]:
        """Return a chunk's address as a C expression of a float pointer, and the elements between steps by axis."""
        own_slice = self.slice(letters, loops)
        cut = next((place for place, letter in enumerate(letters) if letter in loops), -1)
        apart: dict[str, str] = {}
        for place, letter in enumerate(letters):
            inner = prod(self.sizes[other] for other in letters[place + 1 :])
            before_cut = own_slice is not None and own_slice.pieces > 1 and place < cut
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
