"""Revolve against brute force, in its own model and in plans."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import replace

import pytest

from poetopt.comparison.baselines import method
from poetopt.comparison.baselines.chain import chain_of
from poetopt.comparison.baselines.revolve import Reversal, by_bytes, schedules
from poetopt.plan.simulate import simulate
from poetopt.util.errors import NoScheduleError
from tests.bruteforce import plan_optimum
from tests.compare.chains import chain


def least_steps(lengths: list[int], slots: int) -> int:
    """Fewest steps that reverse a chain, by search over what the slots and the working state hold.

    Reversing step k needs the working state k, and is free, as it is to copy between slots and the working state.
    """
    start = (len(lengths), 0, frozenset({0}))
    queue: list[tuple[int, int, int, tuple[int, ...]]] = [(0, start[0], 0, (0,))]
    done = set()
    while queue:
        cost, left, state, kept = heapq.heappop(queue)
        if left == 0:
            return cost
        if (left, state, kept) in done:
            continue
        done.add((left, state, kept))
        if state == left - 1:
            heapq.heappush(queue, (cost, left - 1, state, tuple(k for k in kept if k < left)))
        if state < left - 1:
            heapq.heappush(queue, (cost + lengths[state], left, state + 1, kept))
        for k in kept:
            heapq.heappush(queue, (cost, left, k, kept))
            heapq.heappush(queue, (cost, left, state, tuple(j for j in kept if j != k)))
        if len(kept) < slots and state not in kept:
            heapq.heappush(queue, (cost, left, state, tuple(sorted((*kept, state)))))
    raise AssertionError("the first state was lost")


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
def test_recurrence_equals_search(slots: int) -> None:
    rng = random.Random(slots)
    for count in range(1, 8):
        for lengths in ([1] * count, [rng.randint(1, 5) for _ in range(count)]):
            table = Reversal([float(length) for length in lengths])
            assert table.further(min(slots, count)) == least_steps(lengths, slots)


def test_recurrence_equals_the_binomial_formula() -> None:
    for count in range(1, 25):
        table = Reversal([1.0] * count)
        for slots in range(1, count + 1):
            # Griewank 1992: r is the least with C(s + r, s) >= l; p = r l - C(s + r, s + 1), less the l reversed steps.
            r = next(r for r in range(count + 1) if math.comb(slots + r, slots) >= count)
            assert table.further(slots) == r * count - math.comb(slots + r, slots + 1)


def test_restarts_take_the_steps_that_the_recurrence_counts() -> None:
    for count in range(1, 16):
        table = Reversal([1.0] * count)
        for slots in range(1, count + 1):
            first = count - 1
            again = sum(end - 1 - first for first, end in table.restarts(slots))
            assert first + again == table.further(slots)


@pytest.mark.parametrize("own_output", [True, False])
@pytest.mark.parametrize("layers", [2, 3, 4])
def test_plans_equal_brute_force_on_unit_chains(layers: int, own_output: bool) -> None:
    problem = chain(layers, own_output=own_output)
    for ram in range(problem.least_ram_bytes, 2 * layers + 3):
        optimum = plan_optimum(problem, ram, paging=False)
        if optimum is None:
            with pytest.raises(NoScheduleError):
                method("revolve").schedule(problem, ram)
        else:
            plan = method("revolve").schedule(problem, ram)
            assert simulate(plan, ram_bytes=ram).overhead_j == optimum.overhead_j


def test_a_chain_has_a_segment_for_each_layer() -> None:
    problem = chain(6)
    found = chain_of(problem)
    assert found.segments == tuple((operator,) for operator in range(7))
    assert found.backward_start == (12, 11, 10, 9, 8, 7, 7)


def test_plans_on_unequal_chains() -> None:
    """Never under the optimum, and nearly always at it."""
    rng = random.Random(1)
    equal = total = 0
    for _ in range(12):
        layers = rng.choice((3, 4))
        problem = chain(
            layers,
            sizes=[rng.randint(1, 4) for _ in range(layers)],
            costs=[float(rng.randint(1, 5)) for _ in range(layers)],
            own_output=rng.random() < 0.5,
        )
        for ram in range(problem.least_ram_bytes, problem.least_ram_bytes + 6):
            optimum = plan_optimum(problem, ram, paging=False)
            if optimum is None:
                continue
            found = simulate(method("revolve").schedule(problem, ram)).overhead_j
            assert found >= optimum.overhead_j
            equal += found == optimum.overhead_j
            total += 1
    assert equal >= 0.95 * total > 0


def test_it_looks_at_what_its_row_of_table_1_says() -> None:
    """Joules alone change what it considers, and so do bytes alone."""
    even = chain(7)
    joules = [9.0 if k == 2 else 1.0 for k in range(len(even.operators))]
    dear = replace(even, operators=tuple(replace(op, energy_j=j) for op, j in zip(even.operators, joules, strict=True)))
    large = chain(7, sizes=[1, 1, 5, 1, 1, 3, 1])
    features = method("revolve").features
    considered = {tuple(schedules(chain_of(problem), 6)) for problem in (even, dear)}
    assert features.power_aware == (len(considered) == 2)
    in_bytes = {tuple(by_bytes(chain_of(problem), 5, tapes=False)) for problem in (even, large)}
    assert features.memory_aware == (len(in_bytes) == 2)
