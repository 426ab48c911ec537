"""Kernels and operators that write over an operand give the same bits as with an output of their own."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from poetopt.autodiff import differentiate
from poetopt.autodiff.passes.in_place import in_place
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.backends.step.memory import MappedBlock
from poetopt.backends.step.program import Program
from poetopt.backends.step.region import ResidentRegion, slots
from poetopt.backends.step.storage import PageFile
from poetopt.devices import device
from poetopt.devices.cost import cost
from poetopt.graph import TrainingGraph
from poetopt.graph.problem import Problem
from poetopt.ops.op import ops
from poetopt.ops.runtimes.onnxruntime import runtime
from poetopt.plan.assemble import plan_of
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, lay_out
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from tests.support.autodiff.build import graph

Array = NDArray[np.float32]
IN_PLACE = {name: op.in_place for name, op in ops().items() if op.in_place}
RNG = np.random.default_rng(0)


def _floats(*shape: int) -> Array:
    return np.asarray(np.abs(RNG.standard_normal(shape, np.float32)) + np.float32(0.1))


def _operands(op: str, rows: int, columns: int) -> list[list[Any]]:
    """Cases: operands of which one of the size of the output may be written over."""
    x = _floats(rows, columns)
    if op == "BatchNormalization":
        return [[x[None], *(_floats(rows) for _ in range(4))], [x.reshape(1, 1, -1), *(_floats(1) for _ in range(4))]]
    if op == "ScatterElements":
        return [[x, RNG.integers(0, rows, (rows, columns)), _floats(rows, columns)]]
    if op == "ScatterND":
        return [[x, np.arange(rows, dtype=np.int64)[:, None], _floats(rows, columns)]]
    if op == "Clip":
        return [[x, np.float32(0.3).reshape(()), np.float32(0.9).reshape(())]]
    if op == "Gemm":
        return [[_floats(rows, 5), _floats(5, columns), x]]
    if len(IN_PLACE[op]) == 1:
        return [[x]]
    others = [_floats(*shape) for shape in ((rows, columns), (rows, 1), (columns,), ())]
    return [pair for other in others for pair in ([x, other], [other, x])]


@pytest.mark.parametrize("op", IN_PLACE)
def test_the_same_bits(op: str) -> None:
    for rows, columns in ((1, 1), (1, 7), (7, 1), (33, 65), (64, 1000)):
        for operands in _operands(op, rows, columns):
            feeds = {f"i{k}": np.ascontiguousarray(a) for k, a in enumerate(operands)}
            settings: dict[str, Any] = {"axis": 0, "reduction": "add"} if op == "ScatterElements" else {}
            node = onnx.helper.make_node(op, list(feeds), ["y"], **settings)
            infos = [
                onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                for n, a in feeds.items()
            ]
            body = onnx.helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name="y")])
            model = onnx.helper.make_model(body, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
            session = ort.InferenceSession(model.SerializeToString())
            (wanted,) = session.run(None, feeds)
            array_of = list(feeds.values())
            for index in IN_PLACE[op]:
                if index >= len(operands) or array_of[index].nbytes != wanted.nbytes:
                    continue
                target = np.array(array_of[index])
                binding = session.io_binding()
                for k, (name, array) in enumerate(feeds.items()):
                    binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(target if k == index else array))
                binding.bind_output("y", "cpu", 0, np.float32, wanted.shape, target.ctypes.data)
                session.run_with_iobinding(binding)
                assert np.array_equal(target.reshape(wanted.shape), wanted), (rows, columns, index)


TAKING_RNG = np.random.default_rng(0)


def weights(*shape: int) -> NDArray[Any]:
    return np.asarray(TAKING_RNG.standard_normal(shape) / 3, np.float32)


def network(activation: str, batch: int, side: int) -> TrainingGraph:
    """Convolution, normalization and the activation, a depthwise one of each, a skip connection, a mean."""
    channels = 24
    nodes = f"""
        a = Conv<pads=[1 1 1 1]>(x, w0)
        b, m0, v0 = BatchNormalization<training_mode=1>(a, s, t, mean, var)
        c = {activation}
        d = Conv<pads=[1 1 1 1];group={channels}>(c, w1)
        e, m1, v1 = BatchNormalization<training_mode=1>(d, s, t, mean, var)
        f = Add(e, b)
        g = {activation.replace("(b", "(f")}
        h = GlobalAveragePool(g)
        y = Flatten(h)
    """
    given = {
        "w0": weights(channels, 3, 3, 3), "w1": weights(channels, 1, 3, 3), "s": abs(weights(channels)) + 1,
        "t": weights(channels), "mean": weights(channels), "var": abs(weights(channels)),
        "low": np.array(0, np.float32), "high": np.array(1, np.float32),
    }  # fmt: skip
    step = differentiate(graph(nodes, {"x": (batch, 3, side, side)}, given, ["y"], train="w*,s,t"), loss="mse")
    return in_place(step, runtime)


def taking_all(problem: Problem, step: TrainingGraph) -> tuple[Problem, list[str]]:
    """The problem with every operator writing over an input that can, needed or not; and their kinds."""
    index = {tensor.name: i for i, tensor in enumerate(problem.tensors)}
    operators, kinds = list(problem.operators), []
    by_name = {operator.name: operator for operator in step.operators}
    for k, costed in enumerate(operators):
        operator = by_name[costed.name]
        alone = [i for i in costed.inputs if problem.readers[i] == (k,) and problem.tensors[i].computed]
        pairs = [(i, o) for i in alone for o in costed.outputs]
        for i, o in pairs if operator.backward else []:
            given, made = problem.tensors[i], problem.tensors[o]
            if given.nbytes != made.nbytes or made.name not in index:
                continue
            read = next(n for n in operator.inputs if step.root(n) == given.name)
            way = runtime.taking(operator, step.tensors, takes=(read, made.name), values=step.constants)
            if way is not None:
                operators[k] = replace(
                    costed, takes=(i, o), recomputable=False, workspace_bytes=way.workspace.temporaries_bytes
                )
                kinds.append(operator.kind)
                break
    return replace(problem, operators=tuple(operators)), kinds


def results(plan: Plan, step: TrainingGraph) -> dict[str, NDArray[Any]]:
    """What a step leaves, with all that is freed overwritten."""
    with ExitStack() as stack:
        pages = stack.enter_context(PageFile(slots(plan)))
        program = Program(plan, step, MappedBlock(arena_bytes(plan)), ResidentRegion.of(step), Sessions(step), pages)
        program.run_checked(random_batch(step, seed=1))
        return {name: np.array(program.result(name)) for name in step.results}


@pytest.mark.parametrize(
    ("activation", "batch", "side"),
    [("Relu(b)", 4, 64), ("Clip(b, low, high)", 3, 64), ("Sigmoid(b)", 1, 128), ("Tanh(b)", 2, 100)],
)
def test_the_same_bits_over_what_is_read(activation: str, batch: int, side: int) -> None:
    step = network(activation, batch, side)
    plain = cost(step, device("a72"), over=False)
    taking, kinds = taking_all(plain, step)
    assert len({kind.split(".")[0] for kind in kinds}) >= 2, kinds
    assert any(kind.startswith("BatchNormalization.grad") for kind in kinds), kinds
    plans = [lay_out(plan_of(problem, Schedule())) for problem in (plain, taking)]
    first, second = (results(plan, step) for plan in plans)
    assert first.keys() == second.keys()
    for name in first:
        assert first[name].tobytes() == second[name].tobytes(), name
    assert arena_bytes(plans[1]) <= arena_bytes(plans[0])


def test_two_tensors_and_a_slice_are_enough() -> None:
    """An activation's gradient, and a normalization's, where three tensors of their size were needed."""
    step = network("Clip(b, low, high)", 4, 64)
    plain, taking = (cost(step, device("a72"), over=over) for over in (False, True))
    largest = max(tensor.nbytes for tensor in plain.tensors)
    assert plain.least_ram_bytes - plain.reserve_bytes > 3 * largest
    taken = [k for k, operator in enumerate(taking.operators) if operator.takes]
    assert taken
    for k in taken:
        assert taking.working_set_bytes(k) < 2.3 * largest < plain.working_set_bytes(k)
    assert all(taking.operators[k].backward for k in taken)
    plan = plan_of(taking, Schedule())
    assert simulate(plan).peak_bytes <= simulate(plan_of(plain, Schedule())).peak_bytes
