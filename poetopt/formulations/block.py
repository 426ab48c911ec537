"""A block, one piece of mathematics: its components, its contributions, and its evaluation of plans."""

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

    Attributes
    ----------
    members
        space -> the members, in the order of the entries of variables and rows over the Set. It must be a module-level
        function, so that models pickle.
    dimen
        Number of parts of a member.
    doc
        Text for people.
    """

    members: Callable[[Any], Iterable[Any]]
    dimen: int
    doc: str


class _Named(Protocol):
    @property
    def name(self) -> str: ...


def distinct(things: Iterable[_Named]) -> tuple[str, ...]:
    """Return the names of `things`, each once: a name that repeats gets its index appended, such as `conv#7`."""
    used: set[str] = set()
    names = []
    for index, thing in enumerate(things):
        name = thing.name if thing.name not in used else f"{thing.name}#{index}"
        used.add(name)
        names.append(name)
    return tuple(names)


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
"""Sets of every model."""


def declare(model: Any, sets: Mapping[str, IndexSet]) -> None:
    """Add the Sets that an abstract model lacks."""
    for name, declared in sets.items():
        if model.component(name) is None:
            members = _Members(declared.members)
            model.add_component(name, pyo.Set(initialize=members, dimen=declared.dimen, doc=declared.doc))


class _Members:
    """Rule of a Pyomo Set, from a function of the space."""

    def __init__(self, members: Callable[[Any], Iterable[Any]]) -> None:
        self._members = members

    def __call__(self, model: Any) -> Iterable[Any]:
        return self._members(model.space)


class OrZero(dict[Any, Any]):
    """Entries of a variable by index; 0 for an index without a decision."""

    def __missing__(self, index: object) -> float:
        return 0.0


def equation(index: Any, rule: Callable[..., PyomoRow], doc: str) -> pyo.Constraint:
    """Return a Constraint with one row for each member of `index`.

    Parameters
    ----------
    rule
        Function of the parts of a member, without the block.

    Raises
    ------
    TimeUpError
        The time of `clock.ending` is over.
    """

    def row(_: PyomoBlock, *member: Any) -> PyomoRow:
        work.check()
        return rule(*member)

    return pyo.Constraint(index, rule=row, doc=doc)


PyomoBlock = Any
"""A pyo.Block under construction. Its attributes are its components, which no type can list."""

PyomoRow = Any
"""Result of a constraint's rule: (lower, LinearExpression, upper), an inequality, or Skip, Feasible, Infeasible."""

Separator = Callable[[PyomoBlock, PointLike], list[Row]]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits that a schedule must satisfy.

    Attributes
    ----------
    ram_bytes
        Budget of everything that is not resident.
    compute_s
        Bound on the sum of all compute times, or None.
    makespan_s
        Bound on compute and transfers as the device overlaps them, or None.
    hidden_share
        On a device with DMA, at most this share of the transfers' time counts as hidden. Below 1 the model is tighter
        than the deadline.
    ceiling_j
        Only schedules of at most this many joules above one pass matter. The model may leave out decisions that none
        of them has. Infinite unless a bound is known and all costs are those of the problem.
    open
        Whether these limits and all costs may change after the build. The model then leaves nothing out because of
        them.
    """

    ram_bytes: int
    compute_s: float | None = None
    makespan_s: float | None = None
    hidden_share: float = 1.0
    ceiling_j: float = math.inf
    open: bool = False


class Kind(Enum):
    """Decisions that a space leaves out.

    LEAN
        It leaves out decisions that no optimum of energy needs.
    WHOLE
        It leaves out decisions that improve no sum of joules, seconds or bytes.
    TIMED
        It keeps every stage in which a transfer may happen.
    SHADOW
        It leaves out no plan: each plan has a point that costs no more, but not every point is a plan.
    """

    LEAN = "lean"
    WHOLE = "whole"
    TIMED = "timed"
    SHADOW = "shadow"


@runtime_checkable
class Space(Protocol):
    """The decisions that exist: the index sets of a formulation, as arrays.

    Attributes
    ----------
    name
        Its name in results: `depth<=8`, `needed`, `forward`, `full`.
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

    A function of a block that raises, or returns an invalid result, causes a FormulationError with the block's name.

    Attributes
    ----------
    name
        Attribute of the model that holds the block.
    build
        Function that fills the pyo.Block. It reads `block.model().space` and the blocks that it requires. Its docstring
        holds the mathematics and the meaning of each symbol, which becomes the `doc` of the component with the
        attribute's name.
    requires
        Names of blocks that must come before it.
    separator
        Optional: (block, point) -> the rows that the point violates, and no others. The search calls it at points of
        relaxations and at solutions; at solutions only `core` rows count.
    revive
        Optional, with a separator whose rows have keys: (block, key) -> the row of the key in the variables of another
        scope, or None if that scope has no such row.
    when
        Optional: space -> whether the space needs the block. None: every space does.
    collects
        Whether it reads the contributions of other blocks and so comes after them (see `Formulation.with_block` for
        the order among such blocks).
    says
        Its requirement in a few words for people: `at most 10 MB written a step`.
    refuses
        Optional: trial -> why a simulated plan breaks the block's rule, or None. The model may be a relaxation of this
        rule.
    restricts
        Whether the block forbids schedules that the simulator passes. Such a block without `refuses` makes every
        formulation with it strict: only points of the solver count as results, and no plan of a heuristic.
    adds_j
        Optional: trial -> joules of a simulated plan in addition to those that the simulator, `base_j` and the blocks
        before this one count. The trial holds the sum so far.
    base_j
        Optional: (problem, joules of one compute of each operator so far) -> joules that it adds to these.
    impossible
        Optional: (problem, baseline joules) -> why no schedule can satisfy the block's rule, if that is known without a
        search.
    reserve_bytes
        Optional: problem -> bytes of RAM that it takes for the whole step.
    goal
        Optional: the quantity to minimise instead of energy.
    transfer_times
        Whether the stage of a transfer may matter to the block's rows, joules or evaluation of plans. False promises
        that it doesn't. Each tensor is then written right after its compute and read back at its first use, which
        means fewer decisions and faster proofs. None: it may matter, unless the block neither forbids nor prices any
        plan.
    limits
        Optional: the quantity that it bounds from above. If no schedule exists, the message names the least value that
        a search finds.
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
    def depends_on_stages(self) -> bool:
        """Return whether the block may depend on the stage of a transfer."""
        if self.transfer_times is not None:
            return self.transfer_times
        return self.restricts or self.adds_j is not None or self.goal not in (None, *SUMS)


