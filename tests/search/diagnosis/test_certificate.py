"""Certified bounds: below every optimum, exact, and refusing what their paths don't prove."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import pytest

from poetopt.backends.solvers.nodes import Nodes, Vertex
from poetopt.backends.solvers.solver import DualProof, backend
from poetopt.formulations import formulation
from poetopt.formulations.block import Block, PyomoBlock
from poetopt.formulations.retention.chain_rows import Chain
from poetopt.formulations.rows import PointLike, Row
from poetopt.formulations.scope import ALL
from poetopt.plan.assemble import store_all_bytes
from poetopt.search import outer
from poetopt.search.diagnosis.certificate import certify, rederive
from poetopt.search.diagnosis.certified_nodes import exact_bound, grown
from poetopt.search.diagnosis.solve import solve
from poetopt.search.solution import Options
from poetopt.util.errors import FormulationError, PoetError
from tests.formulations.retention.test_streaming import relaxed_rows
from tests.seeds import seeds, some
from tests.support.bruteforce import stage_optimum
from tests.support.chains import chain
from tests.support.closed import closed
from tests.support.every_plan import least_overhead_j
from tests.support.problems import random_tight
from tests.support.solvers import cut_rows


@pytest.mark.parametrize("seed", seeds(40))
def test_certified_bounds_are_below_the_optimum(seed: int) -> None:
    problem, ram_bytes = random_tight(random.Random(seed), operators=5)
    best = stage_optimum(problem, ram_bytes)
    if best is None:
        pytest.skip("no schedule of Algorithm 1 exists")
    found = certify(problem, Options(ram_bytes=ram_bytes, time_limit_s=10), "full")
    assert found.bound_j >= -1e-9
    assert found.bound_j <= best.overhead_j
    assert found.bound_j == pytest.approx(found.relaxation_j, abs=1e-5)


@pytest.mark.parametrize("seed", seeds(100))
def test_certificates_of_all_plans_where_stages_are_decided_together(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outer, "LEVELS", (4, 9, 30))
    problem, ram_bytes = random_tight(random.Random(seed), operators=7, training=True)
    known = least_overhead_j(problem, ram_bytes)
    least_j = math.inf if known is None else known
    found = certify(problem, Options(ram_bytes=ram_bytes, time_limit_s=10), ALL, claimed_j=min(least_j, 1e3))
    assert -1e-9 <= found.bound_j <= least_j


def test_cuts_where_stages_are_decided_together_are_derived_again_whole() -> None:
    chosen, seen = formulation("retention").search.outer, 0
    assert chosen is not None
    for seed in range(8):
        problem, ram_bytes = random_tight(random.Random(seed), operators=14, training=True)
        model = chosen.build(problem, ram_bytes=ram_bytes, scope="full:30")
        for row in relaxed_rows(model):
            if isinstance(row.key, Chain):
                seen += int(model.space.ends[row.key.b]) != row.key.b
                rederive(model, row)
                for term in range(len(row.variables)):
                    left = [v for n, v in enumerate(row.variables) if n != term]
                    with pytest.raises(PoetError, match="leaves out a term"):
                        rederive(model, replace(row, variables=left, coefficients=[1.0] * len(left)))
    assert seen


def test_certificates_of_long_chains_are_of_small_models() -> None:
    """As of the models that a search proves its bound by, whatever the number of recomputes."""
    problem = chain(250)
    ram_bytes = int(0.6 * store_all_bytes(problem))
    found = certify(
        problem, Options(ram_bytes=ram_bytes, time_limit_s=60), ALL, claimed_j=1e-3 * problem.baseline_energy_j
    )
    assert found.bound_j > 0
    assert found.rows < 20 * len(problem.operators)


@pytest.mark.parametrize(("operators", "seed"), [(12, 10), (16, 1), (20, 7), (20, 8)])
def test_trees_close_what_relaxations_leave_open(operators: int, seed: int) -> None:
    """And nothing above the optimum, whatever is claimed: problems whose relaxations prove 60 to 90 % of it."""
    problem, ram_bytes = random_tight(
        random.Random(seed), operators=operators, training=True if operators > 12 else None
    )
    options = Options(ram_bytes=ram_bytes, time_limit_s=20)
    found = solve(problem, replace(options, gap=0.0, scope="full", threads=1))
    assert found.simulation is not None
    best_j = found.simulation.overhead_j
    alone = certify(problem, options, "full")
    assert alone.nodes == 0
    assert alone.bound_j < 0.95 * best_j
    enough = certify(problem, options, "full", claimed_j=0.999 * alone.bound_j)
    assert enough.nodes == 0
    assert enough.bound_j >= 0.999 * alone.bound_j
    for claimed_j in (0.99 * best_j, 2 * best_j):
        more = certify(problem, options, "full", claimed_j=claimed_j)
        assert more.nodes > 1
        assert more.bound_j == pytest.approx(min(claimed_j, best_j), rel=1e-6)
        assert more.bound_j <= best_j


class Liar:
    """Nodes of a solver that says more than it can prove."""

    def __init__(self, nodes: Nodes, *, void: bool) -> None:
        self._nodes, self._void = nodes, void

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nodes, name)

    def solve(self, basis: object, cutoff: float) -> Vertex | None:
        vertex = self._nodes.solve(basis, cutoff)
        return None if self._void or vertex is None else replace(vertex, objective=vertex.objective + 1.0)

    def probe(self, column: int, *_: object) -> tuple[float, bool]:
        return math.inf, True


@pytest.mark.parametrize("void", [False, True])
def test_a_solver_s_word_counts_for_nothing(void: bool) -> None:
    compared = 0
    for seed in range(30):
        problem, ram_bytes = random_tight(random.Random(seed), operators=5)
        best = stage_optimum(problem, ram_bytes)
        if best is None or not best.overhead_j:
            continue
        chosen = formulation("retention")
        model = chosen.build(problem, ram_bytes=ram_bytes)
        session = backend("highs").open(model, threads=1, scale=1.0)
        session.relax(10.0)
        nodes: Any = Liar(session.nodes(), void=void)
        until = time.monotonic() + 10
        separate = partial(chosen.separate, model)
        found = grown(nodes, separate, lambda _: None, 2 * best.overhead_j, until)
        assert found.bound_j <= best.overhead_j * (1 + 1e-12)
        assert not void or found.bound_j == -math.inf
        compared += 1
        if compared == 5:
            return
    assert compared


def test_a_branch_is_empty_only_where_a_ray_proves_it() -> None:
    """x + y >= 1 in a box: with y = 0 and x <= 1/2 nothing is left, and the sum shows that."""
    ray = replace(proof([1.0, 0.0]), costs=[0.0, 0.0], upper=[0.5, 0.0])
    assert exact_bound(ray) == Fraction(1, 2)
    assert exact_bound(replace(ray, upper=[0.5, 0.5])) == 0


@pytest.mark.parametrize("dma", [False, True])
def test_bounds_where_storage_is_woken(dma: bool) -> None:
    """Some of its variables have a reduced cost a little below 0, as solvers round."""
    compared = 0
    for seed in some(range(40), 12):
        problem, ram_bytes = random_tight(random.Random(seed), operators=6, dma=dma)
        problem = replace(problem, wake_j=(0.5, 2.0, 10.0)[seed % 3])
        options = Options(ram_bytes=ram_bytes, time_limit_s=10)
        found = solve(problem, replace(options, gap=0.0, scope="forward", threads=1))
        certified = certify(problem, options, "forward")
        if found.scope_bound_j is not None and closed(found):
            assert certified.bound_j <= found.scope_bound_j + 1e-6
            compared += 1
    assert compared


def test_rows_that_came_after_the_last_solve_leave_its_bound() -> None:
    """As where time is up while new cuts are solved for: the multipliers before them prove what they did."""
    compared = 0
    for seed in range(10):
        problem, ram_bytes = random_tight(random.Random(seed), operators=6)
        chosen = formulation("retention")
        model = chosen.build(problem, ram_bytes=ram_bytes)
        session = backend("highs").open(model, threads=1, scale=1.0)
        relaxed = session.relax(10.0)
        if relaxed.point is None or relaxed.objective <= 1e-6:
            continue
        rows = chosen.separate(model, relaxed.point)
        session.add(rows)
        assert float(exact_bound(session.dual_proof())) == pytest.approx(relaxed.objective, abs=1e-5)
        compared += bool(rows)
    assert compared


def test_a_variable_without_a_bound_proves_nothing_where_it_would_pay() -> None:
    open_ended = replace(proof([2.0, -1.0]), upper=[1.0, math.inf])
    assert exact_bound(open_ended) == Fraction(7, 4)
    with pytest.raises(FormulationError, match="Give the variables of your block bounds"):
        exact_bound(replace(open_ended, multipliers=[2.1, -1.0]))


def proof(multipliers: list[float]) -> DualProof:
    """min x + 2 y  subject to  x + y >= 1,  x <= 1/4,  in the unit square: the optimum is 1/4 + 3/2."""
    return DualProof(
        constant=0.0,
        costs=[1.0, 2.0],
        lower=[0.0, 0.0],
        upper=[1.0, 1.0],
        starts=[0, 2, 3],
        columns=[0, 1, 0],
        values=[1.0, 1.0, 1.0],
        row_lower=[1.0, -math.inf],
        row_upper=[math.inf, 0.25],
        multipliers=multipliers,
    )


def test_the_right_multipliers_prove_the_optimum() -> None:
    assert exact_bound(proof([2.0, -1.0])) == Fraction(7, 4)


@pytest.mark.parametrize("multipliers", [[0.0, 0.0], [1.9, -0.9], [3.0, -1.0], [2.0, 0.0], [-5.0, 3.0], [1e9, -1e9]])
def test_wrong_multipliers_only_weaken_the_bound(multipliers: list[float]) -> None:
    assert exact_bound(proof(multipliers)) <= Fraction(7, 4)


def test_a_cut_without_one_of_its_terms_is_refused() -> None:
    for seed in range(60):
        problem, ram_bytes = random_tight(random.Random(seed), operators=6)
        model, added = cut_rows(problem, ram_bytes)
        rows = [row for row in added if row.key is not None and row.variables]
        for row in rows:
            rederive(model, row)
        rows = [row for row in rows if isinstance(row.key, Chain)]
        if rows:
            row = rows[0]
            with pytest.raises(PoetError, match="leaves out"):
                rederive(model, replace(row, variables=row.variables[1:], coefficients=row.coefficients[1:]))
            return
    raise AssertionError("no problem needed a cut")


def _false_cut(block: PyomoBlock, point: PointLike) -> list[Row]:
    recomputes = list(block.model().recompute.r.values())
    short = 2.0 - float(point[block.model().recompute.r].sum())
    ones = [1.0] * len(recomputes)
    return [Row(recomputes, ones, 2.0, math.inf, short, "false")] if short > 0 and not point.integral else []


def test_a_cut_that_nothing_derives_is_refused() -> None:
    """Whoever leaves its key away isn't believed either."""
    wrong = Block("wrong", lambda _: None, requires=("recompute",), separator=_false_cut, restricts=False)
    chosen = replace(formulation("retention").with_block(wrong), name="retention")
    for seed in range(4):
        problem, ram_bytes = random_tight(random.Random(seed), operators=6, training=True)
        with pytest.raises(PoetError, match="a row of the block 'wrong' can't be derived again"):
            certify(problem, Options(ram_bytes=ram_bytes, formulation=chosen), "full")


def test_only_retention_has_certificates() -> None:
    problem, ram_bytes = random_tight(random.Random(1), operators=4)
    with pytest.raises(FormulationError, match="retention"):
        certify(problem, Options(ram_bytes=ram_bytes, formulation="poet"), "full")
