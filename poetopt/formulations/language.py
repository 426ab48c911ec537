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
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyomo.core as pyo

from poetopt.formulations import building, composition
from poetopt.formulations.block import (
    Block,
    IndexSet,
    Kind,
    Limits,
    PyomoBlock,
    PyomoRow,
    Separator,
    Space,
    baseline_before_j,
    contributions,
)
from poetopt.formulations.callbacks import answer, checked
from poetopt.formulations.data import DataModel, data_of
from poetopt.formulations.figures import asked
from poetopt.formulations.goal import ENERGY, Goal, Trial
from poetopt.formulations.rows import Floats, Ints, PointLike, Row, Terms, linear, terms
from poetopt.formulations.search_adapter import SearchAdapter
from poetopt.graph.problem import Problem, check_problem

if TYPE_CHECKING:
    from poetopt.plan.instructions import Plan
    from poetopt.plan.simulate import Simulation

__all__ = [
    "Block",
    "Floats",
    "Formulation",
    "IndexSet",
    "Ints",
    "Kind",
    "Limits",
    "PointLike",
    "PyomoBlock",
    "PyomoRow",
    "Row",
    "SearchAdapter",
    "Separator",
    "Space",
    "Terms",
    "baseline_before_j",
    "contributions",
    "data_of",
    "linear",
    "terms",
]


