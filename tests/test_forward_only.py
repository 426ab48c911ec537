"""A network without loss and backward operators: planned in less RAM, executed, in C, and proven by brute force."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import poetopt as po
from poetopt.plan.assemble import store_all
from poetopt.plan.simulate import simulate
from poetopt.search.search import search
from poetopt.search.solution import Options, Status
from poetopt.util.errors import ModelError, OptionError
from tests.seeds import seeds
from tests.support.every_plan import least_overhead_j
from tests.support.problems import random_problem


def branching(*, outputs: tuple[str, ...] = ("y",), normalized: bool = False) -> onnx.ModelProto:
    """Convolutions whose inputs are read again at the end, last first: what waits is cheap to compute again."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 3, 3, 3)) / 4}
    nodes = [helper.make_node("Conv", ["x", "w"], ["b"], pads=[1] * 4)]
    if normalized:
        weights |= {"scale": np.full(8, 2.0), "shift": np.ones(8), "mean": np.arange(8.0), "var": np.arange(1.0, 9.0)}
        names = ["b", "scale", "shift", "mean", "var"]
        nodes.append(helper.make_node("BatchNormalization", names, ["bn", "new_mean", "new_var"], training_mode=1))
        nodes.append(helper.make_node("Dropout", ["bn", "", "on"], ["b0"]))
    last = "b0" if normalized else "b"
    for k in range(4):
        weights[f"w{k}"] = rng.standard_normal((8, 8, 1, 1)) / 4
        nodes += [
            helper.make_node("Relu", [last], [f"r{k}"]),
            helper.make_node("Conv", [f"r{k}", f"w{k}"], [last := f"c{k}"]),
        ]
    for k in reversed(range(4)):
        nodes += [
            helper.make_node("Add" if k % 2 else "Mul", [last, f"r{k}"], [f"s{k}"]),
            helper.make_node("Sigmoid", [f"s{k}"], [last := f"t{k}"]),
        ]
    nodes += [helper.make_node("GlobalAveragePool", [last], ["p"]), helper.make_node("Flatten", ["p"], ["y"])]
    stored = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    stored += [numpy_helper.from_array(np.array(True), "on")] if normalized else []
    shapes = {"y": [2, 8], "t2": [2, 8, 32, 32], "x": [2, 3, 32, 32]}
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in outputs]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shapes["x"])]
    graph = helper.make_graph(nodes, "branching", given, made, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model


def on_onnxruntime(model: onnx.ModelProto, batch: dict[str, Any]) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in model.graph.output]
    return dict(zip(names, session.run(names, batch), strict=True))


@pytest.mark.parametrize("outputs", [("y",), ("y", "t2")])
def test_a_branching_network_runs_in_less_ram_and_gives_what_onnxruntime_does(outputs: tuple[str, ...]) -> None:
    model = branching(outputs=outputs)
    report = po.solve(model, loss="forward-only", device="a72", ram="85%", time_limit=20)
    assert report.solution.simulation is not None
    assert report.solution.simulation.recomputes > 0
    execution = po.execute(report)
    assert execution.ok
    assert execution.bit_identical
    assert execution.arena_bytes <= report.solution.options.ram_bytes
    theirs = on_onnxruntime(model, dict(execution.batch))
    assert execution.results.keys() == theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_allclose(np.asarray(execution.results[name], np.float32), array, rtol=1e-5, atol=1e-6)
    assert (execution.loss, execution.gradients, execution.outputs) == (None, 0, len(outputs))


def test_one_output_alone_may_be_asked_for() -> None:
    report = po.solve(branching(outputs=("y", "t2")), loss="forward-only", output="y", device="a72", ram="100%")
    assert po.execute(report).results.keys() == {"y"}
    with pytest.raises(OptionError, match="the model has y, t2"):
        po.load(branching(outputs=("y", "t2"))).differentiate(loss="forward-only", output="z")


def test_what_nothing_computes_is_left_out_and_named() -> None:
    model = branching(outputs=("y",))
    model.graph.output.append(helper.make_tensor_value_info(model.graph.input[0].name, TensorProto.FLOAT, None))
    report = po.solve(model, loss="forward-only", device="a72", ram="100%")
    assert po.execute(report).results.keys() == {"y"}
    assert f"left out, as no operator computes it: {model.graph.input[0].name}" in str(report.to_dict()["notes"])


def test_layers_are_as_in_inference() -> None:
    model, evaluated = branching(normalized=True), branching(normalized=True)
    for node in evaluated.graph.node:
        if node.op_type == "BatchNormalization":
            del node.attribute[:], node.output[1:]
        if node.op_type == "Dropout":
            del node.input[1:]
    execution = po.execute(po.solve(model, loss="forward-only", device="a72", ram="100%"))
    theirs = on_onnxruntime(evaluated, dict(execution.batch))
    np.testing.assert_allclose(np.asarray(execution.results["y"], np.float32), theirs["y"], rtol=1e-5, atol=1e-6)
    assert execution.statistics == 0


def test_it_is_emitted_in_c_alone(tmp_path: Path) -> None:
    model = branching()
    report = po.solve(model, loss="forward-only", device="m4", ram="80%", time_limit=20)
    execution = po.execute_on(report, "host")
    assert execution.ok
    assert execution.bit_identical
    theirs = on_onnxruntime(model, dict(execution.batch))
    np.testing.assert_allclose(np.asarray(execution.results["y"], np.float32), theirs["y"], rtol=1e-5, atol=1e-6)
    assert po.emit(report, tmp_path / "c", target="linux").prediction_bytes is None


def test_weights_may_be_paged() -> None:
    report = po.solve(branching(), loss="forward-only", device="a72", parameters="paged", total_ram="300kB")
    assert report.to_dict()["optimizer"] == "none"
    assert po.execute(report).ok


def test_what_makes_no_sense_is_one_message() -> None:
    model = branching()
    for wrong in ({"optimizer": "sgd"}, {"micro_batch": 2}, {"label_smoothing": 0.1}, {"rates": {"w*": 0.1}}):
        with pytest.raises(OptionError, match=r"--loss forward-only: nothing is trained\. Leave out"):
            po.solve(model, loss="forward-only", device="a72", ram="100%", **wrong)
    report = po.solve(model, loss="forward-only", device="a72", ram="100%")
    with pytest.raises(OptionError, match="only runs the network forward"):
        po.train(report, 1, 0.1)
    with pytest.raises(OptionError, match="only runs the network forward"):
        po.Trainer(report)
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    nothing = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "nothing", [given], [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    ])  # fmt: skip
    with pytest.raises(ModelError, match="no operator computes an output"):
        po.load(helper.make_model(nothing)).differentiate(loss="forward-only")


@pytest.mark.parametrize("seed", seeds(500))
def test_random_graphs_without_backward_have_the_optimum_of_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    made = random_problem(rng, operators=rng.randrange(4, 7), training=False, paging=seed % 2 == 0)
    problem = replace(made, operators=tuple(replace(operator, backward=False) for operator in made.operators))
    peak = simulate(store_all(problem)).peak_bytes
    ram = peak - rng.randrange(1, 1 + max(1, peak // 4))
    known = least_overhead_j(problem, ram)
    found = search(problem, Options(ram_bytes=ram, time_limit_s=20, gap=0.0))
    if known is None:
        assert found.plan is None
        assert found.status in (Status.INFEASIBLE, Status.UNKNOWN)
        return
    if found.plan is None:  # whoever says so has tried all that keeps the budget in bytes
        assert found.exhausted
        return
    assert found.status is Status.OPTIMAL
    assert simulate(found.plan).overhead_j == pytest.approx(known)
