"""`--batch max`: the largest batch that fits, and the proof that one sample more doesn't, held against solves."""

from __future__ import annotations

from pathlib import Path

import pytest

import poetopt as po
from poetopt.search.limits import impossible
from poetopt.search.solution import Options
from poetopt.util.errors import InfeasibleError, ModelError, OptionError
from tests.cli.support import Runner, chain, runner, write_problem


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Runner:
    return runner(capsys)


def largest(model: str, **options: object) -> po.Report:
    return po.solve(model, device="a72", batch="max", time_limit=20, gap=1.0, **options)  # type: ignore[arg-type]


def at(model: str, batch: int, **options: object) -> po.Report:
    return po.solve(model, device="a72", batch=batch, time_limit=20, gap=1.0, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("mlp", {"total_ram": "3MB"}),
        ("mlp", {"total_ram": "3MB", "parameters": "resident"}),
        ("mlp", {"ram": "100kB"}),
        ("lenet", {"total_ram": "1.2MB", "optimizer": "adam"}),
    ],
)
def test_one_sample_more_has_no_schedule(model: str, options: dict[str, object]) -> None:
    report = largest(model, **options)
    found = report.largest
    assert found is not None
    assert found.proven
    assert found.batch > 1
    assert report.plan is not None
    assert report.problem.recipe["batch"] == found.batch
    assert at(model, found.batch, **options).plan is not None
    with pytest.raises(InfeasibleError, match="below the"):
        at(model, found.batch + 1, **options)


def test_all_of_the_ram_is_kept(run: Runner) -> None:
    document = run("solve", "mlp", "--device", "a72", "--batch", "max", "--total-ram", "3MB", "--json", "-").document
    found = document["largest_batch"]
    assert document["total_ram_bytes"] <= 3_000_000
    assert found["proven"]
    assert found["refused"] == found["batch"] + 1


def test_a_deadline_bounds_the_batch() -> None:
    step_s = at("mlp", 10).problem.baseline_time_s
    report = largest("mlp", deadline=step_s * 1.0001)
    assert report.largest is not None
    assert report.largest.proven
    assert report.problem.parameters == "resident"  # there is room for them
    assert at("mlp", report.largest.batch, deadline=step_s * 1.0001).plan is not None
    beyond = po.load("mlp", batch=report.largest.batch + 1).differentiate().cost("a72")
    refused = impossible(beyond, Options(ram_bytes=2**40, deadline_s=step_s * 1.0001))
    assert refused is not None
    assert "shorter than one pass" in refused["reason"]


def test_where_none_fits_the_smallest_is_told(run: Runner) -> None:
    ended = run("solve", "lenet", "--device", "a72", "--batch", "max", "--total-ram", "50kB")
    ended.assert_one_message("not even a batch of 1 has a schedule", "--total-ram 460496", code=3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--batch", "most", "--ram", "1MB"), "--batch most: must be a whole number from 1 on, or max"),
        (("--batch", "max", "--ram", "40%"), "--ram 40% grows with the batch"),
    ],
)
def test_what_bounds_no_batch_is_refused(run: Runner, options: tuple[str, ...], says: str) -> None:
    run("solve", "mlp", "--device", "a72", *options).assert_one_message(says, code=2)


def test_a_problem_file_has_no_batch(tmp_path: Path) -> None:
    path = write_problem(tmp_path / "chain.json", chain())
    with pytest.raises(ModelError, match="a problem file has a fixed batch"):
        po.solve(path, device="a72", batch="max")
    with pytest.raises(OptionError, match="batch: too late"):
        po.solve(po.load("mlp"), device="a72", batch="max")


def test_an_epoch_is_the_most_that_can_be_asked_for() -> None:
    report = largest("mlp", samples=20, ram="1GB")
    assert report.largest is not None
    assert (report.largest.batch, report.largest.refused, report.largest.proven) == (20, None, True)
    assert report.run is not None
    assert report.run.steps == 1
