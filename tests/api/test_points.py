"""Sweep files: the points that they mean, and what is wrong with bad ones."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from poetopt.api.sweeps.points import evaluate, read_sweep
from poetopt.frontends.reading import read_options
from poetopt.util.errors import DeviceError, ModelError, OptionError
from poetopt.util.units import Factor, Share
from tests.api.support import FILE, write_sweep
from tests.cli.support import chain, write_problem


def test_the_product_in_order(tmp_path: Path) -> None:
    points = read_sweep(write_sweep(tmp_path))
    assert [point.index for point in points] == list(range(2 * 2 * 2 * 3 * 2))
    assert len({point.key for point in points}) == len(points)
    assert [str(point) for point in points[:2]] == ["poet, chain on a72 at 40%", "revolve, chain on a72 at 40%"]
    assert str(points[-1]) == "revolve, short on m4 at 3000000 in 1.4x"
    assert (points[0].ram, points[0].deadline) == (Share(0.4), None)
    assert (points[-1].ram, points[-1].deadline) == (3_000_000, Factor(1.4))
    assert points[0].settings.time_limit_s == 20


def test_ranges_defaults_and_repetitions(tmp_path: Path) -> None:
    text = 'models = "lenet"\ndevices = "a72"\nram = ["20%..100%/5", "60%"]\n'
    points = read_sweep(write_sweep(tmp_path, text))
    assert [point.said["ram"] for point in points] == ["20%", "40%", "60%", "80%", "100%"]
    assert {point.method for point in points} == {"poet"}
    assert {point.settings.threads for point in points} == {1}


def test_keys_follow_contents_not_places(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
    keys = [point.key for point in read_sweep(write_sweep(first))]
    assert [point.key for point in read_sweep(write_sweep(second))] == keys
    longer = [point.key for point in read_sweep(write_sweep(second, FILE.replace("20s", "21s")))]
    assert not set(longer) & set(keys)
    path = write_sweep(second)
    (second / "short.json").write_text((second / "short.json").read_text() + "\n")
    changed = [point.key for point in read_sweep(path)]
    assert changed[: len(keys) // 2] == keys[: len(keys) // 2]
    assert not set(changed[len(keys) // 2 :]) & set(keys)


def test_models_with_options(tmp_path: Path) -> None:
    text = """
    models = [{ model = "lenet", batch = 4, train = "fc.*" }, { model = "lenet", loss = "none", name = "plain" }]
    devices = ["a72"]
    ram = 400_000
    """
    first, second = read_sweep(write_sweep(tmp_path, text))
    assert (first.model.name, first.model.options.batch, first.model.options.train) == (
        "lenet batch=4 train=fc.*",
        4,
        ("fc.*",),
    )
    assert (second.model.name, dict(second.model.step)["loss"], second.ram) == ("plain", "none", 400_000)


def test_models_that_leave_sizes_open(tmp_path: Path) -> None:
    text = """
    models = [
        { model = "o.onnx", dims = { K = 3 }, shapes = { x = "2x?" }, values = { s = [1, 2] }, allow_symlinks = true },
        { model = "o.onnx", batch = 2 },
    ]
    devices = ["a72"]
    ram = "100%"
    """
    (tmp_path / "o.onnx").write_bytes(b"net")
    first, second = read_sweep(write_sweep(tmp_path, text))
    assert first.model.options == read_options(dims={"K": 3}, shapes={"x": (2, None)}, values={"s": (1, 2)},
                                               allow_symlinks=True)  # fmt: skip
    assert first.key != second.key
    # a key as sweeps had it before there was more to say than batch and train
    model = {"batch": 2, "train": None, "loss": "auto", "output": None, "name": second.model.name,
             "content": second.model.content}  # fmt: skip
    what = [model, {"device": "a72", "name": "a72", "content": ""}, "100%", "none", "poet", asdict(second.settings)]
    assert second.key == hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


@pytest.mark.parametrize(
    ("old", "new", "error", "says"),
    [
        ("deadlines", "dedlines", OptionError, "unknown key 'dedlines': did you mean 'deadlines'"),
        ('name = "short"', 'nmae = "short"', OptionError, "unknown key 'nmae': did you mean 'name'"),
        ("ram =", "# ram =", OptionError, "'ram' is missing"),
        ('["a72", "m4"]', "[]", OptionError, "devices is empty"),
        ('["a72", "m4"]', "[7]", OptionError, "devices: 7 must be text"),
        ('["40%", "60%", "3MB"]', "0.5", OptionError, "ram: 0.5 must be text or a whole number .bytes."),
        ('["a72", "m4"]', '["a71"]', DeviceError, r"sweep.toml: devices: .*did you mean a72.*have costs for a72, m4"),
        ('"chain.json", ', '"lenett", ', ModelError, "did you mean lenet"),
        ('name = "short"', 'name = "chain"', OptionError, "two are called 'chain'"),
        ('name = "short"', "batch = 0", OptionError, "batch = 0 must be"),
        ('name = "short"', "train = [1]", OptionError, "must be a pattern"),
        ('name = "short"', "loss = 3", OptionError, "loss = 3 must be text"),
        ('name = "short"', "dims = 3", OptionError, "dims = 3 must be a table, as in dims = { height = 160 }"),
        ('name = "short"', "dims = { K = 0 }", OptionError, "short.json: --dim K=0: a size is a whole number"),
        ('name = "short"', 'values = { s = "x" }', OptionError, "--value s=x: give a number"),
        ('name = "short"', "allow_symlinks = 1", OptionError, "allow_symlinks = 1 must be true or false"),
        ('"40%", ', '"40 %%", ', OptionError, "ram 40 %%"),
        ('"1.4x"', '"soon"', OptionError, "deadlines soon"),
        ('"revolve"', '"revovle"', OptionError, "methods: no method is called 'revovle'; did you mean revolve"),
        ('"20s"', "true", OptionError, "time_limit = True must be"),
        ('time_limit = "20s"', 'scope = "deep"', OptionError, "scope deep: must be"),
        ('time_limit = "20s"', 'scope = "depth:0"', OptionError, "scope depth:0: must be"),
        ('time_limit = "20s"', "threads = -1", OptionError, "threads = -1 must be a whole number from 0 on"),
        ("models = [", "models = [[", OptionError, "not valid TOML"),
    ],
)
def test_bad_files(tmp_path: Path, old: str, new: str, error: type[Exception], says: str) -> None:
    assert old in FILE
    with pytest.raises(error, match=says.replace("%", "%")):
        read_sweep(write_sweep(tmp_path, FILE.replace(old, new)))


def test_a_device_of_a_problem_file(tmp_path: Path) -> None:
    """Costs under a name of the file's own are a device, as they are to `compare`; its other models are errors."""
    path = write_sweep(tmp_path, FILE.replace('["a72", "m4"]', '["Unit"]'))
    content = chain(3)
    write_problem(tmp_path / "short.json", {**content, "costs": {"Unit": content["costs"]["a72"]}})
    points = [point for point in read_sweep(path) if point.said["ram"] == "60%" and point.method == "revolve"]
    assert {point.device.name for point in points} == {"Unit"}
    rows = {(point.model.name, point.said["deadline"]): evaluate(point) for point in points}
    assert rows["chain", "none"]["status"] == "error"
    assert "the file has a72, m4" in str(rows["chain", "none"]["reason"])
    assert rows["short", "none"]["status"] != "error"


def test_a_broken_problem_file_has_no_devices(tmp_path: Path) -> None:
    path = write_sweep(tmp_path)
    (tmp_path / "short.json").write_text("{")
    assert {point.device.name for point in read_sweep(path)} == {"a72", "m4"}


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="can't be read"):
        read_sweep(tmp_path / "none.toml")
