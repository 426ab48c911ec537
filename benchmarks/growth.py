"""Growth of every pass from a file to a step that is ready to run, on chains of operators.

    python -m benchmarks.growth [--operators 1000 3000 10000] [--chains untrained layers residual]
        [--output benchmarks/results/growth.md]

Processor seconds of each pass, and the exponent between the last two sizes: 1 is linear. `untrained` is a row of Relus
before one layer, in a file of functions that call each other, of 5 kB. `layers` is a MatMul and a Relu in turn,
`residual` a Relu and the Add around it. All are of width 4.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from benchmarks.output import put
from poetopt.api.models import Model
from poetopt.api.training import Training, scheduled
from poetopt.backends.c.build import emitted
from poetopt.backends.c.program import device_program
from poetopt.backends.c.targets import target
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.backends.onnxruntime.reference import NodeByNode, reference_of
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.backends.step.memory import MappedBlock
from poetopt.backends.step.parted import all_slots, program_of, scheduled_names
from poetopt.backends.step.region import ResidentRegion
from poetopt.backends.step.storage import PageFile
from poetopt.frontends import onnx_file
from poetopt.frontends.inlining import inline_functions
from poetopt.frontends.read import read_model
from poetopt.frontends.structure import tidy
from poetopt.graph import TrainingGraph
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import store_all, store_all_bytes
from poetopt.plan.codec import from_json, to_json, to_text
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, check_layout, lay_out
from poetopt.plan.simulate import simulate
from poetopt.search.heuristics.greedy import greedy
from poetopt.search.heuristics.ways import Ways
from poetopt.search.run import Run
from poetopt.search.solution import Options
from poetopt.util.process import paused

WIDTH, ROWS = 4, 2
T = TypeVar("T")


def chain(kind: str, count: int) -> onnx.ModelProto:
    """A network of about `count` operators in a row."""
    weights: list[str] = []

    def layer(source: str, written: str) -> NodeProto:
        weights.append(f"w{len(weights)}")
        return helper.make_node("MatMul", [source, weights[-1]], [written], f"layer{len(weights)}")

    nodes: list[NodeProto] = []
    last = "x"
    if kind == "residual":
        nodes, last = [layer("x", "first")], "first"
    for k in range(count // (1 if kind == "untrained" else 2)):
        if kind == "layers":
            nodes.append(layer(last, f"m{k}"))
            last = f"m{k}"
        nodes.append(helper.make_node("Relu", [last], [f"r{k}"], f"relu{k}"))
        if kind == "residual":
            nodes.append(helper.make_node("Add", [last, f"r{k}"], [f"a{k}"], f"add{k}"))
        last = f"a{k}" if kind == "residual" else f"r{k}"
    nodes.append(layer(last, "y"))
    graph = helper.make_graph(
        nodes,
        kind,
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [ROWS, WIDTH])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [ROWS, WIDTH])],
        [numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32), name) for name in weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def nested(count: int) -> onnx.ModelProto:
    """A row of `count` Relus (a power of 10 times 1 to 9) as functions that call the next one ten times."""
    digits = round(math.log10(count / int(str(count)[0])))
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]

    def row(name: str, times: int, domain: str) -> list[NodeProto]:
        names = ["x", *(f"t{k}" for k in range(times - 1)), "y"]
        return [helper.make_node(name, [a], [b], domain=domain) for a, b in pairwise(names)]

    called = ["Relu", *(f"f{k}" for k in range(digits))]
    bodies = [row(name, 10, "own" if k else "") for k, name in enumerate(called[:-1])]
    functions = [helper.make_function("own", f"f{k}", ["x"], ["y"], body, imports) for k, body in enumerate(bodies)]
    outer = row(called[-1], int(str(count)[0]), "own" if digits else "")
    outer[-1].output[0] = "last"
    outer.append(helper.make_node("MatMul", ["last", "w"], ["y"]))
    weight = numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [ROWS, WIDTH]) for name in "xy")
    graph = helper.make_graph(outer, "nested", [x], [y], [weight])
    return helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=10)


def passes(model: onnx.ModelProto, run: Callable[[str, Callable[[], Any]], Any]) -> None:
    """Go all the way, each pass through `run`, which is given its name and gives what it does."""

    def read() -> Any:
        document = read_model(model)
        inline_functions(document)
        tidy(document)
        return document

    run("read and check", read)
    network = Model(run("load, inferring and folding", lambda: onnx_file.load_onnx(model)), {})
    derived: TrainingGraph = run("differentiate", lambda: network.training_graph(loss="mse", optimizer="sgd"))
    for runtime in ("onnxruntime", "c"):
        graph: TrainingGraph = run(f"join, {runtime}", partial(scheduled, derived, "operator", runtime))
        step = Training(graph, {}, runtime=runtime)
        problem: Problem = run(f"cost, {runtime}", partial(step.cost, "a72", runtime=runtime))
        _planned(problem, graph, runtime, run)


def _planned(
    problem: Problem, graph: TrainingGraph, runtime: str, run: Callable[[str, Callable[[], Any]], Any]
) -> None:
    if runtime == "c":
        plan = lay_out(store_all(problem))
        program = run("write the C program", lambda: device_program(plan, graph))
        run("write the C files", lambda: emitted(program, target("host", "--on")))
        return
    whole: Plan = run("store-all", lambda: store_all(problem))
    most = run("least budget of store-all", lambda: store_all_bytes(problem))
    run("first schedule", lambda: greedy(problem, int(0.8 * most), paging=True, remat=True))
    run("begin a search", lambda: (Run(problem, Options(ram_bytes=most), None), Ways(problem)))
    run("simulate", lambda: simulate(whole))
    plan = run("lay out", lambda: lay_out(whole))
    run("check the layout", lambda: check_layout(plan))
    data = run("write the plan", lambda: to_json(plan))
    run("its text", lambda: to_text(plan))
    run("read the plan", lambda: from_json(data))
    run("prepare the execution", lambda: _prepare(plan, graph))


def _prepare(plan: Plan, graph: TrainingGraph) -> None:
    with ExitStack() as stack:
        pages = stack.enter_context(PageFile(all_slots(plan, graph), None))
        region = ResidentRegion.of(graph, scheduled_names(plan.problem))
        sessions = Sessions(graph, 1)
        program = program_of(plan, graph, MappedBlock(arena_bytes(plan)), region, sessions.of, pages)
        program.carried.take(random_batch(graph, 0))
        reference_of(NodeByNode, graph, sessions, program.begun, graph.results)


def measured(model: onnx.ModelProto) -> dict[str, float]:
    """Processor seconds of each pass."""
    found: dict[str, float] = {}

    def run(name: str, act: Callable[[], T]) -> T:
        with paused():  # the collector's work is that of all that is there
            begin = time.process_time()
            result = act()
            found[name] = time.process_time() - begin
        return result

    passes(model, run)
    return found


def table(kind: str, sizes: list[int]) -> Iterator[str]:
    """The lines of a chain's table."""
    make: Callable[[int], onnx.ModelProto] = nested if kind == "untrained" else lambda count: chain(kind, count)
    measured(make(100))  # imports
    times = [measured(make(count)) for count in sizes]
    yield f"\n## {kind}\n\n| pass | {' | '.join(f'{size:,}' for size in sizes)} | exponent |"
    yield "|---" * (len(sizes) + 2) + "|"
    for name in times[0]:
        seconds = [each[name] for each in times]
        exponent = math.log(max(seconds[-1], 1e-3) / max(seconds[-2], 1e-3)) / math.log(sizes[-1] / sizes[-2])
        yield f"| {name} | {' | '.join(f'{s:.2f}' for s in seconds)} | {exponent:.2f} |"


def main() -> None:
    """Print or write the tables."""
    parser = argparse.ArgumentParser(description="Growth of every pass.")
    parser.add_argument("--operators", type=int, nargs="+", default=[1000, 3000, 10000])
    parser.add_argument("--chains", nargs="+", default=["untrained", "layers", "residual"])
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    head = f"`python -m benchmarks.growth --operators {' '.join(map(str, args.operators))}`: processor seconds a pass."
    lines = ["# Growth", "", head]
    for kind in args.chains:
        lines += table(kind, args.operators)
    put(lines, args.output)


if __name__ == "__main__":
    main()
