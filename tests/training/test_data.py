"""Data sets give the rows that were written, however they were; what is wrong is one message that says where."""

from __future__ import annotations

import csv
import os
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import poetopt as po
from poetopt.graph import TrainingGraph
from poetopt.training.data import open_data
from poetopt.training.source import rows_in_order, source_of
from poetopt.util.errors import ModelError
from poetopt.util.progress import silent
from tests.training.support import Data, graph_of, plan_of, rows

GRAPH = graph_of(plan_of("lenet"))
SOME = np.array([6, 0, 1, 2, 9, 9, 3])


def same(found: Any, data: Data, taken: Any = SOME) -> None:
    assert set(found) == set(data)
    for name, array in found.items():
        np.testing.assert_array_equal(array, data[name][taken])


def shards(folder: Path, data: Data) -> Path:
    folder.mkdir()
    for k, (first, last) in enumerate([(0, 3), (3, 4), (4, 11)]):
        np.savez(folder / f"part{k}.npz", **{name: array[first:last] for name, array in data.items()})
    return folder


def table(path: Path, data: Data) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["labels", *(f"pixel{k}" for k in range(784))])
        for label, image in zip(data["labels"], data["input"].reshape(-1, 784), strict=True):
            writer.writerow([label, *(repr(float(value)) for value in image)])
    return path


def test_all_ways_give_the_same_rows(tmp_path: Path) -> None:
    data = rows(plan_of("lenet"), 11)
    np.savez(tmp_path / "plain.npz", extra=np.zeros(3), **data)
    np.savez_compressed(tmp_path / "packed.npz", **data)
    np.savez(tmp_path / "turned.npz", input=np.asfortranarray(data["input"]), labels=data["labels"].astype(np.int32))
    ways: list[Any] = [data, *(tmp_path / f"{name}.npz" for name in ("plain", "packed", "turned"))]
    digests: list[str] = []
    for way in [*ways, shards(tmp_path / "shards", data), table(tmp_path / "table.csv", data)]:
        opened = open_data(way, GRAPH, tmp_path)
        assert opened.rows == 11
        digests.append(opened.check())
        same(opened.take(SOME), data)
    plain, packed, turned = digests[1:4]
    assert digests[0] == plain == packed == digests[5] != turned  # whose labels have another type
    data["input"][7, 0, 3, 3] += 1
    assert open_data(data, GRAPH).check() != plain
    assert {path.name for path in tmp_path.iterdir()} == {"plain.npz", "packed.npz", "turned.npz", "shards",
                                                          "table.csv"}  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("make", [os.mkfifo, lambda place: place.symlink_to("/dev/zero")], ids=["pipe", "device"])
@pytest.mark.parametrize("name", ["x.npz", "x.csv", "shards/x.npz", "images/a/x.png"])
def test_pipes_and_devices_are_refused_by_name_and_never_opened(name: str, make: Any, tmp_path: Path) -> None:
    if name.startswith("images"):
        pytest.importorskip("PIL.Image")
    place = tmp_path / name
    place.parent.mkdir(parents=True, exist_ok=True)
    make(place)
    way = place if place.parent == tmp_path else tmp_path / name.partition("/")[0]
    with pytest.raises(ModelError, match=rf"{re.escape(str(place))}.*it is a pipe or a device"):
        open_data(way, GRAPH).take(np.arange(1))


def bad(name: str, change: Any) -> Data:
    data = rows(plan_of("lenet"), 9)
    data[name] = change(data[name])
    return data


def put(value: object, *at: int) -> Any:
    def change(array: Any) -> Any:
        array[at] = value
        return array

    return change


WRONG: list[tuple[Data, str]] = [
    (bad("input", put(np.nan, 7, 0, 3, 3)), r"row 7: 'input' holds NaN"),
    (bad("input", put(-np.inf, 0, 0, 0, 0)), r"row 0: 'input' holds infinity"),
    (bad("labels", put(10, 8)), r"row 8: 'labels' holds the label 10; with 10 to choose from it must lie in 0\.\.9"),
    (bad("labels", put(-1, 2)), r"row 2: 'labels' holds the label -1"),
    (bad("labels", lambda a: a.astype(float)), r"'labels' has type float64; it must be int64"),
    (bad("input", lambda a: a.astype(np.float64)), r"'input' has type float64; it must be float32"),
    (bad("input", lambda a: a[:, 0]), r"'input' has shape \[9, 28, 28\]; it must be 'input'"),
    (bad("labels", lambda a: np.eye(10)[a]), r"'labels' has shape \[9, 10\]; it must be .* plan it with --loss none"),
    (bad("labels", lambda a: a[:5]), r"'input' has 9 rows, and 'labels' 5"),
    (bad("labels", lambda a: a[:2]), r"'input' has 9 rows, and 'labels' 2"),
    ({name: array[:0] for name, array in rows(plan_of("lenet"), 3).items()}, "it holds no rows"),
    ({"input": rows(plan_of("lenet"), 9)["input"]}, r"the data lacks 'labels'.*it has 'input'"),
]


