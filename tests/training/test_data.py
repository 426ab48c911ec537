"""Data sets give the rows that were written, however they were; what is wrong is one message that says where."""

from __future__ import annotations

import csv
import os
import re
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poetopt.training.data import open_data
from poetopt.training.source import rows_in_order, source_of
from poetopt.util.errors import BackendUnavailableError, ModelError, OptionError
from poetopt.util.progress import silent
from tests.support.training import Data, graph_of, plan_of, rows

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
    assert {path.name for path in tmp_path.iterdir()} == {
        "plain.npz",
        "packed.npz",
        "turned.npz",
        "shards",
        "table.csv",
    }


def test_images_of_a_folder_for_each_class(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (4, 28, 28), np.uint8)
    for k, name in enumerate(["b/1.png", "b/0.png", "a/x.PNG", "a/y.bmp"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        image.fromarray(pixels[k]).save(tmp_path / name)
    opened = open_data(tmp_path, GRAPH)
    found = opened.take(np.arange(4))
    assert found["labels"].tolist() == [0, 0, 1, 1]
    np.testing.assert_array_equal(found["input"], (pixels[[2, 3, 1, 0], None] / np.float32(255)).astype(np.float32))
    image.fromarray(pixels[0]).convert("RGB").resize((5, 9)).save(tmp_path / "a/x.PNG")
    assert opened.take(np.arange(1))["input"].shape == (1, 1, 28, 28)
    (tmp_path / "a/y.bmp").write_bytes(b"no image")
    with pytest.raises(ModelError, match=r"a/y\.bmp: the image can't be read"):
        opened.take(np.arange(2))
    (tmp_path / "c").mkdir()
    with pytest.raises(ModelError, match="c: it has no image"):
        open_data(tmp_path, GRAPH)


def test_pillow_starts_no_program_and_reads_few_formats_of_few_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = pytest.importorskip("PIL.Image")
    started: list[Any] = []
    sys.addaudithook(lambda event, given: started.append(given) if event == "subprocess.Popen" else None)
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / "x.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n")
    opened = open_data(tmp_path, GRAPH)
    with pytest.raises(ModelError, match=r"a/x\.png: the image can't be read \(none of BMP, GIF, JPEG, PNG, TIFF, W"):
        opened.take(np.arange(1))
    assert not started
    image.new("1", (8193, 8192)).save(path)
    with pytest.raises(ModelError, match=r"a/x\.png: .*it has 67,117,056 pixels, and at most 67,108,864 are read"):
        opened.take(np.arange(1))


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


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_more_shards_than_files_may_be_open(save: Any, tmp_path: Path) -> None:
    import resource

    data = rows(plan_of("lenet"), 11)
    few, many = resource.getrlimit(resource.RLIMIT_NOFILE)
    for k in range(11):
        save(tmp_path / f"{k:02}.npz", **{name: array[k : k + 1] for name, array in data.items()})
    taken = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 200
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 8, many))
    try:
        opened = open_data(tmp_path, GRAPH, tmp_path)
        same(opened.take(SOME), data)
        opened.check()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, many))


def test_names_of_images_may_be_any_bytes(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "a").mkdir()
    try:
        image.new("L", (28, 28)).save(tmp_path / "a" / "x.png")
        os.rename(tmp_path / "a" / "x.png", os.fsencode(tmp_path / "a") + b"/\xff.png")
    except OSError:
        pytest.skip("names are UTF-8 here")
    assert open_data(tmp_path, GRAPH).check()


