"""`poet` against a transcription of Algorithm 1 from the paper alone, on random graphs of one output a node."""

from __future__ import annotations

import math
import random

import pytest

from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.search.diagnosis.solve import solve
from poetopt.search.solution import DeadlineModel, Options, Status
from tests.seeds import some
from tests.support.algorithm1 import PaperGraph, algorithm_1

COSTS = (0.0, 1.0, 1.0, 2.0, 3.0, 5.0)


def case(seed: int) -> tuple[PaperGraph, int, float | None]:
    """A graph, a budget of the largest working set or little more, and a deadline for one in three."""
    rng = random.Random(9000 + seed)
    n = rng.randint(5, 8)
    reads = [sorted({rng.randrange(i) for _ in range(rng.choice((1, 1, 2)))}) if i else [] for i in range(n)]
    if seed % 2:  # a training step: the second half reads back what the first half wrote
        for i in range((n + 1) // 2, n):
            reads[i] = sorted({i - 1, n - 1 - i})
    nbytes = [rng.choice((1, 1, 2, 3, 4)) for _ in range(n)]
    graph = PaperGraph(
        reads,
        nbytes,
        *([rng.choice(COSTS) for _ in range(n)] for _ in range(2)),
        *([rng.choice((0.0, 0.5, 1.0, 2.0)) for _ in range(n)] for _ in range(2)),
    )
    least = max(nbytes[i] + sum(nbytes[j] for j in reads[i]) for i in range(n))
    ram = least + rng.choice((0, 0, 1, 2))
    return graph, ram, sum(graph.compute_s) * rng.choice((1.0, 1.3, 2.0)) if seed % 3 == 0 else None


def problem_of(graph: PaperGraph) -> Problem:
    """The same for poetopt."""
    operators = tuple(
        ProblemOperator(f"v{i + 1}", tuple(read), (i,), time_s=graph.compute_s[i], energy_j=graph.compute_j[i])
        for i, read in enumerate(graph.reads)
    )
    tensors = tuple(
        ProblemTensor(
            f"v{i + 1}",
            nbytes,
            i,
            Transfers(page_in_s=0.0, page_in_j=graph.in_j[i], page_out_s=0.0, page_out_j=graph.out_j[i]),
        )
        for i, nbytes in enumerate(graph.nbytes)
    )
    return Problem("paper", "paper", operators, tensors)


@pytest.mark.parametrize("seed", some(range(100), 12))
def test_poet_is_algorithm_1_as_printed(seed: int) -> None:
    graph, ram, deadline_s = case(seed)
    options = Options(
        ram_bytes=ram,
        formulation="poet",
        scope="full",
        gap=1e-9,
        deadline_s=deadline_s,
        deadline_model=DeadlineModel.PAPER,
    )
    problem = problem_of(graph)
    found = solve(problem, options)
    wanted = algorithm_1(graph, ram, deadline_s)
    if math.isinf(wanted):
        assert found.status is Status.INFEASIBLE
    else:
        assert found.status is Status.OPTIMAL
        assert found.overhead_bound_j is not None
        assert problem.baseline_energy_j + found.overhead_bound_j == pytest.approx(wanted, abs=1e-6)
