"""The Sets of a `poet` model: Algorithm 1's pairs, by the places of operators and tensors in their order."""

from __future__ import annotations

from poetopt.formulations.poet.space import PoetSpace
from poetopt.formulations.sets import IndexSet


def _computes(space: PoetSpace) -> list[tuple[int, int]]:
    return space.computes


def _residences(space: PoetSpace) -> list[tuple[int, int]]:
    return space.residences


SETS = {
    "computes": IndexSet(_computes, 2, "(t, j): operator j may run in stage t"),
    "residences": IndexSet(
        _residences, 2, "(t, i): tensor i may be in RAM, or on storage, when stage t begins, or the step ends"
    ),
}
