"""Random small problems and random valid plans, for property tests. Everything comes from the given generator."""

from __future__ import annotations

import random
from collections.abc import Callable

from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.simulate import simulate

SIZES = (0, 1, 1, 2, 2, 3, 4, 6)
COSTS = (0.0, 1.0, 1.0, 2.0, 3.0, 5.0)
PAGE_COSTS = (0.0, 0.5, 1.0, 2.0, 4.0)


def random_problem(
    rng: random.Random,
    *,
    operators: int = 6,
    training: bool | None = None,
    paging: bool = True,
    dma: bool = False,
    alignment: int = 1,
    size: Callable[[], int] | None = None,
) -> Problem:
    """A problem of `operators` operators: a training step or any DAG, by `training` (None: either).

    Sizes, seconds and joules are small whole or half numbers, so that sums are exact and ties are many. Some
    operators have several outputs, none, no cost, a workspace, or can't run twice.
    """
    as_training = rng.random() < 0.5 if training is None else training
    draw = size or (lambda: rng.choice(SIZES))
    reads, writes, inputs, backward = (_training if as_training else _any_dag)(rng, operators)
    producer = [-1] * inputs
    for index, made in enumerate(writes):
        producer += [index] * made
    first = inputs
    built = []
    for index, made in enumerate(writes):
        built.append(
            ProblemOperator(
                f"op{index}",
                tuple(sorted(reads[index])),
                tuple(range(first, first + made)),
                rng.choice(COSTS),
                rng.choice(COSTS),
                workspace_bytes=rng.choice((0, 0, 0, 1, 3)),
                recomputable=rng.random() > 0.1,
                backward=backward[index],
            )
        )
        first += made
    tensors = tuple(
        ProblemTensor(f"t{i}", draw(), made_by, Transfers(*(rng.choice(PAGE_COSTS) for _ in range(4))))
        for i, made_by in enumerate(producer)
    )
    return Problem("random", "paper", tuple(built), tensors, paging=paging, dma=dma, alignment=alignment)


_Shape = tuple[list[set[int]], list[int], int, list[bool]]
"""What each operator reads, how many tensors it writes, the number of graph inputs, and which are backward."""


def _any_dag(rng: random.Random, operators: int) -> _Shape:
    inputs = tensors = rng.choice((0, 1, 1, 2))
    reads: list[set[int]] = []
    writes: list[int] = []
    split = rng.randint(1, operators)
    for _ in range(operators):
        many = min(tensors, rng.choice((0, 1, 1, 2, 2, 3)))
        # Recent tensors are read more often, as in real networks.
        recent = range(max(0, tensors - 3), tensors)
        chosen = {rng.choice(recent) if rng.random() < 0.6 else rng.randrange(tensors) for _ in range(many)}
        reads.append(chosen)
        writes.append(rng.choice((0, 1, 1, 1, 1, 2, 3)))
        tensors += writes[-1]
    return reads, writes, inputs, [index >= split for index in range(operators)]


