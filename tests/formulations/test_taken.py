"""Outputs that are written over an input: optima against exhaustive searches, plans by all their readers."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from poetopt.comparison.baselines import method
from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor
from poetopt.plan.assemble import plan_of, schedule_of
from poetopt.plan.codec import from_json, to_json
from poetopt.plan.compact import decode_compact, encode_compact
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.layout import arena_bytes, buffers, check_layout, lay_out
from poetopt.plan.normalize import normalize
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.search.diagnosis.minimum_budget import least_ram
from poetopt.search.search import search
from poetopt.search.solution import Options, Status
from poetopt.util.errors import PlanError, ProblemError
from tests.bruteforce import plan_optimum, stage_optimum
from tests.closed import closed
from tests.plan.three_steps import run_thrice
from tests.seeds import some
from tests.taken import tight_with_takes

TOLERANCE = 1e-6
X, Y, DY, DX, DW = range(5)


def gradient() -> Problem:
    """y = f(x); dy of y; dx of y and dy, over dy, with a workspace; what reads dx."""
    tensors = (
        ProblemTensor("x", 1, -1), ProblemTensor("y", 8, 0), ProblemTensor("dy", 8, 1), ProblemTensor("dx", 8, 2),
        ProblemTensor("dw", 1, 3),
    )  # fmt: skip
    operators = (
        ProblemOperator("f", (X,), (Y,), 1.0, 1.0),
        ProblemOperator("loss", (Y,), (DY,), 1.0, 1.0, backward=True),
        ProblemOperator("over", (Y, DY), (DX,), 1.0, 1.0, 2, recomputable=False, backward=True, takes=(DY, DX)),
        ProblemOperator("weight", (X, DX), (DW,), 1.0, 1.0, backward=True),
    )
    return Problem("gradient", "paper", operators, tensors)


@pytest.mark.parametrize("seed", some(range(400), 10))
def test_optima_are_those_of_exhaustive_searches(seed: int) -> None:
    problem, ram_bytes = tight_with_takes(random.Random(seed))
    found = {
        name: search(problem, Options(ram_bytes=ram_bytes, scope="full", formulation=name, gap=0.0, threads=1))
        for name in ("retention", "poet")
    }
    any_plan, by_stages = plan_optimum(problem, ram_bytes), stage_optimum(problem, ram_bytes)
    for one in found.values():
        if one.simulation is None:
            assert by_stages is None or one.status is not Status.INFEASIBLE
            continue
        assert any_plan is not None
        assert one.simulation.overhead_j >= any_plan.overhead_j - TOLERANCE
        assert one.simulation.peak_bytes <= ram_bytes
    if by_stages is not None and closed(found["poet"]):
        assert found["poet"].scope_bound_j == pytest.approx(by_stages.overhead_j, abs=TOLERANCE)


def test_two_of_three_tensors_share_a_place() -> None:
    problem = gradient()
    assert problem.extra_bytes == (0, 0, -6, 0)
    assert problem.working_set_bytes(2) == 8 + 8 + 2
    plan = lay_out(plan_of(problem, Schedule()))
    found = simulate(plan)
    assert found.peak_bytes == 1 + 8 + 8 + 2 == arena_bytes(plan)
    place = {problem.tensors[b.index].name: b.offset for b in buffers(plan) if not b.workspace}
    assert place["dy"] == place["dx"]
    check_layout(plan, found.peak_bytes)
    moved = [b.offset + 100 * (not b.workspace and b.index == DX) for b in buffers(plan)]
    with pytest.raises(PlanError, match=r"'dx' starts at byte \d+, and takes over the buffer of 'dy'"):
        check_layout(replace(plan, offsets=tuple(moved)))


def test_what_was_taken_over_is_gone() -> None:
    problem = gradient()
    steps = list(plan_of(problem, Schedule()).instructions)
    over = steps.index(Instruction(Action.COMPUTE, 2))
    free = steps.index(Instruction(Action.FREE, DY))
    assert free > over
    assert simulate(problem, steps[:free] + steps[free + 1 :]).peak_bytes == simulate(problem, steps).peak_bytes
    for action in (Action.PAGE_OUT, Action.FREE):
        with pytest.raises(PlanError, match="it is not in RAM"):
            simulate(problem, [*steps[: free + 1], Instruction(action, DY), *steps[free + 1 :]])
    with pytest.raises(PlanError, match="computed a second time"):
        simulate(problem, [*steps[: over + 1], Instruction(Action.COMPUTE, 2), *steps[over + 1 :]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"takes": (Y, DX)}, "another operator reads 'y'"),
        ({"takes": (X, DX)}, "an input and an output"),
        ({"takes": (DX, DY)}, "an input and an output"),
        ({"recomputable": True}, "runs once"),
    ],
)
def test_a_problem_refuses_what_can_not_be_taken_over(changes: dict[str, object], message: str) -> None:
    problem = gradient()
    operators = list(problem.operators)
    operators[2] = replace(operators[2], **changes)  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match=message):
        replace(problem, operators=tuple(operators))


@pytest.mark.parametrize("seed", some(range(200), 10))
def test_plans_of_all_makers_are_laid_out_and_written(seed: int) -> None:
    problem, ram_bytes = tight_with_takes(random.Random(1000 + seed))
    plans = [plan_of(problem, Schedule())]
    known = least_ram(problem, Options(ram_bytes=simulate(plans[0]).peak_bytes))
    found = search(problem, Options(ram_bytes=known or ram_bytes, scope="depth:2", threads=1))
    plans += [found.plan] if found.plan is not None else []
    plans.append(method("dtr").schedule(problem, simulate(plans[0]).peak_bytes))
    for plan in plans:
        plain = normalize(Plan(problem, plan.instructions))
        assert simulate(plain).peak_bytes <= simulate(plan).peak_bytes
        again = plan_of(problem, schedule_of(plain))
        assert simulate(again).peak_bytes <= simulate(plain).peak_bytes
        laid = lay_out(again)
        check_layout(laid, arena_bytes(laid))
        run_thrice(laid)
        assert from_json(to_json(laid)).plan.problem.operators == problem.operators
        assert decode_compact(problem, encode_compact(laid)).instructions == laid.instructions
