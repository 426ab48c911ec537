"""From a file to a parsed model and its weights, with every way a file can be bad told apart.

A `Document` keeps the structure (nodes, inputs, outputs) apart from the weights: passes over the
structure then cost nothing, however large the network is, and external data is read once, at the end.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped,unused-ignore]
from onnx import TensorProto, helper, numpy_helper

from poetopt.frontends.external import opened, real_folder
from poetopt.frontends.proto import constant_tensor, copied, dtype_name, subgraphs
from poetopt.graph import DTYPE_BYTES, PACKED, bytes_of_elements
from poetopt.util.errors import ModelError
from poetopt.util.files import MODEL_BYTES, read_bytes
from poetopt.util.numbers import read_whole

if TYPE_CHECKING:
    from poetopt.graph import Array

_Message = TypeVar("_Message", onnx.ModelProto, onnx.GraphProto)

LARGEST_TENSOR_BYTES = 2**40
"""A tensor beyond this (1 TiB) is taken for a damaged or hostile file."""


LIBRARY_ERRORS = (
    RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError,
    DecodeError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError,
)  # fmt: skip
"""What ONNX's own functions raise on input that they don't like."""


@dataclass
class Document:
    """A parsed model, its weights still where they are.

    where
        How messages refer to it: the path, or `<model>`.
    proto
        The model without its initializers; ours to change.
    folder
        The real folder of the model, where external data is looked for, or None (a model that was handed over in
        memory).
    weights
        The initializers by name, unread: the parsed file's or the caller's own, for large networks leave no room for
        copies. None of them is changed.
    fills
        Weights that the file does not store, but fills with one value: that value, as an array of one element.
    given
        Names of weights that were inputs, and whose value the user said (`--value`).
    allow_symlinks
        Whether external data may lie outside of `folder`, behind symbolic links.
    """

    where: str
    proto: onnx.ModelProto
    folder: Path | None
    weights: dict[str, TensorProto] = field(default_factory=dict)
    fills: dict[str, Array] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    allow_symlinks: bool = False

    @property
    def opset(self) -> int:
        """Version of the default domain."""
        return opset_of(self.proto)

    @property
    def names(self) -> set[str]:
        """All names of tensors: of weights, inputs, and what nodes write."""
        graph = self.proto.graph
        written = (name for node in graph.node for name in node.output)
        return {*self.weights, *written, *(info.name for info in graph.input)}

    def put_nodes(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Have copies of these nodes in place of its own."""
        copies = [copied(node) for node in nodes]
        del self.proto.graph.node[:]
        self.proto.graph.node.extend(copies)


