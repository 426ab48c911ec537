"""The backends keep one contract, and reach the same optima; those that are missing say so."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import poetopt as po
from poetopt.backends.solvers.solver import BACKENDS, backend
from poetopt.cli.app import invoke
from poetopt.graph.problem import Problem
from poetopt.search.diagnosis.solve import solve
from poetopt.search.solution import Options, Status
from poetopt.util.errors import BackendUnavailableError
from tests.support.closed import closed
from tests.support.contract.backend import check_backend
from tests.support.problems import random_tight
from tests.support.solvers import every_backend, installed, needs_gurobi


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


def test_an_interrupt_ends_the_program_too_and_keeps_the_best_schedule(tmp_path: Path) -> None:
    """A SIGINT while CBC, a program of its own, is searching: a plan that isn't called optimal unless it is proven."""
    installed("cbc")
    code = "import sys; from poetopt.cli.app import invoke; sys.exit(invoke(sys.argv[1:]))"
    log = tmp_path / "cbc.log"
    command = "solve resnet18-cifar --device m4 --ram 30% --scope depth:8 --gap 0 --backend cbc --json -"
    with subprocess.Popen(
        [sys.executable, "-c", code, *command.split(), "--log", f"{log!s}"],
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


COMMAND = ("solve", "mlp", "--device", "a72", "--ram", "80%")


def test_gurobi_is_absent() -> None:
    """In a process of its own, where the module can't be imported."""
    code = (
        "import sys, pyomo.environ; sys.modules['gurobipy'] = None; "
        "from poetopt.cli.app import invoke; sys.exit(invoke(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, *COMMAND, "--backend", "gurobi"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 6
    assert "pip install 'poetopt[gurobi]'" in ended.stderr
    assert "Traceback" not in ended.stderr


EXPIRED = "TYPE=NODE\nVERSION=13\nHOSTNAME=x\nHOSTID=12345678\nEXPIRATION=2020-01-01\nKEY=ABCDEFGH\nCKEY=ABCDEFGH\n"


@needs_gurobi
@pytest.mark.parametrize(("content", "words"), [(None, "Unable to open"), (EXPIRED, "expired 2020-01-01")])
def test_a_licence_that_is_not_there_or_no_longer_valid(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, words: str
) -> None:
    licence = tmp_path / "gurobi.lic"
    if content is not None:
        licence.write_text(content, encoding="ascii")
    monkeypatch.setenv("GRB_LICENSE_FILE", str(licence))
    assert invoke([*COMMAND, "--backend", "gurobi"]) == 6
    told = capsys.readouterr().err
    assert "no valid licence" in told
    assert words in told
    assert "gurobi.com/downloads" in told


def test_a_third_partys_backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An installed distribution with an entry point; and one whose module is broken."""
    package = tmp_path / "theirs-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n", encoding="utf-8")
    points = "[poetopt.backends]\ntheir-highs = poetopt.backends.solvers.highs:backend\n"
    points += "their-broken = no_such_module:backend\n"
    (package / "entry_points.txt").write_text(points, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert backend("their-highs") is backend("highs")
    with pytest.raises(BackendUnavailableError, match="pip install --force-reinstall theirs"):
        backend("their-broken")
    with pytest.raises(BackendUnavailableError, match="their-highs"):
        backend("their-high")
