"""A training graph becomes a problem: what disappears, what is counted, in what order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import poetopt as po
from poetopt.devices import Device, Storage, device
from poetopt.devices.cost import PARAMETERS, cost, homes
from poetopt.graph import Node, Operator, Role, Tensor, TrainingGraph
from poetopt.ops.flops import work
from poetopt.ops.nodes import resident_breakdown
from poetopt.ops.runtimes.onnxruntime import PAGE, runtime
from poetopt.util.errors import DeviceError, ModelError
from tests.support.backends import residual

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
        tensor("x", (4, 2, 3), Role.INPUT),
        tensor("labels", (4,), Role.INPUT, "int64"),
        tensor("w", (6, 5), Role.PARAMETER),
        tensor("two", (), Role.CONSTANT),
        tensor("unused", (9,), Role.CONSTANT),
        tensor("flat", (4, 6)),
        tensor("y", (4, 5)),
        tensor("sq", (4, 5)),
        tensor("loss", (), Role.LOSS),
        tensor("dy", (4, 5), Role.GRADIENT),
        tensor("dwt", (30,), Role.GRADIENT),
        tensor("w.grad", (6, 5), Role.PARAMETER_GRADIENT),
        tensor("stat", (5,), Role.STATE),
    ]
    operators = [
        op("Reshape", "x", "flat", view=True),
        op("MatMul", "flat w", "y"),
        op("ReduceMean", "y", "stat"),
        op("Mul", "y y", "sq"),
        op("ReduceSum", "sq labels", "loss"),
        op("Mul.grad", "y two", "dy", backward=True),
        op("MatMul.grad_weight", "flat dy", "dwt", backward=True),
        op("Reshape", "dwt", "w.grad", view=True, backward=True),
    ]
    return graph(tensors, operators, "x labels", {"w": np.zeros((6, 5), np.float32)})


def test_views_and_resident_tensors_disappear() -> None:
    problem = cost(linear(), A72)
    assert [t.name for t in problem.tensors] == ["x", "labels", "y", "sq", "dy"]
    assert [o.name for o in problem.operators] == [
        "MatMul:y",
        "ReduceMean:stat",
        "Mul:sq",
        "ReduceSum:loss",
        "Mul.grad:dy",
        "MatMul.grad_weight:dwt",
    ]
    assert [t.producer for t in problem.tensors] == [-1, -1, 0, 2, 4]
    # the reader of a view reads the root; the squared tensor is listed once
    assert [o.inputs for o in problem.operators] == [(0,), (2,), (2,), (1, 3), (2,), (0, 4)]
    # what only writes resident tensors stays, without outputs
    assert [o.outputs for o in problem.operators] == [(2,), (), (3,), (), (4,), ()]
    assert [o.backward for o in problem.operators] == [False] * 4 + [True] * 2
    assert problem.at_start == (0, 1)


def test_the_resident_region() -> None:
    parts = resident_breakdown(linear())
    # the weight's gradient is the matrix product itself: its reshape shares the storage
    assert parts == {"parameters": 120, "gradients": 120, "constants": 4 + 36, "states": 20, "loss": 4}
    assert cost(linear(), A72).resident_bytes == sum(parts.values())


def test_what_lives_inside_an_operator_is_never_resident() -> None:
    """Training BatchNormalization lists statistics that nobody keeps: they are workspace."""
    parts = [tensor(name, (3,), Role.CONSTANT) for name in ("scale", "bias", "mean", "var")]
    nodes = (Node("BatchNormalization", ("x", *(p.name for p in parts)), ("y", "m2", "v2"), {"training_mode": 1}),)
    inputs = ("x", *(p.name for p in parts))
    norm = Operator("bn", "BatchNormalization", nodes, inputs, ("y",))
    found = graph(
        [
            tensor("x", (2, 3), Role.INPUT),
            *parts,
            tensor("y", (2, 3)),
            tensor("m2", (3,), Role.STATE),
            tensor("v2", (3,), Role.STATE),
        ],
        [norm],
        "x",
    )
    problem = cost(found, A72)
    assert problem.resident_bytes == 4 * 12
    assert problem.operators[0].workspace_bytes >= 24


def test_kernels_get_one_reserve_for_the_whole_step() -> None:
    softmax = Operator("soft", "Softmax", (Node("Softmax", ("x",), ("y",), {"axis": 0}),), ("x",), ("y",))
    where = Operator("where", "Where", (Node("Where", ("c", "y", "y"), ("z",)),), ("c", "y"), ("z",))
    found = graph(
        [
            tensor("x", (4, 16), Role.INPUT),
            tensor("c", (8, 4, 16), Role.CONSTANT, "bool"),
            tensor("y", (4, 16)),
            tensor("z", (8, 4, 16)),
        ],
        [softmax, where],
        "x",
    )
    problem = cost(found, A72)
    # whole pages, and the two that it may only touch
    assert problem.reserve_bytes == 2 * 8 * 4 * 16 * 4 + 2 * PAGE
    assert [o.workspace_bytes for o in problem.operators] == [0, 0]
    assert cost(linear(), A72).reserve_bytes == 2 * PAGE


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


def test_energy_is_flops_or_power_times_time() -> None:
    (node,) = work(linear().operators[1], linear().tensors)
    by_power = replace(A72, active_power_w=7.0)
    assert by_power.compute_j([node]) == pytest.approx(7.0 * A72.compute_s([node]), rel=1e-15)
    by_flops = replace(by_power, flop_per_j=100.0)
    assert by_flops.compute_j([node]) == node.flops / 100.0


def test_a_device_without_storage_only_recomputes() -> None:
    bare: Device = replace(A72, name="bare", storage=None)
    problem = cost(linear(), bare)
    assert not problem.paging
    assert not problem.dma
    assert problem.notes == ("bare has no storage: schedules can only recompute",)
    assert all(t.page_in_s == t.page_out_j == 0.0 for t in problem.tensors)


def test_order_is_checked() -> None:
    found = linear()
    swapped = replace(found, operators=(found.operators[0], found.operators[3], found.operators[1]))
    with pytest.raises(ModelError, match="operator 'Mul:sq' reads 'y', which is neither a graph input nor written"):
        cost(swapped, A72)


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


def test_a_storage_too_small_for_all_tensors_is_noted() -> None:
    graph = mlp()
    assert A72.storage is not None
    assert not cost(graph, A72).notes
    small = replace(A72, storage=replace(A72.storage, capacity_bytes=4096))
    (note,) = cost(graph, small).notes
    assert "a72's storage holds 4,096 B and all tensors take" in note


def test_transfers_are_charged_by_whole_blocks() -> None:
    graph = mlp()
    assert A72.storage is not None
    coarse = replace(A72, storage=replace(A72.storage, block_bytes=1_000_000))
    for tensor in cost(graph, coarse).tensors:
        seconds = A72.storage.page_out_latency_s + 1e6 / A72.storage.page_out_bytes_per_s
        assert tensor.page_out_s == pytest.approx(seconds)
        assert tensor.page_in_j == tensor.page_in_s * A72.storage.power_w


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"flop_per_s": 0.0}, "flop_per_s must be above 0, but is 0"),
        ({"flop_per_s": float("nan")}, "flop_per_s must be a finite number, but is nan"),
        ({"ram_bytes": -5}, "ram_bytes must be above 0"),
        ({"active_power_w": None, "flop_per_j": None}, "the energy of computing is missing"),
        ({"active_power_w": "3"}, "active_power_w must be a finite number, but is '3'"),
        ({"storage": Storage(0.1, 1e6, 0.1, 1e6, power_w=-1.0, cpu_power_w=0.0)}, "power_w must be 0 or above"),
    ],
)
def test_devices_made_in_python_are_looked_at(changes: dict[str, Any], wrong: str) -> None:
    training = po.load("mlp").differentiate()
    assert training.cost(replace(po.device("m4"), ram_bytes=np.int64(300_000))).operators  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match=wrong):
        training.cost(replace(po.device("m4"), **changes))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("optimizer", ["none", "sgd", "adam"])
def test_nothing_that_lasts_is_in_flash(optimizer: str, parts: int) -> None:
    loaded = po.load(residual(4), micro_batch=parts, micro_batch_statistics=parts > 1)
    assert isinstance(loaded, po.Model)
    found = loaded.training_graph(optimizer=optimizer)
    sums = {*found.sums.values()}
    assert {*found.lasting} == {*found.trained, *found.states, *found.optimizer_states, *sums}
    assert {*found.saved} == {*found.lasting} - sums
    for parameters in PARAMETERS:
        for one in filter(None, (found, found.closing)):
            there = homes(one, device("m4"), parameters)
            assert {*there.flash}.isdisjoint(map(one.root, found.lasting))
            assert {*there.ram}.issuperset(one.beside)
