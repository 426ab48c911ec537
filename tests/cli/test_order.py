"""`solve --order search`, and what becomes of its plans."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.support import Runner, write_problem

BRANCHES = (("wide", (0,), 8), ("a", (0,), 1), ("b", (2,), 1), ("c", (3,), 1), ("join", (1, 4), 1))
"""The wide branch is computed first, and leaves no room for the other's workspace."""


def branches(place: Path) -> Path:
    """A problem file in which one order needs no paging and the given one does."""
    nodes = [{"name": "x", "bytes": 1, "backward": False}]
    nodes += [
        {"name": name, "bytes": nbytes, "backward": False, "workspace_bytes": 2 * (name in "abc")}
        for name, _, nbytes in BRANCHES
    ]
    costs = {key: [0.0] + [0.1] * len(BRANCHES) for key in ("compute_s", "compute_j")}
    costs |= {key: [0.2] * len(nodes) for key in ("page_in_s", "page_in_j", "page_out_s", "page_out_j")}
    edges = [[reads, k + 1] for k, (_, inputs, _) in enumerate(BRANCHES) for reads in inputs]
    return write_problem(place, {"nodes": nodes, "edges": edges, "costs": {"a72": costs}})


def test_the_order_found_its_gain_and_whose_proof_it_is(run: Runner, tmp_path: Path) -> None:
    command = ("solve", branches(tmp_path / "branches.json"), "--device", "a72", "--ram", "10B")
    given = run(*command, "--json", "-").document
    assert given["order"] == "given"
    assert given["overhead_j"] > 0
    found = run(*command, "--order", "search", "-o", tmp_path / "plan.json", "--json", "-").document
    assert found["order"] == "search"
    assert found["order_moves"] > 0
    assert found["order_given_overhead_j"] == given["overhead_j"]
    assert 0 < found["order_gain_proven_j"] <= found["order_gain_j"] == given["overhead_j"]
    assert found["overhead_j"] == 0
    assert run("verify", tmp_path / "plan.json", "--bound").code == 0
    assert run("verify", tmp_path / "plan.json", "--strict").code == 0
    assert run("show", tmp_path / "plan.json", "-o", tmp_path / "plan.txt").code == 0
    assert (tmp_path / "plan.txt").read_text()


def test_what_an_order_has_won_is_certified_or_told(run: Runner, tmp_path: Path) -> None:
    """The bound of the given order is proven again; with it goes the gain."""
    command = ("solve", branches(tmp_path / "branches.json"), "--device", "a72", "--ram", "10B", "--order", "search")
    assert run(*command, "-o", tmp_path / "plan.json").code == 0
    document, place = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8")), tmp_path / "forged.json"
    report = document["report"]
    more_j = 2 * report["order_given_overhead_j"]
    won = dict.fromkeys(
        ("order_given_overhead_j", "order_given_bound_j", "order_gain_proven_j", "order_gain_j"), more_j
    )
    place.write_text(json.dumps({**document, "report": report | won}), encoding="utf-8")
    ended = run("verify", place, "--strict")
    assert (ended.code, ended.err.count("poetopt: ")) == (5, 1)
    assert "in the given order of operators" in ended.err
    given = {key: value for key, value in report.items() if not key.startswith("order_")} | {"order": "given"}
    place.write_text(json.dumps({**document, "report": given}), encoding="utf-8")
    run("verify", place).assert_one_message("order of operators", code=2)


def test_the_summary_says_the_proof_is_of_one_order(run: Runner, problem: Path) -> None:
    ended = run("solve", problem, "--device", "a72", "--ram", "70%", "--order", "search")
    assert ended.code == 0
    text = " ".join(ended.out.split())
    assert "order as given: no better one was found" in text
    assert "in this order of the operators" in text


def test_what_can_not_be_searched(run: Runner, problem: Path) -> None:
    command = ("solve", problem, "--device", "a72", "--ram", "70%", "--order")
    run(*command, "sideways").assert_one_message("--order sideways", "given or search", code=2)
    run(*command, "search", "--with", "static-power=0.5W").assert_one_message("--order search", "--with", code=2)
