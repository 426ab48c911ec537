"""The trained network: the original file with other numbers in its parameters and running statistics.

It has the form of inference, unless it is asked to keep that of training (`poetopt.training.inference`). Where there is
no difference, and the bytes of all of them lie in the file itself, they are written over in a copy of it, one tensor
after the other: what isn't trained is the same byte by byte, and no two tensors need be in memory. Otherwise the
structure is read and written anew (`poetopt.training.initializers`); data in files of its own is copied to files beside
the new one.

Where the bytes lie is found without reading them, or ONNX: weights may be larger than the RAM. Protobuf's fields that
matter, by their numbers in `onnx.proto`: a model's graph (7); a graph's nodes (1) and initializers (5); of a node its
outputs (2), its op (4) and attributes (5), of an attribute its tensor (5); of a tensor its name (8) and its bytes:
`raw_data` (9), packed `float_data` (4) and `double_data` (10).
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
    """So many bytes of a file from `start` on."""

    start: int
    nbytes: int


def _tensor_spans(file: IO[bytes]) -> dict[str, _FileSpan]:
    """The places of the elements of initializers and of constants (by their output) in the file of a model.

    Tensors whose elements are elsewhere, or stored one by one, are absent. Raises ModelError for what is no protobuf.
    """
    found: dict[str, _FileSpan] = {}
    for number, graph in _messages(file, _FileSpan(0, file.seek(0, os.SEEK_END))):
        if number != 7:
            continue
        for part, span in _messages(file, graph):
            if part == 5:
                name, data = _tensor(file, span)
            elif part == 1:
                name, data = _constant(file, span)
            else:
                continue
            if name and data is not None:
                found[name] = data
    return found


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
    """The length-delimited fields of a message: number, and where the content is."""
    place, end = within.start, within.start + within.nbytes
    while place < end:
        key, place = _varint(file, place, end)
        kind = key & 7
        if kind == _VARINT:
            _, place = _varint(file, place, end)
        elif kind in (_EIGHT, _FOUR):
            place += 8 if kind == _EIGHT else 4
        elif kind == _LENGTH:
            nbytes, place = _varint(file, place, end)
            if place + nbytes > end:
                raise ModelError("the file is cut short; export it again")
            yield key >> 3, _FileSpan(place, nbytes)
            place += nbytes
        else:
            raise ModelError("the file is no ONNX model; export it again")


def _varint(file: IO[bytes], place: int, end: int) -> tuple[int, int]:
    file.seek(place)
    value = 0
    for shift, byte in enumerate(file.read(min(10, end - place))):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, place + shift + 1
    raise ModelError("the file is cut short; export it again")


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A built-in network. Building it takes several times its parameters, so another process does."""

    name: str
    batch: int | None = None
    tokens: int | None = None

    def write(self, place: Path, form: Changes | None) -> None:
        """Write its file, with these changes. Raises OutputError where that can't be done."""
        process.call(f"building {self.name}", _write_original, self, place, form)


def original(
    model: str | os.PathLike[str] | onnx.ModelProto | None, recipe: Mapping[str, object]
) -> str | os.PathLike[str] | onnx.ModelProto | BuiltIn:
    """Gives what `export` writes anew: a path, the model itself, or a built-in network as the recipe says.

    Raises ModelError where nobody said which it is.
    """
    from poetopt import zoo

    if model is None or model == "":
        raise ModelError("the network was given in memory; say which, with Trainer(plan, model=...), to write it")
    if isinstance(model, str) and model in zoo.names() and not os.path.exists(model):
        batch, shapes = recipe.get("batch"), recipe.get("shapes")
        tokens = zoo.tokens_of(model, shapes if isinstance(shapes, Mapping) else {})
        return BuiltIn(model, batch if isinstance(batch, int) else None, tokens)
    return model


def _write_original(network: BuiltIn, place: Path, form: Changes | None, *, told: Told) -> None:
    from poetopt import zoo

    _write_model(zoo.build(network.name, network.batch, network.tokens), place, form)


def _write_in_form(source: Path, place: Path, form: Changes, *, told: Told) -> None:
    from poetopt.frontends.read import parsed

    _write_model(parsed(source), place, form)


def _write_model(model: onnx.ModelProto, place: Path, form: Changes | None) -> None:
    from poetopt.training.inference import to_inference

    if form:
        to_inference(model, form)
    try:
        place.write_bytes(model.SerializeToString())
    except OSError as error:
        raise OutputError(f"can't write {place.parent}: {error.strerror or error}; make room there") from error


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
    """Write the network `source` to `out` with `values` in place of its own, whole or not at all.

    With None for `out`, nothing is written, but what would fail for the sake of the source does.

    source
        A file, a model in memory, which is not changed, or a built-in network.
    names, values
        Of the parameters and running statistics; each value is asked for when it is written.
    known
        All tensors that the network was read with: an initializer of the file that is none of them may be a copy of a
        parameter, and then gets its values, in its own order of axes.
    form
        What differs in inference; None keeps the form of training.

    Raises ModelError where the file can't be read, or has no place for one of the values, or no node of that form;
    OutputError where `out` can't be written.
    """
    if isinstance(source, BuiltIn):
        if out is None:
            return
        with replacing(out) as place:
            source.write(place, form)
            _over(place, _spans(place), names, values)
        return
    if not isinstance(source, (str, os.PathLike)):
        from poetopt.training.inference import to_inference
        from poetopt.training.initializers import put

        model = type(source)()
        model.CopyFrom(source)
        if form:
            to_inference(model, form)
        put(model, names, values, known, lambda found: _no_file(found.name))
        if out is None:
            return
        with replacing(out) as place:
            place.write_bytes(model.SerializeToString())
        return
    with ExitStack() as stack:
        path = Path(source)
        made = path
        if form:
            made = Path(stack.enter_context(scratch_folder("network"))) / "network.onnx"
            _spans(path)  # says where the file isn't there
            process.call("the form of inference", _write_in_form, path, made, form)
        _export_file(path, made, names, values, out, known=known, allow_symlinks=allow_symlinks)


