"""What variables and rows are indexed by: Pyomo's Sets, by the names that operators and tensors have."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import pyomo.environ as pyo

from poetopt.formulations.block import PyomoBlock, PyomoRow, Space


class IndexSet(NamedTuple):
    """A Set of a model.

    members
        space -> the members, in the order of the entries of whatever is indexed by them. A function of a module, so
        that models pickle.
    dimen
        How many parts a member has.
    doc
        For people.
    """

    members: Callable[[Any], Iterable[Any]]
    dimen: int
    doc: str


class _Named(Protocol):
    @property
    def name(self) -> str: ...


def distinct(things: Iterable[_Named]) -> tuple[str, ...]:
    """Their names; where two have the same, the later one's has its place behind it: `conv#7`."""
    seen: set[str] = set()
    found = []
    for place, thing in enumerate(things):
        name = thing.name if thing.name not in seen else f"{thing.name}#{place}"
        seen.add(name)
        found.append(name)
    return tuple(found)


def _operators(space: Space) -> tuple[str, ...]:
    return distinct(space.problem.operators)


def _tensors(space: Space) -> tuple[str, ...]:
    return distinct(space.problem.tensors)


def _stages(space: Space) -> range:
    return range(len(space.problem.operators))


SETS: dict[str, IndexSet] = {
    "operators": IndexSet(_operators, 1, "operators, in the order of their first computes"),
    "tensors": IndexSet(_tensors, 1, "tensors that are scheduled"),
    "stages": IndexSet(_stages, 1, "stages: t ends with the first compute of operator t"),
}
"""Of every model."""


def declare(model: Any, sets: Mapping[str, IndexSet]) -> None:
    """Put the Sets on an abstract model that has its space."""
    for name, declared in {**SETS, **sets}.items():
        model.add_component(
            name, pyo.Set(initialize=_Members(declared.members), dimen=declared.dimen, doc=declared.doc)
        )


class _Members:
    """Pyomo's rule for a Set, from a function of the space."""

    def __init__(self, members: Callable[[Any], Iterable[Any]]) -> None:
        self._members = members

    def __call__(self, model: Any) -> Iterable[Any]:
        return self._members(model.space)


def in_order(rule: Callable[[PyomoBlock, int], PyomoRow]) -> Callable[..., PyomoRow]:
    """A Constraint's rule over a Set's members, of one over their places 0, 1, ...: Pyomo asks once each, in order."""
    places = itertools.count()
    return lambda block, *_: rule(block, next(places))
