"""A model becomes a graph: ONNX files, problem files, the built-in zoo, and what others register.

    load("resnet18-cifar")        a network of the zoo
    load("model.onnx", batch=8)   an ONNX file
    load("problem.json")          a training problem without a network

A package adds a frontend through the entry point group `poetopt.frontends`: the entry point's name is a
file ending (such as `tflite`), its object a function `(path, *, batch, train) -> Graph`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, cast

from poetopt.errors import ModelError

if TYPE_CHECKING:
    import onnx

    from poetopt.frontends.problem_file import ProblemFile
    from poetopt.graph import Graph

ENTRY_POINTS = "poetopt.frontends"

__all__ = ["ENTRY_POINTS", "load"]


def load(
    model: str | os.PathLike[str] | onnx.ModelProto,
    *,
    batch: int | None = None,
    train: str | Sequence[str] | None = None,
) -> Graph | ProblemFile:
    """Read `model`: a zoo name, a problem file (`.json`), a file of a registered ending, or else ONNX.

    batch
        Size of the batch dimension, where it is symbolic or is to be changed.
    train
        Glob patterns of the parameters to train (comma separated, or a sequence); default: all.

    Raises `ModelError` for an unknown name (with the closest ones) and for whatever is wrong with a file.
    """
    if not isinstance(model, (str, os.PathLike)):
        from poetopt.frontends.onnx_file import load_onnx

        return load_onnx(model, batch=batch, train=train)
    text = os.fspath(model)
    path = Path(text)
    if isinstance(model, str) and not path.suffix and not path.exists():
        return _from_zoo(text, batch, train)
    ending = path.suffix.lower().lstrip(".")
    plugin = {point.name.lower(): point for point in entry_points(group=ENTRY_POINTS)}.get(ending)
    if plugin is None and not path.exists():
        raise ModelError(f"{text}: no such file{_closest_files(path)}; {_zoo_names()}")
    if plugin is not None:
        return _frontend(plugin)(path, batch=batch, train=train)
    if ending == "json":
        from poetopt.frontends.problem_file import load_problem_file

        if batch is not None or train is not None:
            raise ModelError(f"{text}: a problem file has a fixed batch and no weights; leave --batch and --train out")
        return load_problem_file(path)
    from poetopt.frontends.onnx_file import load_onnx

    return load_onnx(path, batch=batch, train=train)


def _from_zoo(name: str, batch: int | None, train: str | Sequence[str] | None) -> Graph:
    from poetopt.frontends import zoo

    if name not in zoo.names():
        close = difflib.get_close_matches(name.lower(), zoo.names(), n=3)
        closest = f", closest: {', '.join(close)}" if close else ""
        raise ModelError(
            f"{name}: neither a file nor a network of the zoo{closest}{_closest_files(Path(name))}; {_zoo_names()}"
        )
    from poetopt.frontends.onnx_file import load_onnx

    return load_onnx(zoo.build(name, batch), train=train, reference=name)


def _zoo_names() -> str:
    from poetopt.frontends import zoo

    return f"give an .onnx file, a problem file (.json), or one of {', '.join(zoo.names())}"


def _closest_files(path: Path) -> str:
    try:
        present = sorted(p.name for p in path.parent.iterdir() if p.suffix in (".onnx", ".json"))
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, present, n=3)
    return f" (did you mean {', '.join(str(path.parent / name) for name in close)}?)" if close else ""


def _frontend(point: EntryPoint) -> Callable[..., Graph]:
    try:
        return cast("Callable[..., Graph]", point.load())
    except (ImportError, AttributeError) as error:
        raise ModelError(f"frontend {point.name!r} ({point.value}) can't be loaded: {error}; reinstall it") from error
