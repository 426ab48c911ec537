"""Values in place of a model's own, in its structure, wherever it keeps them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from poetopt.frontends import ties
from poetopt.frontends.external import place_of
from poetopt.frontends.proto import dtype_name, elem_type
from poetopt.graph import Tensor, bytes_of_elements
from poetopt.util.errors import ModelError

if TYPE_CHECKING:
    from poetopt.graph import Array


_TYPED = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")


@dataclass(frozen=True)
class External:
    """A tensor whose bytes are in a file of their own."""

    proto: TensorProto
    name: str
    location: str
    offset: int
    nbytes: int

    def rename(self, location: str) -> None:
        """Let the model name another file."""
        for entry in self.proto.external_data:
            if entry.key == "location":
                entry.value = location


def external_data(model: ModelProto) -> dict[str, External]:
    """The initializers of which that is so, by name."""
    found: dict[str, External] = {}
    for proto in model.graph.initializer:
        if proto.data_location == TensorProto.EXTERNAL:
            location, offset, nbytes = place_of(f"initializer {proto.name!r}", proto)
            # all that a tensor has, where the file doesn't say it
            nbytes = nbytes or bytes_of_elements(math.prod(proto.dims), dtype_name(proto.data_type))
            found[proto.name] = External(proto, proto.name, location, offset, nbytes)
    return found


def put(
    model: ModelProto,
    names: Sequence[str],
    values: Mapping[str, Array],
    known: Mapping[str, Tensor],
    read: Callable[[External], bytes],
) -> dict[str, Array]:
    """Put `values` into `model`; those that are left are in files of their own.

    known
        As in `export`.
    read
        The bytes of a tensor in a file of its own.

    Raises ModelError where the model has no place for one of the values.
    """
    protos = {proto.name: proto for proto in model.graph.initializer}
    for place in ties.places(model.graph, lambda name: tuple(protos[name].dims) if name in protos else None):
        if place.name in protos:
            continue
        if place.constant and place.merged in names:
            constant = model.graph.initializer.add()
            constant.CopyFrom(protos[place.merged])
            constant.name = place.name
            ties.put(place)
        elif place.name in names:
            ties.put(place)
    outside = external_data(model)
    left: dict[str, Array] = {}
    copies = _copies(protos, outside, names, known, read)
    for name in names:
        value = values[name]
        for copy, order in [(name, None), *copies.get(name, ())]:
            array = value if order is None else _turned(value, order, tuple(protos[copy].dims))
            if copy in outside:
                left[copy] = array
            elif copy in protos:
                _fill(protos[copy], array)
            else:
                _added(model, copy, array)
    return left


def _fill(proto: TensorProto, value: Array) -> None:
    for field in _TYPED:
        proto.ClearField(field)
    proto.raw_data = np.ascontiguousarray(value).tobytes()


def _added(model: ModelProto, name: str, value: Array) -> None:
    """An initializer for what a node makes, or for a statistic that the file merges with equal weights."""
    graph = model.graph
    made = next((node for node in graph.node if name in node.output), None)
    constant = (
        None if made is None else next((a for a in made.attribute if a.name == "value" and a.HasField("t")), None)
    )
    if made is not None and made.op_type == "Constant" and constant is not None:
        _fill(constant.t, value)
        return
    if made is not None and len(made.output) == 1:
        graph.node.remove(made)
    elif not any(name in node.input for node in graph.node) and not _named_apart(graph.node, name):
        raise ModelError(
            f"the model has no tensor {name!r} of its own to write the trained values to; they are in the checkpoint, "
            "and in Trainer.values()"
        )
    proto = TensorProto(name=name, data_type=elem_type(value.dtype.name), dims=value.shape)
    proto.raw_data = np.ascontiguousarray(value).tobytes()
    graph.initializer.append(proto)


def _named_apart(nodes: object, name: str) -> bool:
    """Let the BatchNormalization after which the frontend has called a statistic read it under that name."""
    match = re.fullmatch(r"(.*)\.(running_mean|running_var)(\.\d+)?", name)
    if match is None:
        return False
    for node in nodes:  # type: ignore[attr-defined]
        assert isinstance(node, NodeProto)
        if node.op_type == "BatchNormalization" and (node.name or node.output[0]) == match[1]:
            # which operand of a BatchNormalization a statistic is, whose name the frontend made
            node.input[{"running_mean": 3, "running_var": 4}[match[2]]] = name
            return True
    return False


def _copies(
    protos: Mapping[str, TensorProto],
    outside: Mapping[str, External],
    names: Sequence[str],
    known: Mapping[str, Tensor],
    read: Callable[[External], bytes],
) -> Mapping[str, list[tuple[str, tuple[int, ...]]]]:
    """For each parameter, the initializers that the frontend has tied to it, and in which order of axes.

    They are those that it hasn't read, and that hold the parameter's numbers.
    """

    def first(name: str) -> Array:
        proto = protos[name]
        if name not in outside:
            return numpy_helper.to_array(proto)
        flat = np.frombuffer(read(outside[name]), known[name].dtype if name in known else dtypes[proto.data_type])
        return flat.reshape(tuple(proto.dims))

    dtypes = {elem_type(known[name].dtype): np.dtype(known[name].dtype) for name in names if name in protos}
    sizes = {(elem_type(known[name].dtype), known[name].size) for name in names if name in protos}
    found: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for name, proto in protos.items():
        size = int(np.prod(list(proto.dims), dtype=np.int64))
        if name in known or (proto.data_type, size) not in sizes:
            continue
        copy = first(name)
        for root in names:
            if root in protos and protos[root].data_type == proto.data_type and known[root].size == size:
                order = _order(first(root), copy)
                if order is not None:
                    found.setdefault(root, []).append((name, order))
                    break
    return found


def _order(root: Array, copy: Array) -> tuple[int, ...] | None:
    """The order of axes in which `root` holds the numbers of `copy`, up to blocks of one."""
    if np.unique(root).size < 2 or root.ndim > 4:
        return None
    for perm in permutations(range(root.ndim)):
        turned = root.transpose(perm)
        if np.array_equal(turned.reshape(-1), copy.reshape(-1)):
            return perm
    return None


def _turned(value: Array, order: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    turned: Array = np.ascontiguousarray(value.transpose(order)).reshape(shape)
    return turned
