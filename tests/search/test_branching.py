"""The tree of relaxations finds and proves what trying everything, and the solver's own search, do."""

from __future__ import annotations

import math
import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyomo.environ as pyo
import pytest

from poetopt.backends.solvers.highs import HighsBackend, HighsSession
from poetopt.backends.solvers.nodes import StoppedError
from poetopt.backends.solvers.solver import Outcome, Point, backend
from poetopt.formulations import formulation
from poetopt.formulations.rows import Count, Row
from poetopt.search.branching.branch_and_cut import BranchAndCut
from poetopt.search.branching.tree import Tree
from poetopt.search.cutting import model_of, session_of
from poetopt.search.diagnosis.solve import solve
from poetopt.search.model_search import Mode, ModelSearch
from poetopt.search.parallel_tree import ParallelTree
from poetopt.search.run import Run
from poetopt.search.solution import Options, Status
from poetopt.testing.problems import tight
from poetopt.util.errors import FormulationError
from tests.contract import milp
from tests.seeds import seeds, some


@pytest.mark.parametrize("seed", seeds(40))
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_as_trying_everything(seed: int, late: bool, threads: int) -> None:
    rng = random.Random(seed)
    problem = milp.covering(rng, n=10, m=6)
    n = len(problem.costs)
    weights = np.array([float(rng.randint(0, 3)) for _ in range(n)])
    side = float(weights.sum() * 0.6)
    row = Row(list(problem.model.x.values()), weights.tolist(), side, math.inf, 1.0, "late", core=True)
    session = backend("highs").open(problem.model, threads=1, scale=100.0)
    session.relax(60.0)
    best = [math.inf]
    bounds: list[float] = []

    def broken(point: Point) -> list[Row]:
        return [row] if late and weights @ point[problem.model.x] < side - 1e-6 else []

    def judge(point: Point) -> list[Row]:
        rows = broken(point)
        if not rows:
            best[0] = min(best[0], float(problem.costs @ np.round(point[problem.model.x])) + problem.constant)
        return rows

    def told(bound: float) -> bool:
        bounds.append(bound)
        return False

    nodes = session.nodes()
    tree = Tree(nodes.lower, nodes.upper, cutoff=lambda: best[0], on_bound=told, gap=0.0)
    explorers = [BranchAndCut(tree, each, separate=broken, judge=judge) for each in (nodes, nodes.twin())[:threads]]
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(explorer.run) for explorer in explorers]:
            done.result()
    known = problem.best(extra=(weights, side) if late else None)
    assert known is not None
    assert best[0] == pytest.approx(known)
    assert bounds[-1] == pytest.approx(known)
    assert max(bounds) <= known + 1e-6


def test_where_there_is_nothing() -> None:
    session = backend("highs").open(milp.infeasible(relaxed=False), threads=1, scale=1.0)
    session.relax(60.0)
    bounds: list[float] = []

    def told(bound: float) -> bool:
        bounds.append(bound)
        return False

    nothing: list[Row] = []
    nodes = session.nodes()
    tree = Tree(nodes.lower, nodes.upper, cutoff=lambda: math.inf, on_bound=told, gap=0.0)
    BranchAndCut(tree, nodes, separate=lambda point: nothing, judge=lambda point: nothing).run()
    assert bounds[-1] == math.inf


