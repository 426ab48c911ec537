"""Tilings of products of matrices: chunks of rows, of columns, and of what is summed up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from poetopt.runtimes.c.kernel import Call
from poetopt.runtimes.c.tiles.tiling import INNER, OUTER, Chunk, Loop, Part, Slice, Tiling

ELEMENT_BYTES = 4
PART = 64
"""PO_PART: so many products are summed up before they join a sum of such sums."""


@dataclass(frozen=True, slots=True)
class Ways:
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

    def slice(self, letters: str | None, loops: tuple[str, str]) -> Slice | None:
        """What an operand's chunk is: of the outermost of its axes that has a loop."""
        for place, letter in enumerate(letters or ""):
            if letter in loops:
                assert letters is not None
                unit = prod(self.sizes[other] for other in letters[place + 1 :])
                pieces = prod(self.sizes[other] for other in letters[:place])
                return Slice(loops.index(letter), ELEMENT_BYTES * unit, pieces)
        return None

    def loop(self, letter: str) -> Loop | None:
        """The loop over an axis."""
        if not letter:
            return None
        return Loop(self.sizes[letter], self.multiples.get(letter, 1), PART - 1 if self._pieces(letter) else 0)

    def _pieces(self, letter: str) -> bool:
        return self.fine and letter == self.summed

    def tilings(
        self, pairs: Sequence[tuple[str, str]], code: Callable[[Ways, tuple[str, str], Call, Chunk], str]
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
        """How many steps of an axis a chunk has, in C."""
        return chunk.count[loops.index(letter)] if letter in loops else str(self.sizes[letter])

    def begin(self, letter: str, loops: tuple[str, str], chunk: Chunk) -> str:
        """Where a chunk begins on an axis, in C; "0" for an axis without a loop."""
        return chunk.begin[loops.index(letter)] if letter in loops else "0"

    def operand(self, letters: str, part: Part, loops: tuple[str, str], chunk: Chunk) -> tuple[str, dict[str, str]]:
        """Where a chunk of an operand begins, as a C expression of a float pointer, and what lies between steps."""
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