def opset_of(model: onnx.ModelProto) -> int:
    """Version of the default ONNX domain that `model` is in; 0 where it states none."""
    return max((int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)


def read_model(
    source: str | os.PathLike[str] | onnx.ModelProto, content: bytes | None = None, *, allow_symlinks: bool = False
) -> Document:
    """Parse `source`, and tell its weights from its structure.

    content
        What is at the path `source`, where that has been read.
    allow_symlinks
        See `Document`.

    Raises `ModelError` for what can't be opened, is empty, is text, is truncated, or is no ONNX model.
    """
    if isinstance(source, onnx.ModelProto):
        parsed, where, folder = source, "<model>", None
    else:
        path = Path(source)
        # The folder is found once, and model and data are read there: a link on the way to it may be changed meanwhile.
        folder = real_folder(path.parent)
        parsed, where = _parse(path, content, folder / path.name), str(path)
    _check_text(where, parsed)
    document = Document(where, _structure(parsed), folder, allow_symlinks=allow_symlinks)
    _check_header(document)
    _list_weights(document, parsed.graph.initializer)
    _bring_in(document)
    return document


def _parse(path: Path, content: bytes | None, place: Path) -> onnx.ModelProto:
    """The model at `place`, which messages call `path`."""
    try:
        raw = read_bytes(place, MODEL_BYTES) if content is None else content
    except OSError as error:
        raise ModelError(f"{path}: can't be read ({error.strerror or error}); check the path") from error
    if not raw:
        raise ModelError(f"{path}: the file is empty; export the model again")
    if _is_text(raw):
        raise ModelError(f"{path}: a text file, not an ONNX model; give the .onnx file that the exporter wrote")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(raw)
    except DecodeError as error:
        raise ModelError(
            f"{path}: not an ONNX model, or a truncated one ({len(raw)} bytes could not be decoded); "
            "copy or export the file again"
        ) from error
    return proto


def _is_text(raw: bytes) -> bool:
    head = raw[:512]
    return not any(byte < 9 or 13 < byte < 32 for byte in head)


def _check_header(document: Document) -> None:
    model, where = document.proto, document.where
    if not model.HasField("graph") and not model.opset_import:
        raise ModelError(f"{where}: not an ONNX model (it has no graph); export the model again")
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"{where}: the graph is empty (no nodes and no outputs); export the model again")
    if not model.graph.output:
        raise ModelError(f"{where}: the graph has no outputs, so nothing can be trained; export the model again")
    # ONNX's own checks keep the version of the format in 32 bits
    if not 0 <= model.ir_version < 2**31:
        raise ModelError(
            f"{where}: states version {model.ir_version} of ONNX's format, and the newest known is {onnx.IR_VERSION}; "
            "the file is damaged, copy or export it again"
        )
    if opset_of(model) < 1 and model.ir_version < 3:
        model.opset_import.append(helper.make_opsetid("", 1))
    if opset_of(model) < 1:
        raise ModelError(f"{where}: states no opset of the default ONNX domain; the file is incomplete, export again")
    newest = onnx.defs.onnx_opset_version()
    if opset_of(model) > newest:
        raise ModelError(
            f"{where}: opset {opset_of(model)} is newer than the installed onnx {onnx.__version__} knows "
            f"(up to {newest}); upgrade onnx, or export with an older opset"
        )
    if model.graph.sparse_initializer:
        name = model.graph.sparse_initializer[0].values.name
        raise ModelError(f"{where}: initializer {name!r} is sparse, which is not supported; export it as dense")


