"""Models out as files and solutions back: the round trip with solvers of their own, and what is refused."""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import highspy
import pytest

import poetopt as po
from poetopt.backends.solvers.model_file import distinct
from poetopt.backends.solvers.solution_file import read_solution
from poetopt.formulations import formulation
from poetopt.formulations.energy_budget import energy_budget
from poetopt.formulations.goal import ENERGY
from poetopt.graph.problem import Problem
from poetopt.search.diagnosis.solve import solve
from poetopt.search.exchange.model_files import LEAST, export, import_solution, unit_of
from poetopt.search.solution import Options, Status
from poetopt.util.errors import InfeasibleError, OptionError, PlanError
from tests.backends.solvers import installed
from tests.problems import random_tight


def by_highs(model: Path, solution: Path) -> None:
    """HiGHS as a program that knows nothing of us: it reads the file, and writes one."""
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    assert solver.readModel(str(model)) == highspy.HighsStatus.kOk
    solver.run()
    solver.writeSolution(str(solution), 0)


def by_cbc(model: Path, solution: Path) -> None:
    from poetopt.backends.solvers.pyomo_solvers import cbc

    command = [cbc.solver().executable(), str(model), "-sec", "30", "-solve", "-solution", str(solution)]
    subprocess.run(command, check=True, capture_output=True)


def by_gurobi(model: Path, solution: Path) -> None:
    gurobipy = pytest.importorskip("gurobipy")
    read = gurobipy.read(str(model), gurobipy.Env(params={"OutputFlag": 0}))
    read.optimize()
    read.write(str(solution))


Solver = Callable[[Path, Path], None]
SOLVERS: dict[str, Solver] = {"HiGHS": by_highs, "CBC": by_cbc, "Gurobi": by_gurobi}


@pytest.fixture(scope="module")
def problem() -> Problem:
    return po.load("vgg16-cifar").differentiate().cost("a72")


