"""The solve loop on problems whose answer is known, and on the shared instances where they are present."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from poetopt.frontends.problem_file import load_problem_file
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of, schedule_of, store_all
from poetopt.plan.layout import check_layout
from poetopt.plan.simulate import simulate
from poetopt.report.report import Report
from poetopt.search.diagnosis.minimum_budget import least_ram
from poetopt.search.diagnosis.solve import solve
from poetopt.search.heuristics.greedy import greedy
from poetopt.search.solution import DeadlineModel, Options, Progress, Solution, Status
from poetopt.testing.problems import tight
from poetopt.util.errors import BackendUnavailableError, FormulationError
from tests.seeds import seeds
from tests.support.closed import closed, in_scope
from tests.support.every_plan import least_overhead_j
from tests.support.problems import random_budget, random_problem

INSTANCES = Path(__file__).resolve().parents[2].parent / "shared" / "instances"
needs_instances = pytest.mark.skipif(not INSTANCES.is_dir(), reason="the shared instances are not here")


def shared(name: str, device: str) -> Problem:
    return load_problem_file(INSTANCES / f"{name}.json").cost(device)


def check(solution: Solution) -> None:
    """What holds of every solution with a plan, whatever was asked."""
    options = solution.options
    assert solution.plan is not None
    assert solution.simulation is not None
    assert solution.arena_bytes is not None
    again = simulate(solution.plan, ram_bytes=options.ram_bytes)
    assert again == solution.simulation
    assert again.peak_bytes <= options.ram_bytes
    assert solution.arena_bytes <= options.ram_bytes
    check_layout(solution.plan, options.ram_bytes)
    if options.deadline_s is not None:
        paper = options.deadline_model is DeadlineModel.PAPER
        assert (again.compute_s if paper else again.makespan_s) <= options.deadline_s * (1 + 1e-9)
    if not options.paging:
        assert again.page_ins == again.page_outs == 0
    if not options.remat:
        assert again.recomputes == 0
    assert solution.scope_bound_j is not None
    assert solution.scope_bound_j <= again.overhead_j * (1 + 1e-9)
    gap = solution.scope_gap
    assert gap is not None
    assert (closed(solution)) == (gap <= 1e-6)


def test_store_all_where_it_fits() -> None:
    problem = random_problem(random.Random(3), operators=8)
    peak = simulate(store_all(problem)).peak_bytes
    solution = solve(problem, Options(ram_bytes=peak))
    check(solution)
    assert solution.scope == "store-all"
    assert solution.simulation is not None
    assert solution.simulation.overhead_j == 0


@needs_instances
@pytest.mark.parametrize(
    ("name", "device", "ram", "options"),
    [
        ("resnet18_cifar", "a72", 1_000_000, {}),
        ("resnet18_cifar", "m4", 0.3, {"paging": False}),
        ("resnet18_cifar", "a72", 0.6, {"remat": False}),
        ("vgg16_cifar", "m4", 0.6, {}),
        ("linear", "m0", 0.5, {"scope": "full"}),
    ],
)
def test_shared_instances_are_closed(name: str, device: str, ram: float, options: dict[str, bool]) -> None:
    problem = shared(name, device)
    peak = simulate(store_all(problem)).peak_bytes
    budget = int(ram * peak) if ram <= 1 else int(ram)
    solution = solve(problem, Options(ram_bytes=budget, time_limit_s=90, **options))  # type: ignore[arg-type]
    check(solution)
    assert in_scope(solution) in (Status.OPTIMAL, Status.WITHIN_GAP)


def test_a_time_limit_that_reading_the_model_has_used_up() -> None:
    """The clock began before: there is a plan all the same, and nothing was searched for."""
    problem, ram_bytes = tight(random.Random(3), forward=5)
    options = Options(ram_bytes=ram_bytes, time_limit_s=5.0)
    late = solve(problem, options, begin=time.monotonic() - 6.0)
    check(late)
    assert late.timing["reading"] >= 6.0
    assert "search" not in late.timing
    assert late.total_s == pytest.approx(late.solve_s + late.build_s + late.timing["reading"])


@needs_instances
def test_the_figures_of_the_reference_are_met() -> None:
    """The two cells that the project was founded on; the reference's optima were simulated elsewhere."""
    resnet = solve(shared("resnet18_cifar", "a72"), Options(ram_bytes=1_000_000, scope="depth:8", time_limit_s=90))
    check(resnet)
    assert resnet.simulation is not None
    assert resnet.simulation.overhead_j <= 0.0117
    problem = shared("vgg16_cifar", "m4")
    vgg = solve(problem, Options(ram_bytes=int(0.6 * simulate(store_all(problem)).peak_bytes), time_limit_s=90))
    check(vgg)
    assert vgg.simulation is not None
    assert vgg.simulation.overhead_j <= 0.00044


@needs_instances
@pytest.mark.parametrize("model", list(DeadlineModel))
def test_a_deadline_costs_energy_and_is_kept(model: DeadlineModel) -> None:
    problem = shared("resnet18_cifar", "m4")
    budget = int(0.5 * simulate(store_all(problem)).peak_bytes)
    energies = []
    for factor in (3.0, 1.05, 1.01):
        options = Options(
            ram_bytes=budget,
            deadline_s=factor * problem.baseline_time_s,
            deadline_model=model,
            scope="depth:4",
            time_limit_s=60,
        )
        solution = solve(problem, options)
        check(solution)
        assert solution.simulation is not None
        energies.append(solution.simulation.overhead_j)
    assert energies[0] <= energies[1] * 1.001
    assert energies[1] <= energies[2] * 1.001


