"""Our separators inside a solver's branch and cut: SCIP's constraint handler, Gurobi's callbacks, beside our own tree.

    .venv/bin/python -m benchmarks.solver_callbacks [--only SUBSTRING]... [--way WAY]... [--limit SECONDS]
        [--output FILE.md]

HiGHS takes no rows during its search, so poetopt grows a tree of its own beside it, and separates rows at each node.
SCIP and Gurobi take rows: here they call the formulation's separators, at points of their relaxations for cuts, and at
each of their solutions for the lazy constraints. Cells are those of `benchmarks/solve.py`. Ways:

engine
    As it is: HiGHS, and our tree beside it, with 2 threads.
engine-1
    The same with 1 thread, which grows no tree: HiGHS's search with the cuts of the root.
engine-scip
    The engine, but whole models are searched by SCIP with the handler, and no tree is ours: what a backend would be.
    Scopes, cuts of the root, heuristics and neighbourhoods stay. 2 threads; the search takes one of them.
scip
    SCIP with the handler alone, on the model of the scope that is asked for, from the heuristics' incumbent.
scip-cuts
    The same once the engine's loop has cut the relaxation.
engine-gurobi, gurobi, gurobi-cuts
    The same with Gurobi. The licence of pip's package takes models of 2,000 rows and columns.
scip-bare
    Negative control: `scip` without the handler. The simulator judges its best point.

Each way of a cell runs in a fresh process, one after the other. A schedule counts once the simulator has judged its
plan within the budget and it has a layout; the plan that is told is simulated once more here. Limits and times are CPU
seconds of all threads, from the problem to the plan (`cpu_clock`), since a machine that others use gives now more of
them, now less. Two threads that are both at work take two in a second of an idle machine.

Ctrl-C (SIGINT) to the process of a cell ends its solve with what is known.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.callback_backends import gurobi_backend, scip_backend
from benchmarks.output import put
from benchmarks.solve import ROOT, Cell, cells, options_of, problem_of
from poetopt.util.errors import BackendUnavailableError

if TYPE_CHECKING:
    from poetopt.backends.solvers.solver import Point
    from poetopt.formulations.rows import Row
    from poetopt.graph.problem import Problem
    from poetopt.plan.instructions import Plan
    from poetopt.search.budget import Budget
    from poetopt.search.solution import Options

WAYS = ("engine", "engine-1", "engine-scip", "scip", "scip-cuts")
"""Those that are compared unless others are asked for."""
HEADING = "| cell | RAM | scope | way | overhead J | bound J | gap | CPU s | nodes | cuts | lazy | refused |"
CUT_SHARE = 0.5
"""Of the time left, what the engine's loop may take to cut the root before a solver begins."""
SCALED = 1e4
"""What the incumbent's overhead is in the solver's own figures: its tolerances are absolute."""


def cpu_clock() -> None:
    """Have this process, and the solvers in it, go by CPU seconds in place of the clock on the wall.

    HiGHS knows the wall's alone: its limits are stretched by what a CPU second has taken so far.
    """
    import highspy

    begin, set_option = time.perf_counter(), highspy.Highs.setOptionValue
    time.monotonic = time.process_time

    def stretched(solver: Any, option: str, value: Any) -> Any:
        if option == "time_limit":
            value *= max(1.0, (time.perf_counter() - begin) / time.process_time())
        return set_option(solver, option, value)

    highspy.Highs.setOptionValue = stretched  # type: ignore[method-assign, assignment]
    try:
        import pyscipopt
    except ImportError:
        return

    class Model(pyscipopt.Model):  # type: ignore[misc, unused-ignore]
        def setParam(self, name: str, value: Any) -> None:  # noqa: N802 - SCIP's name
            super().setParam(name, 1 if name == "timing/clocktype" else value)

    pyscipopt.Model = Model  # type: ignore[misc, unused-ignore]


