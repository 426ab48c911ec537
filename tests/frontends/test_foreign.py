"""Models in other formats are refused as what they are, with the way to ONNX, and nothing in them is opened."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from poetopt.frontends import load
from poetopt.util.errors import ModelError
from tests.support.later import later

torch = later("torch")


def archive(*names: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name in names:
            file.writestr(name, b"{}")
    return packed.getvalue()


def npz() -> bytes:
    packed = io.BytesIO()
    np.savez(packed, x=np.ones(3))
    return packed.getvalue()


def told(path: Path) -> str:
    with pytest.raises(ModelError) as refused:
        load(path)
    message = str(refused.value)
    assert message.startswith(str(path.parent))
    assert "\n" not in message
    return message


CONTENTS = {
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(40), "a TensorFlow model", "--tflite FILE"),
    "ort": (b"\x1c\0\0\0ORTM" + bytes(40), "another format", "made from"),
    "h5": (b"\x89HDF\r\n\x1a\n" + bytes(40), "a Keras model", "format='onnx'"),
    "keras": (archive("metadata.json", "config.json", "model.weights.h5"), "a Keras model", "format='onnx'"),
    "pt2": (archive("net/archive_format", "net/models/model.json"), "a PyTorch file", "po.torch.export"),
    "safetensors": ((8).to_bytes(8, "little") + b'{"a":{} }' + bytes(9), "a file of weights", "has no network"),
    "gguf": (b"GGUF\3\0\0\0" + bytes(40), "a file of weights", "has no network"),
    "npz": (npz(), "numpy arrays", "--data"),
    "zip": (archive("net.onnx"), "an archive", "Unpack"),
    "gz": (b"\x1f\x8b\x08" + bytes(40), "compressed", "Unpack"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS", "git lfs pull"),
    "html": (b"\n<!DOCTYPE html><html></html>", "web page", "Download"),
}


@pytest.mark.parametrize("ending", CONTENTS)
def test_by_content(tmp_path: Path, ending: str) -> None:
    """Whatever the file is called."""
    content, what, remedy = CONTENTS[ending]
    for name in (f"net.{ending}", "net.onnx", "net"):
        path = tmp_path / name
        path.write_bytes(content)
        message = told(path)
        assert what in message
        assert remedy.format(path=path) in message


class Trap:
    """What would be noticed if it were unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path("sprung"),)


def test_a_pickle_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("net.pkl", "net.pt", "net.onnx"):
        (tmp_path / name).write_bytes(pickle.dumps([Trap()]))
        assert "po.torch.export" in told(tmp_path / name)
    assert not (tmp_path / "sprung").exists()
