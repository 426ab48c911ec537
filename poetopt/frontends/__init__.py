"""A model becomes a graph: ONNX files, problem files, the built-in zoo, and what others register.

    load("resnet18-cifar")        a network of the zoo
    load("model.onnx", batch=8)   an ONNX file
    load("problem.json")          a training problem without a network

A package adds a frontend through the entry point group `poetopt.frontends`: the entry point's name is a
file ending (such as `tflite`), its object a function

    def read(path: Path, *, batch: int | None, train: str | Sequence[str] | None) -> Graph

that is called with a path at which there is something, and with `--batch` and `--train` as the user gave them, or None.
It raises `ModelError`, with the file's name, for what it can't read. The Graph is a forward network with static shapes,
of nodes of ONNX's default domain; the shortest way to one is to make an `onnx.ModelProto` and to return
`load(model, batch=batch, train=train)`, which checks it, fixes the batch, and decides what is trained. The result's
`source` becomes the path, where plans look for the model again, and an empty `content_hash` that of the file's bytes.
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
    """`load_model` with the batch and what is trained said alone.

    batch
        Size of the batch dimension, where it is symbolic or is to be changed.
    train
        Glob patterns of the parameters to train (comma separated, or a sequence); default: all.

    Raises as `load_model`.
    """
    return load_model(model, read_options(batch=batch, train=train))


def load_model(model: str | os.PathLike[str] | onnx.ModelProto, options: ReadOptions) -> Graph | ProblemFile:
    """Read `model`: a zoo name, a problem file (`.json`), a file of a registered ending, or else ONNX.

    Without an ending, as a pipe has none, the content tells a problem file.

    Raises `ModelError` for an unknown name (with the closest ones) and for whatever is wrong with a file, `OptionError`
    for options that don't fit it.
    """
    if options.micro_batches > 1:
        from poetopt.frontends.parts import in_parts

        if isinstance(model, (str, os.PathLike)) and is_special(os.fspath(model)):
            raise ModelError(f"{os.fspath(model)}: --micro-batch reads the model twice; give a file")
        return in_parts(partial(load_model, model), options)
    if not isinstance(model, (str, os.PathLike)):
        from poetopt.frontends.onnx_file import load_onnx

        return load_onnx(model, options)
    if _names_network(model):
        return _from_zoo(os.fspath(model), options)
    path, plugin, content = _found(model)
    if plugin is not None:
        return _by_plugin(plugin, path, options)
    if _is_problem(path, content):
        from poetopt.frontends.problem_file import load_problem_file

        if options.fixes_inputs:
            raise OptionError(
                f"{path}: a problem file has fixed sizes and no inputs; leave {' and '.join(options.fixes_inputs)} out"
            )
        if options.batch is not None or options.train is not None:
            raise ModelError(f"{path}: a problem file has a fixed batch and no weights; leave --batch and --train out")
        return load_problem_file(path, content)
    _check_not_foreign(path, content)
    from poetopt.frontends.onnx_file import load_onnx

    return load_onnx(path, options, content=content)


def read_network(model: str | os.PathLike[str] | onnx.ModelProto) -> Document:
    """Read an ONNX network that is to be written anew, with its weights: of the zoo, in a file, or in memory.

    It is what `load_model` can read, as far as that goes without sizes that the file leaves open. Nodes that no output
    needs are left out. Raises `ModelError`.
    """
    from poetopt.frontends.onnx_file import check_readable
    from poetopt.frontends.read import read_model
    from poetopt.frontends.structure import needed

    if not isinstance(model, (str, os.PathLike)):
        document = read_model(model)
    elif _names_network(model):
        from poetopt import zoo

        document = read_model(zoo.build(_known(os.fspath(model))))
    else:
        path, plugin, content = _found(model)
        if plugin is not None or _is_problem(path, content):
            raise ModelError(f"{path}: no ONNX network, which alone can be written anew; give an .onnx file")
        _check_not_foreign(path, content)
        document = read_model(path, content)
    check_readable(document)
    graph = document.proto.graph
    document.put_nodes(needed(graph.node, [info.name for info in graph.output]))
    return document


def _names_network(model: str | os.PathLike[str]) -> bool:
    """Says whether a text can only be the name of a network of the zoo."""
    text = os.fspath(model)
    return isinstance(model, str) and text != "" and not Path(text).suffix and not Path(text).exists()


def _found(model: str | os.PathLike[str]) -> tuple[Path, EntryPoint | None, bytes | None]:
    """The file of a model, the package that reads it where that isn't poetopt itself, and what a stream held."""
    text = os.fspath(model)
    if not text:
        raise ModelError(f"the name of the model is empty; {_zoo_names()}")
    path = Path(text)
    plugin = _registered(path.suffix.lower().lstrip("."))
    if not path.exists():
        raise ModelError(f"{text}: no such file{_closest_files(path)}; {_zoo_names()}")
    return path, plugin, None if plugin is not None else _piped(path)


