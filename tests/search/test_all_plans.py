"""Small problems: no false word, nothing left open; results, flash and carried RAM by models of larger ones, too."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import poetopt as po
from poetopt.backends.solvers.solver import backend
from poetopt.frontends.problem_file import load_problem_file
from poetopt.graph.problem import Home, Problem, ProblemOperator, ProblemTensor, Transfers, Variant
from poetopt.plan.ends import with_ends, without_ends
from poetopt.plan.layout import check_layout
from poetopt.plan.simulate import simulate
from poetopt.search.diagnosis.solve import solve
from poetopt.search.exhaustive import Asked, cheapest
from poetopt.search.search import search
from poetopt.search.solution import Options, Solution, Status
from poetopt.util.errors import BackendUnavailableError, FormulationError, ProblemError
from tests.seeds import seeds
from tests.support.every_plan import TooManyStatesError, least_overhead_j
from tests.support.small import (
    Small,
    false_word,
    false_word_of_poet,
    judged,
    poet_storage,
    small_problem,
    small_storage,
)

CASES = Path(__file__).parents[2].parent / "shared" / "cases" / "problems"


def answer(case: Small, seed: int, formulation: str = "retention", limit_s: float = 20) -> Solution:
    """What one of the backends says; its plan is checked."""
    name = ("highs", "gurobi", "cbc", "scip")[seed % 4]
    try:
        backend(name)
        said = judged(case, name, limit_s, formulation)
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    if said.plan is not None:
        simulation = simulate(said.plan, ram_bytes=case.ram_bytes, deadline_s=case.deadline_s)
        assert said.plan.problem.asked.tensors == case.problem.tensors
        assert said.simulation == simulation
        check_layout(said.plan, case.ram_bytes)
    return said


@pytest.mark.parametrize("seed", seeds(1000))
def test_no_word_is_false(seed: int) -> None:
    case = small_problem(seed)
    assert false_word(case, answer(case, seed)) == ""


@pytest.mark.parametrize("seed", seeds(500))
def test_no_word_is_false_on_a_full_storage(seed: int) -> None:
    case = small_storage(seed)
    assert false_word(case, answer(case, seed, limit_s=5)) == ""


@pytest.mark.parametrize("seed", [*seeds(500), 424])  # a tighter model than was asked has no schedule
def test_no_word_of_poet_is_false_on_a_full_storage(seed: int) -> None:
    case = poet_storage(seed)
    assert false_word_of_poet(case, answer(case, 0, "poet")) == ""


def test_streaming_may_be_cheaper_than_what_ordinary_training_pages() -> None:
    """A batch that begins on storage: paging it costs 2 J, streaming it 1 J."""
    tensors = (
        ProblemTensor("x", 2, -1, Transfers(1.0, 2.0, 1.0, 2.0), home=Home.STORAGE, of_batch=True),
        ProblemTensor("a", 2, 0),
    )
    operators = (
        ProblemOperator("f", (0,), (1,), 1.0, 1.0, variants=(Variant((0,), (), 0, 1.0, 2.0, 2, 0),)),
        ProblemOperator("g", (1,), (), 1.0, 1.0, backward=True),
    )
    case = Small(Problem("batch", "toy", operators, tensors), 8, None)
    said = answer(case, 0)
    assert false_word(case, said) == ""
    assert said.overhead_bound_j == case.by_bytes_j == 1.0


@pytest.mark.parametrize("seed", [*seeds(300), 361])  # a recompute that streams out what it writes
@pytest.mark.parametrize("draw", [small_problem, small_storage])
def test_all_plans_are_those_of_the_contract(draw: Callable[[int], Small], seed: int) -> None:
    case = draw(seed)
    found = cheapest(case.problem, Asked(case.ram_bytes, case.deadline_s), math.inf, math.inf)
    assert (None if found.plan is None else found.bound) == case.by_bytes_j
    if found.plan is not None:
        simulation = simulate(found.plan, ram_bytes=case.ram_bytes, deadline_s=case.deadline_s)
        assert simulation.overhead_j == pytest.approx(found.bound)


def test_plans_with_layouts_are_those_of_the_contract() -> None:
    compared = 0
    for seed in range(40):
        case = small_problem(seed)
        if len(case.problem.tensors) > 4 or case.ram_bytes > 10:
            continue
        try:
            least = case.placed_j
        except TooManyStatesError:
            continue
        found = cheapest(case.problem, Asked(case.ram_bytes, case.deadline_s, placed=True), math.inf, math.inf)
        assert (None if found.plan is None else found.bound) == least
        if found.plan is not None:
            check_layout(found.plan, case.ram_bytes)
        compared += 1
    assert compared


@pytest.mark.parametrize("name", ["dma_deadline_a", "dma_deadline_b", "dma_none"])
def test_deadlines_that_nothing_keeps_are_refused(name: str) -> None:
    path = CASES / f"{name}.json"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    problem = load_problem_file(path).cost("d")
    least = problem.least_ram_bytes
    ram_bytes = 9 if name != "dma_deadline_b" else least
    said = solve(problem, Options(ram_bytes=max(9, ram_bytes), deadline_s=8.4, threads=1))
    assert (said.status is Status.INFEASIBLE) is (least_overhead_j(problem, max(9, ram_bytes), 8.4) is None)


def step(**first: object) -> Problem:
    """w and x -> a -> b -> g, which reads w and a again; `first` says what else is true of w."""
    cost = Transfers(0.5, 1.0, 0.5, 1.0)
    tensors = (
        replace(ProblemTensor("w", 3, -1, cost), **first),  # type: ignore[arg-type]
        ProblemTensor("x", 2, -1, cost),
        ProblemTensor("a", 4, 0, cost),
        ProblemTensor("b", 4, 1, cost),
        ProblemTensor("g", 2, 2, cost, result=True),
    )
    operators = (
        ProblemOperator("a", (0, 1), (2,), 1.0, 3.0),
        ProblemOperator("b", (2,), (3,), 1.0, 3.0, workspace_bytes=3),
        ProblemOperator("g", (0, 2, 3), (4,), 1.0, 3.0, backward=True),
    )
    return Problem("step", "toy", operators, tensors)


KINDS: dict[str, dict[str, object]] = {
    "flash": {"home": Home.FLASH},
    "carried": {"carried": True},
    "updated": {"carried": True, "updated_by": 2},
    "storage": {"home": Home.STORAGE, "carried": True, "updated_by": 2},
    "batch": {"home": Home.STORAGE, "of_batch": True},
}


@pytest.mark.parametrize("formulation", ["retention", "poet"])
@pytest.mark.parametrize("kind", KINDS)
def test_ends_of_a_step_are_planned(kind: str, formulation: str) -> None:
    problem = step(**KINDS[kind])
    if kind == "batch" and formulation == "poet":
        with pytest.raises(FormulationError, match=r"'w' isn't\. Leave out"):
            po.solve(problem, ram=f"{problem.least_ram_bytes}B", formulation=formulation)
        return
    planned = 0
    for ram_bytes in range(problem.least_ram_bytes, 17):
        said = po.solve(problem, ram=f"{ram_bytes}B", formulation=formulation, gap=0.0)
        least = least_overhead_j(problem, ram_bytes)
        if said.plan is None:
            assert least is None or formulation == "poet" or least_overhead_j(problem, ram_bytes, placed=True) is None
            continue
        planned += 1
        assert least is not None
        done = simulate(said.plan, ram_bytes=ram_bytes)
        assert done.overhead_j >= least
        if formulation == "retention":
            assert done.overhead_j == least
    assert planned


@pytest.mark.parametrize("seed", seeds(100))
def test_the_same_plans_without_ends(seed: int) -> None:
    problem = replace(small_problem(seed).problem, dma=False, wake_j=0.0)
    case = replace(small_problem(seed), problem=problem, deadline_s=None)
    try:
        other = without_ends(problem)
    except ProblemError:
        return
    found = cheapest(other, Asked(case.ram_bytes), math.inf, math.inf)
    assert (None if found.plan is None else found.bound) == case.by_bytes_j
    if found.plan is not None:
        done = simulate(with_ends(problem, found.plan), ram_bytes=case.ram_bytes)
        assert done.overhead_j == pytest.approx(found.bound)


def test_updates_that_take_over_something_are_refused_by_name() -> None:
    problem = step(carried=True, updated_by=2)
    both = replace(problem.tensors[1], carried=True, updated_by=2)
    operators = (*problem.operators[:2], replace(problem.operators[2], inputs=(0, 1, 2, 3)))
    problem = replace(problem, operators=operators, tensors=(problem.tensors[0], both, *problem.tensors[2:]))
    with pytest.raises(ProblemError, match=r"'g' updates 'x'.*home on storage"):
        search(problem, Options(ram_bytes=20))