def at_most(parts: Sequence[Terms], most: Any, unit: Any) -> PyomoRow:
    """Return the row (sum of `parts`) / unit <= most / unit; without variables, Feasible or Infeasible."""
    if not any(part.variables for part in parts):
        return pyo.Constraint.Feasible if pyo.value(most) >= 0 else pyo.Constraint.Infeasible
    return None, linear(parts, unit), most / unit


def baseline_before_j(block: PyomoBlock) -> float:
    """Return the joules of one compute of each operator, with what the blocks before this one add."""
    joules: float = block.model().baselines_j[block.local_name]
    return joules


def contributions(model: Any, attribute: str, names: Iterable[str] | None = None) -> list[Terms]:
    """Return the contributions of the model's blocks under `attribute` (see `language`), in building order.

    Parameters
    ----------
    names
        Names of the blocks to read; None: all blocks.

    Raises
    ------
    FormulationError
        A contribution isn't made by `terms`, or has invalid variables or coefficients.
    """
    collected = []
    for name in model.block_names if names is None else names:
        part = getattr(model.component(name), attribute, None)
        if part is None:
            continue
        fault = _terms_fault(part)
        if fault is not None:
            raise FormulationError(f"block '{name}': {attribute} {fault}")
        collected.append(_with_units(part, attribute) if model.space.limits.open else part)
    return collected


def _with_units(part: Terms, attribute: str) -> Terms:
    """Return the terms with plain numbers among the coefficients given the unit of the Params."""
    from poetopt.formulations.parameters import UNITS  # units take Pyomo half a second

    unit = UNITS.get(attribute.rpartition("_")[2], 1.0) if attribute != "written_bytes" else 1.0
    return Terms(part.variables, [c * unit if c.__class__ in native_types else c for c in part.coefficients])


def _terms_fault(part: object) -> str | None:
    """Return what is wrong with a contribution, or None, without a Python step for each entry."""
    if not isinstance(part, Terms):
        return f"must be made by `terms`, and is a {type(part).__name__}"
    try:
        if len(part.variables) != len(part.coefficients):
            return f"has {len(part.variables)} variables and {len(part.coefficients)} coefficients"
        kinds = [kind for kind in set(map(type, part.variables)) if not issubclass(kind, VarData)]
        if kinds:
            return f"has a {kinds[0].__name__} in place of a variable"
        if not math.isfinite(sum(map(pyo.value, part.coefficients))):
            return "has a coefficient that is not finite"
    except (TypeError, ValueError) as error:
        return f"isn't made by `terms`: {error}"
    return None
