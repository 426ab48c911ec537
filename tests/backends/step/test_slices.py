"""Operators that stream on onnxruntime: slice by slice, with the bits of the unscheduled step."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto

import poetopt as po
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.backends.onnxruntime.execution import compare
from poetopt.backends.onnxruntime.reference import NodeByNode
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.backends.step.memory import MappedBlock
from poetopt.backends.step.program import Program
from poetopt.backends.step.region import ResidentRegion, slots
from poetopt.backends.step.storage import PageFile
from poetopt.devices import cost, device
from poetopt.graph import TrainingGraph
from poetopt.graph.problem import Problem
from poetopt.ops.runtimes.onnxruntime import OnnxRuntime
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes
from poetopt.plan.simulate import simulate
from poetopt.zoo.network import Network
from tests.seeds import some
from tests.support.keeping_nothing import keeping_nothing


class Fine(OnnxRuntime):
    """Small operators stream, too."""

    chunk_bytes = 1 << 13


class FineSessions(Sessions):
    """onnxruntime's kernels, for such plans."""

    runtime = Fine()


def network(rng: random.Random) -> ModelProto:
    """Convolutions, and products with matrices whose rows, or columns, are what they write; of random sizes."""
    batch, size, wide = rng.choice((2, 3)), rng.choice((4, 6)), rng.choice((48, 64, 80))
    net = Network("slices", rng.randrange(1000))
    x = net.relu(net.conv(net.input("input", (batch, 16, size, size)), "conv1", (16, wide), 3, pad=1, bias=True), "r1")
    x = net.relu(net.conv(x, "conv2", (wide, 80), 3, 2, pad=1), "r2")
    x = net.add("Flatten", [x], "flatten", axis=1)
    inner, outer = rng.choice((130, 257)), rng.choice((90, 200, 300))
    x = net.relu(net.linear(x, "fc1", 20 * size * size, inner), "r3")
    x = net.add(
        "MatMul",
        [x, net.weight("w", net.rng.standard_normal((inner, outer), np.float32) / np.float32(inner))],
        "matmul",
    )
    x = net.add("Tanh", [x], "tanh")
    return net.model(net.linear(x, "fc2", outer, 10), (batch, 10))


def tied(rng: random.Random) -> ModelProto:
    """Rows of a table, some of them twice and one by a negative number, and products with all of it."""
    net, rows = Network("tied", rng.randrange(1000)), rng.choice((256, 300))
    table = net.weight("table", net.rng.standard_normal((rows, 80), np.float32))
    ids = net.weight("ids", np.array([[3, -1, 3, rows - 2], [0, 7, 7, 130]]))
    x = net.add(
        "Gather", [table, net.add("Add", [ids, net.input("shift", (2, 1), TensorProto.INT64)], "ids")], "gather", axis=0
    )
    x = net.add("Tanh", [net.add("Reshape", [x, net.weight("shape", np.array([8, 80]))], "rows")], "tanh")
    return net.model(net.add("Gemm", [x, table], "head", transB=1), (8, rows))


def normalized(rng: random.Random) -> ModelProto:
    """Normalizations of planes and of rows, and poolings."""
    batch, size, wide = rng.choice((2, 3)), 8, rng.choice((128, 192))
    net = Network("normalized", rng.randrange(1000))
    x = net.conv(net.input("input", (batch, 8, size, size)), "conv", (8, wide), 3, pad=1)
    x = net.relu(net.batch_norm(x, "bn", wide), "r1")
    x = net.add("AveragePool", [x], "pool", kernel_shape=[2, 2], strides=[2, 2])
    x = net.add("Reshape", [x, net.weight("rows", np.array([-1, size * size // 4]))], "rows.of.planes")
    width = size * size // 4
    vectors = [net.weight(f"ln.{name}", net.rng.standard_normal(width, np.float32)) for name in ("scale", "bias")]
    x = net.add("LayerNormalization", [x, *vectors], "ln")
    return net.model(net.linear(x, "fc", width, 10), (batch * wide, 10))


def made(model: ModelProto, optimizer: str) -> Problem:
    loaded = po.load(model)
    assert isinstance(loaded, po.Model)
    graph = loaded.differentiate(optimizer=optimizer).graph
    return cost(graph, device("a72"), Fine(), parameters="paged", stream="auto")


def graph_of(problem: Problem) -> TrainingGraph:
    assert problem.graph is not None
    return problem.graph


def ran(plan: Plan) -> tuple[Mapping[str, NDArray[Any]], Mapping[str, NDArray[Any]]]:
    """What the plan and ordinary training leave of one batch; freed bytes are poisoned."""
    graph = graph_of(plan.problem)
    sessions = FineSessions(graph)
    region = ResidentRegion.of(graph, {tensor.name for tensor in plan.problem.tensors})
    with PageFile(slots(plan)) as pages:
        program = Program(plan, graph, MappedBlock(arena_bytes(plan)), region, sessions, pages)
        batch = program.carried.take(random_batch(graph, 1))
        theirs = NodeByNode(graph, sessions, program.begun, graph.results).run(batch)
        program.run_checked(batch)
        return {name: program.result(name).copy() for name in graph.results}, theirs


@pytest.mark.parametrize("seed", some(range(24), 3))
def test_every_way_of_every_operator_gives_the_unscheduled_bits(seed: int) -> None:
    rng = random.Random(seed)
    problem = made(network(rng), ("sgd", "momentum", "adam")[seed % 3])
    streaming = [operator for operator in problem.operators if operator.variants]
    kinds = {kind.split(".")[0] for operator in streaming for kind in operator.kind.split("+")}
    assert {"Conv", "Gemm", "MatMul"} <= kinds
    for way in range(1, 1 + max(len(operator.variants) for operator in streaming)):
        plan = keeping_nothing(problem, [min(way, len(operator.variants)) for operator in problem.operators])
        assert simulate(plan).streamed_runs == len(streaming)
        mine, theirs = ran(plan)
        found = compare(mine, theirs, graph_of(problem).results)
        assert found.identical, (found.different, [(o.name, o.variants[:way][-1]) for o in streaming])


@pytest.mark.parametrize("seed", some(range(16), 1))
def test_normalizations_poolings_and_reductions_give_the_unscheduled_bits(seed: int) -> None:
    problem = made(normalized(random.Random(seed)), "sgd")
    streaming = [operator for operator in problem.operators if operator.variants]
    kinds = {kind for operator in streaming for kind in operator.kind.split("+")}
    assert {"BatchNormalization.grad_weight", "LayerNormalization", "AveragePool"} <= kinds
    for way in range(1, 1 + max(len(operator.variants) for operator in streaming)):
        plan = keeping_nothing(problem, [min(way, len(operator.variants)) for operator in problem.operators])
        mine, theirs = ran(plan)
        found = compare(mine, theirs, graph_of(problem).results)
        assert found.identical, (found.different, [(o.name, o.variants[:way][-1]) for o in streaming])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_tied_table_is_read_by_rows_and_written_by_slices(optimizer: str) -> None:
    problem = made(tied(random.Random(3)), optimizer)
    (table,) = (i for i, tensor in enumerate(problem.tensors) if tensor.name == "table")
    plan = keeping_nothing(problem)
    runs = [step for step in plan.instructions if step.variant]
    ways = [(run.target, problem.operators[run.target].variant(run.variant)) for run in runs]
    assert [k for k, way in ways if table in way.streamed_in] == list(problem.readers[table])
    assert max(map(problem.least_working_set_bytes, range(len(problem.operators)))) < problem.tensors[table].nbytes
    mine, theirs = ran(plan)
    assert compare(mine, theirs, graph_of(problem).results).identical