@needs_instances
def test_dma_keeps_the_deadline_too() -> None:
    problem = replace(shared("resnet18_cifar", "a72"), dma=True)
    budget = int(0.3 * simulate(store_all(problem)).peak_bytes)
    solved = []
    for factor in (1.0, 1.5):
        solution = solve(
            problem,
            Options(ram_bytes=budget, deadline_s=factor * problem.baseline_time_s, scope="depth:4", time_limit_s=3),
        )
        if solution.plan is not None:
            check(solution)
            solved.append(factor)
    assert 1.5 in solved


def test_too_little_ram_names_the_least() -> None:
    problem = random_problem(random.Random(11), operators=8, training=True)
    solution = solve(problem, Options(ram_bytes=problem.least_ram_bytes - 1))
    assert solution.status is Status.INFEASIBLE
    assert solution.plan is None
    assert solution.ram_bound_bytes == problem.least_ram_bytes
    assert f"{problem.least_ram_bytes:,}" in solution.reason
    least = solution.least_ram_bytes
    if least is not None:
        check(solve(problem, replace(solution.options, ram_bytes=least)))


@pytest.mark.parametrize("seed", seeds(30))
def test_least_ram_is_feasible_and_no_plan_needs_less_than_the_bound(seed: int) -> None:
    problem = random_problem(random.Random(seed), operators=5)
    assert least_overhead_j(problem, problem.least_ram_bytes - 1) is None
    options = Options(ram_bytes=0)
    least = least_ram(problem, options)
    assert least is not None
    check(solve(problem, replace(options, ram_bytes=least, time_limit_s=20)))


def test_a_deadline_under_one_pass_is_infeasible() -> None:
    problem = random_problem(random.Random(5), operators=7)
    peak = simulate(store_all(problem)).peak_bytes
    asked = Options(ram_bytes=peak, deadline_s=0.5 * problem.baseline_time_s)
    solution = solve(problem, asked)
    assert solution.status is Status.INFEASIBLE
    assert solution.deadline_bound_s == pytest.approx(problem.baseline_time_s)
    assert solution.least_deadline_s is not None
    assert solution.least_deadline_s >= problem.baseline_time_s * (1 - 1e-9)
    assert solve(problem, replace(asked, deadline_s=solution.least_deadline_s)).plan is not None
    neither = solve(problem, replace(asked, ram_bytes=problem.least_ram_bytes - 1))
    assert (neither.least_deadline_s, neither.ram_bound_bytes) == (None, problem.least_ram_bytes)
    assert "shorter than one pass" in neither.reason
    assert "below the" in neither.reason


@pytest.mark.parametrize("seed", seeds(40))
def test_greedy_schedules_are_valid_where_the_simulator_takes_them(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, operators=9, training=True)
    budget = random_budget(rng, problem)
    schedule = greedy(problem, budget, paging=seed % 2 == 0, remat=True)
    if schedule is None:
        return
    plan = plan_of(problem, schedule)
    assert simulate(plan).overhead_j >= 0
    assert schedule_of(plan).recomputes == schedule.recomputes
    if seed % 2:
        assert not schedule.page_ins


def test_unknown_names_are_refused() -> None:
    problem = random_problem(random.Random(1), operators=6)
    tight = Options(ram_bytes=problem.least_ram_bytes)
    with pytest.raises(FormulationError, match="retention"):
        solve(problem, replace(tight, formulation="retentoin"))
    with pytest.raises(BackendUnavailableError, match="highs"):
        solve(problem, replace(tight, backend="hihgs"))


INTERRUPTED = """
import os, signal, sys
from pathlib import Path
from poetopt.search.diagnosis.solve import solve
from poetopt.search.solution import Options
from poetopt.frontends.problem_file import load_problem_file
problem = load_problem_file(Path(sys.argv[1])).cost("m4")
sent = []
def listener(progress):
    if progress.phase in ("search", "branching") and not sent:
        sent.append(progress)
        os.kill(os.getpid(), signal.SIGINT)
solution = solve(problem, Options(ram_bytes=360_000, scope="forward", gap=1e-9, time_limit_s=300), listener)
print(solution.interrupted, solution.plan is not None, solution.scope_bound_j > 0, flush=True)
"""


@needs_instances
def test_ctrl_c_returns_the_incumbent() -> None:
    """The signal comes while the solver is at work, by whichever moment it has something to tell."""
    process = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(INSTANCES / "resnet18_cifar.json")],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=200,
    )
    assert process.stdout.splitlines()[-1] == "True True True"
    assert process.returncode == 0


@pytest.mark.parametrize("scope", ["auto", "depth:8", "forward", "full"])
def test_an_interrupt_among_heuristics_proves_nothing(scope: str) -> None:
    """The best schedule so far is the answer, and isn't called optimal: no bound is known yet."""
    told = 0
    for seed in range(20):
        problem, ram_bytes = tight(random.Random(seed), forward=5)

        def interrupt(progress: Progress) -> None:
            if progress.phase == "heuristic":
                raise KeyboardInterrupt

        solution = solve(problem, Options(ram_bytes=ram_bytes, scope=scope), interrupt)
        if not solution.interrupted:
            continue
        told += 1
        check(solution)
        assert solution.scope in ("full", "forward", "depth<=4", "depth<=8")
        assert solution.status is not Status.OPTIMAL or solution.scope_gap == 0
        if solution.simulation is not None and solution.simulation.overhead_j > 0:
            assert solution.status is Status.FEASIBLE
            assert "optimal" not in str(Report(problem=problem, solution=solution).to_dict()["proof"])
    assert told > 10
