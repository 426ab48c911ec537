"""The modelling language: blocks, and the formulations made of them.

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
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyomo.environ as pyo
from pyomo.core.expr.numeric_expr import LinearExpression

from poetopt.errors import FormulationError
from poetopt.formulations.block import (
    Block,
    Limits,
    PyomoBlock,
    PyomoRow,
    Separator,
    Space,
    baseline_before_j,
    contributions,
)
from poetopt.formulations.callbacks import answer, checked, fill, told_once
from poetopt.formulations.contract import Labels, LabelSearch, NoGood, Points, Priced, Values
from poetopt.formulations.data import DataModel, data_of
from poetopt.formulations.figures import asked
from poetopt.formulations.finish import finish
from poetopt.formulations.goal import ENERGY, SUMS, WRITTEN, Goal, Trial
from poetopt.formulations.rows import Count, Floats, Ints, PointLike, Row, Terms, linear, terms
from poetopt.formulations.sets import IndexSet, declare
from poetopt.garbage import building
from poetopt.problem import Problem, check_problem

if TYPE_CHECKING:
    from poetopt.plan.instructions import Plan
    from poetopt.plan.simulate import Simulation

__all__ = [
    "Block",
    "Count",
    "Floats",
    "Formulation",
    "IndexSet",
    "Ints",
    "LabelSearch",
    "Labels",
    "Limits",
    "NoGood",
    "PointLike",
    "Points",
    "PyomoBlock",
    "PyomoRow",
    "Row",
    "Separator",
    "Space",
    "Terms",
    "Values",
    "baseline_before_j",
    "contributions",
    "data_of",
    "linear",
    "terms",
]


def _full_alone(problem: Problem, limits: Limits, paging: bool, remat: bool) -> tuple[str, ...]:
    return ("full",)


@dataclass(frozen=True, kw_only=True)
class Formulation:
    """An ordered tuple of blocks over a space.

    name, doc
        For `--formulation` and for people.
    blocks
        In building order.
    space
        (problem, limits, scope, paging, remat, lean, transfer_times) -> Space. A `lean` space may lack decisions that
        no optimum of energy needs; with blocks of others none may be lacking. With `transfer_times` it has those that
        only blocks need which care in which stage a tensor is moved. Raises FormulationError for a scope that it
        doesn't have.
    points
        How points and schedules stand for each other.
    sets
        What its variables and rows are indexed by, beside `operators`, `tensors` and `stages`: Sets of the model.
    decisions
        Optional: model -> what has a price in it, for `build(mutable=True)`.
    numbers
        Names of blocks whose rows hold figures as numbers, so that these can't be Params beside them.
    simulated
        Names of the blocks whose rules the simulator holds itself.
    strict
        Whether only the model's own points count: its rules are stricter than a plan's, so that a heuristic plan
        may lie outside of it.
    lean
        Whether `space` may leave out decisions that no optimum of energy needs.
    scopes
        (problem, limits, paging, remat) -> the scopes that `auto` goes through, each within the next; the last one is
        where it ends. One alone where there are no others.
    scope_difference
        Optional: (model, an inner scope, the blocks whose lazy constraints the inner proof may rest on) -> a row that
        only schedules with a decision that the inner scope lacks satisfy: what was proven inside isn't searched again.
        A row without variables says that there is no such decision, so that the inner proof is all. None says that
        there is no such row: all of the scope is searched.
    no_good
        Optional: (model, a schedule, its values, late) -> a row that the schedule breaks and every other one
        satisfies. Where the schedule has no plan in time (`late`), only those that have one must satisfy the row.
    thrift
        Optional, with `no_good`: model -> the rows of points that waste nothing. They are added before the first
        schedule is left out, so that no other point stands for it.
    label_search
        Optional: (problem, limits, scope, paging, remat) -> an exact search without a model, or None where there is
        none. It knows nothing of further blocks.
    outer
        Optional: a relaxation with a point for each plan at all, those that are no points of this one's included. Where
        it has none, no plan exists.
    """

    name: str
    doc: str
    blocks: tuple[Block, ...]
    space: Callable[[Problem, Limits, str, bool, bool, bool, bool], Space]
    points: Points
    sets: Mapping[str, IndexSet] = field(default_factory=dict)
    priced: Callable[[Any], Priced] | None = None
    numbers: tuple[str, ...] = ()
    simulated: tuple[str, ...] = ()
    strict: bool = False
    lean: bool = True
    scopes: Callable[[Problem, Limits, bool, bool], tuple[str, ...]] = _full_alone
    scope_difference: Callable[[Any, str, frozenset[str]], Row | None] | None = None
    no_good: NoGood | None = None
    thrift: Callable[[Any], list[Row]] | None = None
    label_search: Callable[[Problem, Limits, str, bool, bool], LabelSearch | None] | None = None
    outer: Formulation | None = None

    def __post_init__(self) -> None:
        for block in self.blocks:
            checked(block)

    def __deepcopy__(self, memo: object) -> Formulation:
        """Itself, as nothing in it changes: Pyomo copies what stands on a model."""
        return self

    @property
    def judged(self) -> bool:
        """Whether a simulated plan can be judged without the model: each block's rule is the simulator's or its own."""
        return all(b.name in self.simulated or b.refuses is not None or not b.restricts for b in self.blocks)

    @property
    def plans_count(self) -> bool:
        """Whether a simulated plan that is no point of the model counts as an answer."""
        return self.judged and not self.strict

    @property
    def transfer_times(self) -> bool:
        """Whether a block may care in which stage a tensor is moved; those that the simulator holds itself don't."""
        return any(b.cares_when for b in self.blocks if b.name not in self.simulated)

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
        """This formulation and more blocks, in the order in which they see each other.

        First those that collect nothing, then prices (blocks that collect and have `adds_j`), then all others that
        collect: limits and goals, which judge what all prices together make of a plan. Within each of the three the
        order is the given one; a price sees the energy of those before it, in the model (`contributions`) and in
        `adds_j` alike. Idle power and then a tariff is a tariff on both; the other way round idle power is outside of
        the tariff. A block stands behind what it requires in any case.

        name
            Of the new one; by default both names, as in `retention+flash_wear`.
        doc
            For people; by default what it is made of, and what its blocks ask for.

        The new one has whole spaces, no scope-difference cuts and no label search: their arguments hold only of blocks
        that are known.

        Raises FormulationError for a name that is there already, a second block with a goal, or what isn't a block.
        """
        together = list(self.blocks)
        for block in map(checked, blocks):
            if any(block.name == other.name for other in together):
                raise FormulationError(
                    f"formulation '{self.name}' has a block '{block.name}' already; leave one of them out, or "
                    "give it another name"
                )
            together.insert(self._place(block, together), block)
        goals = [block.name for block in together if block.goal is not None]
        if len(goals) > 1:
            raise FormulationError(f"blocks {' and '.join(goals)} each say what to minimise; take one of them")
        added = "+".join([self.name, *(block.name for block in blocks)])
        told = (
            doc
            if doc is not None
            else "; ".join([f"{self.name} with {_and(blocks)}", *(b.says for b in blocks if b.says)])
        )
        return self._other(name or added, told, together)

    def _place(self, block: Block, together: Sequence[Block]) -> int:
        """Where a new block stands among the others: see `with_block`."""
        if not block.collects:
            return next((k for k, other in enumerate(together) if other.collects), len(together))
        if block.adds_j is None:
            return len(together)
        before = (
            k + 1
            for k, other in enumerate(together)
            if not other.collects or other.name in (*self.simulated, *block.requires) or other.adds_j is not None
        )
        return max(before, default=0)

    def _other(self, name: str, doc: str, blocks: Sequence[Block]) -> Formulation:
        """One with other blocks: without what holds of these alone.

        Another block may care for decisions that a lean space lacks, and for what the arguments behind scope-difference
        cuts and label setting leave out.
        """
        return replace(
            self,
            name=name,
            doc=doc,
            blocks=tuple(blocks),
            lean=False,
            scope_difference=None,
            label_search=None,
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

    @property
    def outer_of(self) -> Formulation | None:
        """`outer` with those of the other blocks whose rows hold of every plan: bounds on sums of what is decided."""
        if self.outer is None or not self.plans_count:
            return None
        others = [block for block in self.blocks if block.name not in self.simulated]
        sums = (WRITTEN,) if any(block.adds_j is not None for block in others) else SUMS
        bounds = [replace(b, goal=None) for b in others if b.limits in sums and not b.cares_when]
        return self.outer.with_block(*bounds)

    def reserve_bytes(self, problem: Problem) -> int:
        """Bytes of the budget that blocks take for the whole step."""
        return sum(int(answer(b, "reserve_bytes", problem)) for b in self.blocks if b.reserve_bytes is not None)

    def baseline_j(self, problem: Problem) -> float:
        """Joules of one compute of each operator, with what blocks add."""
        return self._baselines_j(problem)[1]

    def _baselines_j(self, problem: Problem) -> tuple[dict[str, float], float]:
        """Joules of one compute of each operator as each block finds them, and with what all blocks add."""
        found: dict[str, float] = {}
        total = problem.baseline_energy_j
        for block in self.blocks:
            found[block.name] = total
            if block.base_j is not None:
                total += answer(block, "base_j", problem, total)
        return found, total

    def trial(self, plan: Plan, simulation: Simulation) -> Trial:
        """A simulated plan with what blocks add to it, each to what those before it have made of it."""
        before, total = self._baselines_j(plan.problem)
        overhead = simulation.overhead_j
        for block in self.blocks:
            if block.adds_j is not None:
                overhead += answer(block, "adds_j", Trial(plan, simulation, before[block.name], overhead))
        return Trial(plan, simulation, total, overhead)

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
        model.formulation = self
        declare(model, self.sets)
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
        model.baselines_j, model.baseline_j = self._baselines_j(space.problem)
        model.overhead_j = pyo.Objective(
            rule=_objective,
            sense=pyo.minimize,
            doc=f"{self.goal.name} above one compute of each operator [{self.goal.unit}]",
        )
        return model

    def build(
        self,
        problem: Problem,
        *,
        ram_bytes: int,
        compute_s: float | None = None,
        makespan_s: float | None = None,
        hidden_share: float = 1.0,
        ceiling_j: float = math.inf,
        scope: str = "full",
        paging: bool = True,
        remat: bool = True,
        mutable: bool = False,
    ) -> Any:
        """The Pyomo model of `problem`: an AbstractModel's instance, the caller's to change.

        ram_bytes
            Budget of everything that is not resident.
        compute_s, makespan_s, hidden_share
            Bounds on the step's time, in seconds, and how much of the transfers may hide (see `Limits`).
        ceiling_j
            What is in no schedule of at most so many joules above one pass may be left out.
        scope
            Which recomputations exist: `full`, `forward` or `depth:D`.
        paging, remat
            False leaves the decisions (and their blocks) out.
        mutable
            Whether budget, deadline and costs are Params with units, to be changed without a new build (see
            `parameters`). Such a model has all decisions of its scope, and is larger.

        Raises FormulationError for figures that are none, and for blocks that can't be in such a model; TimeUpError
        inside of `clock.ending`.
        """
        check_problem(problem)
        asked(
            f"formulation '{self.name}'",
            ram_bytes=ram_bytes,
            compute_s=compute_s,
            makespan_s=makespan_s,
            hidden_share=hidden_share,
            scope=scope,
            paging=paging,
            remat=remat,
            mutable=mutable,
        )
        if paging and problem.paging:
            self._staged(problem)
        room = int(ram_bytes) - self.reserve_bytes(problem)
        limits = Limits(
            ram_bytes=room,
            compute_s=compute_s,
            makespan_s=makespan_s,
            hidden_share=hidden_share,
            ceiling_j=math.inf if mutable else ceiling_j,
            open=mutable,
        )
        lean = self.lean and not mutable
        space = self.space(problem, limits, scope, paging and problem.paging, remat, lean, self.transfer_times)
        with building(), told_once():
            model = self.abstract(space).create_instance()
        finish(model, self.blocks)
        self._unjudged(model)
        if mutable:
            self._open(model)
        return model

    def from_data(
        self, *, scope: str = "full", paging: bool = True, remat: bool = True, mutable: bool = False
    ) -> pyo.AbstractModel:
        """An AbstractModel that waits for data: `create_instance` takes those of `data_of`, a DataPortal or a file.

        The options are those of `build`, which looks at them; `deadline_s` of the data bounds the makespan.
        """
        return DataModel(self, {"scope": scope, "paging": paging, "remat": remat, "mutable": mutable})

    def _open(self, model: Any) -> None:
        """Put Params in the place of figures. Raises FormulationError where other rows would keep the numbers."""
        from poetopt.formulations import parameters  # units take Pyomo half a second

        fixed = [
            block.name
            for block in self.blocks
            if block.name in model.block_names
            and (block.name in self.numbers or block.goal is not None or block.adds_j is not None)
        ]
        if fixed or self.priced is None:
            who = f"block '{fixed[0]}' holds" if fixed else f"formulation '{self.name}' holds"
            raise FormulationError(f"{who} budget, deadline or costs as numbers; build without mutable=True")
        parameters.attach(model, self.priced(model), self.reserve_bytes(model.space.problem))

    def _staged(self, problem: Problem) -> None:
        """Raises FormulationError for a block that may care in which stage parameters move: that is no decision."""
        stored = [tensor.name for tensor in problem.tensors if tensor.stored]
        caring = [block.name for block in self.blocks if block.cares_when and block.name not in self.simulated]
        if stored and caring:
            raise FormulationError(
                f"block '{caring[0]}' may care in which stage a tensor is moved, and of what lies on storage from step "
                f"to step, such as {stored[0]!r}, that is no decision; say transfer_times=False where it doesn't care, "
                "or keep parameters in RAM (--parameters resident)"
            )

    def _unjudged(self, model: Any) -> None:
        """Raises FormulationError for a block whose joules the model counts, and no judgement of a plan does."""
        for block in self.blocks:
            if block.name in self.simulated or block.adds_j is not None or block.name not in model.block_names:
                continue
            if getattr(model.component(block.name), ENERGY.attribute, None) is not None:
                raise FormulationError(
                    f"block '{block.name}' adds {ENERGY.attribute} to the model, and nothing to the plans that are "
                    "compared with it, so that no proof would hold; give it adds_j"
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
