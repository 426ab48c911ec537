"""Tables by the rows of a batch: the same training as with whole tables, and plans that move rows alone."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import poetopt as po
from poetopt.autodiff.passes.rows import by_rows, taken
from poetopt.backends.onnxruntime import TrainingRun
from poetopt.plan.assemble import store_all
from poetopt.plan.layout import lay_out

WORDS, WIDTH, LENGTH, CLASSES = 40, 8, 6, 3


@cache
def model(width: int = WIDTH) -> onnx.ModelProto:
    """Words and their places, added; a mean over the words, and classes."""
    rng = np.random.default_rng(5)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 4, name)

    nodes = [
        helper.make_node("Gather", ["words", "ids"], ["word"], "embed"),
        helper.make_node("Gather", ["places", "where"], ["place"], "position"),
        helper.make_node("Add", ["word", "place"], ["both"], "sum"),
        helper.make_node("Tanh", ["both"], ["bent"], "bend"),
        helper.make_node("ReduceMean", ["bent"], ["mean"], "mean", axes=[1], keepdims=0),
        helper.make_node("Gemm", ["mean", "out.weight", "out.bias"], ["y"], "out"),
    ]
    graph = helper.make_graph(
        nodes,
        "words",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [2, LENGTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, CLASSES])],
        [weight("words", WORDS, width), weight("places", 2 * LENGTH, width), weight("out.weight", width, CLASSES),
         weight("out.bias", CLASSES), numpy_helper.from_array(np.arange(LENGTH), "where")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def training() -> po.Training:
    found = po.load(model(), train="*").differentiate(optimizer="sgd")
    assert isinstance(found, po.Training)
    return found


def batches() -> dict[str, np.ndarray]:
    """Four batches; some words come twice, one is counted from the end."""
    rng = np.random.default_rng(2)
    ids = rng.integers(0, WORDS, (8, LENGTH))
    ids[0, 0] = ids[0, 1] = 3
    ids[1, 2] = -1
    return {"ids": ids, "labels": rng.integers(0, CLASSES, 8)}


def test_tables_have_room_for_the_rows_of_a_batch() -> None:
    whole = po.load(model(), train="*")
    assert isinstance(whole, po.Model)
    rows = by_rows(whole.graph)
    assert set(rows.rows) == {"words", "places"}
    assert rows.tensors["words"].shape == (2 * LENGTH, WIDTH)
    assert rows.tensors["places"].shape == (LENGTH, WIDTH)
    ids = batches()["ids"][:2]
    read, used = taken(rows, {"ids": ids})
    np.testing.assert_array_equal(used["words"][read["ids"]], ids % WORDS)
    assert used["places"].tolist() == list(range(LENGTH))


@pytest.mark.parametrize(("optimizer", "most"), [("momentum", 1e-6), ("adamw", 2e-6)])
def test_lazy_tables_are_dense_ones_for_rows_in_use_and_stay_for_others(optimizer: str, most: float) -> None:
    """Every word in each step: as without; the words of the first step alone: the second leaves them, and moments."""
    found = po.load(model(), train="*")
    lazy = found.differentiate(optimizer=optimizer, lazy_tables=True).cost("a72", parameters="paged")
    assert lazy.graph is not None
    states = {name for name, rows in lazy.graph.rows.items() if rows.of == "words"}
    assert len(states) == {"momentum": 1, "adamw": 2}[optimizer]
    assert any(note.startswith("lazy: a row of words, places") for note in lazy.notes)
    plan = lay_out(store_all(lazy))
    dense = lay_out(store_all(found.differentiate(optimizer=optimizer).cost("a72", parameters="paged")))
    ids = np.arange(2 * LENGTH).reshape(2, LENGTH)
    labels = np.array([0, 1, 2, 1])

    def after(plan: po.Plan, rows: list[np.ndarray]) -> TrainingRun:
        run = po.train(plan, 2, 0.5, data={"ids": np.concatenate(rows), "labels": labels}, check=1)
        assert run.bit_identical
        return run

    same, whole = after(plan, [ids, ids]), after(dense, [ids, ids])
    used = slice(0, 2 * LENGTH)
    for name in ("words", *states):
        assert np.abs(np.subtract(same.values[name][used], whole.values[name][used])).max() <= most
    once = po.train(plan, 1, 0.5, data={"ids": ids, "labels": labels[:2]})
    other, moved = after(plan, [ids, ids + 2 * LENGTH]), after(dense, [ids, ids + 2 * LENGTH])
    for name in ("words", *states):
        np.testing.assert_array_equal(other.values[name][used], once.values[name][used])
        assert not np.array_equal(moved.values[name][used], once.values[name][used])


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_training_by_rows_is_training_with_whole_tables(share: float) -> None:
    """Four steps: every loss, and each row of each table at the end."""
    resident = training().cost("a72")
    expected = po.train(lay_out(store_all(resident)), 4, 0.5, data=batches())
    problem = training().cost("a72", parameters="paged")
    most = po.store_all_peak_bytes(problem)
    ram = int(problem.least_ram_bytes + share * (most - problem.least_ram_bytes))
    report = po.solve(problem, ram=ram, threads=1, time_limit="20s")
    assert report.plan is not None
    found = po.train(report.plan, 4, 0.5, data=batches(), check=1)
    assert found.bit_identical
    assert found.losses == expected.losses
    for name in ("words", "places", "out.weight", "out.bias"):
        np.testing.assert_array_equal(found.values[name], expected.values[name])
    assert po.execute(report.plan, data={name: array[:2] for name, array in batches().items()}).ok


def test_rows_are_moved_one_by_one_and_never_kept() -> None:
    problem = training().cost("m4", runtime="onnxruntime", parameters="paged")
    (words,) = (tensor for tensor in problem.tensors if tensor.name == "words")
    device = po.device("m4")
    assert words.of_batch
    assert words.page_in_j == pytest.approx(2 * LENGTH * device.page_in_j(4 * WIDTH))
    plan = store_all(problem)
    assert words.page_in_j + words.page_out_j <= po.simulate(plan).overhead_j
    assert not any(plan.problem.tensors[i].of_batch for i in plan.problem.lasting)
    report = po.solve(problem, ram=po.store_all_peak_bytes(problem))
    assert report.status == "optimal"
    assert report.solution.scope_bound_j == pytest.approx(po.simulate(plan).overhead_j)
