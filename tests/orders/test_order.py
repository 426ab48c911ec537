"""Orders of the operators: what is valid, what stays the same in another order, and what a search may answer."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import poetopt as po
from poetopt.devices import device
from poetopt.devices.cost import cost
from poetopt.engine.solution import Options, Status
from poetopt.orders.precedence import Precedence, reordered, reordered_like, schedule_from, schedule_into
from poetopt.orders.search import judge, live_bytes, search_order
from poetopt.orders.solve import solve_ordered
from poetopt.plan.assemble import schedule_of
from poetopt.plan.codec import decode_compact, encode_compact
from poetopt.plan.simulate import simulate
from poetopt.plan.storeall import store_all
from poetopt.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.schedule import Schedule
from tests.bruteforce import plan_optimum
from tests.problems import random_plan, random_problem, random_tight

SEEDS = st.integers(0, 2**32 - 1)


def orders(problem: Problem) -> Iterator[list[int]]:
    """All valid orders, by nothing but the dependences through tensors."""
    operators = problem.operators

    def extend(order: list[int]) -> Iterator[list[int]]:
        if len(order) == len(operators):
            yield list(order)
            return
        side = operators[len(order)].backward
        for k, operator in enumerate(operators):
            if k in order or operator.backward != side:
                continue
            if all(problem.tensors[i].producer in {-1, *order} for i in operator.inputs):
                yield from extend([*order, k])

    return extend([])


def shuffled(problem: Problem, rng: random.Random) -> list[int]:
    """A random valid order: each step takes one of the operators that are ready."""
    precedence = Precedence.of(problem)
    order: list[int] = []
    for side in precedence.backward:
        ready = [
            k
            for k, before in enumerate(precedence.before)
            if k not in order and precedence.backward[k] == side and set(before) <= set(order)
        ]
        order.append(rng.choice(ready))
    return order


@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_allowed_are_exactly_the_valid_orders(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, operators=5)
    valid = {tuple(order) for order in orders(problem)}
    precedence = Precedence.of(problem)
    for _ in range(20):
        tried = rng.sample(range(5), 5)
        assert precedence.allows(tried) == (tuple(tried) in valid)
    assert precedence.allows(range(5))
    assert not precedence.allows([0, 0, 1, 2, 3])


@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_windows_are_the_places_that_keep_an_order_valid(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, operators=7)
    precedence = Precedence.of(problem)
    order = shuffled(problem, rng)
    at = rng.randrange(7)
    low, high = precedence.window(order, at)
    for to in range(7):
        moved = [k for k in order if k != order[at]]
        moved.insert(to, order[at])
        assert precedence.allows(moved) == (low <= to <= high)


@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_another_order_is_the_same_problem(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, operators=7)
    order = shuffled(problem, rng)
    other = reordered(problem, order)

    def facts(of: Problem) -> dict[str, object]:
        """All that is said of each operator, tensors by name."""
        names = [replace(tensor, producer=0) for tensor in of.tensors]
        return {
            operator.name: (
                replace(operator, inputs=(), outputs=()),
                sorted((names[i] for i in operator.inputs), key=lambda t: t.name),
                sorted((names[i] for i in operator.outputs), key=lambda t: t.name),
            )
            for operator in of.operators
        }

    assert facts(other) == facts(problem)
    assert [operator.name for operator in other.operators] == [problem.operators[k].name for k in order]
    assert all(i in other.operators[t.producer].outputs for i, t in enumerate(other.tensors) if t.producer >= 0)
    simulate(store_all(other))
    assert reordered_like(problem, [operator.name for operator in other.operators]) == other
    assert reordered_like(other, [operator.name for operator in problem.operators]).operators == problem.operators
    data = encode_compact(store_all(other))
    assert decode_compact(other, data).instructions == store_all(other).instructions


@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_a_schedule_goes_to_another_order_and_back(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, operators=7)
    order = shuffled(problem, rng)
    other = reordered(problem, order)
    plan = random_plan(rng, problem)
    schedule = schedule_of(plan)
    there = schedule_into(problem, order, schedule)
    assert schedule_from(problem, order, there) == schedule

    def named(of: Problem, found: Schedule) -> set[tuple[str, str]]:
        computes = {(of.operators[t].name, of.operators[k].name) for t, k in found.recomputes}
        return computes | {(of.operators[t].name, of.tensors[i].name) for t, i in found.page_ins}

    assert named(other, there) == named(problem, schedule)


@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_the_sieve_knows_what_ordinary_training_keeps(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, operators=7)
    order = shuffled(problem, rng)
    plan = store_all(reordered(problem, order))
    live = simulate(plan).live_bytes
    computes = [nbytes for step, nbytes in zip(plan.instructions, live, strict=True) if step.action == "compute"]
    known = live_bytes(problem, order)
    assert [known[k] for k in order] == computes


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_where_memory_costs_something_some_stage_binds(seed: int) -> None:
    """If no memory row were tight, none would matter, and ordinary training would be optimal."""
    problem, ram_bytes = random_tight(random.Random(seed), operators=7)
    found = judge(problem, Options(ram_bytes=ram_bytes), time.monotonic() + 60)
    if 1e-6 < found.overhead_j < math.inf:
        assert found.tight
        assert set(found.tight) <= set(range(7))
    roomy = judge(problem, Options(ram_bytes=sum(t.nbytes for t in problem.tensors) + 100), time.monotonic() + 60)
    assert (roomy.overhead_j, roomy.tight) == (0, ())


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_a_search_is_repeatable_and_its_order_valid(seed: int) -> None:
    problem, ram_bytes = random_tight(random.Random(seed), operators=7)
    options = Options(ram_bytes=ram_bytes, scope="full")
    found, again = (search_order(problem, options, until=time.monotonic() + 60, seed=seed) for _ in range(2))
    assert found == again
    assert found.finished
    assert Precedence.of(problem).allows(found.order)
    assert found.found_j <= found.given_j
    if found.found_j < math.inf:
        again_j = judge(reordered(problem, found.order), options, time.monotonic() + 60).overhead_j
        assert again_j == pytest.approx(found.found_j)


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_never_worse_than_given_and_never_better_than_the_best_order(seed: int) -> None:
    """The plan's own optimum, by exhaustive search in every valid order, is below whatever a search can find."""
    problem, ram_bytes = random_tight(random.Random(seed), operators=5)
    options = Options(ram_bytes=ram_bytes, scope="full", gap=0.0, time_limit_s=60)
    used, solution = solve_ordered(problem, options)
    found = solution.order
    assert found is not None
    assert Precedence.of(problem).allows([[o.name for o in problem.operators].index(o.name) for o in used.operators])
    optima = [best.overhead_j for o in orders(problem) if (best := plan_optimum(reordered(problem, o), ram_bytes))]
    if solution.simulation is None:
        assert found.gain_j is None
        return
    assert solution.plan is not None
    assert simulate(solution.plan, ram_bytes=ram_bytes).overhead_j == solution.simulation.overhead_j
    assert solution.simulation.overhead_j >= min(optima) - 1e-9
    if found.given_overhead_j is not None:
        assert solution.simulation.overhead_j <= found.given_overhead_j
        assert found.gain_j == found.given_overhead_j - solution.simulation.overhead_j


