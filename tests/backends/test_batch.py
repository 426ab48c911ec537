"""Batches: drawn within what labels and indices choose from, and checked where they come from outside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from poetopt.backends.onnxruntime import check_batch, load_batch, random_batch
from poetopt.frontends import load
from poetopt.graph import Graph, Node, Operator, Role, Tensor, TrainingGraph
from poetopt.util.errors import ModelError, OptionError
from tests.backends.support import embedding, problem_of


@pytest.fixture(scope="module")
def graph() -> TrainingGraph:
    found = problem_of(load(embedding())).graph
    assert found is not None
    return found


def test_random_values_are_sensible(graph: TrainingGraph) -> None:
    drawn = [random_batch(graph, seed) for seed in range(40)]
    ids = np.concatenate([batch["ids"] for batch in drawn])
    labels = np.concatenate([batch["labels"] for batch in drawn])
    values = np.concatenate([batch["input"] for batch in drawn])
    assert (ids.min(), ids.max()) == (0, 10)
    assert (labels.min(), labels.max()) == (0, 3)
    assert abs(values.mean()) < 0.1
    assert abs(values.std() - 1) < 0.1
    assert all(batch[name].dtype == graph.tensors[name].dtype for batch in drawn for name in graph.inputs)


def test_the_same_seed_draws_the_same(graph: TrainingGraph) -> None:
    first, again, other = random_batch(graph, 1), random_batch(graph, 1), random_batch(graph, 2)
    assert all(np.array_equal(first[name], again[name]) for name in graph.inputs)
    assert not np.array_equal(first["input"], other["input"])
    with pytest.raises(OptionError, match="--seed -1"):
        random_batch(graph, -1)


def test_what_is_given_is_taken(graph: TrainingGraph) -> None:
    given = {**random_batch(graph, 4), "loss": np.zeros(3)}
    given["ids"] = given["ids"].astype(np.int32) - 1  # another width, and an index from the end
    checked = check_batch(graph, given)
    assert checked.keys() == set(graph.inputs)
    assert checked["ids"].dtype == np.int64
    assert all(np.array_equal(checked[name], given[name]) for name in graph.inputs)
    assert all(array.ctypes.data % 64 == 0 for array in checked.values())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("input", np.zeros((3, 4, 7), np.float32), r"'input' has shape \[3, 4, 7\]; it must be .*\[3, 4, 6\]"),
        ("input", np.zeros((3, 4, 6)), r"has type float64; it must be 'input' \(float32"),
        ("ids", np.zeros((3, 4), np.float32), "'ids' has type float32"),
        ("ids", np.full((3, 4), 11), r"'ids' holds the index 11; with 11 to choose from it must lie in -11\.\.10"),
        ("ids", np.full((3, 4), 2**63, np.uint64), "'ids' has type uint64"),
        ("labels", np.array([0, 4, 1]), r"holds the label 4; .* must lie in 0\.\.3"),
        ("labels", np.array([0, -1, 1]), "holds the label -1"),
        ("labels", [[0], [1, 2]], "'labels' is no array"),
    ],
)
def test_what_doesn_t_fit_is_named(graph: TrainingGraph, name: str, value: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        check_batch(graph, {**random_batch(graph), name: value})


def test_missing_arrays_are_named(graph: TrainingGraph) -> None:
    with pytest.raises(ModelError, match=r"lacks 'input' .*, 'labels' .*; it has 'ids' \(.*, 'x'"):
        check_batch(graph, {"x": 1, "ids": random_batch(graph)["ids"]})


def test_files(graph: TrainingGraph, tmp_path: Path) -> None:
    batch = random_batch(graph)
    np.savez(tmp_path / "batch.npz", **batch)  # type: ignore[arg-type]
    read = load_batch(tmp_path / "batch.npz")
    assert all(np.array_equal(read[name], batch[name]) for name in batch)
    with pytest.raises(ModelError, match="can't read"):
        load_batch(tmp_path / "missing.npz")
    (tmp_path / "text.npz").write_text("no zip")
    with pytest.raises(ModelError, match=r"is no \.npz file"):
        load_batch(tmp_path / "text.npz")
    np.save(tmp_path / "one.npy", batch["input"])
    with pytest.raises(ModelError, match=r"is no \.npz file"):
        load_batch(tmp_path / "one.npy")
    whole = (tmp_path / "batch.npz").read_bytes()
    (tmp_path / "short.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=r"is no \.npz file"):
        load_batch(tmp_path / "short.npz")
    damaged = bytearray(whole)
    damaged[whole.index(batch["input"].tobytes()) + 8] ^= 1
    (tmp_path / "damaged.npz").write_bytes(damaged)
    with pytest.raises(ModelError, match=r"is no \.npz file of plain arrays"):
        load_batch(tmp_path / "damaged.npz")
    np.savez(tmp_path / "objects.npz", input=np.array([{}], object))
    with pytest.raises(ModelError, match="plain arrays"):
        load_batch(tmp_path / "objects.npz")


def test_lengths_of_sequences_are_lengths() -> None:
    shapes = {"x": (5, 3, 2), "w": (1, 2, 2), "r": (1, 2, 2), "y": (5, 1, 3, 2)}
    tensors = {name: Tensor(name, shape, "float32", Role.INPUT) for name, shape in shapes.items()}
    tensors |= {name: Tensor(name, (3,), kind, Role.INPUT) for name, kind in (("n", "int64"), ("m", "int32"))}
    cast = Operator("cast", "Cast", (Node("Cast", ("n",), ("m",), {"to": 6}),), ("n",), ("m",))
    layer = Operator("rnn", "RNN", (Node("RNN", ("x", "w", "r", "", "m"), ("y",)),), ("x", "w", "r", "m"), ("y",))
    graph = Graph(
        name="g", tensors=tensors, operators=(cast, layer), inputs=("x", "n"), outputs=("y",), values={}, trained=(),
        opset=18,
    )  # fmt: skip
    drawn = np.concatenate([random_batch(graph, seed)["n"] for seed in range(40)])
    assert (drawn.min(), drawn.max()) == (1, 5)
    assert drawn.dtype == np.int64
    for wrong in (6, -1):
        with pytest.raises(ModelError, match=r"'n' holds lengths of sequences, which must lie in 0\.\.5"):
            check_batch(graph, {**random_batch(graph), "n": np.array([1, wrong, 2])})