def _structure(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of all but the initializers."""
    copy = _without(model, "graph")
    if model.HasField("graph"):
        copy.graph.CopyFrom(_without(model.graph, "initializer"))
    return copy


def _without(message: _Message, left_out: str) -> _Message:
    """A copy of `message` but for one field."""
    copy = type(message)()
    for field_, value in message.ListFields():
        if field_.name == left_out:
            continue
        if hasattr(value, "extend"):
            getattr(copy, field_.name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(copy, field_.name).CopyFrom(value)
        else:
            setattr(copy, field_.name, value)
    return copy


def _check_text(where: str, model: onnx.ModelProto) -> None:
    """Protobuf hands names that are no UTF-8 over as bytes; a damaged file is full of them."""
    texts: list[object] = [entry.domain for entry in model.opset_import]
    texts += _texts(model.graph)
    for function in model.functions:
        texts += (function.name, function.domain, function.overload, *function.input, *function.output)
        texts += (*function.attribute, *(default.name for default in function.attribute_proto))
        texts += (entry.domain for entry in function.opset_import)
        texts += (text for node in function.node for text in _node_texts(node))
    if any(isinstance(text, bytes) for text in texts):
        raise ModelError(f"{where}: some names are not text; the file is damaged, copy or export it again")


def _texts(graph: onnx.GraphProto) -> Iterator[object]:
    """Every name in a graph and in the graphs of its nodes."""
    infos = (*graph.input, *graph.output, *graph.value_info)
    yield graph.name
    yield from (info.name for info in infos)
    yield from (dim.dim_param for info in infos for dim in info.type.tensor_type.shape.dim)
    for proto in graph.initializer:
        yield proto.name
        yield from (text for entry in proto.external_data for text in (entry.key, entry.value))
    for node in graph.node:
        yield from _node_texts(node)


def _node_texts(node: onnx.NodeProto) -> Iterator[object]:
    yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
    for attribute in node.attribute:
        yield from (attribute.name, attribute.ref_attr_name)
    for graph in subgraphs(node):
        yield from _texts(graph)


def _list_weights(document: Document, initializers: Iterable[TensorProto]) -> None:
    """List the initializers as weights; files of IR 3 have them among the inputs as well."""
    graph = document.proto.graph
    for proto in initializers:
        if not proto.name:
            raise ModelError(f"{document.where}: an initializer has no name; the file is damaged, export it again")
        if proto.name in document.weights:
            raise ModelError(f"{document.where}: two initializers are called {proto.name!r}; export the model again")
        check_size(f"{document.where}: initializer {proto.name!r}", tuple(proto.dims), proto.data_type)
        document.weights[proto.name] = proto
    for info in graph.input:
        tensor = info.type.tensor_type
        held = document.weights.get(info.name)
        if held is not None and tensor.HasField("shape") and not _may_be(tensor.shape, held.dims):
            raise ModelError(
                f"{document.where}: an input and an initializer of another shape are both called {info.name!r} "
                f"(the initializer has shape {list(held.dims)}); rename one of them in the module and export again"
            )
    kept = [info for info in graph.input if info.name not in document.weights]
    del graph.input[:]
    graph.input.extend(kept)


def _may_be(shape: onnx.TensorShapeProto, dims: Sequence[int]) -> bool:
    """Says whether a tensor of those dims has the declared shape."""
    pairs = zip(shape.dim, dims, strict=False)
    return len(shape.dim) == len(dims) and all(not dim.dim_value or dim.dim_value == size for dim, size in pairs)


def check_size(what: str, dims: tuple[int, ...], elem: int, remedy: str = "") -> None:
    """Raise `ModelError` for negative dims, and for sizes that no machine holds (with the remedy for those)."""
    if any(dim < 0 for dim in dims):
        raise ModelError(f"{what} has a negative dimension in its shape {list(dims)}; export the model again")
    try:
        item = DTYPE_BYTES[dtype_name(elem)]
    except ModelError:
        item = 1
    if math.prod(dims) * item > LARGEST_TENSOR_BYTES:
        raise ModelError(
            f"{what} has shape {list(dims)}, more than {LARGEST_TENSOR_BYTES >> 40} TiB; "
            + (remedy or "the file is damaged or was exported with a wrong size")
        )


def _bring_in(document: Document) -> None:
    """Put what nodes hold of external data into the nodes: ONNX's checks would look for it in the current folder."""
    functions = document.proto.functions
    holders = [(f"function {f.name!r}", attribute) for f in functions for attribute in f.attribute_proto]
    for node in all_nodes((*document.proto.graph.node, *(node for f in functions for node in f.node))):
        place = f"node {next(iter(node.output), node.name)!r}"
        holders += ((place, attribute) for attribute in node.attribute)
    for place, attribute in holders:
        sparse = (attribute.sparse_tensor, *attribute.sparse_tensors)
        parts = (part for tensor in sparse for part in (tensor.values, tensor.indices))
        for tensor in (attribute.t, *attribute.tensors, *parts):
            if tensor.data_location != TensorProto.EXTERNAL:
                continue
            what = f"{document.where}: {attribute.name!r} of {place}"
            check_size(what, tuple(tensor.dims), tensor.data_type)
            tensor.CopyFrom(numpy_helper.from_array(_external(document, what, tensor), tensor.name))


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, and those of the graphs that they hold."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from all_nodes(graph.node)


def array_of(document: Document, name: str) -> Array:
    """The initializer `name` as a read-only array; external data is read from its file."""
    proto = document.weights[name]
    what = f"{document.where}: initializer {name!r}"
    if name in document.fills:
        return np.broadcast_to(document.fills[name].reshape(-1)[0], tuple(proto.dims))  # takes no memory
    if proto.data_location == TensorProto.EXTERNAL:
        array = _external(document, what, proto)
    else:
        array = tensor_array(what, proto)
    array = np.ascontiguousarray(array).reshape(array.shape)
    array.setflags(write=False)
    return array


def stored(document: Document, name: str) -> Array | None:
    """The numbers of an initializer or of a Constant node; None where the file has none, or none that are whole."""
    if name in document.weights:
        return None if document.weights[name].data_location == TensorProto.EXTERNAL else array_of(document, name)
    node = next((node for node in document.proto.graph.node if name in node.output), None)
    return None if node is None else constant_array(node)


def constant_array(node: onnx.NodeProto) -> Array | None:
    """The dense numbers of a Constant node; None for other nodes, and where they can't be read."""
    tensor = constant_tensor(node)
    try:
        return None if tensor is None else numpy_helper.to_array(tensor)
    except LIBRARY_ERRORS:
        return None


def tensor_array(what: str, proto: TensorProto) -> Array:
    """A tensor whose data is inline; `what` is how messages refer to it."""
    try:
        dtype_name(proto.data_type)
        array = _in_place(proto) if proto.HasField("raw_data") else numpy_helper.to_array(proto)
    except ModelError as error:
        raise ModelError(f"{what}: {error}") from error
    except LIBRARY_ERRORS as error:
        raise ModelError(f"{what}: its data does not fit its shape {list(proto.dims)} ({error})") from error
    if array.shape != tuple(proto.dims):
        raise ModelError(f"{what}: its data does not fit its shape {list(proto.dims)}; export the model again")
    return array


def _in_place(proto: TensorProto) -> Array:
    """The array of raw data without a copy beside the bytes that protobuf hands out, where a number is some bytes."""
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(proto.data_type))
    if sys.byteorder != "little" or dtype.kind not in "fiub":
        return numpy_helper.to_array(proto)
    array: Array = np.frombuffer(proto.raw_data, dtype).reshape(tuple(proto.dims))
    return array


