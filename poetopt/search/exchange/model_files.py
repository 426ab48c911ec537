"""A model for somebody's own solver, and that solver's solution back as a simulated plan."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from poetopt.backends.solvers.matrix import Matrix, compile_model
from poetopt.backends.solvers.model_file import column_names, lp_lines, mps_lines, row_names, write_nl
from poetopt.backends.solvers.solution_file import SolutionFile, read_solution
from poetopt.backends.solvers.solver import Floats, Point
from poetopt.formulations import formulation
from poetopt.formulations.goal import ENERGY, Goal
from poetopt.formulations.language import Formulation
from poetopt.formulations.rows import Row
from poetopt.graph.problem import Problem
from poetopt.plan.storeall import store_all_bytes
from poetopt.search.cutting import cut, limits_of, model_of, session_of
from poetopt.search.incumbent import Incumbent
from poetopt.search.limits import impossible
from poetopt.search.run import Budget
from poetopt.search.solution import Options, Solution, Status
from poetopt.util.errors import InfeasibleError, OptionError, PlanError
from poetopt.util.figures import Figures
from poetopt.util.files import write_atomically
from poetopt.util.units import show_limit

# The unit of a written model's objective: small enough a unit that costs are large numbers.
#
# A solver compares objectives with tolerances of its own, many of them absolute (1e-6 and the like), and a training
# step
# on a small board takes millijoules: in joules, schedules that differ by a percent are the same to it.

PREFIXES = ("", "m", "µ", "n", "p", "f")
"""Each a thousandth of the one before."""
LEAST = 1e4
"""The least value of one pass, in the unit that is chosen: single costs are then mostly between 1 and 1e4."""


@dataclass(frozen=True)
class Unit:
    """The unit of a written objective.

    name
        Of the objective in the file: letters, digits and `_`.
    symbol
        `µJ`.
    scale
        So many of it are one of the model's own unit: 1e6.
    """

    name: str
    symbol: str
    scale: float

    def __str__(self) -> str:
        return f"{self.name} (in {self.symbol})"


def unit_of(goal: Goal, one_pass: float) -> Unit:
    """The largest of the unit and its thousandths in which `one_pass`, the value of one pass, is `LEAST` or more."""
    steps = range(len(PREFIXES))
    step = next((k for k in steps if one_pass * 1000.0**k >= LEAST), steps[-1]) if one_pass > 0 else 0
    letter = PREFIXES[step]
    what = "overhead" if goal is ENERGY else re.sub(r"\W+", "_", goal.name, flags=re.ASCII)
    ascii_unit = re.sub(r"\W+", "", goal.unit, flags=re.ASCII).lower()
    return Unit(f"{what}_{letter.replace('µ', 'u')}{ascii_unit}", f"{letter}{goal.unit}", 1000.0**step)


FORMATS = (".mps", ".lp", ".nl")
DEPTH = "depth:8"
"""The scope of a file where `auto` is asked for: a file has one."""
TOLERANCE = 1e-5
"""Solvers write about eight digits: a value may be this far from whole, and a row broken by this share of its size."""
REMEDY = "give more --ram or a longer --deadline; `poetopt solve` says what would be feasible"
SHOWN = 3
"""The number of names that are given as examples in a message."""


@dataclass(frozen=True)
class Exported(Figures):
    """A model file that was written.

    rows, found
        All rows, and those among them that separators found: cuts, and rows of the model that it needs lazily.
    objective, objective_unit, objective_scale
        The objective's name in the file and its unit, of which so many are a joule (or a second, where time is
        minimised): what the solver says of its optimum is in it.
    """

    path: str
    scope: str
    columns: int
    integers: int
    rows: int
    found: int
    objective: str
    objective_unit: str
    objective_scale: float

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.columns:,} variables ({self.integers:,} whole), {self.rows:,} rows "
            f"({self.found:,} found by separators), scope {self.scope}; "
            f"minimise {self.objective} (in {self.objective_unit})"
        )


def export(
    problem: Problem, options: Options, path: str | os.PathLike[str], *, also: Sequence[str | os.PathLike[str]] = ()
) -> Exported:
    """Write the model of `problem` as `.mps`, `.lp` or `.nl`, with the rows that the relaxation asks for.

    also
        Solution files of an earlier export of this model: the rows that they break are written as well.

    Raises OptionError for another suffix, InfeasibleError where even the relaxation has no solution, and PlanError
    for an `also` that doesn't fit the model.
    """
    shown = os.fspath(path)
    suffix = Path(shown).suffix.lower()
    if suffix not in FORMATS:
        raise OptionError(f"-o {shown}: the file's suffix says the format, and must be {', '.join(FORMATS)}")
    refusal = impossible(problem, options)
    if refusal is not None:
        raise InfeasibleError(f"{problem.name} on {problem.device}: {refusal['reason']}; {REMEDY}")
    chosen, model, scope = _model(problem, options)
    proper = compile_model(model)
    columns = column_names(proper, chosen.points.labels(model))
    added = _found(chosen, model, options)
    for file in also:
        point = _point(proper, _values(os.fspath(file), read_solution(file), columns))
        added += [row for row in chosen.separate(model, point) if row.core]
    unit = unit_of(chosen.goal, chosen.goal.baseline(problem, chosen.baseline_j(problem)))
    whole = proper.extended(added).scaled(unit.scale)
    rows = row_names(proper, added)
    if suffix == ".nl":
        names = dict(zip(map(id, proper.columns.variables), columns, strict=True))
        write_nl(shown, model, whole, added, names, objective=unit.name)
    else:
        lines, mark = (mps_lines, "*") if suffix == ".mps" else (lp_lines, "\\")
        head = "".join(f"{mark} {line}\n" for line in _head(problem, options, chosen, scope, unit, bool(added)))
        write_atomically(shown, head + "".join(lines(whole, columns, rows, objective=unit.name)))
    return Exported(
        shown, scope, len(columns), int(whole.integer.sum()), len(rows), len(added), unit.name, unit.symbol, unit.scale
    )


def _model(problem: Problem, options: Options) -> tuple[Formulation, Any, str]:
    chosen = formulation(options.formulation)
    scope = options.scope
    if scope == "auto":
        scopes = chosen.scopes(problem, limits_of(options), options.paging, options.remat)
        scope = DEPTH if len(scopes) > 1 else scopes[0]
    return chosen, model_of(chosen, problem, options, scope), scope


def _found(chosen: Formulation, model: Any, options: Options) -> list[Row]:
    """The rows that cutting finds within the time limit: some are the model's own, and never written down else."""
    session = session_of(model, options, scale=1e4 / (model.space.problem.baseline_energy_j or 1.0))
    until = time.monotonic() + options.time_limit_s
    if cut(chosen, model, session, until=Budget.by_clock(until), overhead_j=None, on_bound=lambda _: False).infeasible:
        raise InfeasibleError(
            f"{model.space.problem.name} on {model.space.problem.device}: even the model's linear relaxation has no "
            f"solution, so that no schedule keeps this budget and deadline; {REMEDY}"
        )
    return list(session.added)


