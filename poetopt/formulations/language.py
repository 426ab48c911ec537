"""The modelling language: blocks, and the formulations made of them.

A *block* is a function that fills a Pyomo `Block` with sets, variables, constraints, and its contributions to energy
and time. A *formulation* is an ordered tuple of blocks over a *space*, the set of decisions that exist.
`Formulation.abstract` puts the blocks on an AbstractModel. The objective collects their contributions last, so it
includes blocks that a user adds later.

A block contributes by setting any of these on itself:

| attribute       | unit  | meaning                                             |
|-----------------|-------|-----------------------------------------------------|
| `energy_j`      | J     | joules above one compute of each operator           |
| `compute_s`     | s     | seconds of computing above one compute of each      |
| `transfer_s`    | s     | seconds on the transfer channel                     |
| `written_bytes` | bytes | bytes written to storage                            |
| `late_s`        | s     | makespan above one pass, if that is minimised       |

Each is a pair (variables, coefficients) made by `terms`. Memory is a number of bytes that a block takes out of the
budget for the whole step (`Block.reserve_bytes`). If a block has too many rows to add them all, it has a *separator*,
which returns the rows that a given point violates, in the block's own variables.
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

    Attributes
    ----------
    name, doc
        For `--formulation` and for people.
    blocks
        The blocks, in building order.
    space
        (problem, limits, scope, paging, remat, kind) -> Space, which leaves out no more than its `Kind` says. Raises
        FormulationError for an unknown scope.
    search
        The functions that a search needs.
    sets
        Sets of the model that index its variables and rows, besides `operators`, `tensors` and `stages`.
    fixed_costs
        Names of blocks whose rows hold figures as plain numbers. A model with these blocks can't have mutable Params.
    simulated
        Names of the blocks whose rules the simulator enforces itself.
    strict
        Whether only points of the model count as results. Its rules are then stricter than a plan's, so a heuristic
        plan may lie outside of it.
    kind
        The kind of its spaces, unless figures may change or a block depends on the stage of a transfer.
    """

    name: str
    doc: str
    blocks: tuple[Block, ...]
    space: Callable[[Problem, Limits, str, bool, bool, Kind], Space]
    search: SearchAdapter
    sets: Mapping[str, IndexSet] = field(default_factory=dict)
    fixed_costs: tuple[str, ...] = ()
    simulated: tuple[str, ...] = ()
    strict: bool = False
    kind: Kind = Kind.LEAN

    def __post_init__(self) -> None:
        for block in self.blocks:
            checked(block)

    def __deepcopy__(self, memo: object) -> Formulation:
        """Return the object itself: Pyomo copies what is on a model, and this never changes."""
        return self

    @property
    def judged(self) -> bool:
        """Return whether the simulator and the blocks' `refuses` enforce all rules of a plan, without the model."""
        return all(b.name in self.simulated or b.refuses is not None or not b.restricts for b in self.blocks)

    @property
    def plans_count(self) -> bool:
        """Return whether a simulated plan that is no point of the model counts as a result."""
        return self.judged and not self.strict

    @property
    def transfer_times(self) -> bool:
        """Return whether a block may depend on the stage of a transfer. Blocks in `simulated` never do."""
        return any(b.depends_on_stages for b in self.blocks if b.name not in self.simulated)

    @property
    def goal(self) -> Goal:
        """The goal of a block if one has a goal, else energy."""
        return next((block.goal for block in self.blocks if block.goal is not None), ENERGY)

    @property
    def plain(self) -> bool:
        """Return whether the objective is exactly the energy that the simulator counts."""
        return self.goal is ENERGY and all(block.adds_j is None for block in self.blocks)

    @property
    def timed(self) -> bool:
        """Return whether the makespan may be part of the objective."""
        return self.goal.timed or any(block.adds_j is not None for block in self.blocks)

    def with_block(self, *blocks: Block, name: str | None = None, doc: str | None = None) -> Formulation:
        """Return a formulation with more blocks, in the order in which they see each other's contributions.

        Blocks that collect nothing come first, then prices (blocks that collect and have `adds_j`), then the other
        blocks that collect: limits and goals, which evaluate a plan at all prices together. Within each of the three
        groups the order of the arguments holds. A price sees the energy of the blocks before it, in the model
        (`contributions`) and in `adds_j` alike. With idle power first, a tariff applies to both; with the tariff
        first, it doesn't apply to idle power. A block always comes after the blocks that it requires.

        The new formulation has spaces of `Kind.WHOLE` and no scope-difference cuts, whose proofs hold only for known
        blocks.

        Parameters
        ----------
        name
            Name of the new formulation. Default: all names joined, such as `retention+flash_wear`.
        doc
            Text for people. Default: the names of its parts, and what its blocks require.

        Raises
        ------
        FormulationError
            A block of this name exists already, a second block has a goal, or an argument is no block.
        """
        return composition.with_block(self, blocks, name, doc)

    def reserve_bytes(self, problem: Problem) -> int:
        """Return the bytes of the budget that blocks take for the whole step."""
        return sum(int(answer(b, "reserve_bytes", problem)) for b in self.blocks if b.reserve_bytes is not None)

    def baselines_j(self, problem: Problem) -> tuple[dict[str, float], float]:
        """Return the baseline joules before each block, by its name, and those after all blocks."""
        before: dict[str, float] = {}
        total = problem.baseline_energy_j
        for block in self.blocks:
            before[block.name] = total
            if block.base_j is not None:
                total += answer(block, "base_j", problem, total)
        return before, total

    def baseline_j(self, problem: Problem) -> float:
        """Return the joules of one compute of each operator, with what blocks add."""
        return self.baselines_j(problem)[1]

    def trial(self, plan: Plan, simulation: Simulation) -> Trial:
        """Return a simulated plan with the joules that blocks add. Each block sees the sum of those before it."""
        before, total = self.baselines_j(plan.problem)
        overhead = simulation.overhead_j
        for block in self.blocks:
            if block.adds_j is not None:
                overhead += answer(block, "adds_j", Trial(plan, simulation, before[block.name], overhead))
        return Trial(plan, simulation, total, overhead)

    def refusal(self, trial: Trial) -> str | None:
        """Return why a simulated plan breaks a block's rule, or None."""
        reasons = (answer(block, "refuses", trial) for block in self.blocks if block.refuses is not None)
        return next((reason for reason in reasons if reason is not None), None)

    def impossible(self, problem: Problem) -> str | None:
        """Return why no schedule keeps the blocks' rules, if that is known without a search; else None."""
        baseline_j = self.baseline_j(problem)
        reasons = (answer(b, "impossible", problem, baseline_j) for b in self.blocks if b.impossible is not None)
        return next((reason for reason in reasons if reason is not None), None)

    def abstract(self, space: Space) -> pyo.AbstractModel:
        """Return the AbstractModel; Pyomo constructs nothing until `create_instance`.

        Raises
        ------
        FormulationError
            A block that another block requires is missing or comes later.
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
        """Return the Pyomo model of `problem`, an instance of an AbstractModel. The caller may change it.

        Parameters
        ----------
        ram_bytes
            Budget of everything that is not resident.
        compute_s, makespan_s, hidden_share
            Bounds on the step's time, in seconds, and how much of the transfers may hide (see `Limits`).
        ceiling_j
            The model may leave out decisions that no schedule of at most this many joules above one pass has.
        scope
            Recomputations that exist: `full`, `forward` or `depth:D`.
        paging, remat
            False leaves the decisions (and their blocks) out.
        mutable
            Whether budget, deadline and costs are Params with units, to be changed without a new build (see
            `parameters`). Such a model has all decisions of its scope, and is larger.

        Raises
        ------
        FormulationError
            An argument is invalid, or a block can't be in such a model.
        TimeUpError
            The time of `clock.ending` is over.
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
        """Return the space of a model with these limits (see `Limits`); arguments and errors are those of `build`."""
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
        """Return an AbstractModel without data; `create_instance` takes those of `data_of`, a DataPortal or a file.

        The options are those of `build`, and `deadline_s` in the data bounds the makespan. Every instance has the rows,
        variables and blocks that a user adds to the AbstractModel.
        """
        return DataModel(self, {"scope": scope, "paging": paging, "remat": remat, "mutable": mutable})

    def revive(self, model: Any, keys: Iterable[tuple[str, Hashable]]) -> list[Row]:
        """Return rows from another scope, given by block name and key, in the variables of `model`."""
        makers = {b.name: b for b in self.blocks if b.revive is not None and b.name in model.block_names}
        known = ((makers[name], key) for name, key in keys if name in makers)
        rows = ((answer(block, "revive", model.component(block.name), key), block.name) for block, key in known)
        return [replace(row, block=name) for row, name in rows if row is not None]

    def separate(self, model: Any, point: PointLike) -> list[Row]:
        """Return the rows of all blocks that `point` violates."""
        rows: list[Row] = []
        for block in self.blocks:
            if block.separator is not None and block.name in model.block_names:
                violated = answer(block, "separator", model.component(block.name), point)
                rows += [replace(row, block=block.name) for row in violated]
        return rows
