"""Small random training steps whose parameters have their home on storage."""

from __future__ import annotations

import random
from dataclasses import replace

from poetopt.graph.problem import Home, Problem, ProblemTensor, Transfers
from poetopt.plan.assemble import store_all_bytes
from poetopt.testing.problems import PAGE_COSTS, SIZES, small_problem


def with_parameters(rng: random.Random, problem: Problem) -> Problem:
    """`problem` with a parameter at most of its forward operators, read by their backward operators as well.

    Some are frozen, some are read by two forward operators (tied), some have a state that the update alone reads.
    """
    count = len(problem.operators)
    tensors, reads = list(problem.tensors), [list(operator.inputs) for operator in problem.operators]

    def add(name: str, readers: set[int], update: int) -> None:
        for k in readers:
            reads[k].append(len(tensors))
        moves = Transfers(*(rng.choice(PAGE_COSTS) for _ in range(4)))
        tensors.append(
            ProblemTensor(name, rng.choice(SIZES), -1, moves, home=Home.STORAGE, carried=True, updated_by=update)
        )

    updates = set()
    for forward in range(count // 2):
        if rng.random() < 0.3:
            continue
        backward = count - 1 - forward
        readers = {forward, backward} if rng.random() < 0.85 else {forward}
        if rng.random() < 0.2:
            readers.add(rng.randrange(count // 2))
        update = backward if backward in readers and rng.random() < 0.8 else -1
        add(f"w{forward}", readers, update)
        if update >= 0:
            updates.add(update)
            if rng.random() < 0.3:
                add(f"m{forward}", {update}, update)
    operators = tuple(
        replace(operator, inputs=tuple(sorted(reads[k])), recomputable=operator.recomputable and k not in updates)
        for k, operator in enumerate(problem.operators)
    )
    return replace(problem, operators=operators, tensors=tuple(tensors))


def tight_with_parameters(rng: random.Random, *, forward: int, dma: bool = False) -> tuple[Problem, int]:
    """Such a step, and a budget in bytes that it exceeds with all parameters in RAM, though no operator does."""
    while True:
        problem = with_parameters(rng, small_problem(rng, forward=forward, dma=dma))
        least, plain = problem.least_ram_bytes, store_all_bytes(problem)
        if least < plain:
            return problem, rng.randint(least, plain - 1)