def _head(problem: Problem, options: Options, chosen: Formulation, scope: str, unit: Unit, lazily: bool) -> list[str]:
    """Comment lines: what this is, what the names mean, and how a solution goes back."""
    lines = [
        f"poetopt: {problem.name} on {problem.device}, {chosen.name} in the scope {scope}, "
        f"{options.ram_bytes} bytes of RAM" + ("" if options.deadline_s is None else f", {options.deadline_s!r} s"),
        f"minimise {unit.name}: {chosen.goal.name} above one compute of each operator; "
        f"{unit.scale:,.0f} of the unit are one {chosen.goal.unit}, as solvers' tolerances are absolute",
        "names: what is decided, sT the stage T, the operator's or tensor's number and name",
        "back: poetopt import-solution MODEL SOLUTION with the options of the export",
    ]
    if lazily:
        lines.append("some rows of the model are found as solutions break them: import-solution says when one does")
    return lines


def import_solution(problem: Problem, options: Options, path: str | os.PathLike[str]) -> Solution:
    """The plan that a solution file stands for, simulated and laid out; nothing is proven about it.

    Raises PlanError for a file of another model, an incomplete or fractional one, one that breaks a row, and for a
    schedule that the simulator or the memory layout refuses.
    """
    begin = time.monotonic()
    shown = os.fspath(path)
    read = read_solution(path)
    chosen, model, scope = _model(problem, options)
    matrix = compile_model(model)
    values = _values(shown, read, column_names(matrix, chosen.points.labels(model)))
    _check(shown, matrix, values)
    point = _point(matrix, values)
    broken = [row for row in chosen.separate(model, point) if row.core]
    if broken:
        worst = max(broken, key=lambda row: row.violation)
        raise PlanError(
            f"{shown}: it breaks {len(broken)} of the rows that are only written where a solution needs them "
            f"({worst.kind}); export the model again with --also {shown}, which adds "
            "them, beside each --also given before, and solve that"
        )
    incumbent = Incumbent(problem, options)
    schedule = chosen.points.schedule(model, point)
    if not incumbent.offer(schedule):
        raise PlanError(f"{shown}: {_refusal(incumbent, incumbent.broken(schedule))}")
    incumbent.hide_transfers()
    incumbent.settle()
    best = incumbent.best
    assert best is not None
    return Solution(
        status=Status.FEASIBLE,
        scope=model.space.name,
        options=replace(options, scope=scope),
        plan=best.plan,
        simulation=best.simulation,
        overhead_bound_j=0.0,
        scope_bound=0.0,
        arena_bytes=best.arena_bytes,
        store_all_peak_bytes=store_all_bytes(problem),
        total_s=time.monotonic() - begin,
        reason=f"imported from {shown} ({read.form} format): simulated and laid out here, nothing proven",
    )


