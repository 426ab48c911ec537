"""A Pyomo model that somebody else solves: the rows that it still lacks, and its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poetopt.plan.instructions import Plan


def add_late_rows(model: Any) -> int:
    """Add the late rows that the solution in a Pyomo model breaks, and return how many there were.

        model = po.formulations.retention.build(problem, ram_bytes=10_000_000, scope="depth:4")
        solver.solve(model)
        while po.add_late_rows(model):
            solver.solve(model)
        plan = po.plan_of(model)

    model
        Built by any formulation, with blocks of others or without; it may be a block of a larger model, such as the
        extensive form of scenarios: then each of them by itself.

    Raises PlanError for a model without a solution, or with one that isn't whole; FormulationError for a model that no
    formulation has built.
    """
    from poetopt.search import solved

    return solved.add_late_rows(model)


def add_cuts(model: Any) -> int:
    """Add the cuts that the solution of a Pyomo model's relaxation breaks, and return how many there were.

        model = po.formulations.retention.build(problem, ram_bytes=10_000_000, scope="depth:4")
        pyo.TransformationFactory("core.relax_integer_vars").apply_to(model)
        solver.solve(model)
        while po.add_cuts(model):
            solver.solve(model)  # the objective is a bound on the overhead, in joules, and rises

    They are what the engine's own root relaxation has: chain cuts, covers and rounded memory rows of the blocks, and
    rows of the model that come late. Every schedule of the model keeps them, so that they may stay when it is made
    whole again (`add_late_rows` is still needed then). They stand under `model.cuts`.

    model
        As in `add_late_rows`, built without `mutable=True`; the values are those of a linear program.

    Raises PlanError for a model without a solution; FormulationError for a model that no formulation has built, or one
    whose budget may change.
    """
    from poetopt.search import solved

    return solved.add_cuts(model)


def plan_of(model: Any) -> Plan:
    """The plan that the solution in a Pyomo model stands for: simulated, laid out, and judged by every block.

    model
        As in `add_late_rows`.

    Raises PlanError for a model without a solution, or with one that isn't whole, and for a plan that breaks the
    budget (`add_late_rows` helps), the deadline or a block's rule; FormulationError for a model that no formulation
    has built.
    """
    from poetopt.search import solved

    return solved.plan_in(model)
