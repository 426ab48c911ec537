"""What is proven of plain runs isn't searched again where operators may stream: the answers stay those of all of it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from poetopt.formulations.language import Formulation
from poetopt.formulations.retention import retention
from poetopt.formulations.retention.scope_difference import scope_difference, streaming_difference
from poetopt.graph.problem import Feature, Problem
from poetopt.plan.assemble import schedule_of
from poetopt.search.deepening import Deepening
from poetopt.search.run import Run
from poetopt.search.search import plain_first, run_plain, search
from poetopt.search.solution import Options, Solution
from tests.closed import closed
from tests.formulations.test_streaming import tight_with_variants
from tests.seeds import some

AGAIN = replace(retention, name="again", streaming_difference=None)
"""Searches all of it once more."""


def roomy(rng: random.Random) -> tuple[Problem, int]:
    """A step whose runs may stream, in a budget that has room for each of them plain, mostly no more."""
    problem, _ = tight_with_variants(rng, forward=rng.choice((2, 3)))
    most = max(map(problem.working_set_bytes, range(len(problem.operators)))) + problem.reserve_bytes
    return problem, max(most, problem.least_ram_bytes) + rng.choice((0, 0, 1, 2))


def solved(problem: Problem, ram_bytes: int, scope: str, formulation: str | Formulation = "retention") -> Solution:
    asked = Options(ram_bytes=ram_bytes, scope=scope, gap=1e-7, threads=1, time_limit_s=60)
    return search(problem, replace(asked, formulation=formulation))


@pytest.mark.parametrize("seed", some(range(60), 12))
def test_the_same_optimum_either_way(seed: int) -> None:
    rng = random.Random(seed)
    problem, ram_bytes = roomy(rng)
    scope = rng.choice(("depth:4", "forward", "full", "auto"))
    parts, whole = (solved(problem, ram_bytes, scope, chosen) for chosen in ("retention", AGAIN))
    assert parts.status is whole.status
    assert parts.scope_bound_j == pytest.approx(whole.scope_bound_j, rel=1e-6, abs=1e-9)
    if parts.simulation is not None:
        assert whole.simulation is not None
        assert parts.simulation.overhead_j == pytest.approx(whole.simulation.overhead_j, rel=1e-6, abs=1e-9)


def test_both_happen_streaming_pays_and_it_does_not() -> None:
    ends = set()
    for seed in range(12):
        problem, ram_bytes = roomy(random.Random(seed))
        found = solved(problem, ram_bytes, "full")
        plain = solved(run_plain(problem, ram_bytes), ram_bytes, "full")
        if found.simulation is None or plain.simulation is None or not closed(found):
            continue
        pays = found.simulation.overhead_j < plain.simulation.overhead_j - 1e-9
        assert pays == (found.simulation.streamed_runs > 0)
        ends.add(pays)
    assert ends == {True, False}


def test_the_row_counts_what_streams_and_what_the_proven_scope_lacks() -> None:
    problem, ram_bytes = next(
        (problem, ram_bytes)
        for problem, ram_bytes in map(roomy, map(random.Random, range(50)))
        if retention.build(problem, ram_bytes=ram_bytes, scope="full").space.streams
    )
    model = retention.build(problem, ram_bytes=ram_bytes, scope="full")
    inner, both = (of(model, "depth:1", frozenset()) for of in (scope_difference, streaming_difference))
    streamed = streaming_difference(model, "full", frozenset())
    assert inner is not None
    assert both is not None
    assert streamed is not None
    assert len(streamed.variables) == len(model.streaming.y) > 0
    assert len(both.variables) == len(inner.variables) + len(streamed.variables)
    assert streaming_difference(model, "full", frozenset({"late"})) is None


def test_the_plain_problem_is_searched_no_further_than_it_may_be_better() -> None:
    """Its run begins with the whole one's plan, and ends at once where nothing plain costs less."""
    seen = 0
    for seed in range(10):
        problem, ram_bytes = roomy(random.Random(seed))
        options = Options(ram_bytes=ram_bytes, scope="full", gap=1e-7, threads=1, time_limit_s=60)
        best = search(problem, options)
        if best.plan is None or best.simulation is None or not best.simulation.streamed_runs:
            continue
        run = Run(problem, options, None)
        assert Feature.STREAMED not in run_plain(problem, ram_bytes).features
        assert run.offer(schedule_of(best.plan), "test")
        proof = plain_first(run, Deepening(run).first, None)
        assert proof is not None
        assert proof.infeasible or proof.bound >= best.simulation.overhead_j * (1 - 1e-6)
        assert run.incumbent.value == pytest.approx(best.simulation.overhead_j)
        seen += 1
    assert seen
