"""Random problems of four to six operators with all that may happen to a tensor, and what a solve may say of them."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from poetopt.graph.problem import Home, Problem, ProblemTensor
from poetopt.plan.ends import without_ends
from poetopt.search.diagnosis.solve import solve
from poetopt.search.solution import Options, Solution, Status
from poetopt.util.errors import ProblemError
from tests.support.bruteforce import stage_optimum
from tests.support.closed import closed
from tests.support.every_plan import TooManyStatesError, least_overhead_j
from tests.support.problems import random_problem
from tests.support.stored import tight_with_parameters
from tests.support.streamed import with_variants

NEAR = 1e-6


@dataclass(frozen=True)
class Small:
    """A problem, what is asked of it, and the least overhead of any plan, in bytes and with layouts; None: no plan."""

    problem: Problem
    ram_bytes: int
    deadline_s: float | None

    @cached_property
    def by_bytes_j(self) -> float | None:
        return least_overhead_j(self.problem, self.ram_bytes, self.deadline_s)

    @cached_property
    def serving_j(self) -> float | None:
        """Where each transfer moves what is read later: of such plans is what is claimed of all."""
        return least_overhead_j(self.problem, self.ram_bytes, self.deadline_s, serving=True)

    @cached_property
    def placed_j(self) -> float | None:
        return least_overhead_j(self.problem, self.ram_bytes, self.deadline_s, placed=True, serving=True)


def small_problem(seed: int) -> Small:
    """Homes, updates, results, wakings, DMA and a deadline at random; the RAM is short."""
    rng = random.Random(seed)
    while True:
        problem = random_problem(rng, operators=rng.randint(4, 6), dma=rng.random() < 0.5)
        tensors = [_kind(rng, problem, i) for i in range(len(problem.tensors))]
        problem = replace(problem, tensors=tuple(tensors), wake_j=rng.choice((0.0, 0.0, 0.5, 1.0, 3.0)))
        least, whole = problem.least_ram_bytes, sum(t.nbytes for t in tensors if t.home is not Home.FLASH)
        ram_bytes = rng.randint(least, max(least, (least + whole) // 2))
        deadline_s = problem.baseline_time_s * rng.choice((1.1, 1.3, 1.7, 2.5)) if rng.random() < 0.5 else None
        if len(problem.tensors) <= 8:
            return Small(problem, ram_bytes, deadline_s)


def small_storage(seed: int) -> Small:
    """A problem of `small_problem` whose operators have variants, on a storage that is full, nearly, or just enough."""
    rng = random.Random(f"storage {seed}")
    case = small_problem(seed)
    while True:
        problem = filled(rng, with_variants(rng, case.problem))
        least, whole = problem.least_ram_bytes, sum(tensor.nbytes for tensor in problem.tensors)
        with suppress(ProblemError):  # an update of what is carried in RAM may stream nothing
            without_ends(problem)
            return replace(case, problem=problem, ram_bytes=rng.randint(least, max(least, (least + whole) // 2)))


def filled(rng: random.Random, problem: Problem) -> Problem:
    """`problem` on a storage of what begins there and what some tensors need that are written, give or take a block."""
    problem = replace(problem, storage_block_bytes=rng.choice((1, 1, 2, 4)))
    more = [i for i, tensor in enumerate(problem.tensors) if tensor.home is not Home.FLASH and not tensor.stored]
    written = rng.sample(more, min(len(more), rng.choice((0, 0, 1, 1, 2))))
    held = [i for i in problem.stored_at_start if rng.random() < 0.8 or not problem.tensors[i].updated]
    blocks = sum(map(problem.blocks, [*held, *written])) + rng.choice((-1, 0, 0, 0, 1))
    return replace(problem, storage_bytes=max(0, blocks) * problem.storage_block_bytes)


def poet_storage(seed: int) -> Small:
    """A step whose parameters are on such a storage, for `poet`: its operators run plain, by Algorithm 1's stages."""
    rng = random.Random(f"poet {seed}")
    problem, ram_bytes = tight_with_parameters(rng, forward=2)
    return Small(filled(rng, with_variants(rng, problem)), ram_bytes, None)


def false_word_of_poet(case: Small, said: Solution) -> str:
    """What of `poet`'s answer isn't true of Algorithm 1's schedules; empty where all of it is."""
    known = stage_optimum(case.problem, case.ram_bytes)
    value, bound = None if said.simulation is None else said.simulation.overhead_j, said.scope_bound
    if known is None:
        return "" if said.plan is None else f"a plan of {value} J, and Algorithm 1 has none"
    if said.status is Status.INFEASIBLE or (bound is not None and bound > known.overhead_j + NEAR):
        return f"{said.status} with a bound of {bound} J, and Algorithm 1 has a schedule of {known.overhead_j} J"
    if value is not None and closed(said) and value > known.overhead_j + NEAR:
        return f"{value} J is called optimal of Algorithm 1, above {known.overhead_j} J"
    return ""


def _kind(rng: random.Random, problem: Problem, i: int) -> ProblemTensor:
    tensor, readers = problem.tensors[i], problem.readers[i]
    if tensor.computed:
        return replace(tensor, result=rng.random() < 0.15)
    home = rng.choice((Home.RAM, Home.RAM, Home.STORAGE, Home.FLASH))
    updated = readers[-1] if readers and home is not Home.FLASH and rng.random() < 0.4 else -1
    # what is on storage and carried may stay in RAM; what isn't carried comes anew with each batch
    return replace(tensor, home=home, updated_by=updated, carried=home is not Home.FLASH and rng.random() < 0.6)


def judged(case: Small, backend: str, limit_s: float, formulation: str = "retention") -> Solution:
    """What a solve on one thread says of it."""
    options = Options(
        ram_bytes=case.ram_bytes,
        deadline_s=case.deadline_s,
        backend=backend,
        formulation=formulation,
        time_limit_s=limit_s,
        threads=1,
        gap=0.0,
    )
    return solve(case.problem, options)


def false_word(case: Small, said: Solution) -> str:
    """What of an answer isn't true; empty where all of it is."""
    try:
        return _false(case, said)
    except TooManyStatesError:
        return ""


def _false(case: Small, said: Solution) -> str:
    least = case.by_bytes_j
    value = None if said.simulation is None else said.simulation.overhead_j
    bound = said.overhead_bound_j
    if said.status is Status.INFEASIBLE:
        return "" if least is None or case.placed_j is None else f"infeasible, and there is a plan of {least} J"
    if value is not None and (least is None or value < least - NEAR):
        return f"a plan of {value} J, below the least of all, {least} J"
    least = case.serving_j if least is not None and bound is not None and bound > least + NEAR else least
    if bound is not None and bound > NEAR:
        least = case.placed_j if least is not None and bound > least + NEAR else least
        if least is not None and bound > least + NEAR:
            return f"a bound of {bound} J, above the plan of {least} J"
    if said.status is Status.OPTIMAL and value is not None and least is not None and value > least + NEAR:
        least = case.placed_j
        if least is None or value > least + NEAR:
            return f"{value} J is called optimal, above {least} J"
    return ""
