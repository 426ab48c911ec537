"""A block, one piece of mathematics: what it fills, what it contributes, and how plans are judged by its rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol, runtime_checkable

import pyomo.core as pyo
from pyomo.common.numeric_types import native_types
from pyomo.core.base.var import VarData

from poetopt.formulations.goal import SUMS, Goal, Trial
from poetopt.formulations.rows import PointLike, Row, Terms, linear
from poetopt.graph.problem import Problem
from poetopt.util import work
from poetopt.util.errors import FormulationError


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
    """Put those of the Sets on an abstract model that aren't there."""
    for name, declared in sets.items():
        if model.component(name) is None:
            members = _Members(declared.members)
            model.add_component(name, pyo.Set(initialize=members, dimen=declared.dimen, doc=declared.doc))


class _Members:
    """Pyomo's rule for a Set, from a function of the space."""

    def __init__(self, members: Callable[[Any], Iterable[Any]]) -> None:
        self._members = members

    def __call__(self, model: Any) -> Iterable[Any]:
        return self._members(model.space)


class OrZero(dict[Any, Any]):
    """Entries of a variable by index; 0 where there is none: what can't run, be kept or move."""

    def __missing__(self, index: object) -> float:
        return 0.0


def equation(index: Any, rule: Callable[..., PyomoRow], doc: str) -> pyo.Constraint:
    """The Constraint with one row for each member of `index`, of a rule that is stated in its symbols.

    Raises TimeUpError inside of `clock.ending`.
    """

    def row(_: PyomoBlock, *member: Any) -> PyomoRow:
        work.check()
        return rule(*member)

    return pyo.Constraint(index, rule=row, doc=doc)


PyomoBlock = Any
"""A pyo.Block under construction: its attributes are its components, which no type can list."""

PyomoRow = Any
"""The result of a constraint's rule: (lower, LinearExpression, upper), or Constraint.Skip and its kin."""