@pytest.mark.parametrize("seed", some(range(25), 12))
@pytest.mark.parametrize("counted", [False, True])
def test_schedules_as_the_search_alone(seed: int, counted: bool) -> None:
    """The tree of `retention` alone, without heuristics, against HiGHS kept to one thread.

    counted
        All counts of the formulation may be branched on, whatever the relaxation makes of them.
    """
    problem, ram_bytes = tight(random.Random(seed), forward=5)
    options = Options(ram_bytes=ram_bytes, scope="full", gap=0.0, threads=1)
    reference = solve(problem, options)
    chosen = formulation("retention")
    run = Run(problem, options, None)
    model = model_of(chosen, problem, options, "full")
    session = session_of(model, options, scale=1e4 / problem.baseline_energy_j)
    session.relax(60.0)
    beside = ParallelTree(run, run.budget, model, session)
    nodes = session.nodes([count for kind in chosen.counts(model) for count in kind] if counted else ())
    beside.explorer(beside.tree(nodes), nodes).run()
    if reference.status is Status.INFEASIBLE:
        assert beside.infeasible
    elif run.incumbent.best is not None and not run.incumbent.arena_excess:
        assert reference.simulation is not None
        assert reference.overhead_bound_j is not None
        assert run.incumbent.value == pytest.approx(reference.simulation.overhead_j, rel=1e-6, abs=1e-12)
        assert run.bound == pytest.approx(reference.overhead_bound_j, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("seed", range(15))
def test_two_explore_what_a_search_leaves(seed: int) -> None:
    """Both threads of `take_over`, with rows and bases of either, against HiGHS kept to one thread."""
    problem, ram_bytes = tight(random.Random(seed), forward=6)
    options = Options(ram_bytes=ram_bytes, scope="full", gap=0.0, threads=1)
    reference = solve(problem, options)
    chosen = formulation("retention")
    run = Run(problem, replace(options, threads=2), None)
    model = model_of(chosen, problem, options, "full")
    session = session_of(model, options, scale=1e4 / problem.baseline_energy_j)
    relaxed = session.relax(60.0)
    if relaxed.outcome is Outcome.INFEASIBLE:
        return
    with ParallelTree(run, run.budget, model, session, relaxed.point, seed % 2 == 0) as beside:
        beside.take_over()
    if reference.status is Status.INFEASIBLE:
        assert beside.infeasible
    elif run.incumbent.best is not None and not run.incumbent.arena_excess:
        assert reference.simulation is not None
        assert run.incumbent.value == pytest.approx(reference.simulation.overhead_j, rel=1e-6, abs=1e-12)
        assert run.bound == pytest.approx(run.incumbent.value, rel=1e-6, abs=1e-12)


def test_an_error_in_the_tree_ends_the_search_beside_it() -> None:
    """It doesn't wait for the time limit to be told."""
    problem, ram_bytes = tight(random.Random(0), forward=6)
    chosen, options = formulation("retention"), Options(ram_bytes=ram_bytes, scope="full")
    model, run = model_of(chosen, problem, options, "full"), Run(problem, options, None)
    session = session_of(model, options, scale=1e4 / problem.baseline_energy_j)
    search = ModelSearch(run, run.budget, model, session, Mode())
    tree = ParallelTree(run, run.budget, model, session)
    explorers: list[Future[object]] = [Future(), Future()]
    tree._futures, search._tree = explorers, tree
    explorers[0].set_result(None)
    assert not search._over
    explorers[1].set_exception(LookupError("a separator's"))
    assert search._over


@pytest.mark.parametrize("seed", seeds(30))
def test_rows_that_wait_outside_come_in(seed: int) -> None:
    """The nodes of a model with some variables held, against a relaxation that has all rows from the beginning."""
    rng = random.Random(seed)
    problem, ram_bytes = tight(rng, forward=8)
    options = Options(ram_bytes=ram_bytes, scope="full", threads=1)
    chosen = formulation("retention")
    model = model_of(chosen, problem, options, "full")
    session = session_of(model, options, scale=1e4 / problem.baseline_energy_j)
    if session.relax(60.0).outcome is Outcome.INFEASIBLE:
        return
    nodes = session.nodes()
    for _ in range(6):
        held = np.array(rng.sample(range(len(nodes.lower)), 4))
        lower, upper = nodes.lower.copy(), nodes.upper.copy()
        lower[held] = upper[held] = [float(rng.random() < 0.5) for _ in held]
        nodes.enter(lower, upper)
        vertex = nodes.solve(None, math.inf)
        again = session_of(model, options, scale=1e4 / problem.baseline_energy_j)
        assert isinstance(again, HighsSession)
        again._lp.changeColsBounds(len(held), held.astype(np.int32), lower[held], upper[held])
        expected = again.relax(60.0)
        if vertex is None:
            assert expected.outcome is Outcome.INFEASIBLE
        else:
            assert vertex.objective == pytest.approx(expected.objective, rel=1e-6, abs=1e-9)


def test_a_tree_that_is_stopped_says_so() -> None:
    session = backend("highs").open(milp.endless(), threads=1, scale=1.0)
    session.relax(60.0)
    nodes = session.nodes()
    nothing: list[Row] = []
    tree = Tree(nodes.lower, nodes.upper, cutoff=lambda: math.inf, on_bound=lambda bound: False, gap=0.0)
    explorer, other = (
        BranchAndCut(tree, each, separate=lambda point: nothing, judge=lambda point: nothing)
        for each in (nodes, nodes.twin())
    )
    timer = threading.Timer(0.2, nodes.stop)
    timer.start()
    with ThreadPoolExecutor(2) as pool:
        errors = [future.exception() for future in [pool.submit(explorer.run), pool.submit(other.run)]]
    # who comes to a tree that the other has given up leaves it in peace
    assert {type(error) for error in errors} <= {StoppedError, type(None)}
    assert any(errors)
    assert tree.over


def test_a_search_that_is_given_up_ends_no_tree() -> None:
    """A solver that overruns its time is told to stop by the session; its nodes have a life of their own."""
    session = HighsBackend().open(milp.endless(), threads=1, scale=1.0)
    session.relax(60.0)
    nodes = session.nodes()
    session._stop.set()
    upper = nodes.upper.copy()
    upper[nodes.integer] = nodes.lower[nodes.integer]
    nodes.enter(nodes.lower, upper)
    assert nodes.solve(None, math.inf) is not None


def test_only_what_is_whole_can_be_counted() -> None:
    model = pyo.ConcreteModel()
    model.x = pyo.Var(range(3), bounds=(0, 1))
    model.sum = pyo.Constraint(expr=pyo.quicksum(model.x.values()) >= 1.5)
    model.cost = pyo.Objective(expr=pyo.quicksum(model.x.values()))
    session = backend("highs").open(model, threads=1, scale=1.0)
    session.relax(60.0)
    with pytest.raises(FormulationError, match="x, of which not all entries are whole"):
        session.nodes([Count(model.x, np.arange(3), 1.0)])
