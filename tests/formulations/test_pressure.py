"""Where windows of chain cuts begin: at the stages that have been full."""

from __future__ import annotations

import random
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from poetopt.formulations import formulation
from poetopt.formulations.retention.chain_cuts import Pressure
from poetopt.formulations.retention.chain_rows import Chain
from poetopt.formulations.retention.memory import stage_bytes
from poetopt.formulations.rows import Row
from poetopt.plan.assemble import plan_of
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from tests.formulations.points import FakePoint
from tests.problems import random_problem
from tests.seeds import seeds

RETENTION = formulation("retention")


def _chain(row: Row) -> Chain:
    assert isinstance(row.key, Chain)
    return row.key


def _cuts_of_nothing(model: Any) -> list[Row]:
    """The chain cuts that a point breaks which keeps, recomputes and pages nothing."""
    variables = (model.recompute.r, model.residency.k, model.paging.p, model.paging.o)
    nothing = [(variable, np.zeros(len(variable))) for variable in variables]
    return [row for row in RETENTION.separate(model, FakePoint(nothing, integral=False)) if row.block == "chain_cuts"]


@pytest.mark.parametrize("seed", seeds(20))
def test_pressure_is_where_memory_was_full_by_what_ordinary_training_keeps_there(seed: int) -> None:
    """At ordinary training's own peak the stages before and in it are full, and those weigh what is kept in them."""
    problem = random_problem(random.Random(seed), operators=7, training=True)
    simulation = simulate(plan_of(problem, Schedule()))
    model = RETENTION.build(problem, ram_bytes=simulation.peak_bytes)
    values = RETENTION.points.values(model, Schedule())
    assert values is not None
    kept = next(array for variable, array in values if variable is model.residency.k)
    pressure = Pressure(model.space)
    assert not pressure.by_stage.any()
    pressure.note(kept)
    once = pressure.by_stage.copy()
    live = stage_bytes(model.space, kept)
    full = np.flatnonzero(live == live.max())
    short = {*full.tolist(), *(full - 1).tolist()} - {-1}
    assert set(np.flatnonzero(once).tolist()) == short
    pressure.note(kept)
    assert np.array_equal(pressure.by_stage, 2 * once)


@pytest.mark.parametrize("seed", seeds(20))
def test_a_use_is_cut_at_its_worst_window_and_where_memory_is_shortest(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a point that keeps nothing all windows miss as much: one of a use's two begins at the most pressed stage."""
    monkeypatch.setattr(import_module("poetopt.formulations.retention.chain_cuts"), "LARGE", 0)
    problem = random_problem(random.Random(seed), operators=8, training=True)
    model = RETENTION.build(problem, ram_bytes=sum(tensor.nbytes for tensor in problem.tensors))
    pressed = len(problem.operators) // 2
    model.chain_cuts.pressure.by_stage[pressed] = 1.0
    rows = _cuts_of_nothing(model)
    assert rows
    windows: dict[tuple[int, int], set[int]] = {}
    for chain in (_chain(row) for row in rows if row.violation > 0):
        windows.setdefault((chain.path[0], chain.b), set()).add(chain.s)
    for (i, b), begins in windows.items():
        assert len(begins) <= 2
        if max(problem.tensors[i].producer, 0) <= pressed < b:
            assert pressed in begins


def test_cuts_of_a_scope_inside_tell_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut that comes from a scope inside weighs the stage at which its window begins, and no other."""
    monkeypatch.setattr(import_module("poetopt.formulations.retention.chain_cuts"), "LARGE", 0)
    problem = random_problem(random.Random(3), operators=8, training=True)
    inner, model = (
        RETENTION.build(problem, ram_bytes=sum(tensor.nbytes for tensor in problem.tensors), scope=scope)
        for scope in ("depth:1", "full")
    )
    rows = _cuts_of_nothing(inner)
    pressure = model.chain_cuts.pressure
    assert rows
    assert not pressure.by_stage.any()
    assert RETENTION.revive(model, [(row.block, row.key) for row in rows])
    assert set(np.flatnonzero(pressure.by_stage).tolist()) == {_chain(row).s for row in rows}
