"""What scripts and notebooks use: paths instead of problems, one line for each object, pages, and lines of progress."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import poetopt as po
from poetopt.api.problems import problem_of
from poetopt.report.layout import listening
from poetopt.search.solution import Progress
from poetopt.util.errors import OptionError, PlanError
from poetopt.util.progress import paced, silent, telling
from tests.cli.support import chain, write_problem


@pytest.fixture(scope="module")
def report() -> po.Report:
    return po.solve("lenet", device="a72", ram="97%", loss="cross-entropy", batch=4, gap=0.5, time_limit=20)


def test_a_path_a_name_and_what_they_become_are_one_problem(tmp_path: Path) -> None:
    import onnx

    path = tmp_path / "net.onnx"
    onnx.save(po.zoo.build("mlp", 4), path)
    long = po.load(path, train="fc2.*").differentiate(loss="mse").cost("m4")
    assert problem_of(path, device="m4", train="fc2.*", loss="mse") == long
    assert problem_of(str(path), device="m4", train="fc2.*", loss="mse") == long
    training = po.load(path, train="fc2.*").differentiate(loss="mse")
    assert isinstance(training, po.Training)
    assert problem_of(training, device=po.device("m4")) == long
    assert problem_of(long) is long
    short = po.load("mlp", batch=4).differentiate().cost("m4")
    found = problem_of(po.zoo.build("mlp", 4), device="m4")
    assert (found.operators, found.tensors) == (short.operators, short.tensors)
    file = write_problem(tmp_path / "chain.json", chain())
    assert problem_of(file, device="m4").name == "chain"


def test_options_that_come_too_late_are_refused(report: po.Report) -> None:
    problem = report.problem
    with pytest.raises(OptionError, match="device: which one"):
        po.solve("lenet")
    with pytest.raises(TypeError, match=r"not a int: as of po\.load\(model\)"):
        po.solve(3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="has its costs already"):
        po.solve(problem, device="a72")
    with pytest.raises(OptionError, match="batch: too late for a Problem"):
        po.solve(problem, batch=3)
    with pytest.raises(OptionError, match="train: too late for a Training"):
        po.solve(po.load("lenet").differentiate(), device="a72", train="fc*")
    with pytest.raises(OptionError, match="batch: too late"):
        po.inspect(po.load("lenet"), batch=3)
    with pytest.raises(TypeError, match="unknown option 'looss'"):
        po.solve("lenet", device="a72", looss="mse")  # type: ignore[call-arg]


def test_inspect_takes_a_name() -> None:
    loaded = po.load("lenet", batch=2)
    assert po.inspect("lenet", batch=2, loss="mse").to_dict() == po.inspect(loaded, loss="mse").to_dict()


def test_each_object_is_one_short_line(report: po.Report) -> None:
    model = po.load("lenet", batch=2)
    assert isinstance(model, po.Model)
    assert report.plan is not None
    things = [
        model, model.graph, model.differentiate(), model.training_graph(), report.problem, report.plan, report,
        report.solution, po.inspect(model), po.device("a72"), report.solution.simulation,
    ]  # fmt: skip
    for thing in things:
        assert "\n" not in repr(thing)
        assert len(repr(thing)) < 400, repr(thing)
    assert repr(report.problem) == "<Problem lenet on a72: 29 operators, 23 tensors>"
    assert repr(report).startswith(f"<Report {report.status}: lenet on a72, RAM ")


def test_names_of_files_do_nothing_in_a_line() -> None:
    problem = po.Problem(name="a\nb\x1b[31m", device="x", operators=(), tensors=())
    assert repr(problem) == "<Problem a\\x0ab\\x1b[31m on x: 0 operators, 0 tensors>"


def test_pages(report: po.Report, tmp_path: Path) -> None:
    page = report.to_html()
    assert page.lower().startswith("<!doctype html>")
    shown = po.show(report, out=tmp_path / "plan.html")
    assert shown.path is not None
    assert shown.path.read_text(encoding="utf-8") == page
    assert "Recomputed" in str(po.show(report, form="txt"))
    assert report.plan is not None
    aside = po.show(report.plan)
    assert aside.path is not None
    assert aside.path.name == "lenet.schedule.html"
    report.save(tmp_path / "plan.json")
    saved = po.load_plan(tmp_path / "plan.json")
    assert str(po.show(saved, form="txt")) == str(po.show(tmp_path / "plan.json", form="txt"))
    with pytest.raises(TypeError, match="a plan is needed here"):
        po.show(report.problem)  # type: ignore[arg-type]


def test_nothing_is_printed_by_default(report: po.Report, capsys: pytest.CaptureFixture[str]) -> None:
    assert telling() is silent
    po.execute(report)
    assert capsys.readouterr() == ("", "")


def test_progress_goes_to_stderr_or_to_the_log(
    report: po.Report, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    po.solve(report.problem, ram="98%", gap=0.5, time_limit=20, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(line.startswith("poetopt: ") and " s  " in line for line in lines)
    with caplog.at_level(logging.INFO, logger="poetopt"):
        po.execute(report, progress=True)
    assert capsys.readouterr().err == ""
    assert "ordinary training, to compare with" in [record.getMessage() for record in caplog.records]
    assert {record.levelno for record in caplog.records if record.name == "poetopt"} == {logging.INFO}


def test_lines_are_told_where_something_is_new() -> None:
    told: list[str] = []
    heard: list[Progress] = []
    hear = listening(told.append, heard.append)
    assert hear is not None
    for progress in (
        Progress(0.1, "search", "depth<=4", 2.0, 1.0),
        Progress(0.2, "search", "depth<=4", 1.5, 1.0),
        Progress(9.0, "search", "depth<=4", 2.0, 1.0),
        Progress(9.1, "search", "depth<=4", 1.5, 1.0),
        Progress(9.2, "search", "depth<=8", 1.5, 1.0),
    ):
        hear(progress)
    assert len(heard) == 5
    assert [line.split(" s")[0] for line in told] == ["0.1", "9.1", "9.2"]
    assert listening(silent, None) is None


def test_paced_lines() -> None:
    told: list[str] = []
    pace = paced(told.append, 3600.0)
    pace("one")
    assert told == []
    pace = paced(told.append, 0.0)
    pace("two")
    assert told == ["two"]
    assert paced(silent) is silent


def test_a_sweep_by_its_function() -> None:
    with pytest.raises(OptionError, match=r"nothere\.toml"):
        po.sweep("nothere.toml")


def test_a_report_without_a_plan_has_no_page(report: po.Report) -> None:
    from dataclasses import replace

    empty = replace(report, solution=replace(report.solution, plan=None, simulation=None))
    with pytest.raises(PlanError, match="no plan to show"):
        empty.to_html()
    with pytest.raises(PlanError, match="no plan to show"):
        po.show(empty)
