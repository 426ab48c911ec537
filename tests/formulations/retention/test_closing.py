"""What follows the last part of a batch: optima against all schedules with all ways of it, counted here anew."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pyomo.environ as pyo
import pytest

from poetopt.formulations import formulation
from poetopt.formulations.block import Limits
from poetopt.formulations.retention.enumeration import retention_space
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.graph.problem import Home, Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.plan.instructions import Action, Plan
from poetopt.plan.simulate import simulate
from poetopt.search.search import search
from poetopt.search.solution import Options
from poetopt.testing.exhaustive import decisions, valid
from poetopt.testing.problems import PAGE_COSTS, small_problem
from tests.seeds import seeds
from tests.support.closed import closed
from tests.support.stored import with_parameters
from tests.support.streamed import with_variants

TOLERANCE = 1e-6
FEW_DECISIONS = 9


def with_closing(rng: random.Random, problem: Problem) -> Problem:
    """`problem`, whose updates are sums', in two parts, with updates behind them of what no part updates."""
    stored = [i for i, held in enumerate(problem.tensors) if held.home is Home.STORAGE]
    sums = [i for i in stored if problem.tensors[i].updated]
    tensors: list[ProblemTensor] = []
    operators: list[ProblemOperator] = []
    place: dict[int, int] = {}

    def read(i: int, update: int) -> int:
        if i not in place:
            place[i] = len(tensors)
            tensors.append(replace(problem.tensors[i], updated_by=-1, transfers=moves()))
        if update >= 0:
            tensors[place[i]] = replace(tensors[place[i]], updated_by=update)
        return place[i]

    def moves() -> Transfers:
        return Transfers(*(rng.choice(PAGE_COSTS) for _ in range(4)))

    for i in (i for i in stored if i not in sums):
        u = len(operators)
        inputs = [read(i, u), *(read(s, -1) for s in sums if rng.random() < 0.8)]
        if rng.random() < 0.6:
            inputs.append(len(tensors))
            size = rng.randint(4, 16)
            tensors.append(ProblemTensor(f"m{i}", size, -1, moves(), home=Home.STORAGE, carried=True, updated_by=u))
        operators.append(
            ProblemOperator(f"u{u}", tuple(sorted(inputs)), (), 1.0, 1.0, recomputable=False, backward=True)
        )
    closing = with_variants(rng, replace(problem, operators=tuple(operators), tensors=tuple(tensors)))
    return replace(
        problem, parts=2, closing=replace(closing, operators=tuple(map(partial(dearer, closing), closing.operators)))
    )


def dearer(closing: Problem, operator: ProblemOperator) -> ProblemOperator:
    """Chunks cost no less to move than the whole."""

    def moved(i: int) -> float:
        held = closing.tensors[i]
        return held.page_in_j + (held.page_out_j if held.updated else 0.0)

    ways = operator.variants
    return replace(
        operator, variants=tuple(replace(v, energy_j=v.energy_j + sum(map(moved, v.streamed_in))) for v in ways)
    )


def tight(rng: random.Random) -> tuple[Problem, int]:
    """Such a step, and a budget that all parameters exceed, mostly with some plain update."""
    while True:
        problem = with_closing(rng, with_parameters(rng, small_problem(rng, forward=rng.choice((1, 1, 2)))))
        if rng.random() < 0.4:
            problem = with_variants(rng, problem, share=0.2)
        assert problem.closing is not None
        if problem.closing.operators:
            return problem, problem.least_ram_bytes + rng.choice((0, 1, 2, 4, 6))


