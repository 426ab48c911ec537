"""Steps in C one after another, and tables by the rows of a batch: beside onnxruntime's, and what must fail does."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import poetopt as po
from poetopt.backends.c import execute
from poetopt.backends.c.build import build, write
from poetopt.backends.c.execute import execute_on, numbers, train_on
from poetopt.backends.c.execution import TOLERANCE
from poetopt.backends.c.program import device_program
from poetopt.backends.c.run import Ran, run
from poetopt.backends.c.sensitivity import distance, moved_by
from poetopt.backends.onnxruntime.batch import Batch, random_batch
from poetopt.backends.onnxruntime.training import train
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import store_all
from poetopt.plan.instructions import Action, Plan
from poetopt.plan.layout import lay_out
from tests.autodiff.passes.test_rows import CLASSES, LENGTH, WORDS, model
from tests.backends.c.test_streamed import keeping_nothing
from tests.support.c import HOST, needs_host, network, paged_parameters, updating

LR = 0.05


def data(plan: Plan) -> dict[str, object]:
    """Three different batches, which four steps take in turn."""
    graph = plan.problem.graph
    assert graph is not None
    drawn = [random_batch(graph, seed) for seed in range(3)]
    return {name: np.concatenate([batch[name] for batch in drawn]) for name in graph.inputs}


@needs_host
def test_paged_parameters_are_trained_as_onnxruntime_trains_them() -> None:
    """Its own losses, of another program, come out as well; each step has another batch."""
    plan = paged_parameters()
    found = train_on(plan, "host", 4, LR, data=data(plan))
    assert found.ok, found.message
    assert found.bit_identical
    assert found.hyperparameters["lr"] == pytest.approx(LR)
    ordinary = lay_out(store_all(network().differentiate(optimizer="sgd").cost("a72")))
    theirs = train(ordinary, 4, LR, data=data(ordinary))
    assert found.losses == pytest.approx(theirs.losses, rel=1e-5)
    assert len(set(found.losses)) == 4
    graph = plan.problem.graph
    assert graph is not None
    mine, others = (moved_by(graph, graph.values, values) for values in (found.values, theirs.values))
    longest = max(float(np.abs(others[name]).max()) for name in graph.trained)
    assert longest > 1e-3
    assert distance(mine, others, graph.trained) < 1e-4


@needs_host
def test_a_step_that_is_left_out_and_another_learning_rate_are_noticed(tmp_path: Path) -> None:
    plan = lay_out(store_all(updating()))
    graph = updating().graph
    assert graph is not None
    told = numbers(graph, 0, {"lr": LR, "momentum": 0.5})
    other = numbers(graph, 0, {"lr": 1.01 * LR, "momentum": 0.5})
    batches = [random_batch(graph, 1)] * 3
    exact, near = execute.reference_ways(graph, batches, [told] * 3)
    allowed = TOLERANCE * max(distance(way.moved, exact.moved, graph.trained) for way in near)
    program = device_program(plan, graph)
    write(program, HOST, tmp_path)
    built = build(program, HOST, tmp_path, measuring=False)

    def far(found: Ran) -> float:
        return distance(moved_by(graph, graph.values, found.results), exact.moved, graph.trained)

    assert far(run(built, *batches, said=[told] * 3)) <= allowed
    assert far(run(built, *batches, said=[told, told, other])) > allowed
    assert far(run(built, *batches[:2], said=[told] * 2)) > allowed


def step(stream: str, optimizer: str = "sgd") -> Problem:
    """In C, with lazy tables where the optimizer has states."""
    found = po.load(model(128), train="*").differentiate(optimizer=optimizer, lazy_tables=optimizer != "sgd")
    return found.cost("m4", parameters="paged", stream=stream)


@cache
def streamed(optimizer: str = "sgd") -> Plan:
    """The same step with nothing kept in RAM: no table is ever there as a whole, nor a state of one."""
    problem = step("auto", optimizer)
    found = keeping_nothing(problem)
    graph = problem.graph
    assert graph is not None
    tables = {i for i, tensor in enumerate(problem.tensors) if tensor.name in graph.rows}
    assert len(tables) == {"sgd": 2, "momentum": 4, "adam": 6}[optimizer]
    ways = [problem.operators[s.target].variant(s.variant) for s in found.instructions if s.action is Action.COMPUTE]
    assert {i for way in ways for i in way.streamed_out} >= tables
    assert not any(s.target in tables for s in found.instructions if s.action is not Action.COMPUTE)
    return found


@cache
def plan() -> Plan:
    """Of a step whose tables have rows of a block: one by the words of a batch, one by a constant."""
    problem = step("never")
    assert problem.graph is not None
    assert [bool(rows.ids) for rows in problem.graph.rows.values()] == [True, False]
    report = po.solve(problem, ram=problem.least_ram_bytes + 600, threads=1, time_limit="20s", gap=0.5)
    assert report.plan is not None
    return report.plan


def batch() -> Batch:
    """Some words come twice, one is counted from the end."""
    ids = np.array([[3, 1, 3, 0, WORDS - 1, 7], [1, -1, 5, 3, 3, 2]])
    assert ids.shape[1] == LENGTH
    return {"ids": ids, "labels": np.array([0, CLASSES - 1])}


@needs_host
@pytest.mark.parametrize("way", ["whole", "streamed"])
def test_rows_are_read_updated_and_written_back(way: str, tmp_path: Path) -> None:
    """As onnxruntime moves them, and no other row; a write-back that is left out shows."""
    chosen = plan() if way == "whole" else streamed()
    found = execute_on(chosen, "host", data=batch())
    assert found.ok, found.message
    assert found.linked_ram_bytes in (None, found.planned_ram_bytes)
    graph = chosen.problem.graph
    assert graph is not None
    used = np.unique(batch()["ids"] % WORDS)
    before, after = graph.rows["words"].values, found.results["words"]
    assert sorted(np.flatnonzero((before != after).any(axis=1))) == sorted(used)

    program = device_program(chosen, graph)
    write(program, HOST, tmp_path)
    step = (tmp_path / "po_step.c").read_text()
    cut = re.sub(r"PO_TRY\(po_(rows|listed)_out\(po_rows_\d+, .*;", ";", step)
    assert cut != step
    (tmp_path / "po_step.c").write_text(cut)
    assert np.array_equal(run(build(program, HOST, tmp_path), batch()).results["words"], before)
