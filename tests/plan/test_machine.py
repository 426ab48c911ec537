"""The transitions of the machine: what each action does, what it refuses, homes, and one step after another."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from poetopt.graph.problem import Home, Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.plan.assemble import plan_of
from poetopt.plan.effects import effects
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.machine import Machine
from poetopt.plan.normalize import normalize
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.util.errors import PlanError
from tests.seeds import seeds
from tests.support.problems import random_problem, steps
from tests.support.three_steps import BrokenError, run_thrice

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


@pytest.mark.parametrize(
    ("text", "why"),
    [("compute 1", "it must run after 'forward'"), ("free 0, compute 0", "it reads 'x', which is not in RAM"),
     ("free 0, free 0", "it is not in RAM"), ("page_out 2", "it is not in RAM"),
     ("page_in 0", "it was never written out"), ("page_out 0, page_in 0", "it is in RAM already"),
     ("compute 3", "there is no operator or tensor with that index"),
     ("free -1", "there is no operator or tensor with that index")],
)  # fmt: skip
def test_what_it_refuses(text: str, why: str) -> None:
    refused(network(), text, why)


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
