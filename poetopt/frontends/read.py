"""Read a file into a parsed model and its weights, with a separate error for each kind of invalid file.

A `Document` separates the structure (nodes, inputs, outputs) from the weights: passes over the structure are
cheap for networks of any size, and external data is read once, at the end.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped,unused-ignore]
from onnx import TensorProto, helper, numpy_helper

from poetopt.frontends.external import opened, place_of, real_folder
from poetopt.frontends.proto import constant_tensor, copied, dtype_name, subgraphs
from poetopt.graph import DTYPE_BYTES, PACKED, bytes_of_elements
from poetopt.util.errors import ModelError
from poetopt.util.files import MODEL_BYTES, read_bytes

if TYPE_CHECKING:
    from poetopt.graph import Array

_Message = TypeVar("_Message", onnx.ModelProto, onnx.GraphProto)

LARGEST_TENSOR_BYTES = 2**40
"""Limit of a tensor (1 TiB): a larger one means a damaged or hostile file."""


LIBRARY_ERRORS = (
    RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError,
    DecodeError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError,
)  # fmt: skip
"""Exceptions that ONNX's functions raise for invalid input."""


@dataclass
class Document:
    """A parsed model, and its weights as protobufs.

    Attributes
    ----------
    where
        Name of the model in messages: the path, or `<model>`.
    proto
        The model without its initializers; passes may change it.
    folder
        The real folder of the model, which has its external data, or None (a model in memory).
    weights
        The initializers by name: the protobufs of the file or of the caller, not copies, because large networks leave
        no memory for copies. No pass changes them.
    fills
        Weights that the file doesn't store but fills with one value: that value, as an array of one element.
    given
        Names of weights that were inputs, with a value from the user (`--value`).
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
        """Names of all tensors: weights, inputs, and outputs of nodes."""
        graph = self.proto.graph
        written = (name for node in graph.node for name in node.output)
        return {*self.weights, *written, *(info.name for info in graph.input)}

    def copied(self) -> Document:
        """Return a copy that callers may change, with the same weights."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        return replace(self, proto=proto, weights=dict(self.weights), fills=dict(self.fills), given=set(self.given))

    def put_nodes(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Replace the nodes by copies of `nodes`, without those that write no output."""
        copies = [copied(node) for node in nodes if any(node.output)]
        del self.proto.graph.node[:]
        self.proto.graph.node.extend(copies)


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of the default ONNX domain in `model`; 0 if it states none."""
    return max((int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)


def read_model(
    source: str | os.PathLike[str] | onnx.ModelProto, content: bytes | None = None, *, allow_symlinks: bool = False
) -> Document:
    """Parse `source`, and separate its weights from its structure.

    Parameters
    ----------
    content
        Content of the file `source`, if it has been read.
    allow_symlinks
        See `Document`.

    Raises
    ------
    ModelError
        For a file that can't be opened, is empty, is text, is truncated, or isn't an ONNX model.
    """
    if isinstance(source, onnx.ModelProto):
        proto, where, folder = source, "<model>", None
    else:
        path = Path(source)
        # Resolve the folder once, and read model and data there: links in the path may change meanwhile.
        folder = real_folder(path.parent)
        proto, where = parsed(path, content, folder / path.name), str(path)
    _check_text(where, proto)
    document = Document(where, _structure(proto), folder, allow_symlinks=allow_symlinks)
    if not all(any(node.output) for node in document.proto.graph.node):
        document.put_nodes(document.proto.graph.node)
    _check_header(document)
    _list_weights(document, proto.graph.initializer)
    _inline_external_attributes(document)
    return document


def parsed(path: Path, content: bytes | None = None, place: Path | None = None) -> onnx.ModelProto:
    """Return the model at `path`; `place` is the file to read if it isn't `path`. Raise `ModelError`."""
    try:
        raw = read_bytes(path if place is None else place, MODEL_BYTES) if content is None else content
    except OSError as error:
        raise ModelError(f"{path}: can't be read ({error.strerror or error}). Check the path") from error
    if not raw:
        raise ModelError(f"{path}: the file is empty. Export the model again")
    if _is_text(raw):
        raise ModelError(f"{path}: a text file, not an ONNX model. Give the .onnx file that the exporter wrote")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(raw)
    except DecodeError as error:
        raise ModelError(
            f"{path}: not an ONNX model, or a truncated one ({len(raw)} bytes could not be decoded). "
            "Copy or export the file again"
        ) from error
    return proto


def _is_text(raw: bytes) -> bool:
    head = raw[:512]
    return not any(byte < 9 or 13 < byte < 32 for byte in head)


def _check_header(document: Document) -> None:
    model, where = document.proto, document.where
    if not model.HasField("graph") and not model.opset_import:
        raise ModelError(f"{where}: not an ONNX model (it has no graph). Export the model again")
    if not model.graph.node and not model.graph.output:
        raise ModelError(f"{where}: the graph is empty (no nodes and no outputs). Export the model again")
    if not model.graph.output:
        raise ModelError(f"{where}: the graph has no outputs, so nothing can be trained. Export the model again")
    # ONNX's checker stores the version of the format in 32 bits
    if not 0 <= model.ir_version < 2**31:
        raise ModelError(
            f"{where}: states version {model.ir_version} of ONNX's format, and the newest known is {onnx.IR_VERSION}. "
            "The file is damaged: copy or export it again"
        )
    if opset_of(model) < 1 and model.ir_version < 3:
        model.opset_import.append(helper.make_opsetid("", 1))
    if opset_of(model) < 1:
        raise ModelError(f"{where}: states no opset of the default ONNX domain. Export the model again")
    newest = onnx.defs.onnx_opset_version()
    if opset_of(model) > newest:
        raise ModelError(
            f"{where}: opset {opset_of(model)} is newer than the installed onnx {onnx.__version__} knows "
            f"(up to {newest}). Upgrade onnx, or export with an older opset"
        )
    if model.graph.sparse_initializer:
        name = model.graph.sparse_initializer[0].values.name
        raise ModelError(f"{where}: initializer {name!r} is sparse, which is not supported. Export it as dense")


def _structure(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of `model` without the initializers."""
    copy = _without(model, "graph")
    if model.HasField("graph"):
        copy.graph.CopyFrom(_without(model.graph, "initializer"))
    return copy


def _without(message: _Message, excluded: str) -> _Message:
    """Return a copy of `message` without one field."""
    copy = type(message)()
    for field_, value in message.ListFields():
        if field_.name == excluded:
            continue
        if hasattr(value, "extend"):
            getattr(copy, field_.name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(copy, field_.name).CopyFrom(value)
        else:
            setattr(copy, field_.name, value)
    return copy


def _check_text(where: str, model: onnx.ModelProto) -> None:
    """Raise `ModelError` if a name isn't UTF-8: protobuf returns such names of damaged files as bytes."""
    texts: list[object] = [entry.domain for entry in model.opset_import]
    texts += _graph_texts(model.graph)
    for function in model.functions:
        texts += (function.name, function.domain, function.overload, *function.input, *function.output)
        texts += (*function.attribute, *(default.name for default in function.attribute_proto))
        texts += (entry.domain for entry in function.opset_import)
        texts += (text for node in function.node for text in _node_texts(node))
    if any(isinstance(text, bytes) for text in texts):
        raise ModelError(f"{where}: some names are not text. The file is damaged: copy or export it again")


def _graph_texts(graph: onnx.GraphProto) -> Iterator[object]:
    """Yield every name in a graph and in the graphs of its nodes."""
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
        yield from _graph_texts(graph)


def _list_weights(document: Document, initializers: Iterable[TensorProto]) -> None:
    """List the initializers as weights, and remove them from the inputs, where files of IR 3 repeat them."""
    graph = document.proto.graph
    for proto in initializers:
        if not proto.name:
            raise ModelError(f"{document.where}: an initializer has no name. The file is damaged: export it again")
        if proto.name in document.weights:
            raise ModelError(f"{document.where}: two initializers are called {proto.name!r}. Export the model again")
        what = f"{document.where}: initializer {proto.name!r}"
        check_size(what, tuple(proto.dims), proto.data_type)
        if proto.data_location == TensorProto.EXTERNAL and document.folder is not None:
            place_of(what, proto)
        document.weights[proto.name] = proto
    for info in graph.input:
        tensor = info.type.tensor_type
        weight = document.weights.get(info.name)
        if weight is not None and tensor.HasField("shape") and not _may_have_shape(tensor.shape, weight.dims):
            raise ModelError(
                f"{document.where}: an input and an initializer of another shape are both called {info.name!r} "
                f"(the initializer has shape {list(weight.dims)}). Rename one of them in the module and export again"
            )
    kept = [info for info in graph.input if info.name not in document.weights]
    del graph.input[:]
    graph.input.extend(kept)


def _may_have_shape(shape: onnx.TensorShapeProto, dims: Sequence[int]) -> bool:
    """Return whether a tensor of these dims can have the declared shape."""
    pairs = zip(shape.dim, dims, strict=False)
    return len(shape.dim) == len(dims) and all(not dim.dim_value or dim.dim_value == size for dim, size in pairs)


def check_size(what: str, dims: tuple[int, ...], elem: int, remedy: str = "") -> None:
    """Raise `ModelError` for negative dims, and for sizes over `LARGEST_TENSOR_BYTES` (with `remedy`)."""
    if any(dim < 0 for dim in dims):
        raise ModelError(f"{what} has a negative dimension in its shape {list(dims)}. Export the model again")
    try:
        item = DTYPE_BYTES[dtype_name(elem)]
    except ModelError:
        item = 1
    if math.prod(dims) * item > LARGEST_TENSOR_BYTES:
        raise ModelError(
            f"{what} has shape {list(dims)}, more than {LARGEST_TENSOR_BYTES >> 40} TiB. "
            + (remedy or "The file is damaged or was exported with a wrong size")
        )


def _inline_external_attributes(document: Document) -> None:
    """Read external data of attributes into the nodes: ONNX's checker would search the current folder."""
    functions = document.proto.functions
    holders = [(f"function {f.name!r}", attribute) for f in functions for attribute in f.attribute_proto]
    for node in all_nodes((*document.proto.graph.node, *(node for f in functions for node in f.node))):
        owner = f"node {next(iter(node.output), node.name)!r}"
        holders += ((owner, attribute) for attribute in node.attribute)
    for owner, attribute in holders:
        sparse = (attribute.sparse_tensor, *attribute.sparse_tensors)
        parts = (part for tensor in sparse for part in (tensor.values, tensor.indices))
        for tensor in (attribute.t, *attribute.tensors, *parts):
            if tensor.data_location != TensorProto.EXTERNAL:
                continue
            what = f"{document.where}: {attribute.name!r} of {owner}"
            check_size(what, tuple(tensor.dims), tensor.data_type)
            tensor.CopyFrom(numpy_helper.from_array(_read_external(document, what, tensor), tensor.name))


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes, and those of the graphs in their attributes."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from all_nodes(graph.node)


def array_of(document: Document, name: str) -> Array:
    """Return the initializer `name` as a read-only array; external data is read from its file."""
    proto = document.weights[name]
    what = f"{document.where}: initializer {name!r}"
    if name in document.fills:
        return np.broadcast_to(document.fills[name].reshape(-1)[0], tuple(proto.dims))  # a view, without memory
    if proto.data_location == TensorProto.EXTERNAL:
        array = _read_external(document, what, proto)
    else:
        array = tensor_array(what, proto)
    array = np.ascontiguousarray(array).reshape(array.shape)
    array.setflags(write=False)
    return array


def stored(document: Document, name: str) -> Array | None:
    """Return the array of an initializer (unless external) or of a Constant node; None for other tensors."""
    if name in document.weights:
        return None if document.weights[name].data_location == TensorProto.EXTERNAL else array_of(document, name)
    node = next((node for node in document.proto.graph.node if name in node.output), None)
    return None if node is None else constant_array(node)


def constant_array(node: onnx.NodeProto) -> Array | None:
    """Return the dense numbers of a Constant node; None for other nodes, and if they are unreadable."""
    tensor = constant_tensor(node)
    try:
        return None if tensor is None else numpy_helper.to_array(tensor)
    except LIBRARY_ERRORS:
        return None


def tensor_array(what: str, proto: TensorProto) -> Array:
    """Return the array of a tensor with inline data; `what` is its name in messages."""
    try:
        dtype_name(proto.data_type)
        array = _view_raw_data(proto) if proto.HasField("raw_data") else numpy_helper.to_array(proto)
    except ModelError as error:
        raise ModelError(f"{what}: {error}") from error
    except LIBRARY_ERRORS as error:
        raise ModelError(f"{what}: its data does not fit its shape {list(proto.dims)} ({error})") from error
    if array.shape != tuple(proto.dims):
        raise ModelError(f"{what}: its data does not fit its shape {list(proto.dims)}. Export the model again")
    return array


def _view_raw_data(proto: TensorProto) -> Array:
    """Return the array of raw data without a second copy, if an element takes whole bytes."""
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(proto.data_type))
    if sys.byteorder != "little" or dtype.kind not in "fiub":
        return numpy_helper.to_array(proto)
    array: Array = np.frombuffer(proto.raw_data, dtype).reshape(tuple(proto.dims))
    return array


def _read_external(document: Document, what: str, proto: TensorProto) -> Array:
    if document.folder is None:
        location = next((entry.value for entry in proto.external_data if entry.key == "location"), "")
        raise ModelError(
            f"{what}: its data lies in the file {location!r}, and a model in memory has no folder. "
            "Load the model from its file, or read its external data first (onnx.load does)"
        )
    try:
        dtype_name(proto.data_type)
    except ModelError as error:
        raise ModelError(f"{what}: {error}") from error
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(proto.data_type))
    size = bytes_of_elements(math.prod(proto.dims), dtype_name(proto.data_type))
    location, offset, length = place_of(what, proto)
    if length not in (None, size):
        raise ModelError(f"{what}: external data of {length} bytes at offset {offset}, but its shape needs {size}")
    shown = str(document.folder / location)
    try:
        with opened(what, document.folder, location, allow_symlinks=document.allow_symlinks) as file:
            if os.fstat(file.fileno()).st_size < offset + size:
                raise ModelError(f"{what}: external data file {shown!r} is truncated. Copy it again")
            file.seek(offset)
            raw = np.fromfile(file, dtype=np.uint8, count=size)
    except OSError as error:
        raise ModelError(f"{what}: external data file {shown!r} can't be read ({error.strerror})") from error
    if dtype.name in PACKED:
        return numpy_helper.to_array(TensorProto(data_type=proto.data_type, dims=proto.dims, raw_data=raw.tobytes()))
    return raw.view(dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(tuple(proto.dims))
