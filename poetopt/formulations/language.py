"""The modelling language: blocks, the formulations made of them, and rows that arrive late.

A *block* is a plain function that fills a Pyomo `Block`: sets, variables, constraints, and what it
adds to energy and time. A *formulation* is an ordered tuple of blocks over a *space* (which decisions
exist at all); `Formulation.abstract` puts them on an AbstractModel, and the objective collects what
the blocks contribute last, so that a block added later is never left out of it.

A block contributes by setting any of these on itself:

| attribute       | unit  | meaning                                             |
|-----------------|-------|-----------------------------------------------------|
| `energy_j`      | J     | joules above one compute of each operator           |
| `compute_s`     | s     | seconds of computing above one compute of each      |
| `transfer_s`    | s     | seconds on the transfer channel                     |
| `written_bytes` | bytes | what is written to storage                          |
| `late_s`        | s     | makespan above one pass, where it is minimised      |

Each is a pair (variables, coefficients) made by `terms`. Memory is contributed in bytes that a block takes out
of the budget for the whole step (`Block.reserve_bytes`). Rows that are too many to write down come
from a block's *separator*: given a point it returns violated rows in the block's own variables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import pyomo.environ as pyo
from pyomo.core.expr.numeric_expr import LinearExpression

from poetopt.errors import FormulationError
from poetopt.formulations.block import Block, Limits, PyomoBlock, PyomoRow, Separator, Space, contributions
from poetopt.formulations.callbacks import answer, checked, fill, told_once
from poetopt.formulations.goal import ENERGY, Goal, Trial
from poetopt.formulations.rows import Count, Floats, Ints, PointLike, Row, Terms, linear, terms
from poetopt.garbage import building
from poetopt.problem import Problem, check_problem
from poetopt.schedule import Leaning, Schedule

if TYPE_CHECKING:
    from poetopt.plan.instructions import Plan
    from poetopt.plan.simulate import Simulation

__all__ = [
    "Block",
    "Count",
    "Floats",
    "Formulation",
    "GivesUp",
    "Ints",
    "Limits",
    "PointLike",
    "PyomoBlock",
    "PyomoRow",
    "Row",
    "Separator",
    "Space",
    "StageLabels",
    "StageSearch",
    "Terms",
    "contributions",
    "linear",
    "terms",
]


def _no_depth(scope: str) -> float:
    return math.inf


class GivesUp(Protocol):
    """See `Formulation.gives_up`."""

    def __call__(self, model: Any, schedule: Schedule, values: list[tuple[Any, Floats]], *, late: bool) -> Row: ...


class StageSearch(Protocol):
    """An exact search of one scope that has no relaxation."""

    @property
    def least_j(self) -> float:
        """What is plain of any schedule before a search."""
        ...

    def begin(self, ceiling_j: float, seed: int | None = None) -> StageLabels:
        """A search below limits that grow, up to a ceiling.

        seed
            Of what decides between schedules that cost the same.
        """
        ...


class StageLabels(Protocol):
    """One search, and what it found so far."""

    def below(self, limit_j: float, until: float) -> tuple[float, Schedule] | bool:
        """The cheapest schedule, if it costs less than `limit_j`; True: there is none; False: it was given up.

        limit_j
            No less than the one before, and no more than the ceiling.
        until
            The moment (of `time.monotonic`) at which it is given up, for good.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Formulation:
    """An ordered tuple of blocks over a space.

    name, doc
        For `--formulation` and for people.
    blocks
        In building order.
    space
        (problem, limits, scope, paging, remat) -> Space. Raises FormulationError for a scope that it doesn't have.
    whole_space
        Optional: the same with the decisions that `space` leaves out because no optimum of energy needs them. A
        formulation with further blocks has that, as they may need them.
    stages
        Optional: model -> for each integer variable, the stage of each of its entries. With it the solve loop
        can search the neighbourhood of a schedule, a few adjacent stages at a time.
    deepening
        Whether it has scopes between nothing and `full`, so that `auto` can grow the depth.
    depth
        With deepening: the depth that a scope stands for; infinite for `forward` and beyond.
    between
        Optional, with deepening: (problem, limits, paging) -> a scope of any depth, smaller than `forward`, where the
        optimum of that is mostly found; empty where there is none.
    beyond
        Optional, with deepening: (model, an inner scope, the blocks whose late rows its proof may rest on) -> a row
        by which a schedule takes at least one decision that the inner scope lacks, so that what is proven inside need
        not be searched again. A row without variables: there is no such decision. None: a schedule that takes none of
        them may still be better than all of the inner scope.
    strict
        Whether only its own points count: its rules are stricter than a plan's, so that a heuristic plan
        may lie outside of it.
    simulated
        Names of the blocks whose rules the simulator holds itself.
    schedule
        (model, point) -> the schedule that an integral point stands for.
    start
        (model, schedule) -> values by variable name for a warm start, or None where the schedule
        lies outside the space.
    labels
        Optional: model -> a readable name of each entry of its variables, for model files.
    gives_up
        Optional: (model, a schedule, its values as of `start`, late) -> a row that the schedule breaks and every other
        one satisfies. Where it has no plan in time (`late`), only those that have one must satisfy the row.
    leaning
        Optional: (model, a point of the relaxation) -> what it leans to. With it schedules are made of relaxations.
    backwards
        Optional: (problem, limits, scope, paging, remat) -> an exact search without a model, or None where it has
        none. It knows nothing of further blocks.
    """

    name: str
    doc: str
    blocks: tuple[Block, ...]
    space: Callable[[Problem, Limits, str, bool, bool], Space]
    schedule: Callable[[Any, PointLike], Schedule]
    start: Callable[[Any, Schedule], list[tuple[Any, Floats]] | None]
    whole_space: Callable[[Problem, Limits, str, bool, bool], Space] | None = None
    stages: Callable[[Any], list[tuple[Any, Ints]]] | None = None
    deepening: bool = False
    depth: Callable[[str], float] = _no_depth
    between: Callable[[Problem, Limits, bool], str] | None = None
    beyond: Callable[[Any, str, frozenset[str]], Row | None] | None = None
    strict: bool = False
    simulated: tuple[str, ...] = ()
    labels: Callable[[Any], list[tuple[Any, Sequence[str]]]] | None = None
    gives_up: GivesUp | None = None
    leaning: Callable[[Any, PointLike], Leaning] | None = None
    backwards: Callable[[Problem, Limits, str, bool, bool], StageSearch | None] | None = None

    def __post_init__(self) -> None:
        for block in self.blocks:
            checked(block)

    @property
    def judged(self) -> bool:
        """Whether a simulated plan can be judged without the model: each block's rule is the simulator's or its own."""
        return all(b.name in self.simulated or b.refuses is not None or not b.restricts for b in self.blocks)

    @property
    def plans_count(self) -> bool:
        """Whether a simulated plan that is no point of the model counts as an answer."""
        return self.judged and not self.strict

    @property
    def goal(self) -> Goal:
        """What is minimised: what a block says, else energy."""
        return next((block.goal for block in self.blocks if block.goal is not None), ENERGY)

    @property
    def plain(self) -> bool:
        """Whether what is minimised is the energy that the simulator counts, and nothing else."""
        return self.goal is ENERGY and all(block.adds_j is None for block in self.blocks)

    @property
    def timed(self) -> bool:
        """Whether the makespan may count for more than a deadline: in the objective."""
        return self.goal.timed or any(block.adds_j is not None for block in self.blocks)

    def with_block(self, *blocks: Block, name: str | None = None, doc: str | None = None) -> Formulation:
        """This formulation and more blocks, each before those that collect what the others contribute.

        name
            Of the new one; by default both names, as in `retention+flash_wear`.
        doc
            For people; by default what it is made of, and what its blocks ask for.

        Raises FormulationError for a name that is there already, a second block with a goal, or what isn't a block.
        """
        together = list(self.blocks)
        for block in map(checked, blocks):
            if any(block.name == other.name for other in together):
                raise FormulationError(
                    f"formulation '{self.name}' has a block '{block.name}' already; leave one of them out, or "
                    "give it another name"
                )
            place = next((k for k, other in enumerate(together) if other.collects), len(together))
            together.insert(len(together) if block.collects else place, block)
        goals = [block.name for block in together if block.goal is not None]
        if len(goals) > 1:
            raise FormulationError(f"blocks {' and '.join(goals)} each say what to minimise; take one of them")
        added = "+".join([self.name, *(block.name for block in blocks)])
        # What another block cares for may be what the argument for `beyond` leaves out.
        told = (
            doc
            if doc is not None
            else "; ".join([f"{self.name} with {_and(blocks)}", *(b.says for b in blocks if b.says)])
        )
        return self._other(name or added, told, together)

    def _other(self, name: str, doc: str, blocks: Sequence[Block]) -> Formulation:
        """One with other blocks: without what holds of these alone."""
        return replace(
            self,
            name=name,
            doc=doc,
            blocks=tuple(blocks),
            space=self.whole_space or self.space,
            whole_space=None,
            between=None,
            beyond=None,
            backwards=None,
        )

    def without(self, block: Block, *, minimising: Goal | None = None) -> Formulation:
        """This formulation less one of its blocks.

        minimising
            What is minimised instead of what the blocks say.
        """
        rest = tuple(other for other in self.blocks if other is not block)
        if minimising is not None:
            rest = tuple(replace(other, goal=None) for other in rest)
            if minimising is not ENERGY:
                rest = (*rest, Block("least", _no_rows, restricts=False, collects=True, goal=minimising))
        return self._other(f"{self.name} less {block.name}", self.doc, rest)

    def reserve_bytes(self, problem: Problem) -> int:
        """Bytes of the budget that blocks take for the whole step."""
        return sum(int(answer(b, "reserve_bytes", problem)) for b in self.blocks if b.reserve_bytes is not None)

    def baseline_j(self, problem: Problem) -> float:
        """Joules of one compute of each operator, with what blocks add."""
        more: float = sum(answer(block, "base_j", problem) for block in self.blocks if block.base_j is not None)
        return problem.baseline_energy_j + more

    def trial(self, plan: Plan, simulation: Simulation) -> Trial:
        """A simulated plan with what blocks add to it."""
        more = sum(answer(block, "adds_j", plan, simulation) for block in self.blocks if block.adds_j is not None)
        return Trial(plan, simulation, self.baseline_j(plan.problem), simulation.overhead_j + more)

    def refusal(self, trial: Trial) -> str | None:
        """Why a simulated plan breaks a block's rule, or None."""
        for block in self.blocks:
            reason: str | None = None if block.refuses is None else answer(block, "refuses", trial)
            if reason is not None:
                return reason
        return None

    def impossible(self, problem: Problem) -> str | None:
        """Why no schedule keeps the blocks' rules, where that is plain without a search; or None."""
        baseline_j = self.baseline_j(problem)
        for block in self.blocks:
            told = None if block.impossible is None else answer(block, "impossible", problem, baseline_j)
            if told is not None:
                return str(told)
        return None

    def abstract(self, space: Space) -> pyo.AbstractModel:
        """The AbstractModel: nothing is constructed until `create_instance`.

        Raises FormulationError where a block's requirement is missing or comes later.
        """
        model = pyo.AbstractModel(name=self.name)
        model.space = space
        present: list[str] = []
        for block in self.blocks:
            if block.when is not None and not answer(block, "when", space):
                continue
            missing = [name for name in block.requires if name not in present]
            if missing:
                raise FormulationError(
                    f"formulation '{self.name}': block '{block.name}' requires {', '.join(missing)}, which "
                    f"must stand before it; present so far: {', '.join(present) or 'none'}"
                )
            if block.name in present:
                raise FormulationError(f"formulation '{self.name}': two blocks are called '{block.name}'")
            present.append(block.name)
            model.add_component(block.name, pyo.Block(rule=partial(fill, block)))
        model.block_names = tuple(present)
        model.goal = self.goal
        model.baseline_j = self.baseline_j(space.problem)
        model.overhead_j = pyo.Objective(rule=_objective, sense=pyo.minimize)
        return model

    def build(
        self,
        problem: Problem,
        *,
        ram_bytes: int,
        compute_s: float | None = None,
        makespan_s: float | None = None,
        hidden_share: float = 1.0,
        scope: str = "full",
        paging: bool = True,
        remat: bool = True,
    ) -> Any:
        """The Pyomo model of `problem`: an AbstractModel's instance, the caller's to change.

        ram_bytes
            Budget of everything that is not resident.
        compute_s, makespan_s, hidden_share
            Bounds on the step's time, in seconds, and how much of the transfers may hide (see `Limits`).
        scope
            Which recomputations exist: `full`, `forward` or `depth:D`.
        paging, remat
            False leaves the decisions (and their blocks) out.

        Raises TimeUpError inside of `clock.ending`.
        """
        check_problem(problem)
        room = ram_bytes - self.reserve_bytes(problem)
        limits = Limits(ram_bytes=room, compute_s=compute_s, makespan_s=makespan_s, hidden_share=hidden_share)
        space = self.space(problem, limits, scope, paging and problem.paging, remat)
        with building(), told_once():
            model = self.abstract(space).create_instance()
        self._unjudged(model)
        return model

    def _unjudged(self, model: Any) -> None:
        """Raises FormulationError for a block whose joules the model counts, and no judgement of a plan does."""
        if self.goal is not ENERGY:
            return
        for block in self.blocks:
            if block.name in self.simulated or block.adds_j is not None or block.name not in model.block_names:
                continue
            if getattr(model.component(block.name), ENERGY.attribute, None) is not None:
                raise FormulationError(
                    f"block '{block.name}' adds {ENERGY.attribute} to what is minimised, and nothing to the plans that "
                    "are compared with it, so that no proof would hold; give it adds_j"
                )

    def revive(self, model: Any, keys: Iterable[tuple[str, Hashable]]) -> list[Row]:
        """Rows found in another scope, by block name and key, in the variables of `model`."""
        makers = {b.name: b for b in self.blocks if b.revive is not None and b.name in model.block_names}
        return [
            replace(answer(makers[name], "revive", model.component(name), key), block=name)
            for name, key in keys
            if name in makers
        ]

    def counts(self, model: Any) -> list[list[Count]]:
        """What a tree may branch on beside single variables, block by block."""
        return [
            answer(block, "counts", model.component(block.name))
            for block in self.blocks
            if block.counts is not None and block.name in model.block_names
        ]

    def separate(self, model: Any, point: PointLike) -> list[Row]:
        """The violated rows of all blocks at `point`."""
        rows: list[Row] = []
        for block in self.blocks:
            if block.separator is not None and block.name in model.block_names:
                found = answer(block, "separator", model.component(block.name), point)
                rows += [replace(row, block=block.name) for row in found]
        return rows


def _no_rows(block: PyomoBlock) -> None:
    """Nothing: the block is there for its goal."""


def _and(blocks: Sequence[Block]) -> str:
    return " and ".join(f"the block {block.name}" for block in blocks)


def _objective(model: Any) -> LinearExpression:
    return linear(contributions(model, model.goal.attribute))