def _training(rng: random.Random, operators: int) -> _Shape:
    """A forward chain with skips, and one backward operator for each forward operator, in reverse."""
    forward = max(1, (operators + 1) // 2)
    inputs = rng.choice((1, 1, 2))
    reads: list[set[int]] = []
    writes: list[int] = []
    outputs: list[list[int]] = []
    tensors = inputs
    main = 0
    for _ in range(forward):
        chosen = {main}
        if rng.random() < 0.4:
            chosen.add(rng.randrange(tensors))
        made = rng.choice((1, 1, 1, 2))
        reads.append(chosen)
        writes.append(made)
        outputs.append(list(range(tensors, tensors + made)))
        main = tensors
        tensors += made
    gradient = main
    for index in range(operators - forward):
        of = forward - 1 - index % forward
        saved = reads[of] if rng.random() < 0.6 else set(outputs[of][-1:])
        reads.append({gradient, *saved})
        made = rng.choice((1, 1, 1, 0)) if index < operators - forward - 1 else rng.choice((0, 1))
        writes.append(made)
        if made:
            gradient = tensors
        tensors += made
    return reads, writes, inputs, [index >= forward for index in range(operators)]


def steps(text: str) -> tuple[Instruction, ...]:
    """Instructions of words; "compute 0:2" is by the second variant."""
    words = text.replace(",", " ").split()
    pairs = zip(words[::2], words[1::2], strict=True)
    return tuple(Instruction(Action(action), *map(int, target.split(":"))) for action, target in pairs)


def store_all(problem: Problem) -> Plan:
    """Each operator once, each tensor freed right after its last use."""
    instructions: list[Instruction] = [Instruction(Action.FREE, i) for i in problem.at_start if not problem.readers[i]]
    for index, operator in enumerate(problem.operators):
        instructions.append(Instruction(Action.COMPUTE, index))
        for i in sorted({*operator.inputs, *operator.outputs}):
            readers = problem.readers[i]
            if (readers[-1] if readers else index) == index:
                instructions.append(Instruction(Action.FREE, i))
    return Plan(problem, tuple(instructions))


def random_plan(rng: random.Random, problem: Problem, *, length: int = 60) -> Plan:
    """A valid plan, wasteful in every way that is allowed: a random walk that finishes after about `length` steps."""
    resident = set(problem.at_start)
    stored: set[int] = set()
    steps: list[Instruction] = []
    ahead = 0

    def do(action: Action, target: int) -> None:
        steps.append(Instruction(action, target))
        if action is Action.COMPUTE:
            resident.update(problem.operators[target].outputs)
        elif action is Action.PAGE_OUT:
            stored.add(target)
        elif action is Action.PAGE_IN:
            resident.add(target)
        else:
            resident.discard(target)

    def lost_for_good(tensor: int) -> bool:
        """Whether freeing it now could leave no way to have it again (it may be read later)."""
        producer = problem.tensors[tensor].producer
        return tensor not in stored and (producer < 0 or not problem.operators[producer].recomputable)

    def bring(tensor: int) -> None:
        if tensor in resident:
            return
        if tensor in stored and (rng.random() < 0.5 or lost_at_source(tensor)):
            do(Action.PAGE_IN, tensor)
            return
        run(problem.tensors[tensor].producer)

    def lost_at_source(tensor: int) -> bool:
        producer = problem.tensors[tensor].producer
        return producer < 0 or not problem.operators[producer].recomputable

    def run(operator: int) -> None:
        for tensor in problem.operators[operator].inputs:
            bring(tensor)
        do(Action.COMPUTE, operator)

    while ahead < len(problem.operators):
        choice = rng.random()
        if len(steps) > length or choice < 0.3:
            run(ahead)
            ahead += 1
        elif choice < 0.55 and resident:
            tensor = rng.choice(sorted(resident))
            if not lost_for_good(tensor):
                do(Action.FREE, tensor)
        elif choice < 0.7 and resident and problem.paging:
            do(Action.PAGE_OUT, rng.choice(sorted(resident)))
        elif choice < 0.85 and stored - resident:
            do(Action.PAGE_IN, rng.choice(sorted(stored - resident)))
        elif ahead:
            again = rng.randrange(ahead)
            if problem.operators[again].recomputable:
                run(again)
    for tensor in sorted(resident):
        if rng.random() < 0.5:
            do(Action.FREE, tensor)
    return Plan(problem, tuple(steps))


def random_budget(rng: random.Random, problem: Problem) -> int:
    """A RAM budget under the store-all peak where there is room for one, never under the trivial bound."""
    least = problem.least_ram_bytes
    return rng.randint(least, max(least, simulate(store_all(problem)).peak_bytes - 1))


def random_tight(
    rng: random.Random, *, operators: int = 6, training: bool | None = None, paging: bool = True, dma: bool = False
) -> tuple[Problem, int]:
    """A problem and a RAM budget that is under its store-all peak, though not under the trivial bound."""
    while True:
        problem = random_problem(rng, operators=operators, training=training, paging=paging, dma=dma)
        if problem.least_ram_bytes < simulate(store_all(problem)).peak_bytes:
            return problem, random_budget(rng, problem)


def random_few(rng: random.Random) -> tuple[Problem, int]:
    """A tight training problem of at most seven tensors: all plans of it can be searched."""
    while True:
        problem, ram_bytes = random_tight(rng, operators=5, training=True)
        if len(problem.tensors) <= 7:
            return problem, ram_bytes