def _export_file(
    path: Path,
    made: Path,
    names: Sequence[str],
    values: Mapping[str, Array],
    out: str | os.PathLike[str] | None,
    *,
    known: Mapping[str, Tensor],
    allow_symlinks: bool,
) -> None:
    """Write the file `made`, whose data in files of their own lie beside `path`."""
    spans = _spans(made)
    sizes = {known[name].nbytes for name in names}
    # A tensor as small as this may equal another by chance
    tied = [name for name, span in spans.items() if name not in known and 64 < span.nbytes in sizes]
    if all(name in spans for name in names) and not tied:
        if out is None:
            return
        with open_regular(made) as file, replacing(out) as place:
            with open(place, "wb") as copy:
                shutil.copyfileobj(file, copy)
            _over(place, spans, names, values)
        return
    _anew(path, made, names, values, None if out is None else Path(out), known, allow_symlinks=allow_symlinks)


@dataclass(frozen=True)
class Exporting:
    """The network of a training step, to be written anew; `model`, where it isn't the graph's own."""

    graph: TrainingGraph
    recipe: Mapping[str, object]
    model: str | os.PathLike[str] | onnx.ModelProto | None
    training_form: bool = False
    allow_symlinks: bool = False

    def write(
        self, values: Mapping[str, Array], out: str | os.PathLike[str] | None, given: Mapping[str, Array] | None = None
    ) -> None:
        """As `export` does; `given` are the constants, where they aren't the graph's."""
        from poetopt.training.inference import changes

        source = original(self.graph.source if self.model is None else self.model, self.recipe)
        form = None if self.training_form else changes(self.graph, self.graph.values if given is None else given)
        names = [name for name in values if name in self.graph.learned]
        export(source, names, values, out, known=self.graph.tensors, form=form, allow_symlinks=self.allow_symlinks)

    def check(self, out: str | os.PathLike[str]) -> None:
        """As `check_out` does."""
        source = original(self.graph.source if self.model is None else self.model, self.recipe)
        check_out(source, sum(self.graph.tensors[name].nbytes for name in self.graph.learned), out)


def check_out(
    source: str | os.PathLike[str] | onnx.ModelProto | BuiltIn, nbytes: int, out: str | os.PathLike[str]
) -> None:
    """Raise OutputError now where `export` to `out` would: no rights, a device, no room for `source`.

    nbytes
        Of all values that are written, which a built-in network takes at least.
    """
    check_writable(out)
    if os.path.exists(out) and not os.path.isfile(out):
        raise OutputError(f"can't write {out}: it is a device or a pipe, and a network is a file; give a file's path")
    try:
        room = shutil.disk_usage(os.path.dirname(os.path.realpath(out)))
        if isinstance(source, BuiltIn):
            wanted = nbytes
        else:
            wanted = os.path.getsize(source) if isinstance(source, (str, os.PathLike)) else source.ByteSize()
    except OSError:
        return  # not known before
    if room.total and room.free < wanted:
        raise OutputError(
            f"can't write {out}: the network takes {show_bytes(wanted)}, and {show_bytes(room.free)} are free there; "
            "make room, or give a path on another disk"
        )


def _spans(path: Path) -> Mapping[str, _FileSpan]:
    try:
        with open_regular(path) as file:
            return _tensor_spans(file)
    except OSError as error:
        raise ModelError(
            f"can't read {path}: {error.strerror or error}; the trained network is this file with other numbers"
        ) from error
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


def _anew(
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

    def read(found: External) -> bytes:
        with opened(f"{path}: {found.name!r}", folder, found.location, allow_symlinks=allow_symlinks) as file:
            file.seek(found.offset)
            return file.read(found.nbytes)

    left = put(model, names, values, known, read)
    for number, location in enumerate(dict.fromkeys(found.location for found in data.values()), 1):
        if out is None:
            with opened(str(path), folder, location, allow_symlinks=allow_symlinks):
                continue
        name = f"{out.name}.data" if number == 1 else f"{out.name}.{number}.data"
        with (
            opened(str(path), folder, location, allow_symlinks=allow_symlinks) as file,
            replacing(out.parent / name) as place,
            open(place, "r+b") as made,
        ):
            shutil.copyfileobj(file, made)
            for tensor, value in left.items():
                if data[tensor].location == location:
                    _write(made, _FileSpan(data[tensor].offset, value.nbytes), value, tensor)
        for found in data.values():
            if found.location == location:
                found.rename(name)
    if out is None:
        return
    with replacing(out) as place:
        place.write_bytes(model.SerializeToString())


def _over(place: Path, spans: Mapping[str, _FileSpan], names: Sequence[str], values: Mapping[str, Array]) -> None:
    """Write values over those of a file."""
    with open(place, "r+b") as made:
        for name in names:
            _write(made, spans[name], values[name], name)


def _write(file: IO[bytes], span: _FileSpan, value: Array, name: str) -> None:
    if value.nbytes != span.nbytes:
        raise ModelError(f"{name!r} has {value.nbytes} B, and {span.nbytes} in the file; it is another network's")
    file.seek(span.start)
    file.write(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)


def _no_file(name: str) -> bytes:
    raise ModelError(f"the data of {name!r} is in a file beside the model; give the model by its path")
