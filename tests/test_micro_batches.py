"""A batch in parts: the whole batch's gradients and steps, to rounding; the unscheduled accumulation, to the bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnxruntime import InferenceSession

import poetopt as po
from poetopt.api.apart import prepared
from poetopt.api.batches import known_schedule
from poetopt.api.options import SolvingOptions
from poetopt.api.searching import engine_options
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.backends.onnxruntime.stepping import ScheduledStep
from poetopt.backends.step.parted import cut
from poetopt.frontends.proto import save_model
from poetopt.ops.runtimes.onnxruntime import OnnxRuntime
from poetopt.plan import codec
from poetopt.plan.assemble import store_all
from poetopt.plan.closing import closing_of, closing_plan
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, check_layout, lay_out
from poetopt.report.inspection import needs
from poetopt.util.errors import InfeasibleError, ModelError, OptionError
from tests.support.frontends import floats, model_of, text_model

TOLERANCE = 2e-6
"""Of each tensor's largest element."""


def network(seed: int) -> onnx.ModelProto:
    """Random layers of random sizes, on an open batch."""
    rng = np.random.default_rng(seed)
    channels, size, classes = (int(rng.integers(low, high)) for low, high in ((2, 5), (6, 10), (3, 6)))
    nodes = [helper.make_node("Conv", ["x", "conv.weight", "conv.bias"], ["a"], pads=[1, 1, 1, 1])]
    nodes += [helper.make_node(str(rng.choice(["Relu", "Tanh", "Sigmoid"])), ["a"], ["b"])]
    nodes += [helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2])]
    nodes += [helper.make_node("Flatten", ["c"], ["d"]), helper.make_node("Gemm", ["d", "fc1.weight"], ["e"])]
    nodes += [helper.make_node("Relu", ["e"], ["f"]), helper.make_node("Gemm", ["f", "fc2.weight"], ["y"])]
    weights = {"conv.weight": floats(channels, 2, 3, 3), "conv.bias": floats(channels)}
    weights |= {"fc1.weight": 0.2 * floats(channels * (size // 2) ** 2, 12), "fc2.weight": 0.4 * floats(12, classes)}
    return model_of(nodes, {"x": ["batch", 2, size, size]}, ["y"], weights)


def written_out() -> onnx.ModelProto:
    """A Reshape of a fixed batch: the part's has a shape of its own."""
    nodes = [helper.make_node("Reshape", ["x", "to"], ["a"]), helper.make_node("Gemm", ["a", "fc.weight"], ["y"])]
    return model_of(nodes, {"x": [8, 2, 3]}, ["y"], {"to": np.array([8, 6]), "fc.weight": floats(6, 4)})


def step(model: Any, parts: int, optimizer: str = "none", **more: Any) -> po.Problem:
    loaded = po.load(model, batch=8, micro_batch=parts)
    return loaded.differentiate(optimizer=optimizer).cost("a72", runtime="onnxruntime", **more)


def executed(problem: po.Problem, batch: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Loss and gradients of ordinary training's order, and the batch that they are of."""
    assert problem.graph is not None
    batch = random_batch(problem.graph.whole, 3) if batch is None else batch
    with ScheduledStep(lay_out(store_all(problem))) as ran:
        loss = ran.run(batch)
        return {"loss": np.array(loss), **{name: np.array(g) for name, g in ran.gradients.items()}}, batch


def tight(problem: po.Problem, spare: int) -> Plan:
    """A schedule in little more than the least RAM, as heuristics find it."""
    found = known_schedule(problem, engine_options(problem, SolvingOptions(ram=problem.least_ram_bytes + spare)))
    assert found is not None
    return found.plan


def close(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=TOLERANCE * np.abs(value).max(), err_msg=name)


@pytest.mark.parametrize(("name", "parts"), [("lenet", 4), (0, 2), (1, 8), (None, 4)])
def test_gradients_and_loss_of_the_parts_are_those_of_the_whole_batch(name: str | int | None, parts: int) -> None:
    model = name if isinstance(name, str) else written_out() if name is None else network(name)
    split, batch = executed(step(model, parts))
    whole, _ = executed(step(model, 1), batch)
    close(split, whole)
    assert len(whole) > (1 if name is None else 4)


def test_the_file_of_a_part_takes_the_sums_of_those_before(tmp_path: Any) -> None:
    """And the running statistics, by onnxruntime alone."""
    loaded = po.load(network(1), batch=8, micro_batch=2)
    assert isinstance(loaded, po.Model)
    graph = loaded.training_graph()
    save_model(graph.joint, tmp_path / "part.onnx")
    session = InferenceSession(tmp_path / "part.onnx", providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    said = json.loads(session.get_modelmeta().custom_metadata_map["poetopt.carried"])
    assert {one.name for one in session.get_overridable_initializers()} == {*said} == {*graph.sums.values()}
    batch, lasting = random_batch(graph.whole, 3), dict[str, Any]()
    for part in cut(graph, batch):
        found = dict(zip(names, session.run(None, {**part, **lasting}), strict=True))
        lasting = {old: found[new] for old, new in said.items()}
    whole, _ = executed(step(network(1), 1), batch)
    for name, made in graph.gradients.items():
        np.testing.assert_allclose(found[made], whole[name], atol=TOLERANCE * np.abs(whole[name]).max(), rtol=0)


@pytest.mark.parametrize(("optimizer", "parameters"), [("none", "resident"), ("adam", "paged")])
def test_steps_are_those_of_the_unscheduled_accumulation_and_of_the_whole_batch(
    optimizer: str, parameters: str
) -> None:
    model = network(1)
    problem = step(model, 4, optimizer, parameters=parameters)
    if parameters == "paged":
        plan = tight(problem, 6000)
        assert plan.problem.lasting
        assert po.simulate(plan).page_ins
    else:
        plan = lay_out(store_all(problem))
    size = problem.graph.tensors["x"].shape if problem.graph else ()
    data = {"x": floats(24, *size[1:]), "labels": np.random.default_rng(0).integers(0, 3, 24)}
    mine = po.train(plan, 4, 0.05, data=data, check=1)
    assert mine.bit_identical, mine.message
    whole = po.train(lay_out(store_all(step(model, 1, optimizer))), 4, 0.05, data=data)
    np.testing.assert_allclose(mine.losses, whole.losses, rtol=1e-5)
    assert set(mine.values) == set(whole.values)
    value: Any
    for name, value in whole.values.items():
        found: Any = mine.values[name]
        np.testing.assert_allclose(found, value, rtol=0, atol=2e-5 * np.abs(value).max(), err_msg=name)


def test_energy_and_time_are_those_of_all_parts_and_the_updates() -> None:
    """Counted again from the instructions, with the costs of a problem whose batch is a part."""
    problem = step(network(0), 4, "sgd", parameters="paged")
    plan = tight(problem, 600)
    loaded = po.load(network(0), batch=2, micro_batch=1).differentiate(optimizer="sgd")
    one = {held.name: held for held in loaded.cost("a72", parameters="paged").tensors}
    kept = {problem.tensors[i].name for i in plan.problem.lasting}
    wanted, sums = 0.0, 0
    for action, target in ((given.action, given.target) for given in plan.instructions):
        held = problem.tensors[target]
        like = one.get(held.name.removesuffix(".grad.sum"), held)
        if action in ("page_in", "page_out"):
            unread = action == "page_in" and held.name.endswith(".grad.sum")  # zero in the first part
            sums += unread
            assert getattr(held, f"{action}_j") == pytest.approx((4 - unread) * getattr(like, f"{action}_j"))
            wanted += (4 - unread) * getattr(like, f"{action}_j")
        elif action == "compute":
            wanted += problem.operators[target].energy_j
    assert problem.closing is not None
    read = {given.target for given in plan.instructions if given.action == "page_in"}
    again = {problem.tensors[i].name for i in plan.problem.lasting if i in read and problem.tensors[i].updated_by < 0}
    for held in problem.closing.tensors:
        wanted += 0.0 if held.name in kept else held.page_in_j
        stays = held.name in kept - again or held.name.endswith(".grad.sum")
        wanted += 0.0 if stays else held.page_out_j
    assert sums > 2
    wanted += problem.closing.baseline_energy_j
    assert po.simulate(plan).energy_j == pytest.approx(wanted)


def test_updates_that_stream_give_the_bits_of_the_unscheduled_accumulation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OnnxRuntime, "chunk_bytes", 256)
    nodes = [helper.make_node("Gemm", ["x", "a"], ["b"]), helper.make_node("Relu", ["b"], ["c"])]
    nodes += [helper.make_node("Gemm", ["c", "d"], ["e"]), helper.make_node("Relu", ["e"], ["f"])]
    nodes += [helper.make_node("Gemm", ["f", "g"], ["y"])]
    weights = {"a": 0.1 * floats(64, 256), "d": 0.1 * floats(256, 128), "g": 0.1 * floats(128, 4)}
    problem = step(model_of(nodes, {"x": ["batch", 64]}, ["y"], weights), 4, "momentum", parameters="paged")
    plan = tight(problem, 4000)
    behind = closing_of(plan.problem, plan.instructions)
    assert behind is not None
    assert sum(given.variant > 0 for given in behind.instructions) > 1
    sums = {i for i, held in enumerate(problem.tensors) if held.zero_first}
    ways = [problem.operators[s.target].variants[s.variant - 1] for s in plan.instructions if s.variant]
    assert any(sums.intersection(way.streamed_in) for way in ways)
    mine = po.train(plan, 2, 0.05, check=1)
    assert mine.bit_identical, mine.message
    said = po.simulate(plan)
    assert said.streamed_runs == 4 * len(ways) + behind.simulation.streamed_runs
    moved = sum(4 * (way.read_bytes + way.written_bytes) - way.zero_first_bytes for way in ways)
    assert said.bytes_streamed == moved + behind.simulation.bytes_streamed


def words() -> onnx.ModelProto:
    nodes = [helper.make_node("Gather", ["words", "ids"], ["a"]), helper.make_node("Tanh", ["a"], ["b"])]
    nodes += [helper.make_node("ReduceMean", ["b"], ["c"], axes=[1], keepdims=0)]
    nodes += [helper.make_node("Gemm", ["c", "out"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "words",
        [helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["batch", 3])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(floats(90, 8), "words"), onnx.numpy_helper.from_array(floats(8, 3), "out")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_tables_by_rows_have_the_rows_of_all_parts(optimizer: str) -> None:
    """The parts use words of each other, one by a negative number; all of it as the whole batch does."""

    def made(parts: int, parameters: str) -> po.Problem:
        loaded = po.load(words(), batch=8, micro_batch=parts)
        training = loaded.differentiate(optimizer=optimizer, lazy_tables=optimizer != "sgd")
        return training.cost("a72", runtime="onnxruntime", parameters=parameters)

    problem = made(4, "paged")
    sizes = {held.name: held.nbytes for held in problem.tensors}
    assert sizes["words"] == sizes["words.grad.sum"] == 8 * 3 * 8 * 4
    ids = np.random.default_rng(1).integers(0, 90, (16, 3))
    ids[0] = ids[2] = [3, 3, -1]
    data = {"ids": ids, "labels": np.random.default_rng(0).integers(0, 3, 16)}
    mine = po.train(tight(problem, 200), 4, 0.5, data=data, check=1)
    assert mine.bit_identical, mine.message
    assert mine.values["words"].shape == (90, 8)
    whole = po.train(lay_out(store_all(made(1, "paged"))), 4, 0.5, data=data)
    assert set(mine.values) == set(whole.values)
    value: Any
    for name, value in whole.values.items():
        found: Any = mine.values[name]
        np.testing.assert_allclose(found, value, rtol=0, atol=2e-6 * np.abs(value).max(), err_msg=name)
    changed = np.any(mine.values["words"] != onnx.numpy_helper.to_array(words().graph.initializer[0]), axis=1)
    assert set(np.flatnonzero(changed)) == set((ids % 90).reshape(-1))


def test_a_plan_file_holds_the_parts_and_what_follows_them(tmp_path: Any) -> None:
    onnx.save(network(0), tmp_path / "net.onnx")
    problem = step(tmp_path / "net.onnx", 4, "adam", parameters="paged")
    plan = tight(problem, 600)
    codec.save(plan, tmp_path / "plan.json")
    again = po.load_plan(tmp_path / "plan.json")
    bare = codec.load(tmp_path / "plan.json").plan
    assert again.plan.problem == bare.problem == plan.problem
    assert plan.problem.parts == 4
    assert po.simulate(again.plan) == po.simulate(plan) == po.simulate(bare)
    assert arena_bytes(again.plan) <= problem.least_ram_bytes + 600 - problem.reserve_bytes
    with prepared(tmp_path / "plan.json") as (made, _):
        assert made.fed is not None
        assert {name: len(array) for name, array in made.fed.items()} == {"x": 8, "labels": 8}


def test_what_updates_move_is_part_of_what_is_minimised_and_proven() -> None:
    """With room for all of it but one parameter, five stay in RAM, and the schedule that pages all is far from that."""
    problem = step(network(0), 4, "sgd", parameters="paged")
    found = po.solve(problem, ram=problem.least_ram_bytes + 1500, threads=1, time_limit="60s")
    said: Any = found.to_dict()
    assert found.plan is not None
    assert said["overhead_gap"] < 1e-3
    assert len(found.plan.problem.lasting) == 5
    closing = closing_of(found.plan.problem, found.plan.instructions)
    assert closing is not None
    assert 0 < closing.simulation.overhead_j < said["overhead_j"]
    laid_out = closing_plan(found.plan)
    assert laid_out is not None
    check_layout(laid_out, said["arena_bytes"])


def test_updates_that_do_not_fit_are_refused() -> None:
    problem = step(network(0), 8, "adam", parameters="paged")
    assert problem.closing is not None
    assert problem.closing.least_ram_bytes > replace(problem, closing=None).least_ram_bytes
    with pytest.raises(InfeasibleError, match="needs"):
        po.solve(problem, ram=problem.closing.least_ram_bytes - 1)


def test_statistics_of_a_batch_are_refused_unless_each_part_may_have_its_own() -> None:
    with pytest.raises(ModelError, match=r"'bn1' .* statistics of the whole batch; --micro-batch-statistics"):
        po.load("resnet18-cifar", batch=4, micro_batch=2)
    model = normalized()
    with pytest.raises(ModelError, match="statistics of the whole batch"):
        po.load(model, batch=8, micro_batch=2)
    loaded = po.load(model, batch=8, micro_batch=2, micro_batch_statistics=True)
    problem = loaded.differentiate(optimizer="sgd").cost("a72", runtime="onnxruntime")
    ran = po.train(lay_out(store_all(problem)), 3, 0.1, check=1)
    assert ran.bit_identical, ran.message
    assert not np.array_equal(ran.values["bn.mean"], np.zeros(3))


def normalized() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "conv.weight"], ["a"]),
        helper.make_node(
            "BatchNormalization", ["a", "bn.weight", "bn.bias", "bn.mean", "bn.var"], ["b", "m", "v"], training_mode=1
        ),
        helper.make_node("Flatten", ["b"], ["c"]),
        helper.make_node("Gemm", ["c", "fc.weight"], ["y"]),
    ]
    weights = {"conv.weight": floats(3, 2, 3, 3), "bn.weight": np.ones(3, np.float32), "fc.weight": floats(48, 4)}
    weights |= {"bn.bias": floats(3), "bn.mean": np.zeros(3, np.float32), "bn.var": np.ones(3, np.float32)}
    return model_of(nodes, {"x": ["batch", 2, 6, 6]}, ["y"], weights)


HEAD = "float[batch, 4] x, int64[batch] t"
WEIGHTS = "<float[4, 3] w = {1,2,3, 4,5,6, 7,8,9, 1,3,5}>"
MIXED = {
    "ignored labels weigh": (
        f"g ({HEAD}) => (float l) {WEIGHTS} {{ a = MatMul(x, w)\n l = SoftmaxCrossEntropyLoss<ignore_index=2>(a, t) }}",
        "not as a plain mean",
    ),
    "classes weigh": (
        f"g ({HEAD}) => (float l) <float[4, 3] w = {{1,2,3, 4,5,6, 7,8,9, 1,3,5}}, float[3] c = {{1,2,3}}> "
        "{ a = MatMul(x, w)\n l = SoftmaxCrossEntropyLoss(a, t, c) }",
        "not as a plain mean",
    ),
    "a sum": (
        "g (float[batch, 4] x) => (float l) <float[4, 3] w = {1,2,3, 4,5,6, 7,8,9, 1,3,5}> "
        "{ a = MatMul(x, w)\n b = Mul(a, a)\n l = ReduceSum<keepdims=0>(b) }",
        "not as a plain mean",
    ),
    "a root of a mean": (
        "g (float[batch, 4] x) => (float l) <float[4, 3] w = {1,2,3, 4,5,6, 7,8,9, 1,3,5}> "
        "{ a = MatMul(x, w)\n b = Mul(a, a)\n c = ReduceMean<keepdims=0>(b)\n l = Sqrt(c) }",
        "not such a mean",
    ),
    "each with each": (
        "g (float[batch, 4] x) => (float[batch, batch] y) <float[4, 3] w = {1,2,3, 4,5,6, 7,8,9, 1,3,5}> "
        "{ a = MatMul(x, w)\n b = Transpose(a)\n y = MatMul(a, b) }",
        "has shape",
    ),
    "shares of a batch": (
        "g (float[batch, 4] x) => (float[batch, 3] y) <float[4, 3] w = {1,2,3, 4,5,6, 7,8,9, 1,3,5}> "
        "{ a = MatMul(x, w)\n y = Softmax<axis=0>(a) }",
        "combines elements along axis 0",
    ),
    "centred": (
        "g (float[batch, 4] x) => (float[batch, 3] y) "
        "<float[4, 3] w = {1,2,3, 4,5,6, 7,8,9, 1,3,5}, int64[1] z = {0}> "
        "{ a = MatMul(x, w)\n m = ReduceMean<keepdims=1>(a, z)\n y = Sub(a, m) }",
        "not such a mean",
    ),
}


@pytest.mark.parametrize("case", MIXED)
def test_samples_that_are_not_alone_are_refused_with_the_node(case: str) -> None:
    body, why = MIXED[case]
    with pytest.raises(ModelError, match=why):
        po.load(text_model(body), batch=8, micro_batch=2)


def test_a_mean_that_the_model_computes_is_one_over_its_parts() -> None:
    body = f"g ({HEAD}) => (float l) {WEIGHTS} {{ a = MatMul(x, w)\n l = SoftmaxCrossEntropyLoss(a, t) }}"
    split, batch = executed(step(text_model(body), 4))
    whole, _ = executed(step(text_model(body), 1), batch)
    close(split, whole)


def test_a_number_of_parts_that_does_not_divide_the_batch_is_refused_with_those_that_do() -> None:
    with pytest.raises(OptionError, match=r"a batch of 8 can't be split into 3 equal parts\. Give one of 1, 2, 4, 8"):
        po.load("lenet", batch=8, micro_batch=3)
    for parts in (0, "auto"):
        with pytest.raises(OptionError, match=r"micro.batch.*must be a whole number"):
            po.load("lenet", batch=8, micro_batch=parts)  # type: ignore[arg-type]


def test_inspect_says_what_a_part_takes_and_what_binds() -> None:
    said: Any = po.inspect(network(0), device="m4", runtime="c", batch=8, micro_batch=4).to_dict()
    loaded = po.load(network(0), batch=8, micro_batch=4).differentiate()
    problem, paged = (loaded.cost("m4", runtime="c", parameters=parameters) for parameters in ("resident", "paged"))
    assert said["micro_batches"] == 4
    assert said["training"]["ram_bound_bytes"] == problem.least_ram_bytes
    assert sum(said["resident"].values()) == problem.resident_bytes
    assert said["paged"]["total_ram_bound_bytes"] == paged.least_ram_bytes + paged.beside_bytes
    assert said["paged"]["least_total_ram_bytes"] >= said["paged"]["total_ram_bound_bytes"]


def test_updates_that_take_the_most_are_named() -> None:
    problem = step(network(0), 8, "adam", parameters="paged")
    assert problem.closing is not None
    found = needs(problem)
    assert found.binding_operator in {operator.name for operator in problem.closing.operators}
    assert found.ram_bound_bytes == problem.closing.least_ram_bytes == problem.least_ram_bytes
    assert sum(nbytes for _, _, nbytes in found.peak) == found.store_all_peak_bytes


def test_auto_takes_the_number_of_parts_of_least_energy() -> None:
    """The numbers are solved one by one here; the whole batch fits too, and pages."""
    given: dict[str, Any] = {"device": "m4", "batch": 8, "ram": 18_000, "threads": 1, "time_limit": "20s"}
    energies = {k: po.solve(network(0), micro_batch=k, **given).to_dict()["energy_j"] for k in (1, 2, 4, 8)}
    said: Any = po.solve(network(0), micro_batch="auto", **given).to_dict()
    assert said["energy_j"] == min(energies.values())  # type: ignore[type-var]
    assert energies[said["micro_batches"]] == said["energy_j"]
    assert said["micro_batches"] > 1
    assert [one["micro_batches"] for one in said["micro_batches_tried"]] == [1, 2, 4, 8]
    for one in said["micro_batches_tried"]:
        assert one["why"] if one["energy_j"] is None else one["energy_j"] == energies[one["micro_batches"]]


RULES: list[dict[str, Any]] = [
    {"ignore_index": -100}, {"class_weights": [1.0, 3.0, 0.5]},
    {"ignore_index": -100, "class_weights": [1.0, 0.0, 2.0], "label_smoothing": 0.2},
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_the_mean_over_labels_that_count_is_that_of_the_whole_batch(rule: Mapping[str, Any]) -> None:
    """One part has no label that counts, another has all of them; the parts are weighed by what they have."""
    nodes = [helper.make_node("Gemm", ["x", "fc.weight"], ["a"]), helper.make_node("Tanh", ["a"], ["y"])]
    model = model_of(nodes, {"x": ["batch", 6]}, ["y"], {"fc.weight": floats(6, 3)})
    labels = np.array([0, 1, 2, 2, 1, 0, 0, 1])
    labels[:3] = -100 if "ignore_index" in rule else 0
    batch = {"x": floats(8, 6), "labels": labels}

    def made(parts: int, runtime: str = "onnxruntime") -> po.Problem:
        loaded = po.load(model, batch=8, micro_batch=parts)
        return loaded.differentiate(loss="cross-entropy", **rule).cost("a72", runtime=runtime)

    wanted, _ = executed(made(1), batch)
    for parts in (2, 4, 8):
        found, _ = executed(made(parts), batch)
        close(found, wanted)
    assert made(2).graph.whole.inputs == ("x", "labels")  # type: ignore[union-attr]
    with pytest.raises(OptionError, match=r"on the runtime c a batch comes part by part. Leave --micro-batch out"):
        made(2, "c")
