"""The runtime `c`: what it runs of an operator, what that takes of RAM, and kernels that packages register."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint

import numpy as np
import pytest

from poetopt.autodiff import differentiate
from poetopt.autodiff.optimizers import with_updates
from poetopt.autodiff.passes.in_place import in_place
from poetopt.frontends import load
from poetopt.graph import Graph, Node, TrainingGraph
from poetopt.ops.runtimes import runtime
from poetopt.ops.runtimes.c import steps as registry
from poetopt.ops.runtimes.c.kernel import Arguments, Call, Kernel
from poetopt.ops.runtimes.c.steps import as_run, layout
from poetopt.util import imports

NETWORKS = ("mlp", "lenet", "bert-tiny")


def _step(name: str) -> TrainingGraph:
    graph = load(name, batch=1)
    assert isinstance(graph, Graph)
    return differentiate(graph)


def _normalized() -> TrainingGraph:
    """Conv, BatchNormalization in training mode, Relu."""
    from onnx import TensorProto, helper, numpy_helper

    weights = {"w": np.ones((4, 3, 3, 3), np.float32), **{n: np.ones(4, np.float32) for n in ("s", "b", "m", "v")}}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n", "m2", "v2"], training_mode=1),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 8, 8])]
    out = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4, 6, 6])]
    arrays = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    proto = helper.make_graph(nodes, "normalized", given, out, arrays)
    graph = load(helper.make_model(proto, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))
    assert isinstance(graph, Graph)
    return differentiate(graph, loss="mse")


@pytest.mark.parametrize("name", [*NETWORKS, "normalized"])
def test_runs_of_nodes_that_amount_to_one_op_read_and_write_what_their_nodes_do(name: str) -> None:
    graph = _normalized() if name == "normalized" else _step(name)
    found = 0
    for one in (graph, in_place(graph, runtime("c")), with_updates(graph, "sgd"), with_updates(graph, "adam")):
        for operator in one.operators:
            ends = 0
            for whole in operator.whole:
                assert whole.first >= ends
                ends = whole.first + whole.count
                run = operator.nodes[whole.first : ends]
                rest = [*operator.nodes[: whole.first], *operator.nodes[ends:]]
                written = {n for node in run for n in node.outputs}
                assert {*filter(None, whole.node.inputs)} <= {n for node in run for n in node.inputs} - written
                assert {*filter(None, whole.node.outputs)} <= written
                elsewhere = {n for node in rest for n in node.inputs} | {*operator.outputs}
                assert written & elsewhere <= {*whole.node.outputs}
                found += 1
    assert found


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
def test_a_gradient_and_its_update_are_one_kernel_without_a_whole_gradient(optimizer: str) -> None:
    graph = with_updates(_step("lenet"), optimizer)
    ops = {node.op_type for operator in graph.operators for node in as_run(operator, graph.tensors).nodes}
    assert {f"Gemm+{optimizer}.update", f"Conv.grad_weight+{optimizer}.update"} <= ops
    biases = max(graph.tensors[name].nbytes for name in graph.trained if len(graph.tensors[name].shape) == 1)
    assert max(layout(operator, graph.tensors).temporaries_bytes for operator in graph.operators) <= biases


def _double(call: Call, arguments: Arguments) -> str:
    return f"po_double({arguments.outputs[0]}, {arguments.inputs[0]}, {call.output().size});"


doubled = Kernel("Double", _double, domain="third.party", headers=("double.h",), include="tests.runtimes")
several = (doubled, Kernel("Add", _double))
odd = "no kernel"


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    points = [EntryPoint(name, f"{__name__}:{name}", registry.GROUP) for name in request.param]

    def entry_points(group: str) -> Sequence[EntryPoint]:
        return points if group == registry.GROUP else []

    monkeypatch.setattr(registry, "entry_points", entry_points)
    monkeypatch.setattr(imports, "entry_points", entry_points)
    monkeypatch.setattr(EntryPoint, "load", lambda point: globals()[point.name])
    for cached in (registry.kernels, registry.version):
        cached.cache_clear()
    yield
    monkeypatch.undo()
    for cached in (registry.kernels, registry.version):
        cached.cache_clear()


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("registered", [("several",)], indirect=True)
def test_packages_register_kernels_and_replace_ours() -> None:
    assert registry.kernel_for(Node("Double", ("x",), ("y",), domain="third.party")) is doubled
    found = registry.kernel_for(Node("Add", ("a", "b"), ("y",)))
    assert found is several[1]
    assert runtime("c").version == "2+several"
