"""Small random scheduling problems for contract suites, and the cases of `check_block` with all their schedules."""

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
    """Return a small training step: a forward chain with skips, and a backward operator for each forward one."""
    reads: list[set[int]] = []
    output_of: list[int] = []
    last_tensor, tensors = 0, 1
    for _ in range(forward):
        read = {last_tensor}
        if rng.random() < 0.4:
            read.add(rng.randrange(tensors))
        reads.append(read)
        output_of.append(tensors)
        last_tensor, tensors = tensors, tensors + 1
    for index in reversed(range(forward)):
        reads.append({last_tensor, *(reads[index] if rng.random() < 0.7 else {output_of[index]})})
        output_of.append(tensors)
        last_tensor, tensors = tensors, tensors + 1
    operators = tuple(
        ProblemOperator(
            name=f"op{index}",
            inputs=tuple(sorted(reads[index])),
            outputs=(output_of[index],),
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
    """Return a problem and a RAM budget in bytes that each operator fits, and ordinary training doesn't."""
    while True:
        problem = small_problem(rng, forward=forward, dma=dma)
        least, store_all = problem.least_ram_bytes, store_all_bytes(problem)
        if least < store_all:
            return problem, rng.randint(least, store_all - 1)


def crowded(rng: random.Random, *, again: bool, dma: bool = False) -> tuple[Problem, int]:
    """Return a problem and a RAM budget in bytes that fits just the graph's input and the first backward operator.

    All inputs of later operators must therefore be recomputed or paged in, and several decisions depend on each other.

    Parameters
    ----------
    again
        Whether recomputing is cheap and transfers are expensive, or the other way round.
    """
    forward = 3
    base = small_problem(rng, forward=forward, dma=dma)
    tensors = [replace(base.tensors[0], nbytes=1), *base.tensors[1:]]
    operators = list(base.operators)
    outputs = [operator.outputs[0] for operator in operators]
    first_backward = operators[forward]
    kept = sum(tensors[i].nbytes for i in outputs[: forward - 1])
    operators[forward] = replace(first_backward, inputs=(outputs[forward - 1],), workspace_bytes=kept + max(SIZES))
    for index in reversed(range(forward - 1)):
        position = 2 * forward - 1 - index
        operators[position] = replace(
            operators[position], inputs=tuple(sorted({outputs[position - 1], outputs[index]}))
        )
    if again:
        tensors = [t.moved_for(page_in_j=t.page_in_j * DEAR, page_out_j=t.page_out_j * DEAR) for t in tensors]
    else:
        operators = [replace(o, energy_j=o.energy_j * DEAR) for o in operators]
    problem = replace(base, name="random, crowded", operators=tuple(operators), tensors=tuple(tensors))
    return problem, problem.least_ram_bytes + tensors[0].nbytes


OTHERS = (
    "check_block tries the decisions of 'retention' and 'poet', and formulation '{}' has others; pass a formulation "
    "that extends one of these"
)


def drawn(draw: random.Random, base: Formulation, number: int) -> tuple[Problem, int, Tried]:
    """Return a random problem and a budget with at least one decision, and few enough decisions to try all schedules.

    Of every eight problems, number 2 needs several recomputes, and number 5, with DMA, several page-ins.
    """
    dma, is_crowded = number % 2 == 1, number % 8 in (2, 5)
    while True:
        again = number % 8 == 2
        problem, ram_bytes = crowded(draw, again=again, dma=dma) if is_crowded else tight(draw, forward=3, dma=dma)
        if isinstance(space_of(base, problem, ram_bytes), PoetSpace):  # any later stage may recompute any operator
            problem, ram_bytes = tight(draw, forward=2, dma=dma)
            return problem, ram_bytes, valid(space_of(base, problem, ram_bytes), ram_bytes)
        if not 0 < _count_decisions(base, problem, ram_bytes) <= (MOST_DECISIONS if is_crowded else FEW_DECISIONS):
            continue
        tried = valid(space_of(base, problem, ram_bytes), ram_bytes)
        if is_crowded:
            optimum = best(base, tried, ram_bytes)
            if optimum is None or len(optimum[1].recomputes if again else optimum[1].page_ins) < 2:
                continue
        return problem, ram_bytes, tried


class Cases:
    """The problems of a seed, each drawn once, because trying all its schedules takes long."""

    def __init__(self, base: Formulation, seed: int) -> None:
        self.base, self.seed = base, seed
        self._draw = random.Random(seed)
        self._cases: list[tuple[Problem, int, Tried]] = []

    def __getitem__(self, number: int) -> tuple[Problem, int, Tried]:
        while len(self._cases) <= number:
            self._cases.append(drawn(self._draw, self.base, len(self._cases)))
        return self._cases[number]


_CACHE: list[Cases] = []


def cases_of(base: Formulation, seed: int) -> Cases:
    """Return the cases of a seed, which successive checks of blocks share."""
    cases = next((known for known in _CACHE if known.base is base and known.seed == seed), None)
    if cases is None:
        cases = Cases(base, seed)
        _CACHE[:] = [cases, *_CACHE][:3]
    return cases


def given_case(base: Formulation, problem: Problem, ram_bytes: int) -> tuple[Problem, int, Tried]:
    """Return the case of the caller's problem; raise ContractError where it has too many schedules to try."""
    count = _count_decisions(base, problem, ram_bytes)
    require(
        count <= MOST_DECISIONS,
        f"{problem.name} with {ram_bytes} bytes: it has {count} decisions, and at most {MOST_DECISIONS} can be tried "
        "exhaustively; pass a smaller problem",
    )
    return problem, ram_bytes, valid(space_of(base, problem, ram_bytes), ram_bytes)


def _count_decisions(base: Formulation, problem: Problem, ram_bytes: int) -> int:
    """Return the number of decisions without the stages of transfers."""
    return sum(map(len, decisions(space_of(base, problem, ram_bytes, False))))


def space_of(
    base: Formulation, problem: Problem, ram_bytes: int, transfer_times: bool = True
) -> RetentionSpace | PoetSpace:
    # not lean: an optimum with the block may need schedules that an optimum of energy never uses
    limits = Limits(ram_bytes=ram_bytes)
    scope = scope_of(base, problem, ram_bytes)
    space = base.space(problem, limits, scope, problem.paging, True, Kind.TIMED if transfer_times else Kind.WHOLE)
    if not isinstance(space, RetentionSpace | PoetSpace):
        raise FormulationError(OTHERS.format(base.name))
    return space


def scope_of(base: Formulation, problem: Problem, ram_bytes: int) -> str:
    """Return the largest scope that is small enough."""
    scopes = base.search.scopes(problem, Limits(ram_bytes=ram_bytes), True, True)
    return scopes[0] if len(scopes) == 1 else "forward"
