"""Files that are models, but not in ONNX: told by their content first and their ending second, with the way to ONNX.

Nothing is unpacked, and nothing unpickled: the first bytes and the names in an archive's table tell enough.
"""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path

HEAD_BYTES = 4096
TAIL_BYTES = 65536

_EXPORT = "in Python: import poetopt as po; po.torch.export(module, x, {out!r}), with a batch x as the module takes it"
_TORCH = f"load the module in PyTorch, and export it {_EXPORT}"
_PROGRAM = f"module = torch.export.load(FILE).module(), and export that {_EXPORT}"
_TF2ONNX = "pip install tf2onnx, then python -m tf2onnx.convert {option} {path} --output {out}"
_KERAS = "load it in Keras and export it: model.export({out!r}, format='onnx')"
_COREML = "nothing makes ONNX of it; export the network that it was made of, as with po.torch.export"
_WEIGHTS = "they hold no network; load them into the model and export that, as by po.torch.export(module, x, {out!r})"

KINDS: dict[str, tuple[str, str]] = {
    "tflite": ("a TensorFlow Lite model", _TF2ONNX.replace("{option}", "--tflite")),
    "torch": ("a PyTorch file", _TORCH),
    "torchscript": ("a TorchScript file", _TORCH.replace("the module", "the module that it was made of", 1)),
    "exported": ("a program of torch.export's", _PROGRAM),
    "pickle": ("a Python pickle, which is never opened here", _TORCH),
    "keras": ("a Keras model", _KERAS),
    "hdf5": ("an HDF5 file, as older versions of Keras write models", _KERAS),
    "saved_model": ("a TensorFlow SavedModel", _TF2ONNX.replace("{option}", "--saved-model")),
    "frozen": ("a frozen TensorFlow graph", _TF2ONNX.replace("{option}", "--graphdef") + " --inputs x:0 --outputs y:0"),
    "checkpoint": ("a TensorFlow checkpoint", "save it as a SavedModel, then python -m tf2onnx.convert --saved-model"),
    "coreml": ("a Core ML model", _COREML),
    "safetensors": ("a file of weights (safetensors)", _WEIGHTS),
    "gguf": ("a file of weights (GGUF), mostly quantized", _WEIGHTS),
    "engine": ("a TensorRT engine, compiled for one GPU", "give the ONNX file that it was built from"),
    "ort": ("onnxruntime's own format", "give the ONNX file that it was converted from"),
    "paddle": ("a Paddle model", "pip install paddle2onnx, then paddle2onnx --model_dir {folder} --model_filename "
               "{name} --params_filename {stem}.pdiparams --save_file {out}"),
    "openvino": ("an OpenVINO model", "nothing makes ONNX of it; export the network that it was made of"),
    "npz": ("arrays of numpy's", "a model is wanted here; batches are given to `poetopt run --data`"),
    "zip": ("a zip archive", "unpack it, and give the .onnx file that it holds"),
    "gzip": ("compressed (gzip)", "unpack it (gunzip), and give the .onnx file"),
    "lfs": ("a pointer of Git LFS, not the file itself", "fetch it with git lfs pull"),
    "html": ("a web page, not a model", "download the file itself"),
    "folder": ("a folder", "give the .onnx file in it"),
}  # fmt: skip
"""Of each kind what it is, and what to do."""

_ENDINGS = {
    "tflite": "tflite", "lite": "tflite", "pt": "torch", "pth": "torch", "ckpt": "torch", "pt2": "exported",
    "pkl": "pickle", "pickle": "pickle", "joblib": "pickle", "keras": "keras", "h5": "hdf5", "hdf5": "hdf5",
    "pb": "frozen", "mlmodel": "coreml", "mlpackage": "coreml", "mlmodelc": "coreml", "safetensors": "safetensors",
    "gguf": "gguf", "ggml": "gguf", "engine": "engine", "trt": "engine", "ort": "ort", "pdmodel": "paddle",
    "npz": "npz", "npy": "npz",
}  # fmt: skip


