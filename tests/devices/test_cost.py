"""A training graph becomes a problem: what disappears, what is counted, in what order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import poetopt as po
from poetopt.devices import device
from poetopt.devices.cost import cost
from poetopt.graph import Node, Operator, Role, Tensor, TrainingGraph
from poetopt.ops.flops import work
from poetopt.ops.runtimes.onnxruntime import runtime

if TYPE_CHECKING:
    from poetopt.graph import Array

A72 = device("a72")


def tensor(name: str, shape: Sequence[int], role: Role = Role.ACTIVATION, dtype: str = "float32") -> Tensor:
    return Tensor(name, tuple(shape), dtype, role)


def op(kind: str, inputs: str, outputs: str, *, backward: bool = False, view: bool = False) -> Operator:
    reads, writes = tuple(inputs.split()), tuple(outputs.split())
    node = Node(kind.partition(".")[0], reads, writes)
    unique = tuple(dict.fromkeys(reads))
    return Operator(f"{kind}:{writes[0]}", kind, (node,), unique, writes, view=view, backward=backward)


def graph(
    tensors: Sequence[Tensor], operators: Sequence[Operator], inputs: str, values: Mapping[str, Array] | None = None
) -> TrainingGraph:
    return TrainingGraph(
        name="net",
        tensors={t.name: t for t in tensors},
        operators=tuple(operators),
        inputs=tuple(inputs.split()),
        outputs=(),
        values=values or {},
        trained=(),
        opset=20,
        source="net.onnx",
        content_hash="abc",
        loss="loss",
        loss_kind="mse",
        gradients={},
        states={},
    )


def linear() -> TrainingGraph:
    """x -> reshape -> x w -> square -> sum, with the gradient of w reshaped last, as a rule may do."""
    tensors = [
        tensor("x", (4, 2, 3), Role.INPUT), tensor("labels", (4,), Role.INPUT, "int64"),
        tensor("w", (6, 5), Role.PARAMETER), tensor("two", (), Role.CONSTANT), tensor("unused", (9,), Role.CONSTANT),
        tensor("flat", (4, 6)), tensor("y", (4, 5)), tensor("sq", (4, 5)), tensor("loss", (), Role.LOSS),
        tensor("dy", (4, 5), Role.GRADIENT), tensor("dwt", (30,), Role.GRADIENT),
        tensor("w.grad", (6, 5), Role.PARAMETER_GRADIENT), tensor("stat", (5,), Role.STATE),
    ]  # fmt: skip
    operators = [
        op("Reshape", "x", "flat", view=True), op("MatMul", "flat w", "y"), op("ReduceMean", "y", "stat"),
        op("Mul", "y y", "sq"), op("ReduceSum", "sq labels", "loss"), op("Mul.grad", "y two", "dy", backward=True),
        op("MatMul.grad_weight", "flat dy", "dwt", backward=True),
        op("Reshape", "dwt", "w.grad", view=True, backward=True),
    ]  # fmt: skip
    return graph(tensors, operators, "x labels", {"w": np.zeros((6, 5), np.float32)})


def test_views_and_resident_tensors_disappear() -> None:
    problem = cost(linear(), A72)
    assert [t.name for t in problem.tensors] == ["x", "labels", "y", "sq", "dy"]
    assert [o.name for o in problem.operators] == ["MatMul:y", "ReduceMean:stat", "Mul:sq", "ReduceSum:loss",
                                                   "Mul.grad:dy", "MatMul.grad_weight:dwt"]  # fmt: skip
    assert [t.producer for t in problem.tensors] == [-1, -1, 0, 2, 4]
    # the reader of a view reads the root; the squared tensor is listed once
    assert [o.inputs for o in problem.operators] == [(0,), (2,), (2,), (1, 3), (2,), (0, 4)]
    # what only writes resident tensors stays, without outputs
    assert [o.outputs for o in problem.operators] == [(2,), (), (3,), (), (4,), ()]
    assert [o.backward for o in problem.operators] == [False] * 4 + [True] * 2
    assert problem.at_start == (0, 1)


def test_costs_are_the_device_s() -> None:
    found = linear()
    problem = cost(found, A72)
    scheduled = [o for o in found.operators if not o.view]
    for operator, costed in zip(scheduled, problem.operators, strict=True):
        nodes = work(operator, found.tensors)
        assert costed.time_s == A72.compute_s(nodes) > 0
        assert costed.energy_j == A72.compute_j(nodes) > 0
        assert costed.workspace_bytes == runtime.workspace(operator, found.tensors).temporaries_bytes
        assert (costed.recomputable, costed.kind) == (operator.recomputable, operator.kind)
    for moved in problem.tensors:
        assert moved.nbytes == found.tensors[moved.name].nbytes
        assert moved.page_in_s == A72.page_in_s(moved.nbytes)
        assert moved.page_out_j == A72.page_out_j(moved.nbytes)
    assert (problem.name, problem.device, problem.alignment) == ("net", "a72", 64)
    assert (problem.model_ref, problem.model_hash, problem.graph) == ("net.onnx", "abc", found)
    assert (problem.paging, problem.dma, problem.device_ram_bytes) == (True, True, 2 * 2**30)
    assert problem.notes == ()


def test_time_is_the_longer_of_arithmetic_and_traffic() -> None:
    found = linear()
    matmul = found.operators[1]
    (node,) = work(matmul, found.tensors)
    slow_memory = replace(A72, memory_bytes_per_s=1.0)
    slow_cpu = replace(A72, flop_per_s=1.0)
    no_memory = replace(A72, memory_bytes_per_s=None)
    assert slow_memory.compute_s([node]) == node.nbytes
    assert slow_cpu.compute_s([node]) == node.flops
    assert no_memory.compute_s([node]) == node.flops / A72.flop_per_s
    # nodes run one after another: each waits for its own bottleneck
    both = replace(A72, flop_per_s=1.0, memory_bytes_per_s=1.0)
    assert both.compute_s([node, node]) == 2 * max(node.flops, node.nbytes)


@st.composite
def chains(draw: st.DrawFn) -> TrainingGraph:
    """Random DAGs of elementwise operators, views and resident outputs."""
    tensors = [tensor("x", (2, 3), Role.INPUT), tensor("p", (2, 3), Role.PARAMETER)]
    operators: list[Operator] = []
    for k in range(draw(st.integers(1, 12))):
        names = [t.name for t in tensors]
        reads = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))
        view = draw(st.booleans())
        role = draw(st.sampled_from([Role.ACTIVATION, Role.ACTIVATION, Role.GRADIENT, Role.PARAMETER_GRADIENT]))
        tensors.append(tensor(f"t{k}", (2, 3), role))
        kind = "Identity" if view else "Sum"
        operators.append(op(kind, reads[0] if view else " ".join(reads), f"t{k}", view=view))
    return graph(tensors, operators, "x")


@given(found=chains())
def test_any_graph_keeps_its_bytes(found: TrainingGraph) -> None:
    problem = cost(found, A72)
    assert problem == cost(found, A72)
    assert len(problem.operators) == sum(not o.view for o in found.operators)
    storages = {found.root(name) for name in found.tensors}
    scheduled = {t.name for t in problem.tensors}
    assert scheduled <= storages
    total = sum(found.tensors[name].nbytes for name in storages)
    assert problem.nbytes(range(len(problem.tensors))) + problem.resident_bytes == total
    for name in scheduled:
        assert not any(t.resident for t in found.tensors.values() if found.root(t.name) == name)
    for k, operator in enumerate(problem.operators):
        assert list(operator.inputs) == sorted(set(operator.inputs))
        assert all(problem.tensors[i].producer < k for i in operator.inputs)
        assert all(problem.tensors[i].producer == k for i in operator.outputs)


def mlp() -> TrainingGraph:
    model = po.load("mlp")
    assert isinstance(model, po.Model)
    return model.differentiate().graph


def test_transfers_are_charged_by_whole_blocks() -> None:
    graph = mlp()
    assert A72.storage is not None
    coarse = replace(A72, storage=replace(A72.storage, block_bytes=1_000_000))
    for tensor in cost(graph, coarse).tensors:
        seconds = A72.storage.page_out_latency_s + 1e6 / A72.storage.page_out_bytes_per_s
        assert tensor.page_out_s == pytest.approx(seconds)
        assert tensor.page_in_j == tensor.page_in_s * A72.storage.power_w
