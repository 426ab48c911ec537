"""What other packages register: found by name, listed, told when it is broken. The packages are real, on sys.path."""

from __future__ import annotations

from pathlib import Path

import pytest

import poetopt as po
from poetopt.formulations import formulation, options
from poetopt.util.errors import FormulationError, OptionError
from tests.cli.support import chain, runner, write_problem

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
    found = run(*line, "--with", "short=0").document
    assert found["recomputes"] == 0
    assert found["asks"] == ["at most 0 recomputations"]
    po.testing.check_block(options.option("short").make("1", None, 1), problems=3)  # type: ignore[arg-type]


@pytest.mark.usefixtures("packages")
def test_what_others_break_is_theirs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ValueError for a value, and a defect deep inside a solve: one message that names package and entry point."""
    path = write_problem(tmp_path / "chain.json", chain())
    line = ["solve", path, "--device", "a72", "--ram", 4000, "--with"]
    ended = runner(capsys)(*line, "short=abc")
    ended.assert_one_message("--with short=abc: ValueError: invalid literal", code=2)
    assert "package good 1.0, entry point poetopt.blocks: short = a_short_package:option" in ended.err
    assert "it takes short=N, as in short=3" in ended.err
    ended = runner(capsys)(*line, "careless=1")
    # the one that was asked for, of a module that holds several
    ended.assert_one_message("package good 1.0, entry point poetopt.blocks: careless = a_short_package:", code=2)
    assert "block 'careless'" in ended.err
    assert "build failed: LookupError: no such figure (a_short_package.py:" in ended.err
    assert "defect in poetopt" not in ended.err
    with monkeypatch.context() as set_:
        set_.setenv("POETOPT_TRACEBACK", "1")
        with pytest.raises(FormulationError) as told:
            runner(capsys)(*line, "careless=1")
    assert isinstance(told.value.__cause__, LookupError)


@pytest.mark.usefixtures("packages")
def test_a_block_that_can_not_be_made_is_listed_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    listed = runner(capsys)("formulations")
    assert listed.code == 0
    text = " ".join(listed.out.split())
    assert "can't be used: IndexError: tuple index out of range (a_short_package.py:" in text
    assert "short" in text


def test_a_module_stands_for_its_formulation() -> None:
    assert formulation(po.formulations.retention).name == "retention"
    with pytest.raises(FormulationError, match=r"poetopt\.formulations\.language has no Formulation of its name"):
        formulation(po.formulations.language)
    with pytest.raises(FormulationError, match=r"not a int"):
        formulation(3)  # type: ignore[arg-type]


@pytest.mark.usefixtures("packages")
def test_what_is_broken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    for name, complaint in (("gone", "can't be loaded"), ("odd", "is a int, not a Formulation")):
        with pytest.raises(FormulationError, match=complaint):
            formulation(name)
    for name, complaint in (("lost", "can't be loaded"), ("weird", "holds a int")):
        with pytest.raises(FormulationError, match=complaint):
            options.option(name)
    listed = runner(capsys)("formulations")
    assert listed.code == 0
    for name in ("brief", "short", "gone", "odd", "lost", "weird"):
        assert f" {name}: " in listed.out
    assert listed.out.count("can't be used: ") == 5  # a block that can't be made, too


@pytest.mark.usefixtures("packages")
def test_a_broken_block_in_a_solve() -> None:
    problem = po.load("lenet").differentiate().cost("m4")
    with pytest.raises(OptionError, match=r"--with lost=1: block 'lost' .* can't be loaded"):
        po.solve(problem, ram="90%", blocks=["lost=1"])
