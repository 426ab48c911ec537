"""po_predict gives the network's outputs, as onnxruntime has them of the trained file, in the step's arena."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx.utils
import onnxruntime
import pytest
from numpy.typing import NDArray

import poetopt as po
from poetopt.autodiff.inference import predicting
from poetopt.backends.c.build import build, write
from poetopt.backends.c.execute import execute_on
from poetopt.backends.c.program import device_program
from poetopt.backends.c.run import run
from poetopt.backends.step.places import graph_of
from poetopt.plan.assemble import store_all
from poetopt.plan.instructions import Action, Plan
from poetopt.plan.layout import arena_bytes, buffers, check_layout, lasting_at, lay_out
from poetopt.plan.simulate import simulate
from poetopt.search.predicting import prediction_of
from poetopt.training.export import export, original
from poetopt.training.inference import changes
from poetopt.zoo.network import Network
from tests.support.c import HOST, WARNINGS, needs_emulator, needs_host, normalized_file

Arrays = Mapping[str, NDArray[np.generic]]
KINDS = ("resident", "paged", "tight")


def normalized() -> po.Model:
    found = po.load(normalized_file())
    assert isinstance(found, po.Model)
    return found


def paged(model: po.Model, spare: int) -> Plan:
    problem = model.differentiate(optimizer="momentum").cost("m4", runtime="c", parameters="paged")
    report = po.solve(problem, ram=problem.least_ram_bytes + spare, threads=1, time_limit="20s")
    assert report.plan is not None
    return report.plan


@cache
def plan_of(kind: str) -> Plan:
    """Of steps whose parameters are in RAM for good, mostly in the arena, and nearly all on storage."""
    if kind == "resident":
        return lay_out(store_all(normalized().differentiate(optimizer="momentum").cost("m4", runtime="c")))
    return paged(normalized(), {"paged": 4000, "tight": 300}[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_what_lasts_keeps_its_place(kind: str) -> None:
    plan = plan_of(kind)
    graph = graph_of(plan)
    found = prediction_of(plan, graph)
    assert found is not None
    assert simulate(found).peak_bytes <= arena_bytes(plan)
    check_layout(found, arena_bytes(plan))
    lasting, tensors = lasting_at(plan), found.problem.tensors
    assert {*lasting} <= {held.name for held in tensors}
    last = len(found.instructions) - 1
    for buffer in buffers(found):  # what overlaps, check_layout has refused
        if not buffer.workspace and tensors[buffer.index].name in lasting and (buffer.first < 0 or buffer.last == last):
            assert buffer.offset == lasting[tensors[buffer.index].name][0]
    written = {tensors[step.target].name for step in found.instructions if step.action is Action.PAGE_OUT}
    assert not (written - {*lasting}) & {held.name for held in tensors if not held.computed}


@needs_host
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_the_trained_file(kind: str, tmp_path: Path) -> None:
    """Evaluated by onnxruntime alone: no code of ours says what the file's network computes."""
    plan = plan_of(kind)
    graph = graph_of(plan)
    program = device_program(plan, graph, prediction=prediction_of(plan, graph))
    write(program, HOST, tmp_path)
    made = build(program, HOST, tmp_path, warnings=("-Werror", *WARNINGS), measuring=False)
    rng = np.random.default_rng(0)
    batches: list[Arrays] = [
        {"input": rng.standard_normal((2, 2, 8, 8), np.float32), "labels": rng.integers(0, 5, 2)} for _ in range(3)
    ]
    asked: list[Arrays] = [{"input": rng.standard_normal((2, 2, 8, 8), np.float32)} for _ in range(4)]
    ended = run(made, *batches, said=[], asked=asked)
    values = {name: ended.results[name] for name in graph.trained}
    values |= {old: ended.results[new] for old, new in graph.states.items()}
    source, form = original(normalized_file(), plan.problem.recipe), changes(graph, graph.values)
    export(source, tuple(values), values, tmp_path / "trained.onnx", known=graph.tensors, form=form)
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx", providers=["CPUExecutionProvider"])
    for one, out in zip(asked, ended.outputs, strict=True):
        theirs = np.asarray(session.run(None, dict(one))[0])
        np.testing.assert_allclose(np.asarray(out[graph.outputs[0]]), theirs, rtol=2e-5, atol=2e-6)


@needs_host
def test_both_plans_give_the_same_bits() -> None:
    found = execute_on(plan_of("paged"), "host", predict=prediction_of)
    assert found.ok, found.message
    assert found.predicted is not None
    assert found.predicted.arena_bytes <= found.arena_bytes


@needs_emulator
def test_on_a_board_with_just_the_steps_ram() -> None:
    found = execute_on(plan_of("tight"), "cortex-m4", predict=prediction_of)
    assert found.ok, found.message
    assert found.predicted is not None
    assert found.linked_ram_bytes in (None, found.arena_bytes + found.resident_bytes)


