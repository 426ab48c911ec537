"""Solvers that are not there, not licensed or too small: exit code 6, and how to get them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import poetopt as po
from poetopt.backends.solvers.pyomo_solvers import cbc
from poetopt.backends.solvers.solver import backend
from poetopt.cli.app import invoke
from poetopt.util.errors import BackendUnavailableError
from tests.backends.solvers import installed, needs_gurobi
from tests.contract.milp import covering

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


def without_pulp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever of it was imported before."""
    for name in ("pulp", "pulp.apis.coin_api"):
        monkeypatch.setitem(sys.modules, name, None)


def test_cbc_is_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    without_pulp(monkeypatch)
    assert invoke([*COMMAND, "--backend", "cbc"]) == 6
    told = capsys.readouterr().err
    assert "pip install 'poetopt[cbc]'" in told
    assert "coinor-cbc" in told


def test_cbc_on_the_path_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed("cbc")
    (tmp_path / "cbc").symlink_to(cbc.solver().executable())
    monkeypatch.setenv("PATH", str(tmp_path))
    without_pulp(monkeypatch)
    assert cbc.solver().executable() == str(tmp_path / "cbc")
    problem = po.load("mlp").differentiate().cost("a72")
    assert po.solve(problem, ram="80%", backend="cbc").to_dict()["status"] == "optimal"


def test_a_cbc_that_is_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program of that name that isn't CBC: an error of ours, and not an answer."""
    program = tmp_path / "cbc"
    program.write_text("#!/bin/sh\necho 'no such library'\nexit 127\n", encoding="ascii")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.defpath}")
    session = cbc.open(covering(random.Random(0)).model, threads=1, scale=1.0)
    with pytest.raises(po.PoetError, match="code 127: no such library"):
        session.search(time_limit_s=10.0, gap=0.0, start=None, on_point=lambda _: None, on_bound=lambda _: None)


EXPIRED = "TYPE=NODE\nVERSION=13\nHOSTNAME=x\nHOSTID=12345678\nEXPIRATION=2020-01-01\nKEY=ABCDEFGH\nCKEY=ABCDEFGH\n"


@needs_gurobi
@pytest.mark.parametrize(("content", "words"), [(None, "Unable to open"), (EXPIRED, "expired 2020-01-01")])
def test_a_licence_that_is_not_there_or_no_longer_valid(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
    words: str,
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


@needs_gurobi
def test_a_model_over_the_licence_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """The licence that comes with gurobipy; where there is a larger one, the command just works."""
    command = "solve vgg16-cifar --device a72 --ram 70% --backend gurobi --scope forward --time-limit 5s"
    code = invoke(command.split())
    told = capsys.readouterr().err
    assert code in (0, 6)
    if code == 6:
        assert "allows 2000 of each" in told
        assert "--backend highs" in told


def test_an_unknown_backend_names_the_closest() -> None:
    with pytest.raises(BackendUnavailableError, match="closest: gurobi"):
        backend("grobi")
    with pytest.raises(BackendUnavailableError, match="there are highs, gurobi, cbc, scip"):
        backend("xyz")


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
