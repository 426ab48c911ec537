"""Files that are models, but not in ONNX: told by their first bytes and their ending, with the way to ONNX.

Nothing is unpacked, and nothing unpickled.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from poetopt.util.files import MODEL_BYTES, read_bytes

KINDS: dict[str, tuple[str, str]] = {
    "torch": (
        "a PyTorch file or a Python pickle, which is never opened here",
        "load the module in PyTorch, and export it: import poetopt as po; po.torch.export(module, x, {out!r}), "
        "with a batch x as the module takes it",
    ),
    "tensorflow": (
        "a TensorFlow model",
        "pip install tf2onnx, then python -m tf2onnx.convert --saved-model FOLDER --output {out} (or --tflite FILE, or "
        "--graphdef FILE)",
    ),
    "keras": ("a Keras model", "load it in Keras and export it: model.export({out!r}, format='onnx')"),
    "weights": (
        "a file of weights",
        "they hold no network; load them into the model and export that, as by po.torch.export(module, x, {out!r})",
    ),
    "other": (
        "a model in another format",
        "give the ONNX file that it was made of, or export the network, as by po.torch.export",
    ),
    "arrays": ("arrays of numpy's", "a model is wanted here; batches are given to `poetopt run --data`"),
    "packed": ("an archive or compressed", "unpack it, and give the .onnx file"),
    "lfs": ("a pointer of Git LFS, not the file itself", "fetch it with git lfs pull"),
    "html": ("a web page, not a model", "download the file itself"),
    "folder": ("a folder", "give the .onnx file in it"),
}
"""Of each kind what it is, and what to do."""

_STARTS = (
    (4, b"TFL3", "tensorflow"), (4, b"ORTM", "other"), (0, b"\x89HDF\r\n\x1a\n", "keras"), (0, b"GGUF", "weights"),
    (0, b"\x93NUMPY", "arrays"), (0, b"\x1f\x8b", "packed"), (0, b"ptrt", "other"), (0, b"ftrt", "other"),
    (0, b"version https://git-lfs", "lfs"), (0, b"\x80\x02", "torch"), (0, b"\x80\x03", "torch"),
    (0, b"\x80\x04", "torch"), (0, b"\x80\x05", "torch"), (8, b'{"', "weights"), (0, b"<!doctype", "html"),
    (0, b"<html", "html"), (0, b"<?xml", "other"),
)  # fmt: skip
_MEMBERS = ((b"data.pkl", "torch"), (b"archive_format", "torch"), (b"model.weights.h5", "keras"), (b".npy", "arrays"))
"""Names in a zip archive."""
_ENDINGS = {
    **dict.fromkeys(("pt", "pth", "ckpt", "pt2", "pkl", "pickle", "joblib"), "torch"),
    **dict.fromkeys(("tflite", "lite", "pb"), "tensorflow"),
    **dict.fromkeys(("keras", "h5", "hdf5"), "keras"),
    **dict.fromkeys(("safetensors", "gguf", "ggml"), "weights"),
    **dict.fromkeys(("mlmodel", "mlpackage", "mlmodelc", "engine", "trt", "ort", "pdmodel"), "other"),
    **dict.fromkeys(("npz", "npy"), "arrays"),
}


def foreign(path: Path, content: bytes | None = None) -> str | None:
    """The notes on a file that is a model in another format; None for what may be ONNX.

    content
        What is at `path`, where that has been read.
    """
    ending = _ENDINGS.get(path.suffix.lower().lstrip("."))
    if path.is_dir():
        with suppress(OSError):
            names = os.listdir(path)
            ending = "tensorflow" if "saved_model.pb" in names else ending
            inside = sorted(str(path / name) for name in names if name.lower().endswith(".onnx"))
            if inside and ending is None:
                return f"{path}: it is a folder, not an ONNX model; give the .onnx file in it: {', '.join(inside[:4])}"
        kind = ending or "folder"
    else:
        head = content
        if head is None:
            with suppress(OSError), path.open("rb") as file:
                head = file.read(65536)
        if not head:
            return None
        found = _of_bytes(head, ending)
        if found is None and ending is not None:
            with suppress(OSError):
                found = None if _is_onnx(read_bytes(path, MODEL_BYTES) if content is None else content) else ending
        if found is None:
            return None
        kind = found
    what, remedy = KINDS[kind]
    out = f"{path.stem or 'model'}.onnx"
    return f"{path}: it is {what}, not an ONNX model; {remedy.replace('{out!r}', repr(out)).replace('{out}', out)}"


def _of_bytes(content: bytes, ending: str | None) -> str | None:
    """The kind that the first bytes tell, or the names in an archive."""
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
