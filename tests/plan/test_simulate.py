"""The simulator against hand-made plans, and against a second one on random plans and plans of the zoo."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import poetopt as po
from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.simulate import simulate
from poetopt.search.diagnosis.solve import solve
from poetopt.search.solution import Options
from poetopt.util.errors import PlanError
from tests.plan.reference import InvalidError, reference
from tests.problems import random_plan, random_problem, store_all
from tests.seeds import examples

seeds = st.integers(0, 2**32 - 1)


def step(text: str) -> Instruction:
    action, target = text.split()
    return Instruction(Action(action), int(target))


def chain(*, dma: bool = False, paging: bool = True) -> Problem:
    """x -> op0 -> a -> op1 -> b, with op2 reading a and b: 10, 20 and 30 bytes."""
    operators = (
        ProblemOperator("op0", (0,), (1,), 4.0, 1.0),
        ProblemOperator("op1", (1,), (2,), 2.0, 2.0, workspace_bytes=5),
        ProblemOperator("op2", (1, 2), (), 1.0, 4.0, backward=True),
    )
    tensors = (
        ProblemTensor("x", 10, -1, Transfers(1.0, 0.1, 2.0, 0.2)),
        ProblemTensor("a", 20, 0, Transfers(3.0, 0.3, 5.0, 0.5)),
        ProblemTensor("b", 30, 1, Transfers(1.0, 0.1, 1.0, 0.1)),
    )
    return Problem("chain", "toy", operators, tensors, dma=dma, paging=paging)


def test_store_all_has_no_overhead_and_adds_up() -> None:
    problem = chain()
    result = simulate(store_all(problem))
    assert result.overhead_j == 0
    assert result.energy_j == problem.baseline_energy_j
    assert result.makespan_s == problem.baseline_time_s
    assert result.live_bytes[0] == 30
    assert result.peak_bytes == 55
    assert (result.recomputes, result.page_ins, result.page_outs) == (0, 0, 0)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (("compute 1",), r"instruction 0 \(compute 'op1'\): its turn comes only after 'op0'"),
        (("compute 0", "free 1", "compute 1"), r"instruction 2 \(compute 'op1'\): it reads 'a', which is not in RAM"),
        (("free 1",), r"instruction 0 \(free 'a'\): it is not in RAM"),
        (("free 0", "free 0"), r"instruction 1 \(free 'x'\)"),
        (("page_out 1",), r"instruction 0 \(page_out 'a'\): it is not in RAM"),
        (("free 0", "page_in 0"), r"instruction 1 \(page_in 'x'\): it was never written out"),
        (("page_out 0", "page_in 0"), r"it is in RAM already"),
        (("compute 0", "compute 1"), r"ends after 2 instructions without operator 2 \('op2'\)"),
        (("compute 7",), r"instruction 0 \(compute number 7\): there is no operator"),
        (("free -1",), r"instruction 0 \(free number -1\)"),
    ],
)
def test_refuses_what_is_invalid(steps: tuple[str, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        simulate(chain(), [step(text) for text in steps])


@settings(deadline=None, max_examples=examples(150))
@given(seeds, st.booleans(), st.booleans())
def test_agrees_with_the_reference_on_valid_plans(seed: int, dma: bool, paging: bool) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, operators=rng.randint(1, 9), dma=dma, paging=paging)
    plan = random_plan(rng, problem)
    result, expected = simulate(plan), reference(plan)
    assert result.peak_bytes == expected.peak_bytes
    assert list(result.live_bytes) == expected.live_bytes
    assert result.energy_j == expected.energy_j
    assert result.makespan_s == expected.makespan_s
    assert simulate(plan, ram_bytes=result.peak_bytes, deadline_s=result.makespan_s) == result
    if result.peak_bytes:
        with pytest.raises(PlanError, match="RAM budget"):
            simulate(plan, ram_bytes=result.peak_bytes - 1)


@settings(deadline=None, max_examples=examples(150))
@given(seeds)
def test_agrees_with_the_reference_on_what_is_invalid(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, operators=rng.randint(1, 6), dma=rng.random() < 0.5, paging=rng.random() < 0.8)
    steps = list(random_plan(rng, problem, length=20).instructions)
    for _ in range(rng.randint(1, 2)):
        place = rng.randrange(len(steps) + 1)
        change = rng.random()
        if change < 0.4 and place < len(steps):
            del steps[place]
        elif change < 0.7:
            steps.insert(place, Instruction(rng.choice(list(Action)), rng.randrange(len(problem.tensors) + 1)))
        elif place + 1 < len(steps):
            steps[place], steps[place + 1] = steps[place + 1], steps[place]
    plan = Plan(problem, tuple(steps))
    try:
        expected = reference(plan)
    except InvalidError:
        with pytest.raises(PlanError):
            simulate(plan)
    else:
        assert simulate(plan).makespan_s == expected.makespan_s


CELLS = (
    ("lenet", "m4", False, 0.97, None), ("lenet", "rp2350", True, 0.97, 1.5), ("mlp", "m0", False, 0.8, 3.0),
    ("mlp", "stm32h743", True, 0.8, 1.2), ("vgg16-cifar", "m4", True, 0.9, 1.1),
    ("vgg16-cifar", "a72", False, 0.6, 1.5), ("vgg16-cifar", "orin-nano", True, 0.6, 2.0),
    ("bert-tiny", "a72", True, 0.5, 1.5), ("bert-tiny", "phone-a76", True, 0.45, None),
    ("bert-tiny", "rpi5", False, 0.5, 2.0),
)  # fmt: skip


@cache
def training(network: str) -> po.Training:
    found = po.load(network).differentiate()
    assert isinstance(found, po.Training)
    return found


def solved(network: str, device: str, dma: bool, share: float, factor: float | None) -> tuple[Problem, Options, Plan]:
    problem = training(network).cost(replace(po.device(device), dma=dma))
    options = Options(
        ram_bytes=int(share * po.store_all_peak_bytes(problem)),
        deadline_s=None if factor is None else factor * problem.baseline_time_s,
        scope="depth:4",
        time_limit_s=20.0,
        threads=1,
    )
    plan = solve(problem, options).plan
    assert plan is not None
    return problem, options, plan


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: "-".join(map(str, cell)))
def test_the_timeline_is_that_of_an_independent_event_queue(cell: tuple[str, str, bool, float, float | None]) -> None:
    problem, options, plan = solved(*cell)
    assert problem.dma == cell[2]
    found, expected = simulate(plan), reference(plan)
    assert list(found.live_bytes) == expected.live_bytes
    assert found.peak_bytes == expected.peak_bytes <= options.ram_bytes
    assert found.energy_j == pytest.approx(expected.energy_j, rel=1e-12)
    assert found.makespan_s == pytest.approx(expected.makespan_s, rel=1e-12)
    if options.deadline_s is not None:
        assert expected.makespan_s <= options.deadline_s * (1 + 1e-9)
    assert len(expected.start_s) == len(plan.instructions)
    for k, step in enumerate(plan.instructions):
        if step.action is not Action.FREE:
            assert found.start_s[k] == pytest.approx(expected.start_s[k], rel=1e-12, abs=1e-15)
            assert found.end_s[k] == pytest.approx(expected.end_s[k], rel=1e-12, abs=1e-15)