def test_a_network_without_outputs_predicts_nothing() -> None:
    net = Network("loss-alone", 2)
    y = net.linear(net.input("input", (4, 6)), "fc", 6, 3)
    loss = net.add("ReduceMean", [net.add("Mul", [y, y], "square")], "loss", keepdims=0)
    model = po.load(net.model(loss, ()))
    assert isinstance(model, po.Model)
    plan = lay_out(store_all(model.differentiate(loss="none").cost("m4", runtime="c")))
    assert predicting(graph_of(plan)) is None
    assert prediction_of(plan, graph_of(plan)) is None


@needs_host
def test_accuracy_is_the_programs_own_and_the_files(tmp_path: Path) -> None:
    """Row by row, also where the last ones fill no batch."""
    plan = plan_of("paged")
    rng = np.random.default_rng(1)
    rows: Arrays = {"input": rng.standard_normal((7, 2, 8, 8), np.float32), "labels": rng.integers(0, 5, 7)}
    out = tmp_path / "trained.onnx"
    ended = po.fit_on(
        plan, "host", rows, hyperparameters={"lr": 0.05}, epochs=2, validate=rows, out=out, model=normalized_file()
    )
    assert ended.steps.ok, ended.steps.message
    assert ended.validation is not None
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    padded = np.concatenate([rows["input"], rows["input"][-1:]])
    scores = np.concatenate([np.asarray(session.run(None, {"input": padded[k : k + 2]})[0]) for k in range(0, 8, 2)])
    assert ended.validation.rows == 7
    assert ended.validation.accuracy == np.mean(scores[:7].argmax(1) == rows["labels"])
    shifted = scores[:7] - np.log(np.exp(scores[:7]).sum(1, keepdims=True))
    assert ended.validation.loss == pytest.approx(-shifted[np.arange(7), rows["labels"]].mean(), rel=1e-5)


@needs_host
@pytest.mark.parametrize(("how", "of"), [("Identity", "input"), ("Flatten", "fc.weight")])
def test_an_output_that_nothing_computes_is_left_out(how: str, of: str, tmp_path: Path) -> None:
    """What is an input or a parameter under another name: the others are predicted, and the one is named."""
    net = Network("aliased", 2)
    x = net.input("input", (4, 6))
    model = net.model(net.linear(x, "fc", 6, 3), (4, 3))
    model.graph.node.append(onnx.helper.make_node(how, [of], ["same"]))
    shape = [4, 6] if of == "input" else [3, 6]
    model.graph.output.append(onnx.helper.make_tensor_value_info("same", onnx.TensorProto.FLOAT, shape))
    first = model.graph.output[0].name
    loaded = po.load(model)
    assert isinstance(loaded, po.Model)
    problem = loaded.differentiate(loss="cross-entropy", output=first, optimizer="sgd").cost("m4", runtime="c")
    plan = lay_out(store_all(problem))
    found = execute_on(plan, "host", predict=prediction_of)
    assert found.ok, found.message
    assert found.predicted is not None
    assert {*found.predicted.outputs} == {first}
    assert po.emit(plan, tmp_path / "c").not_predicted == ("same",)


@needs_host
def test_a_head_on_stored_features_takes_the_whole_steps_way(tmp_path: Path) -> None:
    """What is frozen runs once a sample, as a network alone; what is trained is one of its own."""
    whole = po.zoo.build("lenet", 1)
    features = next(node.output[0] for node in whole.graph.node if node.op_type == "Flatten")
    parts = onnx.utils.Extractor(onnx.shape_inference.infer_shapes(whole))
    asked = {"loss": "cross-entropy", "optimizer": "sgd"}

    def ended(file: onnx.ModelProto, given: Arrays, train: str | None, **recipe: str) -> Arrays:
        found = po.load(file, train=train)
        assert isinstance(found, po.Model)
        plan = lay_out(store_all(found.differentiate(**recipe).cost("m4", runtime="c")))  # type: ignore[arg-type]
        program = device_program(plan, graph_of(plan))
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        write(program, HOST, folder)
        made = build(program, HOST, folder)
        batch: Arrays = {row.name: given[row.name] for row in program.inputs}
        return run(made, batch).results

    image = np.random.default_rng(0).standard_normal((1, 1, 28, 28)).astype(np.float32)
    given: Arrays = {"input": image, "labels": np.array([3])}
    step = ended(whole, given, "fc*", **asked)
    stored = ended(parts.extract_model(["input"], [features]), given, None, loss="forward-only")
    head = ended(parts.extract_model([features], ["logits"]), {**given, **stored}, None, **asked)
    trained = {name for name in step if name.startswith("fc")}
    assert len(trained) >= 6
    for name in trained:
        assert step[name].tobytes() == head[name].tobytes()
