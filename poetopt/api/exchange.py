"""`export` and `import_solution`: a model out for another solver, and its solution back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from poetopt.api.problems import asked, taken

if TYPE_CHECKING:
    from poetopt.api.problems import AskOptions, Solvable
    from poetopt.backends.solvers.solver import Backend
    from poetopt.plan.instructions import Plan
    from poetopt.report.report import Report
    from poetopt.search.exchange.model_files import Exported


def export(
    problem: Solvable,
    path: str | os.PathLike[str],
    *,
    also: Sequence[str | os.PathLike[str]] = (),
    backend: str | Backend = "highs",
    time_limit: str | float = 20.0,
    **options: Unpack[AskOptions],
) -> Exported:
    """Write the model as `.mps`, `.lp` or `.nl` (with `.col` and `.row` beside), for a solver of your own.

    problem
        As in `compare`.
    path
        Its suffix says the format.
    also
        Solutions that `import_solution` refused for rows that are only written where a solution breaks them.
    backend, time_limit
        What finds cuts on the relaxation, and for how long; they are written with the model.
    options
        Those of `solve` that say what is asked, but that the scope `auto` is `depth:8`.

    Raises OptionError for an option that can't be understood, InfeasibleError
    where even the relaxation has no solution, PlanError for an `also` that doesn't fit the model,
    BackendUnavailableError where the backend isn't installed.
    """
    from poetopt.search.exchange.model_files import export as write

    found, rest = taken(problem, options)
    return write(found, asked(found, backend=backend, time_limit=time_limit, **rest), path, also=also)


def import_solution(problem: Solvable, path: str | os.PathLike[str], **options: Unpack[AskOptions]) -> Report:
    """The report on a solution file's schedule, simulated and laid out. Nothing is proven about it.

    path
        What HiGHS, Gurobi, CBC, SCIP, CPLEX or an AMPL solver wrote, or lines of a name and a value.

    The options are those of the export. Raises PlanError for a file that is of another model, incomplete or
    fractional, and for a schedule that is refused.
    """
    from poetopt.report.report import Report
    from poetopt.search.exchange.model_files import import_solution as read
    from poetopt.search.solution import IMPORTED

    found, rest = taken(problem, options)
    return Report(problem=found, solution=read(found, asked(found, backend=IMPORTED, **rest), path))


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
    from poetopt.search.exchange import solved

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
    from poetopt.search.exchange import solved

    return solved.add_cuts(model)


def plan_of(model: Any) -> Plan:
    """The plan that the solution in a Pyomo model stands for: simulated, laid out, and judged by every block.

    model
        As in `add_late_rows`.

    Raises PlanError for a model without a solution, or with one that isn't whole, and for a plan that breaks the
    budget (`add_late_rows` helps), the deadline or a block's rule; FormulationError for a model that no formulation
    has built.
    """
    from poetopt.search.exchange import solved

    return solved.plan_in(model)