def measure(cell: Cell, way: str, limit_s: float) -> dict[str, Any]:
    """Solve one cell one way in this process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job has without
    cpu_clock()
    problem, begin = problem_of(cell), time.process_time()
    options = options_of(cell, problem, limit_s)
    return {**solved(problem, options, way), "cpu_s": time.process_time() - begin}


def solved(problem: Problem, options: Options, way: str) -> dict[str, Any]:
    """Overhead and bound of one way, the overhead judged by the simulator, and what callbacks did."""
    from poetopt.formulations import formulation
    from poetopt.plan.simulate import simulate
    from poetopt.search.diagnosis.solve import solve

    chosen, told = formulation(options.formulation), dict.fromkeys(("nodes", "cuts", "lazy", "refused"), 0)
    if way in ("engine", "engine-1"):
        options, told = replace(options, threads=1 if way == "engine-1" else 2), {}
    else:
        scip = "scip" in way
        backend = scip_backend(chosen, told, handler=way != "scip-bare") if scip else gurobi_backend(chosen, told)
        options = replace(options, backend=backend, threads=2 if way.startswith("engine") else 1)
    if way.startswith("engine"):
        solution = solve(problem, options)
        plan, bound_j, scope = solution.plan, solution.overhead_bound_j, solution.scope
    else:
        plan, bound_j, peak_bytes = alone(problem, options, cuts=way.endswith("-cuts"))
        scope = options.scope
        if way == "scip-bare":
            return {"bound_j": bound_j, "scope": scope, "peak_bytes": peak_bytes, "ram_bytes": options.ram_bytes}
    overhead_j = None
    if plan is not None:
        simulation = simulate(plan)
        assert simulation.peak_bytes <= options.ram_bytes, "a plan beyond the budget"
        overhead_j = simulation.overhead_j
    return {"overhead_j": overhead_j, "bound_j": bound_j, "scope": scope, **told}


def alone(problem: Problem, options: Options, *, cuts: bool) -> tuple[Plan | None, float, int]:
    """One search of the scope's model: the best plan, what is proven, and what the solver's best point takes of RAM."""
    from poetopt.plan.assemble import plan_of
    from poetopt.plan.simulate import simulate
    from poetopt.search.constructive import first_schedules
    from poetopt.search.cutting import cut
    from poetopt.search.model import model_of, session_of
    from poetopt.search.replays import Replays
    from poetopt.search.run import Run

    run = Run(problem, options, None)
    chosen, budget = run.chosen, run.budget
    run.enter(options.scope)
    first_schedules(run, strict=False)
    model = model_of(chosen, problem, options, options.scope)
    one_pass = chosen.goal.baseline(problem, chosen.baseline_j(problem))
    session: Any = session_of(model, options, scale=SCALED / (run.incumbent.value or one_pass or 1.0))
    replays = Replays(run, budget, model, run.work)

    def judge(point: Point) -> list[Row]:
        schedule = chosen.points.schedule(model, point)
        run.offer(schedule, "search")
        values = chosen.points.values(model, schedule)
        if run.incumbent.refused(schedule) is None or values is None or chosen.no_good is None:
            return []
        return [chosen.no_good(model, schedule, values, late=False)]

    def risen(bound: float) -> bool:
        run.raise_bound(bound, "search")
        return run.closed(options.gap)

    session.separation.follow, session.separation.judge = replays.follow_some, judge
    if cuts:
        until = Budget.by_clock(time.monotonic() + CUT_SHARE * budget.work.clock_s)
        value = run.incumbent.value
        cut(chosen, model, session, until=until, overhead_j=value, on_bound=risen, on_point=replays.follow_some)
    peak_bytes = 0
    if not run.closed(options.gap):
        known = [*([] if run.incumbent.best is None else [run.incumbent.best.schedule]), *run.starts]
        starts = (chosen.points.values(model, schedule) for schedule in known)
        found = session.search(
            time_limit_s=max(budget.limit_s, 0.1),
            gap=options.gap,
            start=next((values for values in starts if values is not None), None),
            on_point=lambda point: run.offer(chosen.points.schedule(model, point), "search"),
            on_bound=risen,
        )
        risen(found.bound)
        if found.point is not None:
            peak_bytes = simulate(plan_of(problem, chosen.points.schedule(model, found.point))).peak_bytes
    best = run.incumbent.best
    return None if best is None else best.plan, run.bound, peak_bytes


def line(cell: Cell, way: str, row: dict[str, Any]) -> str:
    """The table's row."""
    overhead, bound = row.get("overhead_j"), row.get("bound_j")
    gap = "-" if not overhead or bound is None else f"{max(0.0, 1 - bound / overhead):.3%}"
    if "peak_bytes" in row:
        verdict = "refused" if row["peak_bytes"] > row["ram_bytes"] else "accepted"
        gap = f"{verdict}: {row['peak_bytes']:,} of {row['ram_bytes']:,} B"

    def number(key: str, form: str) -> str:
        value = row.get(key)
        return "-" if value is None else format(value, form)

    budget = f"{cell.ram:.0%}" + ("" if cell.paging else ", no paging")
    budget += "" if cell.deadline is None else f", {cell.deadline}x"
    figures = [number("overhead_j", ".6g"), number("bound_j", ".6g"), row.get("error", gap), number("cpu_s", ".1f")]
    counted = [number(key, "d") for key in ("nodes", "cuts", "lazy", "refused")]
    parts = [f"{cell.problem} {cell.device}", budget, str(row.get("scope", cell.scope)), way, *figures, *counted]
    return f"| {' | '.join(parts)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="cells whose text contains this; may be repeated")
    parser.add_argument("--way", action="append", help=f"may be repeated; by default {', '.join(WAYS)}")
    parser.add_argument("--limit", type=float, default=0.0, help="time limit of each solve in CPU seconds")
    parser.add_argument("--output", type=Path, help="write the table here (Markdown)")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        try:
            row = measure(Cell(**json.loads(arguments.cell)), arguments.way[0], arguments.limit)
        except BackendUnavailableError as error:
            row = {"error": str(error).partition(";")[0]}
        print(json.dumps(row))
        return
    lines = [HEADING, "|---" * HEADING.count("| ") + "|"]
    for cell in cells():
        name = f"{cell.group} {cell.problem} {cell.device} {cell.ram} {cell.scope} {cell.formulation}"
        if arguments.only and not any(wanted in name for wanted in arguments.only):
            continue
        for way in arguments.way or WAYS:
            command = [sys.executable, "-m", "benchmarks.solver_callbacks", "--cell", json.dumps(asdict(cell))]
            command += ["--way", way, "--limit", str(arguments.limit)]
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
            told = done.stdout if done.returncode == 0 else json.dumps({"error": done.stderr.strip().splitlines()[-1]})
            lines.append(line(cell, way, json.loads(told)))
            print(lines[-1], file=sys.stderr, flush=True)
            if arguments.output:
                put(lines, arguments.output)
    if not arguments.output:
        put(lines, None)


if __name__ == "__main__":
    main()