@pytest.fixture(scope="module")
def options(problem: Problem) -> Options:
    return Options(ram_bytes=po.store_all_peak_bytes(problem) * 7 // 10, scope="depth:3", time_limit_s=20, threads=1)


@pytest.fixture(scope="module")
def values(problem: Problem, options: Options, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """An optimal solution of it, by name."""
    folder = tmp_path_factory.mktemp("solved")
    export(problem, options, folder / "model.mps")
    by_highs(folder / "model.mps", folder / "model.sol")
    return read_solution(folder / "model.sol").values


@pytest.mark.parametrize("suffix", ["mps", "lp"])
@pytest.mark.parametrize("name", SOLVERS)
def test_round_trip(problem: Problem, options: Options, tmp_path: Path, name: str, suffix: str) -> None:
    if name == "CBC":
        installed("cbc")
    model, solution = tmp_path / f"model.{suffix}", tmp_path / "model.sol"
    written = export(problem, options, model)
    assert written.scope == "depth:3"
    assert 0 < written.integers <= written.columns
    SOLVERS[name](model, solution)
    assert read_solution(solution).form == name
    found = import_solution(problem, options, solution)
    best = solve(problem, replace(options, gap=0.0))
    assert found.simulation is not None
    assert best.simulation is not None
    assert found.status is Status.FEASIBLE
    assert found.simulation.overhead_j == pytest.approx(best.simulation.overhead_j, rel=1e-6)
    assert f"{name} format" in found.reason


def optimum_highs(model: Path) -> float:
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.readModel(str(model))
    solver.run()
    return float(solver.getInfo().objective_function_value)


def optimum_gurobi(model: Path) -> float:
    gurobipy = pytest.importorskip("gurobipy")
    read = gurobipy.read(str(model), gurobipy.Env(params={"OutputFlag": 0}))
    read.optimize()
    return float(read.ObjVal)


def optimum_cbc(model: Path) -> float:
    installed("cbc")
    by_cbc(model, model.with_suffix(".sol"))
    head = model.with_suffix(".sol").read_text().splitlines()[0]
    assert head.startswith("Optimal")
    return float(head.split()[-1])


def optimum_scip(model: Path) -> float:
    pyscipopt = pytest.importorskip("pyscipopt")
    scip = pyscipopt.Model()
    scip.hideOutput()
    scip.readProblem(str(model))
    scip.optimize()
    assert scip.getStatus() == "optimal"
    return float(scip.getObjVal())


OPTIMA = {"HiGHS": optimum_highs, "Gurobi": optimum_gurobi, "CBC": optimum_cbc, "SCIP": optimum_scip}


@pytest.fixture(scope="module")
def millijoules() -> tuple[Problem, Options, float]:
    """A step whose costs, in joules, are below what solvers can tell from nothing; and its least overhead."""
    problem = po.load("lenet").differentiate().cost("m4")
    options = Options(ram_bytes=po.store_all_peak_bytes(problem) * 97 // 100, scope="forward", gap=0.0, threads=1)
    best = solve(problem, options)
    assert best.status is Status.OPTIMAL
    assert best.simulation is not None
    assert min(operator.energy_j for operator in problem.operators if operator.energy_j) < 1e-5
    return problem, options, best.simulation.overhead_j


@pytest.mark.parametrize(
    ("name", "suffix"), [(n, s) for n in OPTIMA for s in ("mps", "lp", "nl") if n == "SCIP" or s != "nl"]
)
def test_solvers_with_tolerances_of_their_own_reach_the_optimum(
    millijoules: tuple[Problem, Options, float], tmp_path: Path, name: str, suffix: str
) -> None:
    problem, options, best = millijoules
    written = export(problem, options, tmp_path / f"model.{suffix}")
    found = OPTIMA[name](tmp_path / f"model.{suffix}") / written.objective_scale
    assert found == pytest.approx(best, rel=1e-6)


def test_the_objective_says_its_unit(millijoules: tuple[Problem, Options, float], tmp_path: Path) -> None:
    problem, options, _ = millijoules
    written = export(problem, options, tmp_path / "model.mps")
    told = (written.objective, written.objective_unit, written.objective_scale)
    assert told in (("overhead_uj", "µJ", 1e6), ("overhead_nj", "nJ", 1e9))
    assert {
        "objective": told[0],
        "objective_unit": told[1],
        "objective_scale": told[2],
    }.items() <= written.to_dict().items()
    assert f"{told[0]} (in {told[1]})" in str(written)
    text = (tmp_path / "model.mps").read_text()
    assert text.isascii()
    assert f"{told[2]:,.0f} of the unit are one J" in text.partition("NAME")[0]
    assert f"\n N {told[0]}\n" in text
    quick = replace(options, formulation=formulation("retention").with_block(energy_budget(1.0)))
    name = export(problem, quick, tmp_path / "model.nl").objective
    assert name in ("time_us", "time_ns")
    assert (tmp_path / "model.row").read_text().split()[-1] == name


@pytest.mark.parametrize(
    ("one_pass", "name", "scale"),
    [
        (3e5, "overhead_j", 1.0),
        (21.2, "overhead_mj", 1e3),
        (0.02, "overhead_uj", 1e6),
        (1e-30, "overhead_fj", 1e15),
        (0.0, "overhead_j", 1.0),
    ],
)
def test_the_unit_fits_the_step(one_pass: float, name: str, scale: float) -> None:
    unit = unit_of(ENERGY, one_pass)
    assert (unit.name, unit.scale) == (name, scale)
    assert not 0 < one_pass * scale < LEAST or name == "overhead_fj"


def test_rows_that_come_late_are_asked_for(tmp_path: Path) -> None:
    """Where a solution breaks a row that was never written, the import says how to add it, and that ends well."""
    model, solution = tmp_path / "model.mps", tmp_path / "model.sol"
    refused_once = 0
    for seed in range(40):
        problem, ram_bytes = random_tight(random.Random(seed), operators=8)
        options = Options(ram_bytes=ram_bytes, scope="full", gap=0.0, threads=1)
        best = solve(problem, options)
        if best.simulation is None or refused_once == 3:
            continue
        refused: list[Path] = []
        for attempt in range(20):
            export(problem, options, model, also=refused)
            by_highs(model, solution)
            try:
                found = import_solution(problem, options, solution)
            except PlanError as error:
                if "--also" not in str(error):
                    break  # a layout that doesn't fit has its own message
                kept = tmp_path / f"refused.{attempt}.sol"
                kept.write_bytes(solution.read_bytes())
                refused.append(kept)
                continue
            assert found.simulation is not None
            assert found.simulation.overhead_j == pytest.approx(best.simulation.overhead_j, rel=1e-6)
            refused_once += bool(refused)
            break
        else:
            pytest.fail(f"seed {seed}: 20 solutions were refused")
    assert refused_once == 3


def _plain(values: dict[str, float]) -> str:
    return "".join(f"{name} {value:g}\n" for name, value in values.items())


def _scip(values: dict[str, float]) -> str:
    lines = [f"{name} {value:g} \t(obj:0)\n" for name, value in values.items() if value]
    return f"solution status: optimal solution found\nobjective value: 0\n{''.join(lines)}"


def _cplex(values: dict[str, float]) -> str:
    rows = "".join(f'  <variable name="{n}" index="{x}" value="{v:g}"/>\n' for x, (n, v) in enumerate(values.items()))
    return (
        f'<?xml version="1.0"?>\n<CPLEXSolution version="1.2">\n <variables>\n{rows} </variables>\n</CPLEXSolution>\n'
    )


def _gurobi_json(values: dict[str, float]) -> str:
    named = [{"VarName": name, "X": value} for name, value in values.items() if value]
    return json.dumps({"SolutionInfo": {"Status": 2, "ObjVal": 0}, "Vars": named})


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("plain", _plain),
        ("Gurobi", _gurobi_json),
        ("SCIP", _scip),
        ("CPLEX", _cplex),
        ("plain", lambda v: _plain(v).replace(" ", " = ")),
    ],
)
def test_other_formats(
    problem: Problem,
    options: Options,
    values: dict[str, float],
    tmp_path: Path,
    form: str,
    text: Callable[[dict[str, float]], str],
) -> None:
    path = tmp_path / "theirs.sol"
    path.write_text(text(values), encoding="utf-8")
    assert read_solution(path).form == form
    assert import_solution(problem, options, path).plan is not None


def test_an_ampl_solution_has_its_names_beside_it(
    problem: Problem, options: Options, values: dict[str, float], tmp_path: Path
) -> None:
    written = export(problem, options, tmp_path / "model.nl")
    names = (tmp_path / "model.col").read_text().split()
    assert sorted(names) == sorted(values)
    assert len((tmp_path / "model.row").read_text().split()) == written.rows + 1
    head = (tmp_path / "model.nl").read_text().splitlines()[1].split()
    assert (int(head[0]), int(head[1])) == (written.columns, written.rows)
    numbers = "".join(f"{values[name]:g}\n" for name in names)
    n = len(names)
    text = f"HiGHS: optimal\n\nOptions\n3\n1\n1\n0\n{written.rows}\n0\n{n}\n{n}\n{numbers}objno 0 0\n"
    (tmp_path / "model.sol").write_text(text)
    assert read_solution(tmp_path / "model.sol").form == "AMPL"
    assert import_solution(problem, options, tmp_path / "model.sol").plan is not None
    (tmp_path / "model.sol").write_text(text[: len(text) // 2])
    with pytest.raises(PlanError, match="breaks off"):
        read_solution(tmp_path / "model.sol")
    (tmp_path / "model.col").unlink()
    with pytest.raises(PlanError, match=r"put model\.col"):
        read_solution(tmp_path / "model.sol")


def test_names_say_what_they_decide(problem: Problem, values: dict[str, float]) -> None:
    shape = re.compile(r"(?:(recompute|keep|page_in)\.s(\d+)|(page_out))\.(\d+)\.(.+)")
    for name in values:
        match = shape.fullmatch(name)
        assert match is not None, name
        things = problem.operators if match[1] == "recompute" else problem.tensors
        assert match[5] == re.sub(r"[^A-Za-z0-9_.]+", "_", things[int(match[4])].name)
        assert match[3] or 0 <= int(match[2]) < len(problem.operators)


def test_names_are_different_and_plain() -> None:
    found = distinct(["a b", "a+b", "a_b", "e12", "3x", "", "x[1]", "x.1", "infinity", "long" * 60])
    assert len(set(found)) == len(found)
    assert all(name[0].isalpha() and len(name) <= 110 for name in found)
    assert not any(set(name) - set("abcdefghijklmnopqrstuvwxyz0123456789_.") for name in found)
    assert found[3] == "v_e12"


Spoil = Callable[[dict[str, float]], dict[str, float]]
WRONG: dict[str, tuple[Spoil, str]] = {
    "another model": (lambda v: {f"{n}.x": x for n, x in v.items()}, "no variable of this model"),
    "broken rows": (lambda v: dict.fromkeys(v, 0.0), "breaks .* rows"),
    "fractional": (lambda v: {n: x * 0.5 if x else x for n, x in v.items()}, "is not whole"),
    "out of bounds": (lambda v: {n: 2.0 if x else x for n, x in v.items()}, "out of its bounds"),
    "not a number": (lambda v: {**v, next(iter(v)): float("nan")}, "must be a finite number"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_solutions(
    problem: Problem, options: Options, values: dict[str, float], tmp_path: Path, case: str
) -> None:
    spoil, words = WRONG[case]
    path = tmp_path / "wrong.sol"
    path.write_text(_plain(spoil(values)), encoding="utf-8")
    with pytest.raises(PlanError, match=words):
        import_solution(problem, options, path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("x\n", "isn't a name and a value"),
        ("x one\n", "no number for a value"),
        ("x 1\nx 1\n", "comes twice"),
        ("Model status\nInfeasible\n\n# Primal solution values\nNone\n", "HiGHS says: infeasible"),
        ("Model status\nOptimal\n\n# Primal solution values\nFeasible\nObjective 0\n# Columns 2\nx 1\n", "breaks off"),
        ("Infeasible - objective value 0.0\n 0 x 1 0\n", "CBC says: infeasible"),
        ("Optimal - objective value 0.0\n 0 x 1\n", "breaks off"),
        ("solution status: infeasible\nno solution available\n", "SCIP says: infeasible"),
        ('<?xml?>\n<CPLEXSolution>\n<variable name="x" value="1"/>\n', "breaks off"),
        ('{"SolutionInfo": {"Status": 3}}', "Gurobi's status is 3"),
        ('{"SolutionInfo": {"Status": 2}, "Vars": [{"VarName": "x", "X"', "breaks off"),
        ('{"SolutionInfo": {"Status": 2}, "Vars": [{"X": 1}]}', "no `VarName`"),
        ('{"SolutionInfo": {}, "Vars": [{"VarName": "x", "X": 1}, {"VarName": "x", "X": 1}]}', "comes twice"),
        ("# Solution for model poetopt\n# Objective value = 0\n", "no solution in it"),
    ],
)
def test_files_that_hold_no_solution(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "theirs.sol"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PlanError, match=words):
        read_solution(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="a folder"):
        read_solution(tmp_path)
    with pytest.raises(PlanError, match="No such file"):
        read_solution(tmp_path / "none.sol")
    (tmp_path / "binary.sol").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(PlanError, match="not a text file"):
        read_solution(tmp_path / "binary.sol")


def test_a_solution_that_lacks_variables(
    problem: Problem, options: Options, values: dict[str, float], tmp_path: Path
) -> None:
    path = tmp_path / "gurobi.sol"
    some = dict(list(values.items())[:-5])
    path.write_text(f"# Solution for model poetopt\n# Objective value = 0\n{_plain(some)}", encoding="utf-8")
    with pytest.raises(PlanError, match=r"lacks 5 of"):
        import_solution(problem, options, path)


def test_a_smaller_budget_refuses_the_schedule(
    problem: Problem, options: Options, values: dict[str, float], tmp_path: Path
) -> None:
    path = tmp_path / "plain.sol"
    path.write_text(_plain(values), encoding="utf-8")
    with pytest.raises(PlanError, match=r"breaks|no variable"):
        import_solution(problem, replace(options, ram_bytes=options.ram_bytes * 8 // 10), path)


def test_exports_that_are_refused(problem: Problem, options: Options, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"must be \.mps, \.lp, \.nl"):
        export(problem, options, tmp_path / "model.txt")
    with pytest.raises(InfeasibleError, match="below the"):
        export(problem, replace(options, ram_bytes=1000), tmp_path / "model.mps")
    assert not list(tmp_path.iterdir())


def test_the_papers_formulation_goes_the_same_way(tmp_path: Path) -> None:
    problem = po.load("mlp").differentiate().cost("a72")
    written = po.export(problem, tmp_path / "model.lp", ram="80%", formulation="poet")
    assert written.scope == "full"
    by_highs(tmp_path / "model.lp", tmp_path / "model.sol")
    report = po.import_solution(problem, tmp_path / "model.sol", ram="80%", formulation="poet")
    best = po.solve(problem, ram="80%", formulation="poet", gap=0)
    assert report.solution.simulation is not None
    assert best.solution.simulation is not None
    assert report.solution.simulation.overhead_j == pytest.approx(best.solution.simulation.overhead_j, rel=1e-5)
    assert report.to_dict()["backend"] == "imported"