Separator = Callable[[PyomoBlock, PointLike], list[Row]]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits that a schedule must keep.

    ram_bytes
        Budget of everything that is not resident.
    compute_s
        Bound on the sum of all compute times, or None.
    makespan_s
        Bound on compute and transfers as the device overlaps them, or None.
    hidden_share
        On a device with DMA, at most this part of the transfers' time counts as hidden; below 1 the model is tighter
        than the deadline.
    ceiling_j
        Only schedules of at most so many joules above one pass matter: what is in none of them may be left out.
        Infinite unless something is known, and all costs are the problem's.
    open
        Whether they and all costs may change after a model is built, so that nothing is left out that rests on them.
    """

    ram_bytes: int
    compute_s: float | None = None
    makespan_s: float | None = None
    hidden_share: float = 1.0
    ceiling_j: float = math.inf
    open: bool = False


class Kind(Enum):
    """How much a space leaves out.

    LEAN
        Decisions that no optimum of energy needs.
    WHOLE
        What is better in no sum of joules, seconds or bytes.
    TIMED
        No stage of a transfer.
    SHADOW
        Nothing that a plan may do: each has a point that costs no more, and not every point is a plan.
    """

    LEAN = "lean"
    WHOLE = "whole"
    TIMED = "timed"
    SHADOW = "shadow"


@runtime_checkable
class Space(Protocol):
    """The decisions that exist: the index sets of a formulation, as arrays.

    name
        How results call it: `depth<=8`, `needed`, `forward`, `full`.
    """

    @property
    def problem(self) -> Problem: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def name(self) -> str: ...
    @property
    def paging(self) -> bool: ...


@dataclass(frozen=True)
class Block:
    """One piece of mathematics.

    name
        The attribute under which it stands on the model.
    build
        Fills the pyo.Block; reads `block.model().space` and the blocks that it requires. Its docstring
        holds the mathematics, and the meaning of each symbol, which becomes the `doc` of what has the attribute's name.
    requires
        Names of blocks that must stand before it.
    separator
        Optional: (block, point) -> the rows that the point violates, none that it keeps. Asked at points of relaxations
        and at solutions; at solutions only `core` rows count.
    revive
        Optional, with a separator whose rows have keys: the row of a key, in the variables of another scope,
        or None where it has none.
    when
        Optional: whether the block is needed in a space at all; always, where it is None.
    collects
        Whether it reads what the others contribute, so that it stands after them (see `Formulation.with_block` for
        the order among such blocks).
    says
        What it asks for, in a few words for people: `at most 10 MB written a step`.

    A function that raises, or returns what it can't, is told by the block's name in a FormulationError.

    How simulated plans are judged; the model may be a relaxation of it:

    refuses
        Optional: why a simulated plan breaks the block's rule, or None where it keeps it.
    restricts
        Whether the block forbids schedules that the simulator passes. One that does, and has no `refuses`, makes
        every formulation with it strict: only what the solver finds counts, and no heuristic's plan.
    adds_j
        Optional: joules of a simulated plan beyond what the simulator and the blocks before this one count, above those
        of `base_j`. The trial has all that is counted so far.
    base_j
        Optional: (problem, joules of one compute of each operator so far) -> what it adds to these.
    impossible
        Optional: (problem, baseline joules) -> why no schedule at all can keep the block's rule, where that is plain.
    reserve_bytes
        Optional: bytes of RAM that it takes for the whole step.
    goal
        Optional: what is minimised instead of energy.
    transfer_times
        Whether it may matter to the block in which stage a tensor is moved: to its rows, its joules, or its judgement
        of plans. False promises that it doesn't, so that each tensor is written as soon as it is made, and read back
        where it is first needed: fewer decisions, and quicker proofs. None: it does, unless the block neither forbids
        nor prices any plan.
    limits
        Optional: the quantity that it bounds from above. Where there is no schedule, the refusal names the least of it
        that a search finds.
    """

    name: str
    build: Callable[[PyomoBlock], None]
    requires: tuple[str, ...] = ()
    separator: Separator | None = None
    when: Callable[[Space], bool] | None = None
    revive: Callable[[PyomoBlock, object], Row | None] | None = None
    collects: bool = False
    says: str = ""
    refuses: Callable[[Trial], str | None] | None = None
    restricts: bool = True
    adds_j: Callable[[Trial], float] | None = None
    base_j: Callable[[Problem, float], float] | None = None
    impossible: Callable[[Problem, float], str | None] | None = None
    reserve_bytes: Callable[[Problem], int] | None = None
    goal: Goal | None = None
    limits: Goal | None = None
    transfer_times: bool | None = None

    @property
    def cares_when(self) -> bool:
        """Say whether it may matter to it in which stage a tensor is moved."""
        if self.transfer_times is not None:
            return self.transfer_times
        return self.restricts or self.adds_j is not None or self.goal not in (None, *SUMS)


def at_most(parts: Sequence[Terms], most: Any, unit: Any) -> PyomoRow:
    """The row that the sum of `parts` is no more than `most`, over `unit`; without variables whether that holds."""
    if not any(part.variables for part in parts):
        return pyo.Constraint.Feasible if pyo.value(most) >= 0 else pyo.Constraint.Infeasible
    return None, linear(parts, unit), most / unit


def baseline_before_j(block: PyomoBlock) -> float:
    """Joules of one compute of each operator, with what the blocks before this one add."""
    found: float = block.model().baselines_j[block.local_name]
    return found


def contributions(model: Any, attribute: str, names: Iterable[str] | None = None) -> list[Terms]:
    """The contributions of the model's blocks under `attribute` (see the table of `language`), in building order.

    names
        Of these blocks alone; None: of all.

    Raises FormulationError for what isn't made by `terms`, and for variables or coefficients that can't be.
    """
    found = []
    for name in model.block_names if names is None else names:
        given = getattr(model.component(name), attribute, None)
        if given is None:
            continue
        wrong = _no_terms(given)
        if wrong is not None:
            raise FormulationError(f"block '{name}': {attribute} {wrong}")
        found.append(_with_units(given, attribute) if model.space.limits.open else given)
    return found


def _with_units(given: Terms, attribute: str) -> Terms:
    """The same, numbers among its coefficients in the unit of the Params that others are."""
    from poetopt.formulations.parameters import UNITS  # units take Pyomo half a second

    unit = UNITS.get(attribute.rpartition("_")[2], 1.0) if attribute != "written_bytes" else 1.0
    return Terms(given.variables, [c * unit if c.__class__ in native_types else c for c in given.coefficients])


def _no_terms(given: object) -> str | None:
    """The fault in it, without a step of Python for each entry."""
    if not isinstance(given, Terms):
        return f"must be made by `terms`, and is a {type(given).__name__}"
    try:
        if len(given.variables) != len(given.coefficients):
            return f"has {len(given.variables)} variables and {len(given.coefficients)} coefficients"
        kinds = [kind for kind in set(map(type, given.variables)) if not issubclass(kind, VarData)]
        if kinds:
            return f"has a {kinds[0].__name__} in place of a variable"
        if not math.isfinite(sum(map(pyo.value, given.coefficients))):
            return "has a coefficient that is not finite"
    except (TypeError, ValueError) as error:
        return f"isn't made as `terms` does: {error}"
    return None
