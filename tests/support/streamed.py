"""Small random training steps whose operators have variants with streamed operands, and random plans of them."""

from __future__ import annotations

import random
from dataclasses import replace

from poetopt.graph.problem import Home, Problem, ProblemOperator, Variant
from poetopt.plan.effects import effects
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.machine import Machine
from poetopt.util.errors import PlanError

WORKSPACES = (0, 0, 1, 2)
COSTS = (0.0, 0.5, 1.0, 2.0)


def with_variants(rng: random.Random, problem: Problem, share: float = 0.7) -> Problem:
    """`problem` with up to three variants at most of its operators, none cheaper than running plain."""

    def variant(k: int, operator: ProblemOperator) -> Variant:
        tensors = problem.tensors
        updated = problem.updates[k]
        read = [i for i in operator.inputs if tensors[i].home is not Home.FLASH and i not in updated]
        some_in = {i for i in read if rng.random() < 0.5}
        some_out = {i for i in operator.outputs if rng.random() < 0.4}
        both = {i for i in updated if rng.random() < 0.7}
        return Variant(
            tuple(sorted(some_in | both)),
            tuple(sorted(some_out | both)),
            operator.workspace_bytes + rng.choice(WORKSPACES),
            operator.time_s + rng.choice(COSTS),
            operator.energy_j + rng.choice(COSTS),
            sum(tensors[i].nbytes for i in some_in | both),
            sum(tensors[i].nbytes for i in some_out | both),
        )

    return replace(
        problem,
        operators=tuple(
            replace(operator, variants=tuple(variant(k, operator) for _ in range(rng.randint(1, 3))))
            if rng.random() < share
            else operator
            for k, operator in enumerate(problem.operators)
        ),
    )


def random_streamed_plan(rng: random.Random, problem: Problem) -> Plan:
    """A valid plan: each run by a way that is drawn, with page-outs, frees and recomputes that nobody needs.

    It is drawn again, with fewer of them, until nothing is missing; at last without any.
    """
    for attempt in range(40):
        steps = _walk(rng, problem, 0.5 * 0.8**attempt if attempt < 39 else 0.0)
        if steps is not None:
            return Plan(problem, tuple(steps))
    raise AssertionError("no plan was drawn")


def _walk(rng: random.Random, problem: Problem, waste: float) -> list[Instruction] | None:
    machine, table = Machine(problem), effects(problem)
    steps: list[Instruction] = []

    def do(action: Action, target: int, variant: int = 0) -> None:
        step = Instruction(action, target, variant)
        machine.apply(table.of(step))
        steps.append(step)

    def run(k: int) -> None:
        ways = range(len(problem.operators[k].variants) + 1) if waste else (0,)
        effect = table.of(Instruction(Action.COMPUTE, k, rng.choice(ways)))
        for i in effect.streams_in:
            if i not in machine.stored and i in machine.resident:
                do(Action.PAGE_OUT, i)
        for i in effect.reads:
            if i not in machine.resident:
                do(Action.PAGE_IN, i)
        for i in effect.streams_out:
            if i in machine.resident:
                do(Action.FREE, i)
        do(Action.COMPUTE, k, effect.step.variant)

    try:
        for k in range(len(problem.operators)):
            if waste and rng.random() < waste:
                again = [j for j in range(k) if problem.operators[j].recomputable and problem.last_run[j] >= k]
                if again:
                    run(rng.choice(again))
            run(k)
            for i in problem.updates[k]:
                if problem.tensors[i].stored and i in machine.resident:
                    do(Action.PAGE_OUT, i)
            for i in sorted(machine.resident):
                if rng.random() < waste and problem.may_page_out(i):
                    do(Action.PAGE_OUT, i)
                if rng.random() < waste:
                    do(Action.FREE, i)
        for i in problem.at_end:
            if i not in machine.resident:
                do(Action.PAGE_IN, i)
        machine.finish()
    except PlanError:
        return None
    return steps