def test_what_pillow_warns_of_is_not_said(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        image.new("L", (28, 28)).save(tmp_path / name / "0.tiff")
    path = tmp_path / "dog" / "0.tiff"
    held = bytearray(path.read_bytes())
    first = int.from_bytes(held[4:8], "little") + 2  # of its tags, 12 bytes each
    for at in range(first, len(held) - 12, 12):
        held[at + 2 : at + 8] = b"\x02\x00\xff\xff\x00\x00"  # texts that are longer than the file
    path.write_bytes(held)
    opened = open_data(tmp_path, GRAPH)
    with pytest.raises(ModelError, match=r"0\.tiff: the image can't be read"):
        opened.take(np.arange(2))
    assert not recwarn.list


def test_without_pillow_images_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.png").write_bytes(b"")
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(BackendUnavailableError, match="pip install pillow"):
        open_data(tmp_path, GRAPH)


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
    (bad("labels", lambda a: a.astype(float)), r"'labels' has type float64, and must be int64"),
    (bad("input", lambda a: a.astype(np.float64)), r"'input' has type float64, and must be float32"),
    (bad("input", lambda a: a[:, 0]), r"'input' has shape \[9, 28, 28\]; it must be 'input'"),
    (bad("labels", lambda a: np.eye(10)[a]), r"'labels' has shape \[9, 10\]; it must be .* plan it with --loss none"),
    (bad("labels", lambda a: a[:5]), r"'input' has 9 rows, and 'labels' 5"),
    (bad("labels", lambda a: a[:2]), r"'input' has 9 rows, and 'labels' 2"),
    ({name: array[:0] for name, array in rows(plan_of("lenet"), 3).items()}, "it has no rows"),
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


LINES = {
    "": "it is empty",
    "labels,a\n1,2\n": "it has 1 columns for the input 'input', which has 784 numbers in a row",
    "a,a\n": "two columns are named 'a'",
    "a,b\n1,2\n": "it has no column for the input 'labels'",
    "labels;a\n1;0,5\n": "its columns are separated by ';'. Separate them by commas",
}


@pytest.mark.parametrize(("text", "message"), LINES.items(), ids=list(LINES.values()))
def test_tables_that_fit_no_input(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=f"t.csv: {message}"):
        open_data(tmp_path / "t.csv", GRAPH)


CELLS = [
    (("7", "x"), r"line 3: 'x' in the column 'pixel0' is not a number"),
    (("7", ""), r"line 3: '' in the column 'pixel0' is not a number"),
    (("7", "nan"), r"line 3: 'input' holds NaN"),
    (("10", "1"), r"line 3: 'labels' holds the label 10"),
    (("1.5", "1"), r"line 3: '1\.5' in the column 'labels' is not an integer"),
    (("1e300", "1"), r"line 3: '1e300' in the column 'labels' is not an integer"),
    (("7", "1,1"), r"line 3: it has 786 columns, and the first line names 785"),
]


@pytest.mark.parametrize(("cells", "message"), CELLS, ids=[message for _, message in CELLS])
def test_cells_that_are_no_values(cells: tuple[str, str], message: str, tmp_path: Path) -> None:
    lines = table(tmp_path / "t.csv", rows(plan_of("lenet"), 4)).read_text(encoding="utf-8").splitlines()
    lines[2] = ",".join([*cells, *lines[2].split(",")[2:]])
    (tmp_path / "t.csv").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ModelError, match=f"t.csv, {message}"):
        open_data(tmp_path / "t.csv", GRAPH)