def _external(document: Document, what: str, proto: TensorProto) -> Array:
    entries: Mapping[str, str] = {entry.key: entry.value for entry in proto.external_data}
    location = entries.get("location", "")
    if document.folder is None:
        raise ModelError(
            f"{what}: its data lies in the file {location!r}, and a model in memory has no folder; "
            "load the model from its file, or read its external data first (onnx.load does)"
        )
    try:
        dtype_name(proto.data_type)
    except ModelError as error:
        raise ModelError(f"{what}: {error}") from error
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(proto.data_type))
    size = bytes_of_elements(math.prod(proto.dims), dtype_name(proto.data_type))
    try:
        offset = read_whole(entries.get("offset") or 0)
        length = read_whole(entries.get("length") or size)
    except ValueError as error:
        raise ModelError(f"{what}: offset or length of its external data is not a number") from error
    if length != size or offset < 0:
        raise ModelError(f"{what}: external data of {length} bytes at offset {offset}, but its shape needs {size}")
    shown = str(document.folder / location)
    try:
        with opened(what, document.folder, location, allow_symlinks=document.allow_symlinks) as file:
            if os.fstat(file.fileno()).st_size < offset + size:
                raise ModelError(f"{what}: external data file {shown!r} is truncated; copy it again")
            file.seek(offset)
            raw = np.fromfile(file, dtype=np.uint8, count=size)
    except OSError as error:
        raise ModelError(f"{what}: external data file {shown!r} can't be read ({error.strerror})") from error
    if dtype.name in PACKED:
        return numpy_helper.to_array(TensorProto(data_type=proto.data_type, dims=proto.dims, raw_data=raw.tobytes()))
    return raw.view(dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(tuple(proto.dims))