def _refusal(incumbent: Incumbent, rule: str | None) -> str:
    if rule is not None:
        return f"a block refuses its schedule: {rule}"
    if incumbent.arena_excess is not None:
        return (
            f"its schedule fits, but the best memory layout found is {incumbent.arena_excess:,} bytes over the budget; "
            "export the model with so much less --ram, and import with the --ram that you have"
        )
    if incumbent.makespan_excess_s is not None:
        return (
            f"its schedule takes {show_limit(incumbent.makespan_excess_s, 's')} more than the deadline; export the "
            "model with so much less --deadline, and import with the one that you have"
        )
    return "the simulator refuses its schedule; check that the options are those of the export"


def _values(path: str, read: SolutionFile, columns: Sequence[str]) -> Floats:
    """(n,) values by column. Raises PlanError for names that the model hasn't, and for variables that are missing."""
    known = {name: x for x, name in enumerate(columns)}
    strangers = [name for name in read.values if name not in known]
    if strangers:
        raise PlanError(
            f"{path}: {len(strangers)} of its {len(read.values)} names are no variable of this model: "
            f"{_some(strangers)} (the model has {_some(columns)}); give the model and the options of the export"
        )
    missing = [name for name in columns if name not in read.values]
    if missing and not read.sparse:
        raise PlanError(
            f"{path}: it lacks {len(missing)} of {len(columns)} variables: {_some(missing)}; it must name all of them"
        )
    values = np.zeros(len(columns))
    for name, value in read.values.items():
        values[known[name]] = value
    return values


def _some(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _check(path: str, matrix: Matrix, values: Floats) -> None:
    """Raise PlanError for values that are not whole, out of bounds, or break a row."""
    fractional = matrix.integer & (np.abs(values - np.round(values)) > TOLERANCE)
    outside = (values < matrix.lower - TOLERANCE) | (values > matrix.upper + TOLERANCE)
    for what, where in (("is not whole", fractional), ("is out of its bounds", outside)):
        bad = np.flatnonzero(where)
        if len(bad):
            variable = matrix.columns.variables[bad[0]].name
            raise PlanError(
                f"{path}: {len(bad)} of its values can't be, e.g. {variable} = {values[bad[0]]:g} {what}; solve the "
                "model to integrality, not its relaxation"
            )
    activity = matrix.rows @ values
    size = 1.0 + np.abs(matrix.rows) @ np.abs(values)
    slack = np.minimum(activity - matrix.row_lower, matrix.row_upper - activity)
    broken = np.flatnonzero(slack < -TOLERANCE * size)
    if len(broken):
        worst = broken[np.argmin(slack[broken] / size[broken])]
        raise PlanError(
            f"{path}: it breaks {len(broken)} of the model's {len(slack)} rows, e.g. "
            f"{matrix.constraints[worst].name} by {-slack[worst]:g}; it is incomplete, or of another budget or deadline"
        )


def _point(matrix: Matrix, values: Floats) -> Point:
    rounded = np.where(matrix.integer, np.round(values), values)
    return Point(rounded, matrix.columns.of, True)