def test_a_branch_that_comes_too_early_is_moved() -> None:
    """Of two branches the given order computes the wide one first, and has no room then for the other's workspace."""
    steps = [("wide", (0,), 8), ("a", (0,), 1), ("b", (2,), 1), ("c", (3,), 1), ("join", (1, 4), 1)]
    sizes = {"x": 1} | {name: nbytes for name, _, nbytes in steps}
    tensors = tuple(
        ProblemTensor(name, n, k - 1, Transfers(1.0, 50.0, 1.0, 50.0)) for k, (name, n) in enumerate(sizes.items())
    )
    operators = tuple(
        ProblemOperator(name, reads, (k + 1,), 1.0, 10.0, workspace_bytes=2 * (name in "abc"))
        for k, (name, reads, _) in enumerate(steps)
    )
    used, solution = solve_ordered(Problem("branches", "paper", operators, tensors), Options(ram_bytes=10))
    assert [operator.name for operator in used.operators] == ["a", "b", "c", "wide", "join"]
    assert solution.status is Status.OPTIMAL
    assert solution.order is not None
    assert solution.order.moves
    assert solution.order.gain_j == solution.order.given_overhead_j
    assert solution.order.proven_j


def test_the_graph_follows_its_problem() -> None:
    problem = po.load("lenet").differentiate().cost("m4")
    order = shuffled(problem, random.Random(1))
    other = reordered(problem, order)
    assert order != sorted(order)
    assert other.graph is not None
    again = cost(other.graph, device("m4"))
    assert again.operators == other.operators
    assert again.tensors == other.tensors
