"""What other packages register: found by name, listed, told when it is broken. The packages are real, on sys.path."""

from __future__ import annotations

from pathlib import Path

import pytest

import poetopt as po
from poetopt.formulations import options
from tests.support.cli import chain, runner, write_problem

MODULE = '''
"""Block `short`: at most so many recomputations."""
import functools
from poetopt.formulations.language import Block
from poetopt.formulations.options import BlockOption
from poetopt.formulations.retention import retention


def _build(block, *, most):
    r = list(block.model().recompute.r.values())
    if r:
        block.within = __import__("pyomo.environ").environ.Constraint(expr=sum(r) <= most)


def _refuses(trial, *, most):
    return None if trial.simulation.recomputes <= most else "it recomputes too much"


def short(most):
    return Block("short", functools.partial(_build, most=most), requires=("recompute",),
                 refuses=functools.partial(_refuses, most=most), says=f"at most {most} recomputations")


option = BlockOption("N", lambda value, problem, steps: short(int(value)), "3")
brief = retention.with_block(short(1), name="brief")


def _break(block):
    """It breaks while the model is built."""
    raise LookupError("no such figure")


hollow = BlockOption("N", lambda value, problem, steps: short(problem.operators[7].energy_j), "3")
careless = BlockOption("N", lambda value, problem, steps: Block("careless", _break, restricts=False), "3")
'''


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with a formulation and a block, and one whose modules are gone."""
    (tmp_path / "a_short_package.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "an_odd_package.py").write_text("number = 3\n", encoding="utf-8")
    for name, lines in {
        "good": "[poetopt.formulations]\nbrief = a_short_package:brief\n"
        "[poetopt.blocks]\nshort = a_short_package:option\ncareless = a_short_package:careless\n"
        "hollow = a_short_package:hollow\n",
        "bad": "[poetopt.formulations]\ngone = a_lost_package:it\nodd = an_odd_package:number\n"
        "[poetopt.blocks]\nlost = a_lost_package:it\nweird = an_odd_package:number\n",
    }.items():
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        (folder / "entry_points.txt").write_text(lines, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("packages")
def test_what_others_register_is_used(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write_problem(tmp_path / "chain.json", chain())
    run = runner(capsys)
    line = ["solve", path, "--device", "a72", "--ram", 4000, "--json", "-"]
    assert run(*line, "--formulation", "brief").document["recomputes"] <= 1
    found = run(*line, "--block", "short=0").document
    assert found["recomputes"] == 0
    assert found["asks"] == ["at most 0 recomputations"]
    po.testing.check_block(options.option("short").make("1", None, 1), problems=3)  # type: ignore[arg-type]
