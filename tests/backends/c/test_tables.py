"""Tables by the rows of a batch in C: read from storage, updated, and written back row by row."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import poetopt as po
from poetopt.backends.c.build import build, write
from poetopt.backends.c.execute import execute_on, train_on
from poetopt.backends.c.program import device_program
from poetopt.backends.c.run import run
from poetopt.backends.onnxruntime.batch import Batch
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Action, Plan
from tests.autodiff.test_rows import CLASSES, LENGTH, WORDS, model
from tests.backends.c.support import HOST, needs_emulator, needs_host
from tests.backends.c.test_streamed import keeping_nothing
from tests.seeds import some


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


@needs_host
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_lazy_states_of_tables_are_streamed_by_rows(optimizer: str) -> None:
    rng = np.random.default_rng(4)
    data = {"ids": rng.integers(0, WORDS, (6, LENGTH)), "labels": rng.integers(0, CLASSES, 6)}
    found = train_on(streamed(optimizer), "host", 3, 0.1, data=data)
    assert found.ok, found.message
    assert found.bit_identical


@needs_host
@pytest.mark.parametrize(
    "on",
    [
        "host",
        *(pytest.param(name, marks=needs_emulator) for name in some(("cortex-m0plus", "cortex-m4", "cortex-m7"), 1)),
    ],
)
def test_steps_on_other_words_each_train_a_table(on: str) -> None:
    rng = np.random.default_rng(2)
    data = {"ids": rng.integers(0, WORDS, (6, LENGTH)), "labels": rng.integers(0, CLASSES, 6)}
    found = train_on(streamed() if on == "cortex-m4" else plan(), on, 4, 0.1, data=data)
    assert found.ok, found.message
    assert found.bit_identical
