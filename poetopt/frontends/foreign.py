"""Recognise models in other formats by their first bytes and ending, and explain how to get to ONNX.

No file is unpacked or unpickled.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from poetopt.util.files import MODEL_BYTES, read_bytes

KINDS: dict[str, tuple[str, str]] = {
    "torch": (
        "a PyTorch file or a Python pickle, which poetopt never opens",
        "Load the module in PyTorch and export it: import poetopt as po; po.torch.export(module, x, {out!r}), "
        "where x is a batch of inputs",
    ),
    "tensorflow": (
        "a TensorFlow model",
        "Run pip install tf2onnx, then python -m tf2onnx.convert --saved-model FOLDER --output {out} (--tflite FILE "
        "and --graphdef FILE work too)",
    ),
    "keras": ("a Keras model", "Load it in Keras and export it: model.export({out!r}, format='onnx')"),
    "weights": (
        "a file of weights",
        "It has no network. Load it into the model and export that, as by po.torch.export(module, x, {out!r})",
    ),
    "other": (
        "a model in another format",
        "Give the ONNX file that it was made from, or export the network, as by po.torch.export",
    ),
    "arrays": ("numpy arrays", "Give a model; batches of data belong to `poetopt run --data`"),
    "packed": ("an archive or compressed", "Unpack it, and give the .onnx file"),
    "lfs": ("a pointer of Git LFS, not the file itself", "Fetch it with git lfs pull"),
    "html": ("a web page, not a model", "Download the file itself"),
    "folder": ("a folder", "Give the .onnx file in it"),
}
"""Description and remedy of each kind of file."""

_STARTS = (
    (4, b"TFL3", "tensorflow"), (4, b"ORTM", "other"), (0, b"\x89HDF\r\n\x1a\n", "keras"), (0, b"GGUF", "weights"),
    (0, b"\x93NUMPY", "arrays"), (0, b"\x1f\x8b", "packed"), (0, b"ptrt", "other"), (0, b"ftrt", "other"),
    (0, b"version https://git-lfs", "lfs"), (0, b"\x80\x02", "torch"), (0, b"\x80\x03", "torch"),
    (0, b"\x80\x04", "torch"), (0, b"\x80\x05", "torch"), (8, b'{"', "weights"), (0, b"<!doctype", "html"),
    (0, b"<html", "html"), (0, b"<?xml", "other"),
)  # fmt: skip
_MEMBERS = ((b"data.pkl", "torch"), (b"archive_format", "torch"), (b"model.weights.h5", "keras"), (b".npy", "arrays"))
"""Kinds by the names in a zip archive."""
_ENDINGS = {
    **dict.fromkeys(("pt", "pth", "ckpt", "pt2", "pkl", "pickle", "joblib"), "torch"),
    **dict.fromkeys(("tflite", "lite", "pb"), "tensorflow"),
    **dict.fromkeys(("keras", "h5", "hdf5"), "keras"),
    **dict.fromkeys(("safetensors", "gguf", "ggml"), "weights"),
    **dict.fromkeys(("mlmodel", "mlpackage", "mlmodelc", "engine", "trt", "ort", "pdmodel"), "other"),
    **dict.fromkeys(("npz", "npy"), "arrays"),
}


def foreign(path: Path, content: bytes | None = None) -> str | None:
    """Return the error message for a file in another format; None for a file that may be ONNX.

    Parameters
    ----------
    content
        Content of `path`, if it has been read.
    """
    ending = _ENDINGS.get(path.suffix.lower().lstrip("."))
    if path.is_dir():
        with suppress(OSError):
            names = os.listdir(path)
            ending = "tensorflow" if "saved_model.pb" in names else ending
            inside = sorted(str(path / name) for name in names if name.lower().endswith(".onnx"))
            if inside and ending is None:
                return f"{path}: it is a folder, not an ONNX model. Give the .onnx file in it: {', '.join(inside[:4])}"
        kind = ending or "folder"
    else:
        head = content
        if head is None:
            with suppress(OSError), path.open("rb") as file:
                head = file.read(65536)
        if not head:
            return None
        kind_found = _kind_of(head, ending)
        if kind_found is None and ending is not None:
            with suppress(OSError):
                kind_found = None if _is_onnx(read_bytes(path, MODEL_BYTES) if content is None else content) else ending
        if kind_found is None:
            return None
        kind = kind_found
    what, remedy = KINDS[kind]
    out = f"{path.stem or 'model'}.onnx"
    return f"{path}: it is {what}, not an ONNX model. {remedy.replace('{out!r}', repr(out)).replace('{out}', out)}"


def _kind_of(content: bytes, ending: str | None) -> str | None:
    """Return the kind by the first bytes, or by the names in an archive; None if unknown."""
    if content.startswith(b"PK\x03\x04"):
        return next((kind for name, kind in _MEMBERS if name in content), ending or "packed")
    for at, magic, kind in _STARTS:
        start = content[:64].lstrip().lower() if magic[:1] == b"<" else content
        if start[at : at + len(magic)] == magic:
            return kind
    return None


def _is_onnx(content: bytes) -> bool:
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped,unused-ignore]

    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError:
        return False
    return bool(model.graph.node)
