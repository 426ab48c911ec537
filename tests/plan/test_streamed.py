"""Computes by a variant: what they need of RAM and storage, cost and take, and what is refused of them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from poetopt.graph.problem import Home, Problem, ProblemOperator, ProblemTensor, Transfers, Variant
from poetopt.plan.assemble import plan_of, schedule_of
from poetopt.plan.codec import from_json, to_json
from poetopt.plan.compact import decode_compact, encode_compact
from poetopt.plan.gather import gather
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.layout import check_layout, lay_out
from poetopt.plan.normalize import normalize
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.plan.transfers import plan_transfers
from poetopt.testing.problems import small_problem
from poetopt.util.errors import PlanError
from tests.plan.three_steps import BrokenError, run_thrice
from tests.problems import random_problem
from tests.seeds import seeds
from tests.stored import with_parameters
from tests.streamed import random_streamed_plan, with_variants

X, W, Y, G = range(4)
MOVES = Transfers(1.0, 0.1, 2.0, 0.2)


def network(**changes: Any) -> Problem:
    """x, w -> forward -> y; y, x -> backward -> g; g, w -> update; w lies on storage and is updated.

    Tensors of 10, 20, 30 and 40 bytes. The forward operator streams w in (1), or w in and y out (2); the update both
    ways (1).
    """
    tensors = (
        ProblemTensor("x", 10, -1, MOVES),
        ProblemTensor("w", 20, -1, MOVES, home=Home.STORAGE, carried=True, updated_by=2),
        ProblemTensor("y", 30, 0, MOVES),
        ProblemTensor("g", 40, 1, MOVES),
    )
    forward = (Variant((W,), (), 4, 6.0, 3.0, 20), Variant((W,), (Y,), 6, 9.0, 5.0, 20, 30))
    backward = (Variant((Y,), (), 3, 4.0, 3.5, 30),)
    operators = (
        ProblemOperator("forward", (X, W), (Y,), 4.0, 1.0, workspace_bytes=5, variants=forward),
        ProblemOperator("backward", (X, Y), (G,), 2.0, 2.0, backward=True, variants=backward),
        ProblemOperator(
            "update", (W, G), (), 1.0, 4.0, backward=True, variants=(Variant((W,), (W,), 8, 3.0, 7.0, 20, 20),)
        ),
    )
    return replace(Problem("network", "toy", operators, tensors, storage_block_bytes=8), **changes)


def steps(text: str) -> tuple[Instruction, ...]:
    """Instructions of words; "compute 0:2" is by the second variant."""
    words = text.replace(",", " ").split()
    return tuple(
        Instruction(Action(action), *map(int, target.split(":")))
        for action, target in zip(words[::2], words[1::2], strict=True)
    )


STREAMED = "compute 0:2, compute 1:1, free 0, compute 2:1, free 3"


def test_what_is_streamed_takes_no_room_and_is_on_storage_afterwards() -> None:
    found = simulate(network(), steps(STREAMED))
    assert found.live_bytes == (10 + 6, 10 + 40 + 3, 50, 40 + 8, 40)
    assert (found.page_ins, found.page_outs, found.recomputes, found.streamed_runs) == (0, 0, 0, 3)
    assert (found.bytes_streamed, found.bytes_streamed_out, found.bytes_paged) == (50 + 30 + 40, 30 + 20, 0)
    assert found.overhead_j == (5 - 1) + (3.5 - 2) + (7 - 4)
    assert found.energy_j == network().baseline_energy_j + found.overhead_j == 5 + 3.5 + 7
    assert (found.compute_s, found.transfer_s, found.makespan_s) == (16.0, 0.0, 16.0)
    assert found.stored_bytes == 24 + 32
    assert run_thrice(Plan(network(), steps(STREAMED))) == list(found.live_bytes)


def test_a_streamed_run_wakes_the_storage_as_a_transfer_does() -> None:
    assert simulate(network(wake_j=1.0), steps(STREAMED)).wakes == 1  # one after the other, without a pause
    plain = "page_in 1, compute 0, free 1, compute 1, free 0, free 2, compute 2:1, free 3"
    found = simulate(network(wake_j=1.0), steps(plain))
    assert found.wakes == 2
    assert found.overhead_j == pytest.approx(2.0 + 0.1 + 3.0)


def test_with_dma_a_streamed_run_takes_the_channel_too() -> None:
    problem = network(dma=True)
    slow = replace(problem.tensors[X].moved_for(page_out_s=50.0), updated_by=-1)
    problem = replace(problem, tensors=(slow, *problem.tensors[1:]))
    found = simulate(problem, steps(f"page_out 0, {STREAMED}"))
    assert found.start_s[1] == 50.0  # what is under way comes first
    assert found.waits_s == 50.0
    after = simulate(
        problem, steps("compute 0:1, page_out 2, compute 1, free 0, free 2, page_in 1, compute 2, free 3, page_out 1")
    )
    assert (after.start_s[1], after.start_s[2]) == (6.0, 6.0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("page_in 1, compute 0, compute 1:1", "it streams 'y' in, and it was never written out"),
        ("page_in 1, compute 0, page_out 2, compute 0:2", "it streams 'y' out, which is in RAM"),
        ("page_in 1, compute 0, compute 1, compute 2:1", "it streams 'w' out, which is in RAM"),
        ("compute 0:1, compute 0", "it reads 'w', which is not in RAM"),
        ("compute 0:2, compute 1", "it reads 'y', which is not in RAM"),
        ("compute 0:3", "it has no variant 3"),
        ("compute 0:-1", "it has no variant -1"),
        ("compute 1:1", "its turn comes only after 'forward'"),
        (f"{STREAMED}, compute 0:1", "it reads 'w' as it was before 'update'"),
    ],
)
def test_what_is_refused(text: str, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        simulate(network(), steps(text))
    with pytest.raises(BrokenError):
        run_thrice(Plan(network(), steps(text)))


def test_the_device_has_to_have_storage_and_room_on_it() -> None:
    with pytest.raises(PlanError, match="has no storage to page to"):
        simulate(network(paging=False), steps(STREAMED))
    with pytest.raises(PlanError, match="more than the storage"):
        simulate(network(storage_bytes=55), steps(STREAMED))
    assert simulate(network(storage_bytes=56), steps(STREAMED)).stored_bytes == 56


def test_what_is_kept_from_step_to_step_is_not_streamed_anew() -> None:
    """Its copy on storage would be old, or what is in RAM would."""
    kept = network().keeping([W])
    with pytest.raises(PlanError, match="it streams 'w' in, and it was never written out"):
        simulate(kept, steps("compute 0, compute 1, free 0, free 2, free 1, compute 2:1"))


def test_the_least_ram_is_that_of_the_smallest_way() -> None:
    problem = network()
    assert [problem.working_set_bytes(0, v) for v in range(3)] == [65, 44, 16]
    assert [problem.least_working_set_bytes(k) for k in range(3)] == [16, 53, 48]
    assert problem.least_ram_bytes == 53
    assert replace(problem, paging=False).least_ram_bytes == 80


def test_a_schedule_says_the_variant_of_each_run() -> None:
    schedule = Schedule(variants=frozenset({(0, 0, 2), (1, 1, 1), (2, 2, 1)}))
    plan = plan_of(network(), schedule)
    assert plan.instructions == steps(STREAMED)
    assert schedule_of(plan) == schedule
    later = plan_of(network(), Schedule(variants=frozenset({(0, 0, 1), (1, 1, 1)}), page_ins=frozenset({(2, W)})))
    assert later.instructions == steps(
        "compute 0:1, page_out 2, free 2, compute 1:1, free 0, page_in 1, compute 2, free 3, page_out 1, free 1"
    )
    simulate(later)


def test_a_recompute_may_be_streamed() -> None:
    schedule = Schedule(recomputes=frozenset({(1, 0)}), variants=frozenset({(0, 0, 1), (1, 0, 1), (2, 2, 1)}))
    plan = plan_of(network(), schedule)
    assert plan.instructions == steps(
        "compute 0:1, free 2, compute 0:1, compute 1, free 0, free 2, compute 2:1, free 3"
    )
    assert simulate(plan).overhead_j == (3 - 1) + 3 + (7 - 4)
    assert schedule_of(plan) == schedule
    assert normalize(plan) is plan
    wasted = Plan(network(), steps(STREAMED.replace("compute 1:1", "compute 0:2, compute 1:1")))
    assert normalize(wasted).instructions == steps(STREAMED)


def test_plan_files_say_it_and_damage_is_refused() -> None:
    plan = lay_out(Plan(network(), steps(STREAMED)))
    data = json.loads(json.dumps(to_json(plan)))
    assert data["instructions"][0][:3] == ["stream", 0, 2]
    assert from_json(data).plan == plan
    for row, why in (
        (["stream", 0], "no number of a variant"),
        (["stream", 0, 3, 0], "that can't be"),
        (["stream", 9, 1, 0], "that can't be"),
    ):
        data["instructions"][0] = row
        with pytest.raises(PlanError, match=why):
            from_json(data)


def test_compact_plans_say_it_and_are_as_before_without() -> None:
    plan = Plan(network(), steps(STREAMED))
    data = encode_compact(plan)
    assert decode_compact(plan.problem, data).instructions == plan.instructions
    other = replace(plan.problem.operators[0], variants=plan.problem.operators[0].variants[:1])
    with pytest.raises(PlanError, match="of another problem"):
        decode_compact(replace(plan.problem, operators=(other, *plan.problem.operators[1:])), data)


def drawn(seed: int) -> tuple[random.Random, Problem]:
    rng = random.Random(seed)
    dma, wake_j = rng.random() < 0.5, rng.choice((0.0, 0.0, 1.0))
    if rng.random() < 0.5:
        problem = with_parameters(rng, small_problem(rng, forward=rng.randint(1, 4), dma=dma))
    else:
        problem = random_problem(rng, operators=rng.randint(1, 8), dma=dma)
    return rng, replace(with_variants(rng, problem), wake_j=wake_j)


def test_random_plans_are_what_an_independent_walk_says() -> None:
    """Live bytes, refusals of mutants, files, the compact form, and whatever rearranges a plan."""
    verdicts, streamed = {True: 0, False: 0}, 0
    for seed in seeds(1000):
        rng, problem = drawn(seed)
        plan = random_streamed_plan(rng, problem)
        before = simulate(plan)
        streamed += before.streamed_runs
        assert run_thrice(plan) == list(before.live_bytes)
        assert decode_compact(problem, encode_compact(plan)).instructions == plan.instructions
        laid_out = lay_out(plan)
        check_layout(laid_out)
        run_thrice(laid_out)
        assert from_json(json.loads(json.dumps(to_json(laid_out)))).plan == laid_out
        cleaned = normalize(plan)
        assert normalize(cleaned).instructions == cleaned.instructions
        for better in (cleaned, plan_transfers(plan, before.peak_bytes), gather(plan, before.peak_bytes)):
            run_thrice(better, before.peak_bytes)
            after = simulate(better, ram_bytes=before.peak_bytes)
            assert after.overhead_j <= before.overhead_j
            assert after.makespan_s <= before.makespan_s or problem.wake_j
        for _ in range(3):
            tried = mutated(rng, plan)
            try:
                live = run_thrice(tried)
            except BrokenError:
                verdicts[False] += 1
                with pytest.raises(PlanError):
                    simulate(tried)
                continue
            verdicts[True] += 1
            assert list(simulate(tried).live_bytes) == live
    assert min(verdicts.values()) > len(seeds(1000)) // 4
    assert streamed > len(seeds(1000))


def mutated(rng: random.Random, plan: Plan) -> Plan:
    """The plan with an instruction left out, put in, or of another variant."""
    problem, found = plan.problem, list(plan.instructions)
    kind = rng.randrange(3)
    at = rng.randrange(len(found))
    if kind == 0:
        del found[at]
    elif kind == 1:
        action = rng.choice(list(Action))
        target = rng.randrange(len(problem.operators if action is Action.COMPUTE else problem.tensors))
        found.insert(at, Instruction(action, target))
    else:
        runs = [k for k, step in enumerate(found) if step.action is Action.COMPUTE]
        at = rng.choice(runs)
        variants = len(problem.operators[found[at].target].variants)
        found[at] = replace(found[at], variant=rng.randint(0, variants))
    return replace(plan, instructions=tuple(found))
