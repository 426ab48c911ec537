"""Answers limited by counted work: the same each time, and in proportion to the network; and the sums that refuse."""

from __future__ import annotations

import random
from itertools import product

import pytest

from poetopt.graph.arena import pack
from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor
from poetopt.plan.assemble import store_all_bytes
from poetopt.search.diagnosis.minimum_budget import least_ram
from poetopt.search.limits import hardest_step, placed_bytes
from poetopt.search.solution import Options
from poetopt.testing.problems import tight
from poetopt.util.work import Work
from tests.seeds import seeds
from tests.support.problems import random_tight


@pytest.mark.parametrize("limit", [0, 3_000, 20_000])
def test_a_search_that_is_cut_short_says_so_and_ends_in_the_same(limit: int) -> None:
    problem, _ = tight(random.Random(2), forward=12)
    options = Options(ram_bytes=store_all_bytes(problem), paging=False)
    found = []
    for _ in range(2):
        work = Work(limit)
        found.append((least_ram(problem, options, work=work), work.over, work.done))
    assert found[0] == found[1]
    assert limit or found[0][:2] == (store_all_bytes(problem), True)


@pytest.mark.parametrize("seed", seeds(40))
def test_the_hardest_step_is_what_its_words_say(seed: int) -> None:
    """Counted anew for each operator, by what must last until its later readers."""
    draw = random.Random(seed)
    problem, _ = random_tight(draw, operators=9) if seed % 2 else tight(draw, forward=4)
    for paging, remat in product((True, False), repeat=2):
        options = Options(ram_bytes=0, paging=paging, remat=remat)
        needs = []
        for t, operator in enumerate(problem.operators):
            used, total = {*operator.inputs, *operator.outputs}, problem.working_set_bytes(t)
            for i, tensor in enumerate(problem.tensors):
                made_again = remat and tensor.producer >= 0 and problem.operators[tensor.producer].recomputable
                stays = not (paging and problem.paging) and not made_again
                if stays and i not in used and tensor.producer < t and any(r > t for r in problem.readers[i]):
                    total += tensor.nbytes
            needs.append(total + problem.reserve_bytes)
        step = hardest_step(problem, options)
        assert step.nbytes == max(needs) == needs[step.operator]
        kept = problem.nbytes(step.kept) + step.working_bytes + problem.reserve_bytes
        assert kept == step.nbytes


@pytest.mark.parametrize("seed", seeds(20))
def test_no_arena_undercuts_the_placed_working_set(seed: int) -> None:
    draw = random.Random(seed)
    unit = draw.choice((4, 64))
    sizes = [draw.randint(1, 3 * unit) for _ in range(draw.randint(1, 6))]
    tensors = tuple(ProblemTensor(f"t{k}", nbytes, 0) for k, nbytes in enumerate(sizes[1:]))
    one = ProblemOperator("f", (), tuple(range(len(tensors))), 1.0, 1.0, workspace_bytes=sizes[0])
    problem = Problem("one", "none", (one,), tensors, alignment=unit, reserve_bytes=7)
    arena = pack(sizes, [0] * len(sizes), [1] * len(sizes), unit)[1]
    assert placed_bytes(problem) == arena + 7
