"""The backends keep one contract, and reach the same optima."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import poetopt as po
from poetopt.backends.solvers.solver import BACKENDS
from poetopt.graph.problem import Problem
from poetopt.search.diagnosis.solve import solve
from poetopt.search.solution import Options, Status
from poetopt.util.errors import BackendUnavailableError, OptionError
from tests.backends.solvers import every_backend, installed
from tests.closed import closed
from tests.contract.backend import check_backend
from tests.problems import random_tight


@every_backend
def test_it_keeps_the_contract(name: str) -> None:
    checked = check_backend(installed(name), problems=8, schedules=2)
    assert checked.interrupted == (signal.getsignal(signal.SIGINT) is signal.default_int_handler)


@pytest.fixture(scope="module")
def references() -> list[tuple[Problem, int, float | None]]:
    """Twenty random graphs with their budgets, and their least overheads by HiGHS."""
    found = []
    for seed in range(20):
        problem, ram_bytes = random_tight(random.Random(seed), operators=7, dma=seed % 3 == 0)
        found.append((problem, ram_bytes, _optimum(problem, ram_bytes, "highs")))
    assert sum(overhead is not None and overhead > 0 for _, _, overhead in found) >= 10
    return found


def _optimum(problem: Problem, ram_bytes: int, name: str) -> float | None:
    solution = solve(problem, Options(ram_bytes=ram_bytes, scope="full", gap=0.0, backend=name, threads=1))
    if solution.simulation is None:
        assert solution.status is Status.INFEASIBLE
        return None
    assert closed(solution)
    return solution.simulation.overhead_j


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "highs"])
def test_twenty_random_graphs(name: str, references: list[tuple[Problem, int, float | None]]) -> None:
    installed(name)
    for problem, ram_bytes, expected in references:
        assert _optimum(problem, ram_bytes, name) == (None if expected is None else pytest.approx(expected, rel=1e-6))


@pytest.mark.parametrize(("network", "ram", "scope"), [("mlp", "80%", "full"), ("vgg16-cifar", "70%", "depth:2")])
def test_small_networks(network: str, ram: str, scope: str) -> None:
    problem = po.load(network).differentiate().cost("a72")
    expected = po.solve(problem, ram=ram, scope=scope, gap=0, threads=1).solution
    assert closed(expected)
    assert expected.simulation is not None
    for name in BACKENDS:
        if name == "highs":
            continue
        found = po.solve(problem, ram=ram, scope=scope, gap=0, backend=installed(name), threads=1)
        assert closed(found.solution)
        assert found.to_dict()["backend"] == name
        assert found.solution.simulation is not None
        assert found.solution.simulation.overhead_j == pytest.approx(expected.simulation.overhead_j, rel=1e-6)


def test_an_interrupt_ends_the_program_too_and_keeps_the_best_schedule(tmp_path: Path) -> None:
    """A SIGINT while CBC, a program of its own, is searching: a plan that isn't called optimal unless it is proven."""
    installed("cbc")
    code = "import sys; from poetopt.cli.app import invoke; sys.exit(invoke(sys.argv[1:]))"
    log = tmp_path / "cbc.log"
    command = "solve resnet18-cifar --device m4 --ram 30% --scope depth:8 --gap 0 --backend cbc --json -"
    with subprocess.Popen(
        [sys.executable, "-c", code, *command.split(), "--with", f"log={log!s}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while process.poll() is None and not (log.exists() and log.read_text().count("Cgl0004I") > 1):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 0, err
    answer = json.loads(out)
    closed = answer["overhead_bound_j"] >= answer["overhead_j"] * (1 - 1e-6)
    assert answer["status"] in (("optimal",) if closed else ("feasible", "within-gap"))
    assert "Traceback" not in err


@every_backend
def test_each_solve_may_have_another_number_of_threads(name: str) -> None:
    problem, ram_bytes = random_tight(random.Random(5), operators=9, training=True)
    options = Options(ram_bytes=ram_bytes, scope="depth:1", gap=0.0, backend=installed(name))
    found = [solve(problem, replace(options, threads=threads)) for threads in (1, 2, 0, 1)]
    assert [solution.status for solution in found] == [Status.OPTIMAL] * 4
    assert len({solution.scope_bound_j for solution in found}) == 1


@every_backend
def test_options_and_log_reach_the_solver(name: str, tmp_path: Path) -> None:
    option = {
        "highs": ("presolve", "off"),
        "gurobi": ("Presolve", "0"),
        "cbc": ("preprocess", "off"),
        "scip": ("presolving/maxrounds", "0"),
    }[name]
    problem = po.load("mlp").differentiate().cost("a72")
    log = tmp_path / "solver.log"
    report = po.solve(problem, ram="80%", backend=installed(name), solver_options=dict([option]), log=log, threads=1)
    assert closed(report.solution)
    assert len(log.read_text().splitlines()) > 5


@every_backend
def test_options_that_are_refused(name: str) -> None:
    ours = {"highs": "time_limit", "gurobi": "TimeLimit", "cbc": "sec", "scip": "limits/time"}[name]
    problem = po.load("mlp").differentiate().cost("a72")
    for option, words in (("no_such", "no such"), (ours, "use --time-limit")):
        if name == "cbc" and option == "no_such":
            continue  # its program says so, once there is something to search: `check_backend`
        with pytest.raises(OptionError, match=rf"^--with solver-option={option}=1: .*{words}"):
            po.solve(problem, ram="80%", backend=installed(name), solver_options={option: "1"})


@pytest.mark.parametrize(("name", "option"), [("highs", "mip_heuristic_efort"), ("gurobi", "MIPFocuss")])
def test_an_option_with_a_typing_error_names_the_closest(name: str, option: str) -> None:
    problem = po.load("mlp").differentiate().cost("a72")
    with pytest.raises(OptionError, match=option[:6] if name == "gurobi" else "mip_heuristic_effort"):
        po.solve(problem, ram="80%", backend=installed(name), solver_options={option: "1"})


@pytest.mark.parametrize(("name", "option"), [("highs", "mip_max_nodes"), ("gurobi", "MIPFocus")])
def test_an_option_with_a_nonsense_value(name: str, option: str) -> None:
    problem = po.load("mlp").differentiate().cost("a72")
    with pytest.raises(OptionError, match="not a value"):
        po.solve(problem, ram="80%", backend=installed(name), solver_options={option: "much"})


def test_bounds_are_certified_with_any_multipliers() -> None:
    from poetopt.search.diagnosis.certificate import certify

    problem = po.load("mlp").differentiate().cost("a72")
    asked = po.solve(problem, ram="80%", threads=1).solution.options
    bounds = {
        name: certify(problem, Options(ram_bytes=asked.ram_bytes, backend=name, threads=1), "full").bound_j
        for name in BACKENDS
    }
    assert min(bounds.values()) == pytest.approx(max(bounds.values()), rel=1e-5)


def test_any_solver_of_pyomos_is_a_backend(tmp_path: Path) -> None:
    """Through its Python interface; where there is its program, GLPK as well."""
    problem = po.load("mlp").differentiate().cost("a72")
    expected = po.solve(problem, ram="80%", gap=0, threads=1).solution.simulation
    for name in ("appsi_highs", "glpk"):
        if name == "glpk" and shutil.which("glpsol") is None:
            with pytest.raises(BackendUnavailableError, match="apt install glpk-utils"):
                po.solve(problem, ram="80%", backend=name)
            continue
        found = po.solve(problem, ram="80%", gap=0, threads=1, backend=name).solution
        assert closed(found)
        assert found.simulation is not None
        assert expected is not None
        assert found.simulation.overhead_j == pytest.approx(expected.overhead_j, rel=1e-6)
