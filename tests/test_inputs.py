"""Pipes and devices, endless and huge inputs, archives that lie: one refusal each, and nothing else is read."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poetopt.api.models import device
from poetopt.api.plans import load_plan, train
from poetopt.api.sweeps import read_sweep
from poetopt.backends.onnxruntime import load_batch
from poetopt.frontends import load
from poetopt.graph import Graph
from poetopt.util.errors import DeviceError, ModelError, OptionError, PlanError
from poetopt.util.files import (
    ENVIRONMENT,
    PREFIX,
    TABLE_BYTES,
    open_regular,
    parse_toml,
    read_bytes,
    remove_abandoned,
    scratch_folder,
)
from tests.support.cli import Runner

zeros = pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no endless device here")


@pytest.fixture
def plan(tmp_path: Path, run: Runner) -> Path:
    """A plan of the smallest network."""
    assert run("solve", "mlp", "--device", "a72", "-o", tmp_path / "plan.json").code == 0
    return tmp_path / "plan.json"


def _naming(plan: Path, model: str) -> Path:
    document = json.loads(plan.read_text(encoding="utf-8"))
    document["model"]["reference"] = model
    changed = plan.with_name("changed.json")
    changed.write_text(json.dumps(document), encoding="utf-8")
    return changed


@zeros
def test_what_a_plan_names_is_a_regular_file(plan: Path, run: Runner) -> None:
    os.mkfifo(plan.with_name("pipe.onnx"))
    for model in ("/dev/zero", str(plan.with_name("pipe.onnx"))):
        for command in ("run", "verify"):
            ended = run(command, _naming(plan, model))
            ended.assert_one_message("its model, is not a regular file", "--model", code=2)
    with pytest.raises(PlanError, match="not a regular file"):
        load_plan(_naming(plan, "/dev/zero"))
    for board in ("/dev/zero", str(plan.with_name("pipe.onnx"))):
        document = json.loads(plan.read_text(encoding="utf-8"))
        document["model"]["recipe"]["device"] = board
        changed = plan.with_name("changed.json")
        changed.write_text(json.dumps(document), encoding="utf-8")
        run("verify", changed).assert_one_message("its device, is not a regular file", "--device", code=2)


@zeros
def test_what_a_sweep_or_a_device_names_is_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    sweep, board = tmp_path / "sweep.toml", tmp_path / "board.toml"
    for model, machine in (("pipe", "a72"), ("/dev/zero", "a72"), ("mlp", "/dev/zero"), ("mlp", "a\\u0000b.toml")):
        sweep.write_text(f'models = ["{model}"]\ndevices = ["{machine}"]\nram = "90%"\n', encoding="utf-8")
        with pytest.raises(OptionError, match="regular file"):
            read_sweep(sweep)
    board.write_text(f'base = "{tmp_path / "pipe"}"\n', encoding="utf-8")
    os.rename(tmp_path / "pipe", tmp_path / "pipe.toml")
    board.write_text(f'base = "{tmp_path / "pipe.toml"}"\n', encoding="utf-8")
    with pytest.raises(DeviceError, match="a pipe or a device"):
        device(str(board))


@zeros
def test_endless_input_is_refused(run: Runner, plan: Path) -> None:
    for command in (("show", "/dev/zero"), ("inspect", "mlp", "--device", "/dev/zero"), ("sweep", "/dev/zero")):
        run(*command).assert_one_message("/dev/zero", code=2)
    run("run", plan, "--data", "/dev/zero").assert_one_message("/dev/zero: it is a pipe or a device", code=2)


def test_what_the_user_names_may_be_a_pipe(tmp_path: Path, plan: Path) -> None:
    content = plan.read_bytes()
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(content))
    writer.start()
    assert read_bytes(tmp_path / "pipe", 10**8) == content
    writer.join()


def test_a_limit_that_the_user_lifts(tmp_path: Path, run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    board = tmp_path / "board.toml"
    board.write_text('base = "a72"\n' + "#" * TABLE_BYTES + "\n", encoding="utf-8")
    run("inspect", "mlp", "--device", board).assert_one_message("16.8 MB are read", "--max-file-size", code=2)
    monkeypatch.setenv(ENVIRONMENT, "")
    assert run("--max-file-size", "20MB", "inspect", "mlp", "--device", board).code == 0
    assert os.environ[ENVIRONMENT] == "20MB"  # workers inherit it
    run("--max-file-size", "much", "devices").assert_one_message("--max-file-size", code=2)


def test_files_of_exactly_the_limit_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="at most 4 B are read"):
        read_bytes(tmp_path / "file", 4)
    with pytest.raises(OSError, match="NUL"):
        read_bytes("a\0b", 4)
    with open_regular(tmp_path / "file") as file:
        assert file.read() == b"12345"


@pytest.mark.parametrize("text", ["a = " + "7" * 5000, "a = " + "[" * 5000, "a = \x00", "a = '\ud800"])
def test_numbers_and_nesting_beyond_pythons_limits(text: str, tmp_path: Path, run: Runner) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_toml(text)
    (tmp_path / "x.toml").write_bytes(text.encode(errors="surrogatepass"))
    run("inspect", "mlp", "--device", tmp_path / "x.toml").assert_one_message("x.toml", code=2)
    run("sweep", tmp_path / "x.toml").assert_one_message("x.toml", code=2)
    run("solve", "mlp", "--device", "a72", "--profile", tmp_path / "x.toml").assert_one_message("x.toml", code=2)


def _npy(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bytes:
    held = io.BytesIO()
    np.save(held, array)
    return held.getvalue()


def _header(shape: str) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.fixture
def graph() -> Graph:
    found = load("mlp")
    assert isinstance(found, Graph)
    return found


def _archive(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archives_that_lie(tmp_path: Path, graph: Graph) -> None:
    (name,) = graph.inputs
    shape = graph.tensors[name].shape
    sound = _npy(np.ones(shape, np.float32))
    lies = {
        "twice": ([(f"{name}.npy", sound), (f"{name}.npy", sound)], "twice"),
        "huge": ([(f"{name}.npy", _header(str((2**40, *shape[1:]))))], "has shape|too short"),
        "negative": ([(f"{name}.npy", _header("(-1, 4)"))], "shape"),
        "short": ([(f"{name}.npy", sound[:-4])], "is cut off"),
        "long": ([(f"{name}.npy", sound + b"1234")], "more data than its shape"),
        "not npy": ([(f"{name}.npy", b"hello")], "no .npz file of plain arrays"),
        "other": ([("other.npy", sound)], "lacks"),
        "objects": ([(f"{name}.npy", sound.replace(b"'<f4'", b"'|O' "))], "Python objects"),
    }
    for what, (members, message) in lies.items():
        with pytest.raises(ModelError, match=message):
            load_batch(_archive(tmp_path / f"{what}.npz", members), graph)


def test_only_what_is_named_is_unpacked(tmp_path: Path, graph: Graph) -> None:
    """A member of 3 GB of zeros beside the input stays packed; as a data set it is over the limit."""
    (name,) = graph.inputs
    batch = np.arange(np.prod(graph.tensors[name].shape), dtype=np.float32).reshape(graph.tensors[name].shape)
    path = _archive(tmp_path / "bomb.npz", [(f"{name}.npy", _npy(batch))])
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.npy", b"\x93NUMPY" + bytes(10**7))
        archive.getinfo("bomb.npy").file_size = 3 * 10**9
    np.testing.assert_array_equal(load_batch(path, graph)[name], batch)
    rows = 10**9 // 64
    path = _archive(tmp_path / "set.npz", [(f"{name}.npy", _header(str((rows, *batch.shape[1:]))))])
    with zipfile.ZipFile(path, "a") as archive:
        archive.getinfo(f"{name}.npy").file_size = rows * batch[0].nbytes + 128
        archive._didModify = True  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match=r"at most 2\.15 GB are read"):
        load_batch(path, graph, sets=True)


def test_a_data_set_is_longer_than_a_batch(tmp_path: Path, run: Runner) -> None:
    plan = tmp_path / "plan.json"
    assert run("solve", "mlp", "--device", "a72", "-o", plan).code == 0
    found = load_plan(plan)
    assert found.plan.problem.graph is not None
    data: dict[str, Any] = {}
    for name in found.plan.problem.graph.inputs:
        tensor = found.plan.problem.graph.tensors[name]
        data[name] = np.zeros((3 * tensor.shape[0], *tensor.shape[1:]), tensor.dtype)
    np.savez_compressed(tmp_path / "data.npz", other=np.zeros(3), **data)
    assert len(train(found, 3, 0.1, data=tmp_path / "data.npz").losses) == 3
    run("run", plan, "--data", tmp_path / "data.npz").assert_one_message("has shape", "must be", code=2)


def test_a_killed_process_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = (
        "import sys, time\nfrom poetopt.util.files import scratch_folder\n"
        "with scratch_folder('test') as folder:\n print(folder, flush=True)\n time.sleep(600)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as living:
        assert living.stdout is not None
        folder = Path(living.stdout.readline().strip())
        assert folder.name.startswith(PREFIX)
        (tmp_path / f"{PREFIX}foreign").mkdir()  # without a lock file: nobody knows whose
        with scratch_folder("test") as own:
            assert folder.is_dir()
            assert Path(own).is_dir()
        assert not Path(own).exists()
        living.kill()
    assert folder.is_dir()
    remove_abandoned()
    assert not folder.exists()
    assert (tmp_path / f"{PREFIX}foreign").is_dir()


def test_a_size_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ENVIRONMENT, "ten")
    with pytest.raises(OptionError, match="--max-file-size"):
        read_bytes(tmp_path, 5)
