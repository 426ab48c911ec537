"""A plan is of a structure: a network that was trained further runs by it, another one doesn't."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import poetopt as po
from poetopt.backends.onnxruntime import ScheduledStep, random_batch
from poetopt.frontends import load
from poetopt.graph import Graph
from poetopt.util.errors import PlanError
from tests.support.backends import dropout, residual


def trained(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same network with other numbers in all of its float weights and statistics."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    rng = np.random.default_rng(1)
    for stored in found.graph.initializer:
        array = numpy_helper.to_array(stored)
        if array.dtype == np.float32 and array.ndim:
            moved = array + rng.uniform(0.01, 0.1, array.shape).astype(np.float32)
            stored.CopyFrom(numpy_helper.from_array(moved, stored.name))
    return found


def graph_of(model: Any) -> Graph:
    found = load(model)
    assert isinstance(found, Graph)
    return found


def test_all_else_is_structure() -> None:
    whole = graph_of(residual())
    other = residual()
    other.graph.node[0].attribute[-1].CopyFrom(onnx.helper.make_attribute("pads", [1, 1, 1, 1]))
    renamed = residual()
    renamed.graph.node[0].name = "another"
    ratio = dropout()
    for stored in ratio.graph.initializer:
        if stored.name == "ratio":
            stored.CopyFrom(numpy_helper.from_array(np.array(0.5, np.float32), "ratio"))
    assert graph_of(residual(3)).structure_hash != whole.structure_hash
    assert graph_of(renamed).structure_hash != whole.structure_hash
    assert graph_of(ratio).structure_hash != graph_of(dropout()).structure_hash
    partly = load(residual(), train="fc*")
    assert isinstance(partly, Graph)
    assert partly.structure_hash != whole.structure_hash


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network, its plan, and `further.onnx`, that network trained further."""
    folder = tmp_path_factory.mktemp("solved")
    onnx.save(residual(), folder / "net.onnx")
    onnx.save(trained(residual()), folder / "further.onnx")
    onnx.save(residual(3), folder / "other.onnx")
    report = po.solve(po.load(folder / "net.onnx").differentiate(optimizer="sgd").cost("a72"), ram="85%", gap="100%")
    report.save(folder / "plan.json")
    return folder


@pytest.fixture
def plan(solved: Path, tmp_path: Path) -> Path:
    """A plan file of a network beside it, and `further.onnx`, that network trained further."""
    shutil.copytree(solved, tmp_path, dirs_exist_ok=True)
    return tmp_path / "plan.json"


def test_a_network_that_was_trained_further_runs_by_its_plan(plan: Path) -> None:
    further = plan.with_name("further.onnx")
    loaded = po.load_plan(plan, model=further)
    graph, expected = loaded.plan.problem.graph, graph_of(further)
    assert graph is not None
    np.testing.assert_array_equal(graph.values["fc.weight"], expected.values["fc.weight"])
    batch = random_batch(graph)
    assert po.execute(loaded, data=batch).bit_identical
    with ScheduledStep(loaded.plan) as step, ScheduledStep(po.load_plan(plan).plan) as before:
        assert step.run(batch) != before.run(batch)
    with pytest.raises(PlanError, match=r"other.onnx: it is not the model .* operators, shapes or types are different"):
        po.load_plan(plan, model=plan.with_name("other.onnx"))