def foreign(path: Path, content: bytes | None = None) -> str | None:
    """Gives the notes on a file that is a model in another format; None for what may be ONNX.

    content
        What is at `path`, where that has been read.
    """
    kind = _of_folder(path) if path.is_dir() else _of_bytes(path, content) or _of_ending(path, content)
    if kind is None:
        return None
    what, remedy = KINDS[kind]
    if kind == "folder":
        with suppress(OSError):
            inside = sorted(str(entry) for entry in path.iterdir() if entry.suffix.lower() == ".onnx")
            remedy = f"give the .onnx file in it: {', '.join(inside[:4])}" if inside else remedy
    if path.name == "saved_model.pb":
        path = path.absolute().parent if path.parent == Path() else path.parent  # the converter takes the folder
    stem = path.stem or "model"
    names = {
        "path": shlex.quote(str(path)), "out": f"{stem}.onnx", "name": shlex.quote(path.name),
        "stem": shlex.quote(stem), "folder": shlex.quote(str(path.parent)),
    }  # fmt: skip
    return f"{path}: it is {what}, not an ONNX model; {_filled(remedy, names)}"


def _filled(text: str, names: dict[str, str]) -> str:
    for key, value in names.items():
        shown = shlex.quote(value) if key == "out" else value
        text = text.replace(f"{{{key}!r}}", repr(value)).replace(f"{{{key}}}", shown)
    return text


def _of_folder(path: Path) -> str:
    ending = path.suffix.lower().lstrip(".")
    with suppress(OSError):
        names = set(os.listdir(path))
        if names & {"saved_model.pb", "saved_model.pbtxt"}:
            return "saved_model"
        if "Manifest.json" in names or ending in ("mlpackage", "mlmodelc"):
            return "coreml"
    return "folder"


def _of_bytes(path: Path, content: bytes | None) -> str | None:
    """The kind that the first bytes tell, or the names in an archive."""
    head, tail = _ends(path, content)
    for at, magic, kind in (
        (4, b"TFL3", "tflite"),
        (4, b"ORTM", "ort"),
        (0, b"\x89HDF\r\n\x1a\n", "hdf5"),
        (0, b"GGUF", "gguf"),
        (0, b"\x93NUMPY", "npz"),
        (0, b"\x1f\x8b", "gzip"),
        (0, b"ptrt", "engine"),
        (0, b"ftrt", "engine"),
        (0, b"version https://git-lfs", "lfs"),
    ):
        if head[at : at + len(magic)] == magic:
            return kind
    start = head[:256].lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "html"
    if start.startswith((b"<?xml", b"<net")) and b"<net" in head[:512]:
        return "openvino"
    if head.startswith(b"PK\x03\x04"):
        return _of_archive(head + tail)
    if len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5 and _pickled(head, tail):
        return "pickle" if path.suffix.lower() in (".pkl", ".pickle", ".joblib") else "torch"
    if len(head) > 16 and head[8:10] == b'{"' and 2 <= int.from_bytes(head[:8], "little") < 2**32:
        return "safetensors"
    return None


def _pickled(head: bytes, tail: bytes) -> bool:
    """Says whether it ends as a pickle does, or begins as torch's files before 1.6 do; a protobuf begins otherwise."""
    return tail.endswith(b".") or head[2:4] == b"\x8a\x0a"


def _of_archive(part: bytes) -> str:
    """The kind of a zip archive, by the names of its members."""
    if b"archive_format" in part or b"serialized_exported_program" in part:
        return "exported"
    if b"data.pkl" in part:
        return "torchscript" if b"/code/" in part or b"constants.pkl" in part else "torch"
    if b"model.weights.h5" in part:
        return "keras"
    return "npz" if b".npy" in part else "zip"


def _of_ending(path: Path, content: bytes | None) -> str | None:
    """Gives what the ending says of a file that isn't empty and no ONNX model after all."""
    kind = "saved_model" if path.name == "saved_model.pb" else _ENDINGS.get(path.suffix.lower().lstrip("."))
    if kind is None:
        return None
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped,unused-ignore]

    model = onnx.ModelProto()
    try:
        raw = path.read_bytes() if content is None else content
        if not raw:
            return None
        model.ParseFromString(raw)
    except OSError:
        return None
    except DecodeError:
        return kind
    return None if model.graph.node else kind


def _ends(path: Path, content: bytes | None) -> tuple[bytes, bytes]:
    """The first and the last bytes, of a file that can be read."""
    if content is not None:
        return content[:HEAD_BYTES], content[-TAIL_BYTES:]
    with suppress(OSError), path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return head, file.read(TAIL_BYTES)
    return b"", b""
