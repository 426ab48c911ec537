"""Small random scheduling problems for contract suites; everything comes from the given generator."""

from __future__ import annotations

import random
from dataclasses import replace

from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.plan.storeall import store_all_bytes

SIZES = (1, 1, 2, 2, 3, 4, 6)
COSTS = (0.5, 1.0, 1.0, 2.0, 3.0)
PAGE_COSTS = (0.5, 1.0, 2.0, 4.0, 6.0)
DEAR = 50.0


def small_problem(rng: random.Random, *, forward: int, dma: bool = False, paging: bool = True) -> Problem:
    """A training step in small: a forward chain with skips, and one backward operator for each forward one."""
    reads: list[set[int]] = []
    made: list[int] = []
    last, tensors = 0, 1
    for _ in range(forward):
        chosen = {last}
        if rng.random() < 0.4:
            chosen.add(rng.randrange(tensors))
        reads.append(chosen)
        made.append(tensors)
        last, tensors = tensors, tensors + 1
    for index in reversed(range(forward)):
        reads.append({last, *(reads[index] if rng.random() < 0.7 else {made[index]})})
        made.append(tensors)
        last, tensors = tensors, tensors + 1
    operators = tuple(
        ProblemOperator(
            name=f"op{index}",
            inputs=tuple(sorted(reads[index])),
            outputs=(made[index],),
            time_s=rng.choice(COSTS),
            energy_j=rng.choice(COSTS),
            workspace_bytes=rng.choice((0, 0, 1, 2)),
            backward=index >= forward,
        )
        for index in range(2 * forward)
    )
    producers = [-1, *range(2 * forward)]
    stored = [
        ProblemTensor(f"t{i}", rng.choice(SIZES), producer, Transfers(*(rng.choice(PAGE_COSTS) for _ in range(4))))
        for i, producer in enumerate(producers)
    ]
    return Problem(f"random, {forward} layers", "contract", operators, tuple(stored), paging=paging, dma=dma)


def tight(rng: random.Random, *, forward: int, dma: bool = False) -> tuple[Problem, int]:
    """A problem and a RAM budget in bytes that ordinary training exceeds, though no single operator does."""
    while True:
        problem = small_problem(rng, forward=forward, dma=dma)
        least, plain = problem.least_ram_bytes, store_all_bytes(problem)
        if least < plain:
            return problem, rng.randint(least, plain - 1)


def crowded(rng: random.Random, *, again: bool, dma: bool = False) -> tuple[Problem, int]:
    """A problem and a RAM budget in bytes: beside the first backward operator only the graph's input has room.

    So all that later operators read has to come back, and several decisions depend on each other.

    again
        Whether computing again is cheap and transfers are dear, or the other way round.
    """
    forward = 3
    plain = small_problem(rng, forward=forward, dma=dma)
    tensors = [replace(plain.tensors[0], nbytes=1), *plain.tensors[1:]]
    operators = list(plain.operators)
    made = [operator.outputs[0] for operator in operators]
    turn = operators[forward]
    kept = sum(tensors[i].nbytes for i in made[: forward - 1])
    operators[forward] = replace(turn, inputs=(made[forward - 1],), workspace_bytes=kept + max(SIZES))
    for index in reversed(range(forward - 1)):
        place = 2 * forward - 1 - index
        operators[place] = replace(operators[place], inputs=tuple(sorted({made[place - 1], made[index]})))
    if again:
        tensors = [t.moved_for(page_in_j=t.page_in_j * DEAR, page_out_j=t.page_out_j * DEAR) for t in tensors]
    else:
        operators = [replace(o, energy_j=o.energy_j * DEAR) for o in operators]
    problem = replace(plain, name="random, crowded", operators=tuple(operators), tensors=tuple(tensors))
    return problem, problem.least_ram_bytes + tensors[0].nbytes
