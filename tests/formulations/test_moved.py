"""Blocks that care in which stage a tensor is moved: both formulations against a brute force over all such stages."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from poetopt.formulations import formulation
from poetopt.formulations.block import Block, Limits, PyomoBlock
from poetopt.formulations.decisions import page_outs
from poetopt.formulations.flash_wear import flash_wear
from poetopt.formulations.retention.enumeration import retention_space
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of, schedule_of
from poetopt.plan.compact import decode_compact, encode_compact
from poetopt.plan.instructions import Action
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.search.diagnosis.solve import solve
from poetopt.search.solution import Options, Status
from poetopt.testing import check_block
from poetopt.testing.problems import tight
from poetopt.util.errors import FormulationError
from tests.closed import closed
from tests.moved import cheaper, forward_outs, loss_by, two_tariffs
from tests.problems import random_problem, random_tight
from tests.seeds import seeds

TOLERANCE = 1e-6
SEEDS = seeds(300) if len(seeds(300)) == 300 else range(0, 100, 5)
HIGHEST = 20.0
"""What schedules may cost in a search for one where a solve says that there is none."""


def case(seed: int, *, dma: bool = False) -> tuple[Problem, int, Block]:
    """A problem that is short of memory, and a block that asks for something that may bind."""
    rng = random.Random(seed)
    problem, ram_bytes = random_tight(rng, operators=rng.randint(3, 5))
    problem = replace(problem, dma=dma)
    kind, last = seed % 3, problem.last_forward
    if kind == 0:
        return problem, ram_bytes, forward_outs(rng.randint(0, 1))
    if kind == 1:
        return problem, ram_bytes, two_tariffs(rng.randrange(1, len(problem.operators)), early=rng.random() < 0.6)
    one_pass = sum(operator.time_s for operator in problem.operators[: last + 1])
    return problem, ram_bytes, loss_by(one_pass * rng.choice((1.0, 1.2, 1.5)))


@pytest.mark.parametrize("name", ["retention", "poet"])
@pytest.mark.parametrize("seed", SEEDS)
def test_optima_over_all_stages_of_transfers(name: str, seed: int) -> None:
    problem, ram_bytes, block = case(seed)
    judge = formulation(name).with_block(block)
    found = solve(problem, Options(ram_bytes=ram_bytes, formulation=judge, scope="full", gap=1e-9))
    if found.plan is None:
        assert found.status is Status.INFEASIBLE or "exists, by proof" in found.reason
        assert cheaper(problem, ram_bytes, judge, HIGHEST) is None
        return
    trial = judge.trial(found.plan, simulate(found.plan, ram_bytes=ram_bytes))
    assert judge.refusal(trial) is None
    assert closed(found)
    assert cheaper(problem, ram_bytes, judge, judge.goal.value(trial) - TOLERANCE) is None


def prompt(problem: Problem) -> Block:
    """The loss without a delay."""
    return loss_by(sum(operator.time_s for operator in problem.operators[: problem.last_forward + 1]))


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("retention", forward_outs(0)),
        ("retention", prompt),
        ("retention", two_tariffs(2)),
        ("poet", two_tariffs(2)),
    ],
)
def test_one_text_keeps_its_contract_in_both(name: str, block: Block | Callable[[Problem], Block]) -> None:
    problems = [tight(random.Random(seed), forward=2) for seed in range(8)]
    assert check_block(block, formulation=name, problems=problems).problems == len(problems)


def test_columns_and_rows_are_as_ever_where_no_block_cares() -> None:
    retention = formulation("retention")
    problem, ram_bytes = tight(random.Random(3), forward=4)
    cares, plain = retention.with_block(forward_outs()), retention.with_block(flash_wear(10**6))
    assert cares.transfer_times
    assert not plain.transfer_times
    built = plain.build(problem, ram_bytes=ram_bytes, scope="forward")
    assert "page_out_times" not in built.block_names
    limits = Limits(ram_bytes=ram_bytes)
    lean, whole = (retention_space(problem, limits, "forward", True, True, False, times) for times in (False, True))
    assert len(built.residency.k) == len(lean.point_stage) < len(whole.point_stage)


def _reads(block: PyomoBlock) -> None:
    """Reads what it says that it doesn't care for."""
    page_outs(block.model())


def test_a_block_that_says_that_it_does_not_care_may_not_ask() -> None:
    liar = formulation("retention").with_block(Block("liar", _reads, restricts=False, transfer_times=False))
    problem, ram_bytes = random_tight(random.Random(3), operators=5)
    with pytest.raises(FormulationError, match="transfer_times=False"):
        liar.build(problem, ram_bytes=ram_bytes)


@pytest.mark.parametrize("seed", seeds(20))
def test_a_schedule_with_page_outs_is_a_plan_and_back(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, operators=6, training=True)
    moved = [
        (i, back)
        for i, tensor in enumerate(problem.tensors)
        for back in problem.readers[i][-1:]
        if tensor.nbytes and back >= tensor.producer + 2
    ]
    if not moved:
        pytest.skip("nothing to move")
    i, back = rng.choice(moved)
    for out in range(problem.tensors[i].producer + 1, back):
        schedule = Schedule.written(problem, (), [(back, i)], [(out, i)])
        plan = plan_of(problem, schedule)
        simulate(plan)
        assert schedule_of(plan, page_outs=True) == schedule
        assert schedule_of(plan) == Schedule(page_ins=frozenset({(back, i)}))
        at = next(k for k, step in enumerate(plan.instructions) if step.action is Action.PAGE_OUT)
        assert sum(step.action is Action.COMPUTE for step in plan.instructions[:at]) == out
        assert decode_compact(problem, encode_compact(plan)).instructions == plan.instructions


@pytest.mark.parametrize("seed", range(8))
def test_poet_pays_for_waking(seed: int) -> None:
    """Bounds count the wakes that every plan pays: no plan found costs less, and they rise with the price."""
    rng = random.Random(seed)
    problem, ram_bytes = random_tight(rng, operators=4)
    options = Options(ram_bytes=ram_bytes, formulation="poet", gap=1e-9, remat=False)
    bounds = []
    for wake_j in (0.0, 2.0):
        found = solve(replace(problem, wake_j=wake_j), options)
        if found.simulation is None:
            assert found.status is Status.INFEASIBLE
            return
        assert found.scope_bound_j is not None
        assert found.scope_bound_j <= found.simulation.overhead_j + TOLERANCE
        bounds.append(found.scope_bound_j)
        assert math.isfinite(bounds[-1])
    assert bounds[0] <= bounds[1]
    if found.simulation is not None and found.simulation.page_ins:
        assert bounds[1] > bounds[0]