@pytest.mark.parametrize("form", ["arrays", "npz", "shard"])
@pytest.mark.parametrize(("data", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_wrong_is_one_message_with_its_place(data: Data, message: str, form: str, tmp_path: Path) -> None:
    way: Any = data
    if form != "arrays":
        way = tmp_path / "data.npz" if form == "npz" else tmp_path
        np.savez(tmp_path / "data.npz", **data)
        if form == "shard":
            np.savez(tmp_path / "a.npz", **rows(plan_of("lenet"), 4))
    with pytest.raises(ModelError, match=message) as raised:
        open_data(way, GRAPH).check()
    shown = "the data" if form == "arrays" else str(tmp_path / "data.npz")
    assert str(raised.value).startswith(shown)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_no_more_than_a_batch_is_in_memory(save: Any, tmp_path: Path) -> None:
    save(tmp_path / "large.npz", input=np.zeros((8000, 1, 28, 28), np.float32), labels=np.zeros(8000, np.int64))
    tracemalloc.start()
    try:
        source = source_of(tmp_path / "large.npz", GRAPH, "shuffle", 0)
        source.check(silent)
        for _, batch in zip(range(100), source.epoch(0), strict=False):
            assert batch["input"].nbytes == 2 * 28 * 28 * 4
        assert tracemalloc.get_traced_memory()[1] < 8000 * 28 * 28
    finally:
        tracemalloc.stop()


def test_batches_are_whole_and_go_on_in_the_middle_of_an_epoch() -> None:
    data = rows(plan_of("lenet"), 11)
    source = source_of(data, GRAPH, "shuffle", 3)
    assert (source.batches, source.left_out) == (5, 1)
    order = rows_in_order(11, "shuffle", 3, 1)
    batches = list(source.epoch(1))
    for k, batch in enumerate(batches):
        same(batch, data, order[2 * k : 2 * k + 2])
    for ahead, batch in zip(batches[3:], source.epoch(1, 3), strict=True):
        np.testing.assert_array_equal(ahead["input"], batch["input"])
    with pytest.raises(ModelError, match=r"holds 1 rows, and a batch of this plan has 2; .*--batch 1"):
        source_of({name: array[:1] for name, array in data.items()}, GRAPH, "shuffle", 3)


TOKENS = 5


def model(classes: int = 300) -> Any:
    """Scores of the next token, from a table."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"]),
        helper.make_node("MatMul", ["x", "head"], ["scores"]),
    ]
    draw = np.random.default_rng(0)
    shapes = {"table": (classes, 8), "head": (8, classes)}
    weights = [numpy_helper.from_array(draw.standard_normal(s, np.float32), n) for n, s in shapes.items()]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [2, TOKENS])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [2, TOKENS, classes])
    return helper.make_model(
        helper.make_graph(nodes, "next", [ids], [scores], weights), opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )  # fmt: skip


def step(classes: int = 300) -> TrainingGraph:
    loaded = po.load(model(classes))
    assert isinstance(loaded, po.Model)
    return loaded.differentiate(loss="cross-entropy").graph


def write(path: Path, ids: Any) -> Path:
    if path.suffix == ".npy":
        np.save(path, ids)
    else:
        path.write_bytes(ids.astype("<u2" if path.suffix == ".bin" else np.uint8).tobytes())
    return path


@pytest.mark.parametrize(
    ("name", "dtype"), [("x.npy", "uint16"), ("x.npy", "int64"), ("x.bin", "uint16"), ("x.txt", "uint8")]
)
@pytest.mark.parametrize("count", [16, 18, 20])
def test_windows_and_the_next_tokens(name: str, dtype: str, count: int, tmp_path: Path) -> None:
    ids = np.random.default_rng(count).integers(0, 256, count).astype(dtype)
    opened = open_data(write(tmp_path / name, ids), step())
    assert opened.rows == 3  # 20 ids end without a label for the last
    assert opened.check() == open_data(tmp_path / name, step()).check()
    for row in range(3):
        found = opened.take(np.array([row]))
        begin = row * TOKENS
        np.testing.assert_array_equal(found["ids"][0], ids[begin : begin + TOKENS])
        np.testing.assert_array_equal(found["labels"][0], ids[begin + 1 : begin + TOKENS + 1])
