"""Writing the trained network: the original file with new values of parameters and running statistics.

The file is written in inference form, unless the training form is requested (`poetopt.training.inference`). If the two
forms are equal and all values lie in the file itself, the values are overwritten in a copy of it, one tensor at a time.
Then everything else stays the same byte by byte, and memory holds one tensor only. Otherwise the structure is read and
written again (`poetopt.training.initializers`); external data files are copied next to the new file.

The positions of the values are found without reading them, and without ONNX, because weights may exceed the RAM. The
relevant protobuf fields, by their numbers in `onnx.proto`: the graph of a model (7); the nodes (1) and initializers (5)
of a graph; the outputs (2), op (4) and attributes (5) of a node; the tensor (5) of an attribute; the name (8) and the
bytes of a tensor: `raw_data` (9), packed `float_data` (4) and `double_data` (10).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from poetopt.frontends.external import opened, real_folder
from poetopt.graph import Tensor
from poetopt.util import process
from poetopt.util.errors import ModelError, OutputError
from poetopt.util.files import check_writable, open_regular, replacing, scratch_folder
from poetopt.util.units import show_bytes

if TYPE_CHECKING:
    import onnx

    from poetopt.graph import Array, TrainingGraph
    from poetopt.training.inference import Changes
    from poetopt.training.initializers import External
    from poetopt.util.progress import Told

_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5


@dataclass(frozen=True)
class _FileSpan:
    """Range of `nbytes` bytes of a file, from `start` on."""

    start: int
    nbytes: int


def _tensor_spans(file: IO[bytes]) -> dict[str, _FileSpan]:
    """Return the spans of initializers, and of constants by their output, in a model file.

    Tensors with external data, or with elements stored one by one, are absent. Raises ModelError if the file is no
    protobuf.
    """
    spans: dict[str, _FileSpan] = {}
    for field, graph in _messages(file, _FileSpan(0, file.seek(0, os.SEEK_END))):
        if field != 7:
            continue
        for graph_field, span in _messages(file, graph):
            if graph_field == 5:
                name, data = _tensor(file, span)
            elif graph_field == 1:
                name, data = _constant(file, span)
            else:
                continue
            if name and data is not None:
                spans[name] = data
    return spans


def _tensor(file: IO[bytes], tensor: _FileSpan) -> tuple[str, _FileSpan | None]:
    name, data = "", None
    for number, span in _messages(file, tensor):
        if number == 8:
            name = _text(file, span)
        elif number in {4, 9, 10} and span.nbytes:
            data = span
    return name, data


def _constant(file: IO[bytes], node: _FileSpan) -> tuple[str, _FileSpan | None]:
    outputs: list[str] = []
    op, data = "", None
    attributes: list[_FileSpan] = []
    for number, span in _messages(file, node):
        if number == 2:
            outputs.append(_text(file, span))
        elif number == 4:
            op = _text(file, span)
        elif number == 5:
            attributes.append(span)
    for attribute in attributes if op == "Constant" else ():
        for number, span in _messages(file, attribute):
            if number == 5:
                _, data = _tensor(file, span)
    return outputs[0] if len(outputs) == 1 else "", data


def _text(file: IO[bytes], span: _FileSpan) -> str:
    file.seek(span.start)
    return file.read(span.nbytes).decode("utf-8", "replace")


def _messages(file: IO[bytes], within: _FileSpan) -> Iterator[tuple[int, _FileSpan]]:
    """Yield number and span of each length-delimited field of a message."""
    position, end = within.start, within.start + within.nbytes
    while position < end:
        key, position = _varint(file, position, end)
        kind = key & 7
        if kind == _VARINT:
            _, position = _varint(file, position, end)
        elif kind in (_EIGHT, _FOUR):
            position += 8 if kind == _EIGHT else 4
        elif kind == _LENGTH:
            nbytes, position = _varint(file, position, end)
            if position + nbytes > end:
                raise ModelError("the file is cut short. Export it again.")
            yield key >> 3, _FileSpan(position, nbytes)
            position += nbytes
        else:
            raise ModelError("the file is not an ONNX model. Export it again.")


def _varint(file: IO[bytes], position: int, end: int) -> tuple[int, int]:
    file.seek(position)
    value = 0
    for shift, byte in enumerate(file.read(min(10, end - position))):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, position + shift + 1
    raise ModelError("the file is cut short. Export it again.")


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """Built-in network; a subprocess builds it, because that takes several times the memory of its parameters."""

    name: str
    batch: int | None = None
    tokens: int | None = None

    def write(self, path: Path, changes: Changes | None) -> None:
        """Write the file of the network, with the changes of `form`. Raises OutputError."""
        process.call(f"building {self.name}", _write_original, self, path, changes)


def original(
    model: str | os.PathLike[str] | onnx.ModelProto | None, recipe: Mapping[str, object]
) -> str | os.PathLike[str] | onnx.ModelProto | BuiltIn:
    """Return the network that `export` writes: a path, the model itself, or a built-in network of the recipe.

    Raises ModelError if the network is unknown.
    """
    from poetopt import zoo

    if model is None or model == "":
        raise ModelError("the network was given in memory. To write it, pass it as Trainer(plan, model=...).")
    if isinstance(model, str) and model in zoo.names() and not os.path.exists(model):
        batch, shapes = recipe.get("batch"), recipe.get("shapes")
        tokens = zoo.tokens_of(model, shapes if isinstance(shapes, Mapping) else {})
        return BuiltIn(model, batch if isinstance(batch, int) else None, tokens)
    return model


def _write_original(network: BuiltIn, path: Path, changes: Changes | None, *, told: Told) -> None:
    from poetopt import zoo

    _write_model(zoo.build(network.name, network.batch, network.tokens), path, changes)


def _write_in_form(source: Path, path: Path, changes: Changes, *, told: Told) -> None:
    from poetopt.frontends.read import parsed

    _write_model(parsed(source), path, changes)


def _write_model(model: onnx.ModelProto, path: Path, changes: Changes | None) -> None:
    from poetopt.training.inference import to_inference

    if changes:
        to_inference(model, changes)
    try:
        path.write_bytes(model.SerializeToString())
    except OSError as error:
        raise OutputError(f"can't write {path.parent}: {error.strerror or error}. Free some space there.") from error


def export(
    source: str | os.PathLike[str] | onnx.ModelProto | BuiltIn,
    names: Sequence[str],
    values: Mapping[str, Array],
    out: str | os.PathLike[str] | None,
    *,
    known: Mapping[str, Tensor],
    form: Changes | None = None,
    allow_symlinks: bool = False,
) -> None:
    """Write the network `source` to `out` with new values, completely or not at all.

    If `out` is None, nothing is written, but errors of the source are raised.

    Parameters
    ----------
    source
        A file, a model in memory (it is not changed), or a built-in network.
    names, values
        Parameters and running statistics; each value is fetched when it is written.
    known
        All tensors of the network as it was read. An initializer that is not among them may be a copy of a parameter;
        it then gets the same values, in its own order of axes.
    form
        Changes for inference; None keeps the training form.

    Raises
    ------
    ModelError
        If the file can't be read, or lacks a tensor for one of the values, or a node of that form.
    OutputError
        If `out` can't be written.
    """
    if isinstance(source, BuiltIn):
        if out is None:
            return
        with replacing(out) as path_of_new:
            source.write(path_of_new, form)
            _overwrite(path_of_new, _spans(path_of_new), names, values)
        return
    if not isinstance(source, (str, os.PathLike)):
        from poetopt.training.inference import to_inference
        from poetopt.training.initializers import put

        model = type(source)()
        model.CopyFrom(source)
        if form:
            to_inference(model, form)
        put(model, names, values, known, lambda initializer: _raise_external(initializer.name))
        if out is None:
            return
        with replacing(out) as path_of_new:
            path_of_new.write_bytes(model.SerializeToString())
        return
    with ExitStack() as stack:
        path = Path(source)
        structure = path
        if form:
            structure = Path(stack.enter_context(scratch_folder("network"))) / "network.onnx"
            _spans(path)  # raises ModelError if the file is missing
            process.call("the form of inference", _write_in_form, path, structure, form)
        _export_file(path, structure, names, values, out, known=known, allow_symlinks=allow_symlinks)


def _export_file(
    path: Path,
    structure: Path,
    names: Sequence[str],
    values: Mapping[str, Array],
    out: str | os.PathLike[str] | None,
    *,
    known: Mapping[str, Tensor],
    allow_symlinks: bool,
) -> None:
    """Write the file `structure`, whose external data files lie next to `path`."""
    spans = _spans(structure)
    sizes = {known[name].nbytes for name in names}
    # Tensors of up to 64 bytes may be equal by chance.
    tied = [name for name, span in spans.items() if name not in known and 64 < span.nbytes in sizes]
    if all(name in spans for name in names) and not tied:
        if out is None:
            return
        with open_regular(structure) as file, replacing(out) as new_path:
            with open(new_path, "wb") as copy:
                shutil.copyfileobj(file, copy)
            _overwrite(new_path, spans, names, values)
        return
    _rewrite(path, structure, names, values, None if out is None else Path(out), known, allow_symlinks=allow_symlinks)


@dataclass(frozen=True)
class Exporting:
    """Network of a training step that is written again; `model` overrides the graph's own."""

    graph: TrainingGraph
    recipe: Mapping[str, object]
    model: str | os.PathLike[str] | onnx.ModelProto | None
    training_form: bool = False
    allow_symlinks: bool = False

    def write(
        self,
        values: Mapping[str, Array],
        out: str | os.PathLike[str] | None,
        constants: Mapping[str, Array] | None = None,
    ) -> None:
        """Write the network like `export`; `given` are the constants, if they differ from the graph's."""
        from poetopt.training.inference import changes

        source = original(self.graph.source if self.model is None else self.model, self.recipe)
        form = (
            None if self.training_form else changes(self.graph, self.graph.values if constants is None else constants)
        )
        names = [name for name in values if name in self.graph.learned]
        export(source, names, values, out, known=self.graph.tensors, form=form, allow_symlinks=self.allow_symlinks)

    def check(self, out: str | os.PathLike[str]) -> None:
        """Raise OutputError like `check_out`."""
        source = original(self.graph.source if self.model is None else self.model, self.recipe)
        check_out(source, sum(self.graph.tensors[name].nbytes for name in self.graph.learned), out)


