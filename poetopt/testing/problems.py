"""Small random scheduling problems for contract suites; everything comes from the given generator.

The problems that `check_block` tries, each with all its schedules.
"""

from __future__ import annotations

import random
from dataclasses import replace

from poetopt.formulations.block import Kind, Limits
from poetopt.formulations.language import Formulation
from poetopt.formulations.poet.space import PoetSpace
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.plan.assemble import store_all_bytes
from poetopt.testing.contract import require
from poetopt.testing.exhaustive import FEW_DECISIONS, MOST_DECISIONS, Tried, best, decisions, valid
from poetopt.util.errors import FormulationError

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


OTHERS = (
    "check_block tries the decisions of 'retention' and 'poet'; formulation '{}' has others: give one made of either"
)


def drawn(draw: random.Random, base: Formulation, number: int) -> tuple[Problem, int, Tried]:
    """A random problem and a budget with at least one decision, and few enough to try all.

    Of eight, number 2 needs several recomputes and number 5, for DMA, several page-ins.
    """
    dma, several = number % 2 == 1, number % 8 in (2, 5)
    while True:
        again = number % 8 == 2
        problem, ram_bytes = crowded(draw, again=again, dma=dma) if several else tight(draw, forward=3, dma=dma)
        if isinstance(space_of(base, problem, ram_bytes), PoetSpace):  # any operator may run again in any later stage
            problem, ram_bytes = tight(draw, forward=2, dma=dma)
            return problem, ram_bytes, valid(space_of(base, problem, ram_bytes), ram_bytes)
        if not 0 < _count(base, problem, ram_bytes) <= (MOST_DECISIONS if several else FEW_DECISIONS):
            continue
        tried = valid(space_of(base, problem, ram_bytes), ram_bytes)
        if several:
            found = best(base, tried, ram_bytes)
            if found is None or len(found[1].recomputes if again else found[1].page_ins) < 2:
                continue
        return problem, ram_bytes, tried


class Cases:
    """The problems of a seed, each drawn once: all of their schedules are tried, and that takes longest."""

    def __init__(self, base: Formulation, seed: int) -> None:
        self.base, self.seed = base, seed
        self._draw = random.Random(seed)
        self._made: list[tuple[Problem, int, Tried]] = []

    def __getitem__(self, number: int) -> tuple[Problem, int, Tried]:
        while len(self._made) <= number:
            self._made.append(drawn(self._draw, self.base, len(self._made)))
        return self._made[number]


_KEPT: list[Cases] = []


def cases_of(base: Formulation, seed: int) -> Cases:
    """Those of the seed; blocks that are checked one after the other share them."""
    found = next((cases for cases in _KEPT if cases.base is base and cases.seed == seed), None)
    if found is None:
        found = Cases(base, seed)
        _KEPT[:] = [found, *_KEPT][:3]
    return found


def given_case(base: Formulation, problem: Problem, ram_bytes: int) -> tuple[Problem, int, Tried]:
    """A problem that was given. Raises ContractError where its schedules can't all be tried."""
    count = _count(base, problem, ram_bytes)
    require(
        count <= MOST_DECISIONS,
        f"{problem.name} with {ram_bytes} bytes: {count} decisions, and all schedules of at most "
        f"{MOST_DECISIONS} can be tried; give a smaller problem",
    )
    return problem, ram_bytes, valid(space_of(base, problem, ram_bytes), ram_bytes)


def _count(base: Formulation, problem: Problem, ram_bytes: int) -> int:
    """The number of decisions beside the stages of transfers."""
    return sum(map(len, decisions(space_of(base, problem, ram_bytes, False))))


def space_of(
    base: Formulation, problem: Problem, ram_bytes: int, transfer_times: bool = True
) -> RetentionSpace | PoetSpace:
    # not lean: what an optimum of energy does without, one with the block may need
    limits = Limits(ram_bytes=ram_bytes)
    scope = scope_of(base, problem, ram_bytes)
    space = base.space(problem, limits, scope, problem.paging, True, Kind.TIMED if transfer_times else Kind.WHOLE)
    if not isinstance(space, RetentionSpace | PoetSpace):
        raise FormulationError(OTHERS.format(base.name))
    return space


def scope_of(base: Formulation, problem: Problem, ram_bytes: int) -> str:
    """The widest scope that is small enough."""
    scopes = base.search.scopes(problem, Limits(ram_bytes=ram_bytes), True, True)
    return scopes[0] if len(scopes) == 1 else "forward"
