"""Answers limited by counted work: the same each time, and in proportion to the network; and the sums that refuse."""

from __future__ import annotations

import random
from itertools import product

import pytest

from poetopt.formulations import formulation
from poetopt.formulations.energy_budget import energy_budget
from poetopt.graph.arena import pack
from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.plan.assemble import store_all_bytes
from poetopt.search.diagnosis.minimum_budget import least_deadline, least_ram
from poetopt.search.diagnosis.solve import solve
from poetopt.search.limits import hardest_step, impossible, placed_bytes
from poetopt.search.solution import Options, Status
from poetopt.search.tuning import WORK
from poetopt.testing.problems import crowded, tight
from poetopt.util.work import OutOfWorkError, Work
from tests.problems import random_tight
from tests.seeds import seeds


def chain(layers: int, nbytes: int = 100) -> Problem:
    """Forward operators in a row, and backward ones that read the gradient and the activation before."""
    tensors = [ProblemTensor("x", nbytes, -1, Transfers(0.1, 0.1, 0.1, 0.1))]
    operators = []
    for k in range(layers):
        operators.append(ProblemOperator(f"f{k}", (k,), (k + 1,), 1.0, 1.0))
        tensors.append(ProblemTensor(f"a{k}", nbytes, k, Transfers(0.1, 0.1, 0.1, 0.1)))
    for k in reversed(range(layers)):
        read, written = tuple(sorted((k, len(tensors) - 1))), len(tensors)
        operators.append(ProblemOperator(f"b{k}", read, (written,), 1.0, 1.0, backward=True))
        tensors.append(ProblemTensor(f"g{k}", nbytes, len(operators) - 1, Transfers(0.1, 0.1, 0.1, 0.1)))
    return Problem("chain", "none", tuple(operators), tuple(tensors))


def test_work_is_counted_up_to_its_limit() -> None:
    work = Work(10)
    work.spend(10)
    assert not work.over
    with pytest.raises(OutOfWorkError):
        work.spend(1)
    assert work.over


def test_the_search_for_the_least_ram_grows_with_the_network() -> None:
    done = []
    for layers in (200, 400, 800):
        problem, work = chain(layers), Work(WORK)
        assert least_ram(problem, Options(ram_bytes=store_all_bytes(problem)), work=work) == problem.least_ram_bytes
        assert not work.over
        done.append(work.done)
    assert done[1] < 2.2 * done[0]
    assert done[2] < 2.2 * done[1]


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


@pytest.mark.parametrize("what", ["ram", "no paging", "deadline", "energy"])
def test_what_sums_refuse_is_answered_without_a_model_and_in_the_same_words(what: str) -> None:
    problem, ram_bytes = tight(random.Random(3), forward=4)
    base = Options(ram_bytes=ram_bytes, scope="full")
    short = energy_budget(problem.baseline_energy_j / 2)
    options = {
        "ram": Options(ram_bytes=problem.least_ram_bytes - 1),
        "no paging": Options(
            ram_bytes=hardest_step(problem, Options(ram_bytes=0, paging=False)).nbytes - 1, paging=False
        ),
        "deadline": Options(ram_bytes=ram_bytes, deadline_s=problem.baseline_time_s * 0.9),
        "energy": Options(ram_bytes=ram_bytes, formulation=formulation("retention").with_block(short)),
    }[what]
    assert what == "energy" or impossible(problem, options) is not None
    first, second = solve(problem, options), solve(problem, options)
    for solution in (first, second):
        assert solution.status is Status.INFEASIBLE
        assert "build" not in solution.timing
        assert "relaxation" not in solution.timing
    assert (first.reason, first.why) == (second.reason, second.why)
    assert first.least_ram_bytes == second.least_ram_bytes
    assert first.ram_bound_bytes == second.ram_bound_bytes
    assert first.least_deadline_s == second.least_deadline_s
    if what in ("ram", "no paging"):
        assert first.least_ram_bytes is not None
        again = Options(ram_bytes=first.least_ram_bytes, paging=options.paging)
        assert solve(problem, again).plan is not None
    assert base.ram_bytes == ram_bytes


@pytest.mark.parametrize("seed", range(3))
def test_the_quickest_that_heuristics_know_is_the_same_each_time(seed: int) -> None:
    problem, ram_bytes = crowded(random.Random(seed), again=True)
    options = Options(ram_bytes=ram_bytes, deadline_s=problem.baseline_time_s)
    known = least_deadline(problem, options)
    assert known == least_deadline(problem, options)
    if known is not None:
        assert known >= problem.baseline_time_s
