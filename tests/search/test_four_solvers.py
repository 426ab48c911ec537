"""Twenty problems as LP, MPS and NL files: solvers reach one optimum, and their solutions are plans of that cost."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import highspy
import pytest

from poetopt.formulations import formulation
from poetopt.formulations.static_power import static_power
from poetopt.graph.problem import Problem
from poetopt.search.exchange.model_files import export, import_solution
from poetopt.search.solution import Options
from poetopt.util.errors import InfeasibleError, PlanError
from tests.backends.solvers import installed
from tests.problems import random_tight
from tests.search.test_model_files import by_cbc
from tests.seeds import seeds

Solve = Callable[[Path, Path], float | None]
"""A model file and where its solution goes -> the optimum, or None where there is none."""
TRIES = 30
POWER_W = 0.25


def highs(model: Path, solution: Path) -> float | None:
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    assert solver.readModel(str(model)) == highspy.HighsStatus.kOk
    solver.run()
    solver.writeSolution(str(solution), 0)
    optimal = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return float(solver.getInfo().objective_function_value) if optimal else None


def cbc(model: Path, solution: Path) -> float | None:
    by_cbc(model, solution)
    head = solution.read_text().splitlines()[0]
    return float(head.split()[-1]) if head.startswith("Optimal") else None


def gurobi(model: Path, solution: Path) -> float | None:
    import gurobipy

    read = gurobipy.read(str(model), gurobipy.Env(params={"OutputFlag": 0, "Threads": 1}))
    read.optimize()
    if read.Status != gurobipy.GRB.OPTIMAL:
        return None
    read.write(str(solution))
    return float(read.ObjVal)


def scip(model: Path, solution: Path) -> float | None:
    import pyscipopt

    solver = pyscipopt.Model()
    solver.hideOutput()
    solver.readProblem(str(model))
    solver.optimize()
    if solver.getStatus() != "optimal":
        return None
    solver.writeBestSol(str(solution), write_zeros=True)
    return float(solver.getObjVal())


SOLVERS: dict[str, Solve] = {"highs": highs, "cbc": cbc, "gurobi": gurobi, "scip": scip}


def _ways() -> list[tuple[Solve, str]]:
    """Every installed solver with every format that it reads."""
    found = []
    for name, solver in SOLVERS.items():
        try:
            installed(name)
        except pytest.skip.Exception:
            continue
        found += [(solver, suffix) for suffix in ("lp", "mps", *(("nl",) if name == "scip" else ()))]
    return found


def _powered(seed: int) -> bool:
    return seed % 5 == 0


def _case(seed: int) -> tuple[Problem, Options]:
    problem, ram_bytes = random_tight(random.Random(seed), operators=5, training=True)
    chosen = formulation("poet" if seed % 2 else "retention")
    if _powered(seed):
        chosen = chosen.with_block(static_power(POWER_W))  # its variable has no upper bound
    return problem, Options(ram_bytes=ram_bytes, scope="full", gap=0.0, threads=1, formulation=chosen)


@pytest.mark.parametrize("seed", seeds(20))
def test_one_optimum_and_back(tmp_path: Path, seed: int) -> None:
    problem, options = _case(seed)
    refused: list[Path] = []
    for attempt in range(TRIES):
        try:
            for suffix in ("lp", "mps", "nl"):
                scale = export(problem, options, tmp_path / f"model.{suffix}", also=refused).objective_scale
        except InfeasibleError:
            return
        optima, more = [], []
        for number, (solve, suffix) in enumerate(_ways()):
            solution = tmp_path / f"{attempt}.{number}.sol"
            optimum = solve(tmp_path / f"model.{suffix}", solution)
            optima.append(optimum)
            if optimum is None:
                continue
            try:
                found = import_solution(problem, options, solution)
            except PlanError as error:
                if "--also" not in str(error):
                    raise
                more.append(solution)
                continue
            assert found.simulation is not None
            late_s = max(0.0, found.simulation.makespan_s - problem.baseline_time_s)
            value = found.simulation.overhead_j + (POWER_W * late_s if _powered(seed) else 0.0)
            assert value == pytest.approx(optimum / scale, rel=1e-6, abs=1e-6)
        if None in optima:
            assert set(optima) == {None}
            return
        assert optima == pytest.approx([optima[0]] * len(optima), rel=1e-6, abs=1e-6)
        if not more:
            return
        refused += more
    pytest.fail(f"solutions were refused {TRIES} times")