def test_blank_lines_end_a_table_and_stand_nowhere_in_it(tmp_path: Path) -> None:
    data = rows(plan_of("lenet"), 4)
    text = table(tmp_path / "t.csv", data).read_text(encoding="utf-8")
    (tmp_path / "t.csv").write_text(f"{text}\n\n", encoding="utf-8")
    assert open_data(tmp_path / "t.csv", GRAPH).check() == open_data(data, GRAPH).check()
    lines = text.splitlines()
    (tmp_path / "t.csv").write_text("\n".join([*lines[:2], "", *lines[2:]]), encoding="utf-8")
    with pytest.raises(ModelError, match=r"t.csv, line 3: it has 0 columns, and the first line names 785"):
        open_data(tmp_path / "t.csv", GRAPH)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"neither \.npz files nor folders of images"):
        open_data(tmp_path, GRAPH)
    with pytest.raises(ModelError, match=r"can't read .*gone\.npz"):
        open_data(tmp_path / "gone.npz", GRAPH)
    data = rows(plan_of("lenet"), 9)
    np.savez_compressed(tmp_path / "cut.npz", **data)
    whole = (tmp_path / "cut.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:-100])
    with pytest.raises(ModelError, match=r"cut\.npz is no \.npz file"):
        open_data(tmp_path / "cut.npz", GRAPH)
    np.savez(tmp_path / "changed.npz", **data)
    raw = bytearray((tmp_path / "changed.npz").read_bytes())
    raw[5000] ^= 1  # in a number that stays one
    (tmp_path / "changed.npz").write_bytes(raw)
    with pytest.raises(ModelError, match=r"changed\.npz is no \.npz file of plain arrays: Bad CRC-32"):
        open_data(tmp_path / "changed.npz", GRAPH).check()
    np.savez(tmp_path / "shrunk.npz", **data)
    opened = open_data(tmp_path / "shrunk.npz", GRAPH)
    (tmp_path / "shrunk.npz").write_bytes((tmp_path / "shrunk.npz").read_bytes()[:5000])
    with pytest.raises(ModelError, match="shorter since training began"):
        opened.take(SOME[:2])


def test_an_epochs_order_is_of_seed_and_epoch_alone() -> None:
    orders = [rows_in_order(50, "shuffle", seed, epoch).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert rows_in_order(50, "shuffle", 1, 1).tolist() == orders[3]
    assert rows_in_order(5, "sequential", 1, 1).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(OptionError, match="--batch-order random: must be shuffle or sequential"):
        rows_in_order(5, "random", 0, 0)


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
    with pytest.raises(ModelError, match=r"has 1 rows, and a batch of this plan has 2. .*--batch 1"):
        source_of({name: array[:1] for name, array in data.items()}, GRAPH, "shuffle", 3)


def test_batches_of_ones_own() -> None:
    data = rows(plan_of("lenet"), 6)
    pairs = [(data["input"][k : k + 2], data["labels"][k : k + 2]) for k in (0, 2, 4)]
    listed = source_of(pairs, GRAPH, "shuffle", 0)
    assert listed.batches == 3
    for way in (listed, source_of(lambda epoch: iter(pairs), GRAPH, "shuffle", 0)):
        for epoch in (0, 1):
            for (image, _), batch in zip(pairs[1:], way.epoch(epoch, 1), strict=True):
                np.testing.assert_array_equal(batch["input"], image)
    once = source_of(iter(pairs), GRAPH, "shuffle", 0)
    assert len(list(once.epoch(0))) == 3
    with pytest.raises(ModelError, match="epoch 2: the data is an iterator, which yields its batches only once"):
        next(once.epoch(1))
    begun = []

    class Loader:
        def __iter__(self) -> Iterator[Any]:
            begun.append(1)
            return iter(pairs)

    assert len(list(source_of(Loader(), GRAPH, "shuffle", 0).epoch(0))) == 3
    assert len(begun) == 1
    wrong: list[tuple[Any, str]] = [
        (3, "batch 0 of epoch 1: it must be arrays by name, or one array for each of 'input', 'labels'"),
        ({"input": data["input"]}, "batch 0 of epoch 1: it lacks the input 'labels'"),
        ((np.full((2, 1, 28, 28), np.nan, np.float32), [0, 1]), "batch 0 of epoch 1: 'input' holds NaN"),
    ]
    for given, message in wrong:
        with pytest.raises(ModelError, match=message):
            next(source_of([given], GRAPH, "shuffle", 0).epoch(0))
    with pytest.raises(ModelError, match="the data has no batches"):
        next(source_of([], GRAPH, "shuffle", 0).epoch(0))
