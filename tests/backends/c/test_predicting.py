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
from poetopt.backends.c.build import build, write
from poetopt.backends.c.execution import TOLERANCE
from poetopt.backends.c.program import device_program
from poetopt.backends.c.run import run, run_steps
from poetopt.backends.c.sensitivity import distance, predicted
from poetopt.backends.step.places import graph_of
from poetopt.plan.assemble import store_all
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import lay_out
from poetopt.search.predicting import prediction_of
from poetopt.training.export import export, original
from poetopt.training.inference import changes
from tests.backends.c.support import HOST, WARNINGS, needs_host, normalized_file
from tests.seeds import some

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


@needs_host
@pytest.mark.parametrize("kind", some(KINDS, 2))
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
    ended = run_steps(made, batches, [], asked)
    values = {name: ended.results[name] for name in graph.trained}
    values |= {old: ended.results[new] for old, new in graph.states.items()}
    source, form = original(normalized_file(), plan.problem.recipe), changes(graph, graph.values)
    export(source, tuple(values), values, tmp_path / "trained.onnx", known=graph.tensors, form=form)
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx", providers=["CPUExecutionProvider"])
    for one, out in zip(asked, ended.outputs, strict=True):
        theirs = np.asarray(session.run(None, dict(one))[0])
        np.testing.assert_allclose(np.asarray(out[graph.outputs[0]]), theirs, rtol=2e-5, atol=2e-6)


@needs_host
def test_other_outputs_are_seen(tmp_path: Path) -> None:
    """The network with the step's first values, in the place of those that a step has left."""
    plan = plan_of("resident")
    graph = graph_of(plan)
    program = device_program(plan, graph, prediction=prediction_of(plan, graph))
    write(program, HOST, tmp_path)
    text = (tmp_path / "po_step.c").read_text()
    assert text.count("po_carry();") == 1
    (tmp_path / "po_step.c").write_text(text.replace("po_carry();", "(void)po_load();"))
    made = build(program, HOST, tmp_path, measuring=False)
    rng = np.random.default_rng(0)
    one: Arrays = {"input": rng.standard_normal((2, 2, 8, 8), np.float32), "labels": rng.integers(0, 5, 2)}
    ended = run_steps(made, [one], [], [one])
    held = dict(graph.values) | {name: ended.results[name] for name in graph.trained}
    held |= {old: ended.results[new] for old, new in graph.states.items()}
    assert program.predicts is not None
    network = graph_of(program.predicts.plan)
    reference = predicted(network, held, [one])
    mine = {name: np.stack([out[name] for out in ended.outputs]) for name in network.outputs}
    assert distance(mine, reference.exact, network.outputs) > TOLERANCE * reference.together


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
