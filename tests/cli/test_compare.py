"""`poetopt compare` and `poetopt pareto` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from poetopt.comparison.baselines import names
from tests.cli.support import Runner, chain, write_problem


def test_compare_writes_everything(run: Runner, problem: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture, plans, document = (tmp_path / name for name in ("a.svg", "plans", "a.json"))
    ended = run(
        "compare", problem, "--device", "a72", "--ram", "60%..100%/3", "--methods", "dtr,checkpoint-all,poet",
        "-o", picture, "--plans", plans, "--json", document, "--time-limit", "5s",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert ended.err == ""
    assert "checkpoint-all" in ended.out
    rows = json.loads(document.read_text())["rows"]
    assert len(rows) == 9
    assert picture.read_text().count("<svg") == 1
    assert len(list(plans.glob("*.json"))) == sum(row["energy_j"] is not None for row in rows)


def test_json_alone_on_stdout(run: Runner, problem: Path) -> None:
    ended = run("compare", problem, "--device", "a72", "--ram", "100%", "--methods", "checkpoint-all", "--json", "-")
    assert ended.code == 0
    assert ended.document["rows"][0]["overhead_j"] == 0


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--methods", "dtrr", "no method"),
        ("--ram", "20%..100%", "how many"),
        ("-o", "a.doc", "a picture ends in"),
        ("--ram", ",", "--ram ','"),
        ("--plans", "", "--plans ''"),
        ("--methods", "", "no method is called ''"),
    ],
)
def test_bad_options(run: Runner, problem: Path, tmp_path: Path, option: str, value: str, says: str) -> None:
    out = str(tmp_path / value) if option == "-o" else value
    run("compare", problem, "--device", "a72", option, out).assert_one_message(says, code=2)


def test_pareto(run: Runner, problem: Path) -> None:
    ended = run("pareto", problem, "--device", "a72", "--points", "4", "--time-limit", "10s", "--json", "-")
    assert ended.code == 0, ended.err
    points = ended.document["points"]
    assert 2 <= len(points) <= 4
    assert points[-1]["overhead_j"] == 0


def test_pareto_without_a_schedule(run: Runner, problem: Path, tmp_path: Path) -> None:
    target = tmp_path / "front.json"
    ended = run("pareto", problem, "--device", "a72", "--deadline", "0.5x", "--json", target)
    ended.assert_one_message("no schedule keeps the deadline", code=3)
    assert json.loads(target.read_text())["status"] == "infeasible"


def test_nine_budgets_and_all_methods_by_default(run: Runner, tmp_path: Path) -> None:
    problem = write_problem(tmp_path / "short.json", chain(2))
    ended = run("compare", problem, "--device", "a72", "--time-limit", "300ms", "--threads", "1", "--json", "-")
    assert ended.code == 0, ended.err
    rows = ended.document["rows"]
    budgets = sorted({row["ram_budget_bytes"] for row in rows})
    peak = ended.document["store_all_peak_bytes"]
    assert [round(100 * budget / peak) for budget in budgets] == list(range(20, 101, 10))
    assert [row["method"] for row in rows] == list(names()) * 9
    cheapest = {row["ram_budget_bytes"]: row["overhead_j"] for row in rows if row["method"] == "poet"}
    for row in rows:
        if row["overhead_j"] is not None:
            assert row["overhead_j"] >= cheapest[row["ram_budget_bytes"]]


def test_the_largest_batch_within_an_overhead(run: Runner, tmp_path: Path) -> None:
    """No row beyond it is as cheap, the next larger batch is a row, and the sentence names it."""
    asked = ("fit", "lenet", "--device", "m4", "--optimizer", "sgd", "--memory", "320KB", "--time-limit", "1s")
    ended = run(*asked, "--overhead", "50%", "--json", tmp_path / "fits.json")
    rows = {row["batch"]: row for row in json.loads((tmp_path / "fits.json").read_text())["rows"]}
    cheap = [batch for batch, row in rows.items() if row["overhead"] is not None and row["overhead"] <= 0.5]
    assert list(rows) == sorted(rows)
    assert max(cheap) + 1 in rows
    assert f"batch {max(cheap)} fits with" in ended.out
    again = run(*asked, "--batches", str(max(cheap) + 1)).out
    assert f"batch {max(cheap) + 1} fits" not in again
    run(*asked, "--overhead", "10J").assert_one_message("--overhead 10J: not a share", code=2)
    run(*asked, "--overhead", "1%", "--batches", "2").assert_one_message("leave --batches out", code=2)


def test_what_fits_is_one_table(run: Runner, tmp_path: Path) -> None:
    """Each row is what `solve` answers; the first batch that doesn't fit ends a memory's rows, with the reason."""
    asked = ("fit", "mlp", "--device", "m4", "--optimizer", "sgd", "--memory", "1MB", "--memory", "700KB,2KB")
    ended = run(*asked, "--json", tmp_path / "fits.json")
    assert (ended.code, ended.err) == (0, "")
    rows = json.loads((tmp_path / "fits.json").read_text())["rows"]
    for memory in {row["memory_bytes"] for row in rows}:
        mine = [row for row in rows if row["memory_bytes"] == memory]
        assert [row["batch"] for row in mine] == [2**k for k in range(len(mine))]
        assert all(row["total_ram_bytes"] <= memory and row["energy_j"] > 0 for row in mine[:-1])
        assert (mine[-1]["total_ram_bytes"] is None) == bool(mine[-1]["why"])
    assert [row["why"][:3] for row in rows if row["memory_bytes"] == 2_000] == ["mlp"]
    one = next(row for row in rows if row["total_ram_bytes"])
    plan = run("solve", "mlp", "--device", "m4", "--optimizer", "sgd", "--batch", one["batch"], "--total-ram",
               one["memory_bytes"], "--gap", "5%", "-o", tmp_path / "plan.json", "--json", "-").document  # fmt: skip
    assert plan["energy_j"] / one["batch"] == pytest.approx(one["energy_j"])
    assert "doesn't fit" in ended.out
    assert "fits with" in ended.out or "cheapest is batch" in ended.out
    run(*asked[:4], "--batches", "0").assert_one_message("--batches 0: batches are whole numbers", code=2)
    run(*asked[:4], "--batches", "two").assert_one_message("--batches two: give whole numbers", code=2)
    run("fit", "mlp").assert_one_message("'--device': say for which device", code=2)
