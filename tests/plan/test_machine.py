"""The transitions of the machine: what each action does, what it refuses, homes, and one step after another."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetopt.graph.problem import Home, Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.plan.assemble import plan_of
from poetopt.plan.effects import effects
from poetopt.plan.gather import gather
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.layout import buffers
from poetopt.plan.machine import Clock, Machine
from poetopt.plan.normalize import normalize
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.plan.transfers import plan_transfers
from poetopt.util.errors import PlanError
from tests.plan.reference import reference
from tests.plan.three_steps import BrokenError, run_thrice
from tests.problems import random_plan, random_problem
from tests.seeds import examples, seeds

MOVES = Transfers(1.0, 0.1, 2.0, 0.2)


def network(**homes: ProblemTensor) -> Problem:
    """x, w -> forward -> y; y, x -> backward -> g; g, w -> update. Tensors of 10, 20, 30 and 40 bytes."""
    tensors = {
        "x": ProblemTensor("x", 10, -1, MOVES),
        "w": ProblemTensor("w", 20, -1, MOVES),
        "y": ProblemTensor("y", 30, 0, MOVES),
        "g": ProblemTensor("g", 40, 1, MOVES),
    }
    operators = (
        ProblemOperator("forward", (0, 1), (2,), 4.0, 1.0, workspace_bytes=5),
        ProblemOperator("backward", (0, 2), (3,), 2.0, 2.0, backward=True),
        ProblemOperator("update", (1, 3), (), 1.0, 4.0, backward=True),
    )
    return Problem("network", "toy", operators, tuple({**tensors, **homes}.values()), storage_block_bytes=8)


ON_STORAGE = ProblemTensor("w", 20, -1, MOVES, home=Home.STORAGE, carried=True, updated_by=2)
IN_RAM = replace(ON_STORAGE, home=Home.RAM)
IN_FLASH = ProblemTensor("w", 20, -1, MOVES, home=Home.FLASH, carried=True)


def steps(text: str) -> tuple[Instruction, ...]:
    words = text.replace(",", " ").split()
    return tuple(Instruction(Action(a), int(k)) for a, k in zip(words[::2], words[1::2], strict=True))


def walked(problem: Problem, text: str) -> Machine:
    machine = Machine(problem)
    for effect in effects(problem).each(steps(text)):
        machine.apply(effect)
    return machine


def refused(problem: Problem, text: str, why: str) -> None:
    """Whether the last instruction alone is refused, by the machine and with its index by the simulator."""
    *before, last = steps(text)
    machine = Machine(problem)
    for effect in effects(problem).each(before):
        machine.apply(effect)
    with pytest.raises(PlanError, match=why):
        machine.apply(next(effects(problem).each([last])))
    with pytest.raises(PlanError, match=rf"instruction {len(before)} \({last.action} .*{why}"):
        simulate(problem, steps(text))


def test_what_each_action_does() -> None:
    problem = network()
    machine = Machine(problem)
    table = effects(problem)
    assert (machine.live, machine.resident, machine.stored) == (30, {0, 1}, set())
    forward = table[Action.COMPUTE][0]
    assert (machine.fresh(forward), machine.need(forward)) == ([2], 35)
    assert machine.apply(forward) == 65
    assert (machine.live, machine.resident, machine.ahead) == (60, {0, 1, 2}, 1)
    assert machine.need(forward) == 5  # a recompute overwrites
    assert machine.apply(table[Action.PAGE_OUT][2]) == 60
    assert (machine.stored, machine.blocks, machine.resident) == ({2}, 4, {0, 1, 2})
    assert machine.apply(table[Action.FREE][2]) == 60
    assert (machine.live, machine.resident) == (30, {0, 1})
    again = machine.copy()
    assert again.apply(table[Action.PAGE_IN][2]) == 60
    assert (again.resident, again.stored) == ({0, 1, 2}, {2})
    assert machine.resident == {0, 1}
    assert effects(problem) is table


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("compute 1", "its turn comes only after 'forward'"),
        ("free 0, compute 0", "it reads 'x', which is not in RAM"),
        ("free 0, free 0", "it is not in RAM"),
        ("page_out 2", "it is not in RAM"),
        ("page_in 0", "it was never written out"),
        ("page_out 0, page_in 0", "it is in RAM already"),
        ("compute 3", "there is no operator or tensor of that index"),
        ("free -1", "there is no operator or tensor of that index"),
    ],
)
def test_what_it_refuses(text: str, why: str) -> None:
    refused(network(), text, why)


def test_it_refuses_what_the_device_or_the_operator_forbids() -> None:
    problem = network()
    once = replace(problem, operators=(replace(problem.operators[0], recomputable=False), *problem.operators[1:]))
    refused(once, "compute 0, compute 0", "must not be")
    refused(replace(problem, paging=False), "page_out 0", "has no storage")
    small = replace(problem, storage_bytes=31)  # three blocks of 8
    refused(small, "page_out 0, page_out 1", "more than the storage")
    assert walked(small, "page_out 0, page_out 0").blocks == 2


def test_a_refusal_changes_nothing() -> None:
    machine = walked(network(), "compute 0")
    before = (machine.live, set(machine.resident), set(machine.stored), machine.ahead)
    for step in steps("compute 2, free 3, page_in 2, page_out 3"):
        with pytest.raises(PlanError):
            machine.apply(effects(machine.problem)[step.action][step.target])
    assert (machine.live, machine.resident, machine.stored, machine.ahead) == before


@settings(deadline=None, max_examples=examples(150))
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_the_walk_is_what_is_counted_otherwise(seed: int, dma: bool) -> None:
    rng = random.Random(seed)
    problem = replace(random_problem(rng, operators=rng.randint(1, 9), dma=dma), reserve_bytes=rng.choice((0, 7)))
    plan = random_plan(rng, problem, length=30)
    machine, clock, live, spans = Machine(problem), Clock(problem), [], []
    for effect in effects(problem).each(plan.instructions):
        needed = machine.live + machine.need(effect)
        live.append(machine.apply(effect))
        assert live[-1] == (needed if effect.makes or effect.operator >= 0 else live[-1])
        spans.append((clock.advance(effect), effect.seconds))
    machine.finish()
    found, other = simulate(plan), reference(plan)
    assert live == list(found.live_bytes) == other.live_bytes
    assert [start for start, _ in spans] == list(found.start_s) == pytest.approx(other.start_s)
    assert clock.makespan_s == found.makespan_s == pytest.approx(other.makespan_s)
    held = sum(buffer.nbytes for buffer in buffers(plan) if not buffer.workspace and buffer.last == len(live) - 1)
    assert machine.live <= held + problem.reserve_bytes


def test_a_problem_that_was_simulated_can_be_pickled() -> None:
    problem = network()
    simulate(plan_of(problem, Schedule()))
    again = pickle.loads(pickle.dumps(problem))
    assert simulate(plan_of(again, Schedule())) == simulate(plan_of(problem, Schedule()))


PAGED = "page_in 1, compute 0, free 1, compute 1, free 0, free 2, page_in 1, compute 2, page_out 1, free 1, free 3"


def test_what_lies_on_storage_needs_no_page_out() -> None:
    problem = network(w=ON_STORAGE)
    found = simulate(problem, steps(PAGED))
    assert (found.page_ins, found.page_outs, found.peak_bytes) == (2, 1, 80)
    assert found.stored_bytes == 24  # its own place from the start, and no other for its update
    assert Machine(problem).live == 10
    refused(problem, "compute 0", "it reads 'w', which is not in RAM")
    with pytest.raises(PlanError, match="more than the storage"):
        simulate(replace(problem, storage_bytes=23), steps(PAGED))


def test_what_lies_in_flash_is_read_in_place() -> None:
    problem = network(w=IN_FLASH)
    found = simulate(problem, steps("compute 0, compute 1, free 0, free 2, compute 2, free 3"))
    assert found.live_bytes == (45, 80, 80, 70, 40, 40)
    for action in ("free", "page_out", "page_in"):
        refused(problem, f"{action} 1", "it lies in flash, where it is read in place")


def test_nothing_reads_the_old_value_after_the_update() -> None:
    done = PAGED.removesuffix(", page_out 1, free 1, free 3")
    problem = network(w=ON_STORAGE)
    refused(problem, f"{done}, compute 2", "it reads 'w' as it was before 'update', which updates it")
    refused(problem, f"{done}, compute 0", "it reads 'w' as it was before 'update'")
    refused(problem, f"{done}, free 1, page_in 1", "its copy on storage is from before 'update', which updates it")
    machine = walked(problem, f"{done}, page_out 1, free 1, page_in 1")
    assert (machine.stored, machine.stale, machine.blocks) == ({1}, set(), 3)
    machine.finish()


def test_what_is_carried_ends_where_it_began() -> None:
    storage, ram = network(w=ON_STORAGE), network(w=IN_RAM)
    unwritten = PAGED.replace("page_out 1, ", "")
    with pytest.raises(PlanError, match="the plan ends after 10 instructions with an old copy of 'w' on storage"):
        simulate(storage, steps(unwritten))
    plan = "compute 0, compute 1, free 0, free 2, compute 2, free 3"
    assert simulate(ram, steps(plan)).peak_bytes == 100
    with pytest.raises(PlanError, match="without 'w' in RAM, where it has to be when the step ends"):
        simulate(ram, steps(f"{plan}, page_out 1, free 1"))
    result = network(g=ProblemTensor("g", 40, 1, MOVES, result=True))
    with pytest.raises(PlanError, match="without 'g' in RAM"):
        simulate(result, steps(f"{plan}, free 1"))
    assert simulate(result, steps(plan.removesuffix(", free 3"))).live_bytes[-1] == 60


def test_an_update_waits_for_the_page_out_of_what_it_overwrites() -> None:
    problem = replace(network(w=IN_RAM), dma=True)
    slow = problem.tensors[1].moved_for(page_out_s=50.0)
    problem = replace(problem, tensors=(problem.tensors[0], slow, *problem.tensors[2:]))
    found = simulate(problem, steps("page_out 1, compute 0, compute 1, compute 2"))
    assert found.start_s[-1] == 50.0
    assert found.waits_s == 44.0


def test_schedules_of_tensors_with_homes_become_valid_plans() -> None:
    for weight, page_ins in ((ON_STORAGE, {(0, 1), (2, 1)}), (IN_RAM, {(2, 1)}), (IN_RAM, set()), (IN_FLASH, set())):
        for result in (False, True):
            problem = network(w=weight, g=ProblemTensor("g", 40, 1, MOVES, result=result))
            for dma in (False, True):
                plan = plan_of(replace(problem, dma=dma, wake_j=1.0), Schedule(page_ins=frozenset(page_ins)))
                before = simulate(plan)
                assert simulate(normalize(plan)).overhead_j <= before.overhead_j
                for better in (plan_transfers(plan, before.peak_bytes), gather(plan, before.peak_bytes)):
                    run_thrice(better, before.peak_bytes)
                    assert simulate(better).overhead_j <= before.overhead_j
                assert simulate(plan_transfers(plan, before.peak_bytes)).makespan_s <= before.makespan_s


def homes(rng: random.Random, problem: Problem) -> Problem:
    """The problem with homes, updates and results drawn for its tensors."""
    tensors = []
    for i, tensor in enumerate(problem.tensors):
        readers = problem.readers[i]
        if tensor.computed:
            tensors.append(replace(tensor, result=rng.random() < 0.1))
            continue
        home = rng.choice((Home.RAM, Home.STORAGE, Home.STORAGE, Home.FLASH))
        updated = readers and home is not Home.FLASH and rng.random() < 0.6
        drawn = replace(tensor, home=home, carried=rng.random() < 0.8, updated_by=readers[-1] if updated else -1)
        tensors.append(drawn)
    return replace(problem, tensors=tuple(tensors))


def mutated(rng: random.Random, problem: Problem, plan: Plan) -> tuple[Instruction, ...]:
    """The plan with up to three instructions left out, put in or moved."""
    found = list(plan.instructions)
    for _ in range(rng.randint(0, 3)):
        if found and rng.random() < 0.5:
            del found[rng.randrange(len(found))]
        action = rng.choice(list(Action))
        target = rng.randrange(len(problem.operators if action is Action.COMPUTE else problem.tensors))
        found.insert(rng.randint(0, len(found)), Instruction(action, target))
    return tuple(found)


def test_three_steps_in_a_row_read_what_they_should() -> None:
    """The machine passes what a walk of three steps with terms passes, and nothing else."""
    verdicts = {True: 0, False: 0}
    for seed in seeds(600):
        rng = random.Random(seed)
        problem = homes(rng, random_problem(rng, operators=rng.randint(2, 8)))
        first = {i: problem.readers[i][0] for i in problem.stored_at_start if problem.readers[i]}
        plan = plan_of(problem, Schedule(page_ins=frozenset((stage, i) for i, stage in first.items())))
        live = run_thrice(plan)
        assert list(simulate(plan).live_bytes) == live
        run_thrice(normalize(plan))
        for _ in range(4):
            tried = mutated(rng, problem, plan)
            try:
                live = run_thrice(Plan(problem, tried))
            except BrokenError:
                verdicts[False] += 1
                with pytest.raises(PlanError):
                    simulate(problem, tried)
                continue
            verdicts[True] += 1
            assert list(simulate(problem, tried).live_bytes) == live
            assert simulate(normalize(Plan(problem, tried))).overhead_j <= simulate(problem, tried).overhead_j
    assert min(verdicts.values()) > len(seeds(600)) // 2