@dataclass(frozen=True, kw_only=True)
class Formulation:
    """An ordered tuple of blocks over a space.

    name, doc
        For `--formulation` and for people.
    blocks
        In building order.
    space
        (problem, limits, scope, paging, remat, kind) -> Space, which leaves out no more than its `Kind` says. Raises
        FormulationError for a scope that it doesn't have.
    search
        What a search asks of it.
    sets
        What its variables and rows are indexed by, beside `operators`, `tensors` and `stages`: Sets of the model.
    numbers
        Names of blocks whose rows hold figures as numbers, so that these can't be Params beside them.
    simulated
        Names of the blocks whose rules the simulator holds itself.
    strict
        Whether only the model's own points count: its rules are stricter than a plan's, so that a heuristic plan
        may lie outside of it.
    kind
        The kind of its spaces, unless figures may change or a block cares in which stage a tensor is moved.
    """

    name: str
    doc: str
    blocks: tuple[Block, ...]
    space: Callable[[Problem, Limits, str, bool, bool, Kind], Space]
    search: SearchAdapter
    sets: Mapping[str, IndexSet] = field(default_factory=dict)
    numbers: tuple[str, ...] = ()
    simulated: tuple[str, ...] = ()
    strict: bool = False
    kind: Kind = Kind.LEAN

    def __post_init__(self) -> None:
        for block in self.blocks:
            checked(block)

    def __deepcopy__(self, memo: object) -> Formulation:
        """Itself, as nothing in it changes: Pyomo copies what stands on a model."""
        return self

    @property
    def judged(self) -> bool:
        """Say whether a plan can be judged without the model: each block's rule is the simulator's or its own."""
        return all(b.name in self.simulated or b.refuses is not None or not b.restricts for b in self.blocks)

    @property
    def plans_count(self) -> bool:
        """Say whether a simulated plan that is no point of the model counts as an answer."""
        return self.judged and not self.strict

    @property
    def transfer_times(self) -> bool:
        """Say whether a block may care in which stage a tensor is moved; those that the simulator holds don't."""
        return any(b.cares_when for b in self.blocks if b.name not in self.simulated)

    @property
    def goal(self) -> Goal:
        """The quantity that is minimised: a block's, else energy."""
        return next((block.goal for block in self.blocks if block.goal is not None), ENERGY)

    @property
    def plain(self) -> bool:
        """Say whether what is minimised is the energy that the simulator counts, and nothing else."""
        return self.goal is ENERGY and all(block.adds_j is None for block in self.blocks)

    @property
    def timed(self) -> bool:
        """Say whether the makespan may count for more than a deadline: in the objective."""
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

        The new one has whole spaces, no scope-difference cuts: their arguments hold only of blocks
        that are known.

        Raises FormulationError for a name that is there already, a second block with a goal, or what isn't a block.
        """
        return composition.with_block(self, blocks, name, doc)

    def reserve_bytes(self, problem: Problem) -> int:
        """Bytes of the budget that blocks take for the whole step."""
        return sum(int(answer(b, "reserve_bytes", problem)) for b in self.blocks if b.reserve_bytes is not None)

    def baselines_j(self, problem: Problem) -> tuple[dict[str, float], float]:
        """Joules of one compute of each operator as each block finds them, and with what all blocks add."""
        found: dict[str, float] = {}
        total = problem.baseline_energy_j
        for block in self.blocks:
            found[block.name] = total
            if block.base_j is not None:
                total += answer(block, "base_j", problem, total)
        return found, total

    def baseline_j(self, problem: Problem) -> float:
        """Joules of one compute of each operator, with what blocks add."""
        return self.baselines_j(problem)[1]

    def trial(self, plan: Plan, simulation: Simulation) -> Trial:
        """A simulated plan with what blocks add to it, each to what those before it have made of it."""
        before, total = self.baselines_j(plan.problem)
        overhead = simulation.overhead_j
        for block in self.blocks:
            if block.adds_j is not None:
                overhead += answer(block, "adds_j", Trial(plan, simulation, before[block.name], overhead))
        return Trial(plan, simulation, total, overhead)

    def refusal(self, trial: Trial) -> str | None:
        """The reason why a simulated plan breaks a block's rule, or None."""
        told = (answer(block, "refuses", trial) for block in self.blocks if block.refuses is not None)
        return next((reason for reason in told if reason is not None), None)

    def impossible(self, problem: Problem) -> str | None:
        """The reason why no schedule keeps the blocks' rules, where that is plain without a search; or None."""
        baseline_j = self.baseline_j(problem)
        told = (answer(b, "impossible", problem, baseline_j) for b in self.blocks if b.impossible is not None)
        return next((reason for reason in told if reason is not None), None)

    def abstract(self, space: Space) -> pyo.AbstractModel:
        """The AbstractModel: nothing is constructed until `create_instance`.

        Raises FormulationError where a block's requirement is missing or comes later.
        """
        return building.abstract(self, space)

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
        space = self.space_of(
            problem,
            ram_bytes=ram_bytes,
            compute_s=compute_s,
            makespan_s=makespan_s,
            hidden_share=hidden_share,
            ceiling_j=ceiling_j,
            scope=scope,
            paging=paging,
            remat=remat,
            mutable=mutable,
        )
        return building.instance(self, space)

    def space_of(
        self, problem: Problem, *, scope: str, paging: bool, remat: bool, mutable: bool, **limits: Any
    ) -> Space:
        """The space of a model with such limits (see `Limits`), named and refused as `build` does."""
        check_problem(problem)
        where = f"formulation '{self.name}'"
        asked(where, scope=scope, paging=paging, remat=remat, mutable=mutable, **limits)
        paging = paging and problem.paging
        if paging:
            building.check_stages(self, problem)
        limits["ram_bytes"] = int(limits["ram_bytes"]) - self.reserve_bytes(problem)
        if mutable:
            limits["ceiling_j"] = math.inf
        kind = Kind.WHOLE if mutable else self.kind
        if self.transfer_times:
            kind = Kind.TIMED
        return self.space(problem, Limits(open=mutable, **limits), scope, paging, remat, kind)

    def from_data(
        self, *, scope: str = "full", paging: bool = True, remat: bool = True, mutable: bool = False
    ) -> pyo.AbstractModel:
        """An AbstractModel that waits for data: `create_instance` takes those of `data_of`, a DataPortal or a file.

        The options are those of `build`; `deadline_s` of the data bounds the makespan. Rows, variables and blocks that
        are added to it are on every instance.
        """
        return DataModel(self, {"scope": scope, "paging": paging, "remat": remat, "mutable": mutable})

    def revive(self, model: Any, keys: Iterable[tuple[str, Hashable]]) -> list[Row]:
        """Rows found in another scope, by block name and key, in the variables of `model`."""
        makers = {b.name: b for b in self.blocks if b.revive is not None and b.name in model.block_names}
        known = ((makers[name], key) for name, key in keys if name in makers)
        made = ((answer(block, "revive", model.component(block.name), key), block.name) for block, key in known)
        return [replace(row, block=name) for row, name in made if row is not None]

    def separate(self, model: Any, point: PointLike) -> list[Row]:
        """The violated rows of all blocks at `point`."""
        rows: list[Row] = []
        for block in self.blocks:
            if block.separator is not None and block.name in model.block_names:
                found = answer(block, "separator", model.component(block.name), point)
                rows += [replace(row, block=block.name) for row in found]
        return rows
