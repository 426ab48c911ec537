"""What is tried where layout or clock refuse a plan, and heuristics where those of least energy are late."""

import random

import pytest

pytest.importorskip("highspy")

import poetopt as po
from poetopt.plan.simulate import simulate
from poetopt.search.constructive import first_schedules
from poetopt.search.incumbent import Incumbent
from poetopt.search.run import Ending, Run
from poetopt.search.scope_search import Refinement
from poetopt.search.solution import Options
from poetopt.search.tuning import CLOSE
from tests.problems import random_tight


def _found(*, late_s: float | None = None, hidden_share: float = 1.0, arena: int | None = None) -> Incumbent:
    problem, budget = random_tight(random.Random(0), dma=True)
    found = Incumbent(problem, Options(ram_bytes=budget))
    found.makespan_excess_s, found.hidden_share, found.arena_excess = late_s, hidden_share, arena
    return found


@pytest.mark.parametrize("threshold", [0.0, 0.31, 0.5, 0.83, 0.97])
def test_the_share_that_may_hide_closes_in_on_what_is_possible(threshold: float) -> None:
    """Models below `threshold` are infeasible, and the plans of those above are late."""
    steps = Refinement(1_000_000, overlaps=True)
    restriction = steps.next(_found(late_s=1.0, hidden_share=0.7))
    tried: list[float] = []
    while restriction is not None:
        assert not restriction.exact
        assert len(tried) < 20
        tried.append(restriction.hidden_share)
        possible = restriction.hidden_share >= threshold
        restriction = steps.ended(Ending.REFUSED if possible else Ending.INFEASIBLE)
        if possible:
            assert restriction is None
            restriction = steps.next(_found(late_s=1.0, hidden_share=0.0))
    assert min(abs(share - threshold) for share in tried) <= CLOSE
    assert all(0 < share < 1 for share in tried)


def test_without_overlap_the_deadline_itself_comes_closer() -> None:
    steps = Refinement(1_000_000, overlaps=False)
    first = steps.next(_found(late_s=0.25))
    assert first is not None
    assert (first.slower, first.hidden_share, first.shrink) == (0.25, 1.0, 0)
    halved = steps.ended(Ending.INFEASIBLE)
    assert halved is not None
    assert halved.slower == 0.125
    assert steps.ended(Ending.INFEASIBLE) is None
    assert steps.next(_found(late_s=0.25)) is None


def test_a_layout_takes_bytes_and_nothing_refused_ends_it() -> None:
    steps = Refinement(1_000_000, overlaps=True)
    shrinks = [restriction.shrink for _ in range(3) if (restriction := steps.next(_found(arena=64))) is not None]
    assert shrinks == [2500, 5000, 10000]
    assert steps.next(_found()) is None


def test_heuristics_find_a_plan_where_paging_is_cheap_and_slow() -> None:
    """The least energy pages to an SD card that takes longer than a pass; recomputing keeps the deadline."""
    problem = po.load("resnet18-cifar", batch=1).differentiate().cost(po.device("tx2"))
    budget = int(0.45 * po.store_all_peak_bytes(problem))
    options = Options(ram_bytes=budget, deadline_s=1.25 * problem.baseline_time_s)
    run = Run(problem, options, None)
    first_schedules(run, strict=False)
    best = run.incumbent.best
    assert best is not None
    again = simulate(best.plan, ram_bytes=budget)
    assert again.makespan_s <= 1.25 * problem.baseline_time_s * (1 + 1e-9)
