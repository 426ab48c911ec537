"""Pipes and devices, endless and huge inputs, archives that lie: one refusal each, and nothing else is read."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from poetopt.api.plans import load_plan
from poetopt.backends.onnxruntime import load_batch
from poetopt.frontends import load
from poetopt.graph import Graph
from poetopt.util.errors import ModelError, PlanError
from poetopt.util.files import (
    PREFIX,
    remove_abandoned,
    scratch_folder,
)
from tests.cli.support import Runner, runner

pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
zeros = pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no endless device here")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Runner:
    return runner(capsys)


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


@pipes
@zeros
def test_what_a_plan_names_is_a_regular_file(plan: Path, run: Runner) -> None:
    os.mkfifo(plan.with_name("pipe.onnx"))
    for model in ("/dev/zero", str(plan.with_name("pipe.onnx"))):
        for command in ("run", "verify"):
            ended = run(command, _naming(plan, model))
            ended.assert_one_message("as its model, and that is no regular file", "--model", code=2)
    with pytest.raises(PlanError, match="no regular file"):
        load_plan(_naming(plan, "/dev/zero"))
    for board in ("/dev/zero", str(plan.with_name("pipe.onnx"))):
        document = json.loads(plan.read_text(encoding="utf-8"))
        document["model"]["recipe"]["device"] = board
        changed = plan.with_name("changed.json")
        changed.write_text(json.dumps(document), encoding="utf-8")
        run("verify", changed).assert_one_message("as its device, and that is no regular file", "--device", code=2)


@zeros
def test_endless_input_is_refused(run: Runner, plan: Path) -> None:
    for command in (("show", "/dev/zero"), ("inspect", "mlp", "--device", "/dev/zero"), ("sweep", "/dev/zero")):
        run(*command).assert_one_message("/dev/zero", code=2)
    run("run", plan, "--data", "/dev/zero").assert_one_message("/dev/zero: it is a pipe or a device", code=2)


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


@pytest.mark.skipif(os.name != "posix", reason="locks are the system's")
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
