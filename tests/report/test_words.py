"""What is said of a solution: 'optimal' only of a proof, and remedies for what failed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import poetopt as po
from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor
from poetopt.plan.assemble import store_all
from poetopt.plan.simulate import Simulation, simulate
from poetopt.report import summary
from poetopt.report.layout import table
from poetopt.report.proof import (
    Claim,
    failure_words,
    scope_words,
)
from poetopt.report.report import Report
from poetopt.search.solution import Objective, Options, Solution, Status

PROBLEM = Problem(
    name="one",
    device="a72",
    operators=(ProblemOperator("f", (0,), (1,), 1.0, 2.0),),
    tensors=(ProblemTensor("x", 10, -1), ProblemTensor("y", 20, 0)),
)


def solution(status: Status, overhead: float, bound: float | None, scope: str = "depth<=4") -> Solution:
    found: Simulation = replace(simulate(store_all(PROBLEM)), overhead_j=overhead, energy_j=2.0 + overhead)
    return Solution(
        status=status,
        scope=scope,
        options=Options(ram_bytes=100),
        simulation=found,
        overhead_bound_j=bound,
        scope_bound=bound,
    )


def proof_words(found: Solution) -> str:
    return str(Report(problem=PROBLEM, solution=found).to_dict()["proof"])


def exact_words(found: Solution) -> object:
    return Report(problem=PROBLEM, solution=found).to_dict()["proof_exact"]


@pytest.mark.parametrize("status", [Status.WITHIN_GAP, Status.FEASIBLE])
@pytest.mark.parametrize("bound", [0.0, 0.5, 0.999])
def test_a_gap_is_never_called_optimal(status: Status, bound: float) -> None:
    assert "optimal" not in proof_words(solution(status, 1.0, bound))


def test_optimal_is_of_all_schedules_and_then_of_the_scope() -> None:
    found = solution(Status.OPTIMAL, 1.0, 1.0)
    assert proof_words(found) == "optimal: no schedule costs less"
    assert exact_words(found) == (
        "optimal among schedules whose recomputation chains have at most 4 operators, with transfers between stages"
    )
    wider = replace(found, status=Status.FEASIBLE, overhead_bound_j=0.75)
    assert proof_words(wider) == (
        "no schedule saves more than 25 % of the overhead (asked: 0.1 %)\n"
        "no schedule with up to 4 operators recomputed in a row, each once, nothing paged in between, costs less"
    )
    assert (wider.overhead_gap, wider.scope_gap) == (0.25, 0.0)
    assert exact_words(wider) == exact_words(found)


@pytest.mark.parametrize("scope", ["depth<=4", "forward", "full"])
def test_a_space_without_a_move_says_so(scope: str) -> None:
    assert scope_words(scope, remat=False) == "all schedules without recomputation"
    bare = scope_words(scope, storage=False)
    assert scope_words(scope, paging=False) == bare + ", without paging"
    assert scope_words(scope) == bare + ", with transfers between stages"
    paging_only = replace(solution(Status.OPTIMAL, 1.0, 1.0, scope), options=Options(ram_bytes=100, remat=False))
    assert exact_words(paging_only) == "optimal among all schedules without recomputation"
    open_ = replace(paging_only, overhead_bound_j=0.5)
    assert proof_words(open_).endswith("no schedule with nothing recomputed costs less")
    neither = replace(open_, options=replace(open_.options, paging=False))
    assert proof_words(neither).endswith("no schedule with nothing recomputed and nothing paged costs less")


def test_full_is_algorithm_1_only_where_its_own_rules_hold() -> None:
    assert scope_words("full", formulation="poet+flash_wear") == "all schedules of the paper's Algorithm 1"
    assert "Algorithm 1" not in scope_words("full", formulation="retention")


@pytest.mark.parametrize(
    ("claim", "says"),
    [
        ({"gap": 5e-4, "asked": 1e-3}, ["no schedule saves more than 0.05 % of the overhead (asked: 0.1 %)"]),
        (
            {"gap": 0.25, "scope_gap": 5e-4, "asked": 1e-3},
            [
                "no schedule saves more than 25 % of the overhead (asked: 0.1 %)",
                "no schedule with up to 8 operators recomputed in a row, each once, nothing paged in between, "
                "saves more than 0.05 %",
            ],
        ),
        ({"gap": 1.0}, ["no schedule saves more than 100 % of the overhead"]),
        ({"gap": None, "scope_gap": None}, ["a valid schedule; nothing is proven of better ones"]),
        ({"gap": 0.0, "goal": "time", "scope": "forward"}, ["optimal: no schedule takes less time"]),
        (
            {"gap": 0.5, "goal": "time", "scope": "full"},
            ["no schedule saves more than 50 % of the time above one pass"],
        ),
        (
            {"gap": 0.0, "scope": "full", "formulation": "poet"},
            ["optimal: no schedule costs less"],
        ),
        (
            {"gap": 0.5, "scope_gap": 0.0, "scope": "full", "formulation": "poet"},
            [
                "no schedule saves more than 50 % of the overhead",
                "no schedule of the paper's Algorithm 1 costs less",
            ],
        ),
        (
            {"gap": 0.5, "scope_gap": 0.0, "outdone": True, "scope": "depth<=1"},
            [
                "no schedule saves more than 50 % of the overhead",
                "better than every schedule with single operators recomputed, nothing paged in between, can be",
            ],
        ),
        ({"gap": 0.0, "scope": "store-all"}, ["optimal: keeping everything fits, and nothing can cost less"]),
    ],
    ids=lambda value: "" if isinstance(value, list) else " ".join(map(str, value.values())),
)
def test_proofs_are_plain_sentences(claim: dict[str, Any], says: list[str]) -> None:
    told = Claim(**{"scope": "depth<=8", "scope_gap": claim["gap"], **claim})
    assert list(told.plain()) == says
    if told.scope != "store-all":
        assert told.exact() not in says
    for word in ("chains", "stages", "depth", "hidden", "scope"):
        assert word not in " ".join(says)


def test_a_gap_says_how_much_could_be_saved() -> None:
    open_ = solution(Status.FEASIBLE, 1.0, 0.75)
    assert "saves more than 25 % of the overhead" in proof_words(open_)
    assert "at most 25 % of the overhead can be saved among" in str(exact_words(open_))
    assert "(asked: 0.1 %)" in proof_words(solution(Status.WITHIN_GAP, 1.0, 0.9995))
    assert "saves more than 100 %" in proof_words(solution(Status.FEASIBLE, 1.0, 0.0))
    assert "no bound above 0" in str(exact_words(solution(Status.FEASIBLE, 1.0, 0.0)))


@pytest.mark.parametrize("scope", ["depth<=0", "depth<=1", "depth<=12", "forward", "full", "store-all"])
def test_every_scope_has_words(scope: str) -> None:
    assert scope_words(scope) != scope_words("another").replace("another", scope)


def test_failures_carry_what_would_help() -> None:
    failed = Solution(status=Status.INFEASIBLE, scope="full", options=Options(ram_bytes=10), reason="too little.")
    assert failure_words(PROBLEM, failed).startswith("one on a72: too little; give more --ram")
    helped = replace(failed, least_ram_bytes=3000, ram_bound_bytes=2000, least_deadline_s=1.5)
    text = failure_words(PROBLEM, helped)
    assert all(figure in text for figure in ("3,000", "2,000", "1.5 s"))
    said = replace(helped, reason="needs 3,000 and 2,000 and 1.5 s")
    assert failure_words(PROBLEM, said) == (
        "one on a72: needs 3,000 and 2,000 and 1.5 s; that long is enough (--deadline 1.5s)"
    )
    assert "--time-limit" in failure_words(PROBLEM, replace(failed, status=Status.UNKNOWN))


def test_tables_wrap_under_their_text_and_keep_units() -> None:
    text = table("title", [("a", "word " * 30 + "12 kB"), ("long label", "x")], width=40)
    lines = text.splitlines()
    assert all(len(line) <= 40 for line in lines)
    assert all(line.startswith(" " * 14) for line in lines[2:-1])
    assert text.replace("\n", " ").count("12 kB") == 1
    assert "12\n" not in text


def test_what_is_hidden_is_said_in_seconds_and_bytes() -> None:
    moved = {"bytes_paged": 4000, "transfer_s": 2.0, "hidden_s": 1.5}
    words = dict(summary.LINES)["transfers"]
    assert list(words(moved)) == ["4.00 kB in 2.00 s, 1.50 s of it while the CPU computes"]
    assert list(words({**moved, "hidden_s": 0.0})) == ["4.00 kB in 2.00 s, while the CPU waits"]


def test_each_goal_in_its_unit() -> None:
    words = dict(summary.LINES)["minimised"]

    def said(*objective: Any) -> list[str]:
        found = replace(solution(Status.FEASIBLE, 1.0, None), objective=Objective(*objective))
        return list(words(Report(problem=PROBLEM, solution=found).to_dict()))

    assert said("bytes written", "B", 0.0, 4_194_304.0, 2_000_000.0) == [
        "bytes written: 4.19 MB, of which 2.00 MB are proven to be needed"
    ]
    assert said("wake-ups", "times", 2.0, 3.0, None) == ["wake-ups: 2 times of one pass + 3 times"]


def test_the_glossary_explains_what_reports_are_made_of() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "glossary.md").read_text(encoding="utf-8")
    page, _, of_the_solver = page.partition("## Words of the solver")
    for part in (page, of_the_solver):
        heads = re.findall(r"^\*\*(.+?)\*\*", part, flags=re.MULTILINE)
        assert heads
        assert heads == sorted(heads, key=lambda head: head.split(",")[0].lower())
    terms = {term for head in re.findall(r"^\*\*(.+?)\*\*", page, flags=re.MULTILINE) for term in head.split(", ")}
    report = po.solve("mlp", device="a72", ram="97%", gap=0.9, time_limit=10)
    said = {label for label, _ in report.rows()} - {"RAM", "note", "important", "trained", "schedule"}
    assert said <= terms, said - terms
    keys = set(re.findall(r"`([a-z_]+_(?:j|s|bytes)|[a-z]+_(?:outs|ins|gap)|recomputes|scope|gap)`", page))
    assert keys - {"kernel_workspace_bytes"} <= set(report.to_dict()), keys - set(report.to_dict())