def behind(plan: Plan, ram_bytes: int) -> float:
    """The least joules above one plain compute each of any ways of a plan's updates; inf where none fits."""
    problem, closing = plan.problem, plan.problem.closing
    assert closing is not None
    kept = {problem.tensors[i].name: problem.tensors[i].nbytes for i in problem.lasting}
    read = {problem.tensors[s.target].name for s in plan.instructions if s.action is Action.PAGE_IN}
    for step in plan.instructions:
        if step.variant:
            way = problem.operators[step.target].variants[step.variant - 1]
            read.update(problem.tensors[i].name for i in way.streamed_in)
    total = 0.0
    for u, operator in enumerate(closing.operators):
        found = [math.inf]
        for way in (operator.plain, *operator.variants):
            streamed = {closing.tensors[i].name for i in way.streamed_in}
            if streamed & kept.keys():
                continue
            held = [closing.tensors[i] for i in operator.inputs if i not in way.streamed_in]
            beside = sum(size for name, size in kept.items() if name not in {one.name for one in held})
            if way.workspace_bytes + sum(one.nbytes for one in held) + beside > ram_bytes:
                continue
            joules = way.energy_j - operator.energy_j
            for one in held:
                joules += 0.0 if one.name in kept else one.page_in_j
                if one.updated_by == u and (one.name not in kept or one.name in read):
                    joules += one.page_out_j
            found.append(joules)
        total += min(found)
    return total


def cases(count: int) -> Iterator[tuple[int, Problem, int]]:
    """Seeds with a step each of few schedules, and a budget."""
    for seed in seeds(count):
        rng = random.Random(seed)
        while True:
            problem, ram_bytes = tight(rng)
            space = space_of(problem, ram_bytes)
            ways = math.prod(1 + len(own) for own in space.streams_of.values())
            if sum(map(len, decisions(space))) + math.log2(ways) <= FEW_DECISIONS:
                yield seed, problem, ram_bytes
                break


def space_of(problem: Problem, ram_bytes: int) -> RetentionSpace:
    return retention_space(problem, Limits(ram_bytes=ram_bytes), "full", True, True)


def test_optima_are_those_of_all_schedules_and_ways() -> None:
    streamed = kept = 0
    for seed, problem, ram_bytes in cases(300):
        space = space_of(problem, ram_bytes)
        least = math.inf
        for _, plan, simulation in valid(space, ram_bytes):
            alone = simulate(replace(plan.problem, closing=None, parts=1), plan.instructions).overhead_j
            assert simulation.overhead_j == pytest.approx(alone + behind(plan, ram_bytes)), seed
            least = min(least, simulation.overhead_j)
        found = search(problem, Options(ram_bytes=ram_bytes, scope="full", gap=0.0, threads=1, time_limit_s=60))
        if least == math.inf:
            assert found.plan is None, seed
            continue
        assert found.scope_bound_j == pytest.approx(least, abs=TOLERANCE), seed
        if found.simulation is not None and found.plan is not None and closed(found):
            assert found.simulation.overhead_j == pytest.approx(least, abs=TOLERANCE), seed
            streamed += found.simulation.streamed_runs > 0
            kept += bool(found.plan.problem.lasting)
    assert streamed > 3
    assert kept > 5


def test_every_schedule_is_a_point_with_its_joules() -> None:
    chosen, seen = formulation("retention"), 0
    for _, problem, ram_bytes in itertools.islice(cases(300), 15):
        space = space_of(problem, ram_bytes)
        model = chosen.build(problem, ram_bytes=ram_bytes, scope="full")
        for schedule, _, simulation in valid(space, ram_bytes):
            values = chosen.search.values(model, schedule)
            if values is None:
                continue
            seen += 1
            for variable, array in values:
                for entry, value in zip(variable.values(), array, strict=True):
                    entry.set_value(float(value), skip_validation=True)
            joules = pyo.value(next(model.component_data_objects(pyo.Objective)))
            assert joules == pytest.approx(simulation.overhead_j)
            for row in model.component("closing").component_data_objects(pyo.Constraint, active=True):
                body = pyo.value(row.body)
                assert row.lower is None or body >= pyo.value(row.lower) - TOLERANCE, row.name
                assert row.upper is None or body <= pyo.value(row.upper) + TOLERANCE, row.name
    assert seen > 100