def check_out(
    source: str | os.PathLike[str] | onnx.ModelProto | BuiltIn, nbytes: int, out: str | os.PathLike[str]
) -> None:
    """Raise OutputError if `export` to `out` would: no permission, a device, not enough space.

    Parameters
    ----------
    nbytes
        Size of all values; the lower bound of a built-in network's file.
    """
    check_writable(out)
    if os.path.exists(out) and not os.path.isfile(out):
        raise OutputError(f"can't write {out}: it is a device or a pipe. Give the path of a file.")
    try:
        usage = shutil.disk_usage(os.path.dirname(os.path.realpath(out)))
        if isinstance(source, BuiltIn):
            required = nbytes
        else:
            required = os.path.getsize(source) if isinstance(source, (str, os.PathLike)) else source.ByteSize()
    except OSError:
        return  # writing it will raise
    if usage.total and usage.free < required:
        raise OutputError(
            f"can't write {out}: the network takes {show_bytes(required)}, and {show_bytes(usage.free)} are free. "
            "Free some space, or give a path on another disk."
        )


def _spans(path: Path) -> Mapping[str, _FileSpan]:
    try:
        with open_regular(path) as file:
            return _tensor_spans(file)
    except OSError as error:
        raise ModelError(
            f"can't read {path}: {error.strerror or error}. The trained network is written from this file."
        ) from error
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


