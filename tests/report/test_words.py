"""What is said of a solution: 'optimal' only of a proof, and remedies for what failed."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest

from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor
from poetopt.plan.assemble import store_all
from poetopt.plan.simulate import Simulation, simulate
from poetopt.report.proof import Claim
from poetopt.report.report import Report
from poetopt.search.solution import OPTIMAL_GAP, Options, Solution, Status, graded

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
        ({"gap": None, "scope_gap": None}, ["a valid schedule; nothing is proven of better ones"]),
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


GAPS = (None, 0.0, 1e-9, 0.0123, 0.5, 1.0)
SCOPES = ("store-all", "depth<=0", "depth<=1", "depth<=8", "forward", "full")


def most(words: str) -> float | None:
    """The share that a sentence says may be open at most; None where it says nothing."""
    if re.search(r"\b(optimal|costs? less|takes? less time)\b", words):
        return OPTIMAL_GAP
    said = re.search(r"([0-9.e-]+) %", words)
    return None if said is None else float(said[1]) / 100


@pytest.mark.parametrize("asked", list(itertools.product((True, False), repeat=3)))
@pytest.mark.parametrize("scope", SCOPES)
def test_words_imply_no_more_than_the_figures(scope: str, asked: tuple[bool, bool, bool]) -> None:
    """Of all schedules the first line, which names what was asked for; of those searched the others."""
    paging, remat, paper = asked
    for gap, scope_gap, outdone, goal in itertools.product(GAPS, GAPS, (False, True), ("energy", "time")):
        claim = Claim(
            scope=scope, gap=gap, scope_gap=scope_gap, outdone=outdone, goal=goal, paging=paging, remat=remat,
            formulation="poet" if paper else "retention",
        )  # fmt: skip
        first, *others = claim.plain()
        status = str(graded(gap, 1e-3)) if gap is not None else "feasible"
        table, *table_others = claim.in_table(status).split(", ")
        for words in (first, table):
            said = most(words)
            assert said is None or (gap is not None and gap <= said * 1.01), (words, claim)
        if "schedule " in first and gap is not None:
            assert ("paging" in first, "recomputing" in first) == (not paging, not remat)
        whole = [claim.exact()] if scope == "store-all" else []
        for words in (*others, *table_others, claim.exact()):
            said, open_ = most(words), gap if words in whole else scope_gap
            assert "exactly" not in words
            assert said is None or (open_ is not None and open_ <= said * 1.01), (words, claim)
            assert "better than" not in words or outdone
            assert "beats" not in words or outdone
            assert words in whole or not re.match("(optimal: )?no schedule (costs|takes|saves)", words)
