"""Frontends turn a model into a graph: ONNX files, problem files, the built-in zoo, registered frontends.

    load("resnet18-cifar")        a network of the zoo
    load("model.onnx", batch=8)   an ONNX file
    load("problem.json")          a training problem without a network

A package adds a frontend through the entry point group `poetopt.frontends`: the entry point's name is a
file ending (such as `tflite`), its object a function

    def read(path: Path, *, batch: int | None, train: str | Sequence[str] | None) -> Graph

that is called with an existing path, and with `--batch` and `--train` as the user gave them, or None. It raises
`ModelError`, with the file's name, for a file that it can't read. The Graph is a forward network with static shapes
and nodes of ONNX's default domain. The shortest way to one is to build an `onnx.ModelProto` and to return
`load(model, batch=batch, train=train)`, which checks it, fixes the batch and selects the trained parameters. poetopt
sets the result's `source` to the path, where plans look for the model again, and an empty `content_hash` to the hash of
the file's bytes.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, cast

from poetopt.frontends.reading import ReadOptions, read_options
from poetopt.util import imports
from poetopt.util.errors import ModelError, OptionError, PoetError
from poetopt.util.files import STREAM_BYTES, is_special, open_regular, read_bytes
from poetopt.util.text import closest

if TYPE_CHECKING:
    import onnx

    from poetopt.frontends.problem_file import ProblemFile
    from poetopt.frontends.read import Document
    from poetopt.graph import Graph

ENTRY_POINTS = "poetopt.frontends"

__all__ = ["ENTRY_POINTS", "ReadOptions", "load", "load_model", "read_network", "read_options"]


def load(
    model: str | os.PathLike[str] | onnx.ModelProto,
    *,
    batch: int | None = None,
    train: str | Sequence[str] | None = None,
) -> Graph | ProblemFile:
    """Read `model` with a given batch and given trained parameters.

    Parameters
    ----------
    model
        A zoo name, a file, or an ONNX model in memory.
    batch
        Size of the batch dimension, if it is symbolic or has to change.
    train
        Glob patterns of the parameters to train (comma separated, or a sequence); default: all.

    Raises
    ------
    ModelError, OptionError
        As `load_model` raises them.
    """
    return load_model(model, read_options(batch=batch, train=train))


def load_model(model: str | os.PathLike[str] | onnx.ModelProto, options: ReadOptions) -> Graph | ProblemFile:
    """Read `model`: a zoo name, a problem file (`.json`), a file of a registered ending, or else ONNX.

    A path without an ending, such as a pipe, is a problem file if its content is a JSON object.

    Raises
    ------
    ModelError
        For an unknown name (the message has the closest ones) and for a file that can't be read.
    OptionError
        For options that don't fit the model.
    """
    if options.micro_batches > 1:
        from poetopt.frontends.parts import in_parts

        if isinstance(model, (str, os.PathLike)) and is_special(os.fspath(model)):
            raise ModelError(f"{os.fspath(model)}: --micro-batch reads the model twice, a pipe only once. Give a file")
        return in_parts(partial(load_model, model), options)
    if not isinstance(model, (str, os.PathLike)):
        from poetopt.frontends.onnx_file import load_onnx

        return load_onnx(model, options)
    if _is_zoo_name(model):
        return _load_from_zoo(os.fspath(model), options)
    path, plugin, content = _locate(model)
    if plugin is not None:
        return _load_by_plugin(plugin, path, options)
    if _is_problem(path, content):
        from poetopt.frontends.problem_file import load_problem_file

        if options.fixes_inputs:
            raise OptionError(
                f"{path}: a problem file has fixed sizes and no inputs. Leave {' and '.join(options.fixes_inputs)} out"
            )
        if options.batch is not None or options.train is not None:
            raise ModelError(f"{path}: a problem file has a fixed batch and no weights. Leave --batch and --train out")
        return load_problem_file(path, content)
    _check_not_foreign(path, content)
    from poetopt.frontends.onnx_file import load_onnx

    return load_onnx(path, options, content=content)


def read_network(model: str | os.PathLike[str] | onnx.ModelProto) -> Document:
    """Read an ONNX network with its weights, to rewrite it: a zoo name, a file, or a model in memory.

    The network is checked as `load_model` checks it, as far as open sizes allow. Nodes that no output needs are
    removed.

    Raises
    ------
    ModelError
        For a model that isn't ONNX, or that `load_model` can't read.
    """
    from poetopt.frontends.onnx_file import check_readable
    from poetopt.frontends.read import read_model
    from poetopt.frontends.structure import needed

    if not isinstance(model, (str, os.PathLike)):
        document = read_model(model)
    elif _is_zoo_name(model):
        from poetopt import zoo

        document = read_model(zoo.build(_check_zoo_name(os.fspath(model))))
    else:
        path, plugin, content = _locate(model)
        if plugin is not None or _is_problem(path, content):
            raise ModelError(f"{path}: not an ONNX network, and no other kind can be rewritten. Give an .onnx file")
        _check_not_foreign(path, content)
        document = read_model(path, content)
    check_readable(document)
    graph = document.proto.graph
    document.put_nodes(needed(graph.node, [info.name for info in graph.output]))
    return document


def _is_zoo_name(model: str | os.PathLike[str]) -> bool:
    """Return whether a text can only be a zoo name: no ending, and no such file."""
    text = os.fspath(model)
    return isinstance(model, str) and text != "" and not Path(text).suffix and not Path(text).exists()


def _locate(model: str | os.PathLike[str]) -> tuple[Path, EntryPoint | None, bytes | None]:
    """Return the path of a model, the entry point that reads it (None: poetopt), and the content of a pipe."""
    text = os.fspath(model)
    if not text:
        raise ModelError(f"the name of the model is empty. {_model_hint()}")
    path = Path(text)
    plugin = _entry_point(path.suffix.lower().lstrip("."))
    if not path.exists():
        raise ModelError(f"{text}: no such file{_closest_files(path)}. {_model_hint()}")
    return path, plugin, None if plugin is not None else _read_pipe(path)


def _is_problem(path: Path, content: bytes | None) -> bool:
    """Return whether a file is a problem file, by its ending or, without one, by its content."""
    ending = path.suffix.lower()
    return ending == ".json" or (not ending and _begins_as_object(path, content))


def _check_not_foreign(path: Path, content: bytes | None) -> None:
    from poetopt.frontends.foreign import foreign

    message = foreign(path, content)
    if message is not None:
        raise ModelError(message)


def _entry_point(ending: str) -> EntryPoint | None:
    """Return the entry point for an ending, or None. Raise ModelError if several packages read it."""
    points = [point for point in entry_points(group=ENTRY_POINTS) if point.name.lower() == ending]
    if not points:
        return None
    packages = " and ".join(sorted(imports.origin(point) for point in points))
    # poetopt reads these endings itself: no package may replace it
    if ending in ("onnx", "json"):
        raise ModelError(f".{ending} files are read by poetopt itself, and by {packages}. Uninstall {packages}")
    if len(points) > 1:
        raise ModelError(f".{ending} files are read by {packages}. Uninstall one of them")
    return points[0]


def _read_pipe(path: Path) -> bytes | None:
    """Return the content of a pipe, which can be read once; None for a file. Raise ModelError."""
    if path.is_file() or path.is_dir():
        return None
    try:
        return read_bytes(path, STREAM_BYTES)
    except OSError as error:
        raise ModelError(f"{path}: can't be read ({error.strerror or error}). Check the path") from error


def _begins_as_object(path: Path, content: bytes | None) -> bool:
    """Return whether a file is a JSON object if it is readable: an ONNX file begins with another byte."""
    if content is None:
        with suppress(OSError), path.open("rb") as file:
            content = file.read(512)
    return (content or b"").lstrip().startswith(b"{")


def _load_from_zoo(name: str, options: ReadOptions) -> Graph:
    from poetopt import zoo
    from poetopt.frontends.onnx_file import load_onnx

    _check_zoo_name(name)
    tokens = zoo.tokens_of(name, dict(options.shapes))
    return load_onnx(zoo.build(name, options.batch, tokens), replace(options, batch=None), reference=name)


def _check_zoo_name(name: str) -> str:
    """Return the name if the zoo has such a network. Raise ModelError otherwise."""
    from poetopt import zoo

    if name not in zoo.names():
        raise ModelError(
            f"{name}: neither a file nor a network of the zoo{closest(name, zoo.names())}{_closest_files(Path(name))}. "
            "Give an .onnx file, a problem file (.json), or a name that `poetopt zoo` lists"
        )
    return name


def _model_hint() -> str:
    from poetopt import zoo

    return f"Give an .onnx file, a problem file (.json), or a network: {', '.join(zoo.names())}"


def _closest_files(path: Path) -> str:
    try:
        present = sorted(p.name for p in path.parent.iterdir() if p.suffix in (".onnx", ".json", path.suffix or "."))
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, present, n=3)
    return f" (did you mean {', '.join(str(path.parent / name) for name in close)}?)" if close else ""


def _load_by_plugin(point: EntryPoint, path: Path, options: ReadOptions) -> Graph:
    """Return the graph that another package's frontend reads. Raise ModelError, naming the package, if it fails."""
    from poetopt.frontends.summary import gap
    from poetopt.graph import Graph

    read = imports.load(point, "frontend", ModelError)
    where = f"{path}: frontend '{point.name}' ({imports.origin(point)})"
    if not callable(read):
        raise ModelError(f"{where} is a {type(read).__name__}, not a function of a path. Tell its authors")
    if options.fixes_inputs:
        raise OptionError(f"{where} takes only --batch and --train. Leave {' and '.join(options.fixes_inputs)} out")
    train = list(options.train) if isinstance(options.train, tuple) else options.train
    try:
        graph = cast("Callable[..., object]", read)(path, batch=options.batch, train=train)
    except (PoetError, OSError, MemoryError):
        raise
    except Exception as error:
        raise ModelError(f"{where} failed: {imports.failure(error)}. Check the file, or tell its authors") from error
    if not isinstance(graph, Graph):
        raise ModelError(f"{where} returned a {type(graph).__name__}, not a Graph. Tell its authors")
    defect = gap(graph)
    if defect is not None:
        raise ModelError(f"{where} returned an incomplete graph: {defect}. Tell its authors")
    from poetopt.frontends.summary import structure_hash

    content_hash = graph.content_hash or _content_hash(path)
    structure = graph.structure_hash or structure_hash(graph)
    return replace(graph, source=str(path), content_hash=content_hash, structure_hash=structure)


def _content_hash(path: Path) -> str:
    """SHA-256 of a file, or of a folder's files with their names."""
    files = sorted(entry for entry in path.rglob("*") if entry.is_file()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(path).as_posix()}:{file.stat().st_size}:".encode())
        with open_regular(file) as content:
            while part := content.read(2**20):
                digest.update(part)
    return digest.hexdigest()