def _rewrite(
    path: Path,
    structure: Path,
    names: Sequence[str],
    values: Mapping[str, Array],
    out: Path | None,
    known: Mapping[str, Tensor],
    *,
    allow_symlinks: bool,
) -> None:
    from poetopt.frontends.read import parsed
    from poetopt.training.initializers import external_data, put

    model = parsed(structure)
    folder = real_folder(path.parent)
    data = external_data(model)

    def read(initializer: External) -> bytes:
        with opened(
            f"{path}: {initializer.name!r}", folder, initializer.location, allow_symlinks=allow_symlinks
        ) as file:
            file.seek(initializer.offset)
            return file.read(initializer.nbytes)

    external = put(model, names, values, known, read)
    for number, location in enumerate(dict.fromkeys(initializer.location for initializer in data.values()), 1):
        if out is None:
            with opened(str(path), folder, location, allow_symlinks=allow_symlinks):
                continue
        name = f"{out.name}.data" if number == 1 else f"{out.name}.{number}.data"
        with (
            opened(str(path), folder, location, allow_symlinks=allow_symlinks) as file,
            replacing(out.parent / name) as new_path,
            open(new_path, "r+b") as new_data,
        ):
            shutil.copyfileobj(file, new_data)
            for tensor, value in external.items():
                if data[tensor].location == location:
                    _write(new_data, _FileSpan(data[tensor].offset, value.nbytes), value, tensor)
        for initializer in data.values():
            if initializer.location == location:
                initializer.rename(name)
    if out is None:
        return
    with replacing(out) as new_path:
        new_path.write_bytes(model.SerializeToString())


def _overwrite(path: Path, spans: Mapping[str, _FileSpan], names: Sequence[str], values: Mapping[str, Array]) -> None:
    """Overwrite values in a file."""
    with open(path, "r+b") as file:
        for name in names:
            _write(file, spans[name], values[name], name)


def _write(file: IO[bytes], span: _FileSpan, value: Array, name: str) -> None:
    if value.nbytes != span.nbytes:
        raise ModelError(
            f"{name!r} has {value.nbytes} B, and {span.nbytes} B in the file. The file is another network's."
        )
    file.seek(span.start)
    file.write(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)


def _raise_external(name: str) -> bytes:
    raise ModelError(f"the data of {name!r} is in an external file. Give the model by its path.")