def _is_problem(path: Path, content: bytes | None) -> bool:
    """Says whether it is a problem file, by its ending or, where it has none, by its content."""
    ending = path.suffix.lower()
    return ending == ".json" or (not ending and _begins_as_object(path, content))


def _check_not_foreign(path: Path, content: bytes | None) -> None:
    from poetopt.frontends.foreign import foreign

    told = foreign(path, content)
    if told is not None:
        raise ModelError(told)


def _registered(ending: str) -> EntryPoint | None:
    """Gives what another package reads files of this ending with. Raises ModelError where that isn't theirs alone."""
    found = [point for point in entry_points(group=ENTRY_POINTS) if point.name.lower() == ending]
    if not found:
        return None
    whose = " and ".join(sorted(imports.origin(point) for point in found))
    # the endings that no other package may take over
    if ending in ("onnx", "json"):
        raise ModelError(f".{ending} files are read by poetopt itself, and by {whose}; uninstall that")
    if len(found) > 1:
        raise ModelError(f".{ending} files are read by {whose}; uninstall one of them")
    return found[0]


def _piped(path: Path) -> bytes | None:
    """All of what can be read but once; None for a file. Raises ModelError."""
    if path.is_file() or path.is_dir():
        return None
    try:
        return read_bytes(path, STREAM_BYTES)
    except OSError as error:
        raise ModelError(f"{path}: can't be read ({error.strerror or error}); check the path") from error


def _begins_as_object(path: Path, content: bytes | None) -> bool:
    """Says whether a file is a JSON object, if it is anything that can be read: what ONNX writes begins otherwise."""
    if content is None:
        with suppress(OSError), path.open("rb") as file:
            content = file.read(512)
    return (content or b"").lstrip().startswith(b"{")


def _from_zoo(name: str, options: ReadOptions) -> Graph:
    from poetopt import zoo
    from poetopt.frontends.onnx_file import load_onnx

    _known(name)
    tokens = zoo.tokens_of(name, dict(options.shapes))
    return load_onnx(zoo.build(name, options.batch, tokens), replace(options, batch=None), reference=name)


def _known(name: str) -> str:
    """The name itself, where a network of the zoo has it. Raises ModelError."""
    from poetopt import zoo

    if name not in zoo.names():
        raise ModelError(
            f"{name}: neither a file nor a network of the zoo{closest(name, zoo.names())}{_closest_files(Path(name))}; "
            "give an .onnx file, a problem file (.json), or a name that `poetopt zoo` lists"
        )
    return name


def _zoo_names() -> str:
    from poetopt import zoo

    return f"give an .onnx file, a problem file (.json), or a network: {', '.join(zoo.names())}"


def _closest_files(path: Path) -> str:
    try:
        present = sorted(p.name for p in path.parent.iterdir() if p.suffix in (".onnx", ".json", path.suffix or "."))
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, present, n=3)
    return f" (did you mean {', '.join(str(path.parent / name) for name in close)}?)" if close else ""


def _by_plugin(point: EntryPoint, path: Path, options: ReadOptions) -> Graph:
    """Gives what another package's frontend reads. Raises ModelError, naming the package, where it fails."""
    from poetopt.frontends.summary import gap
    from poetopt.graph import Graph

    read = imports.load(point, "frontend", ModelError)
    where = f"{path}: frontend '{point.name}' ({imports.origin(point)})"
    if not callable(read):
        raise ModelError(f"{where} is a {type(read).__name__}, not a function of a path; tell its authors")
    if options.fixes_inputs:
        raise OptionError(f"{where} takes --batch and --train alone; leave {' and '.join(options.fixes_inputs)} out")
    train = list(options.train) if isinstance(options.train, tuple) else options.train
    try:
        found = cast("Callable[..., object]", read)(path, batch=options.batch, train=train)
    except (PoetError, OSError, MemoryError):
        raise
    except Exception as error:
        raise ModelError(f"{where} failed: {imports.failure(error)}; check the file, or tell its authors") from error
    if not isinstance(found, Graph):
        raise ModelError(f"{where} returned a {type(found).__name__}, not a Graph; tell its authors")
    missing = gap(found)
    if missing is not None:
        raise ModelError(f"{where} returned a graph that isn't whole: {missing}; tell its authors")
    from poetopt.frontends.summary import structure_hash

    content_hash = found.content_hash or _content_hash(path)
    structure = found.structure_hash or structure_hash(found)
    return replace(found, source=str(path), content_hash=content_hash, structure_hash=structure)


def _content_hash(path: Path) -> str:
    """SHA-256 of a file, or of all files of a folder with their names."""
    files = sorted(entry for entry in path.rglob("*") if entry.is_file()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(path).as_posix()}:{file.stat().st_size}:".encode())
        with open_regular(file) as content:
            while part := content.read(2**20):
                digest.update(part)
    return digest.hexdigest()
