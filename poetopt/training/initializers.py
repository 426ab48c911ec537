"""Writing of values into a model's structure, wherever it stores them."""

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
    """Initializer whose bytes are in an external file."""

    proto: TensorProto
    name: str
    location: str
    offset: int
    nbytes: int

    def rename(self, location: str) -> None:
        """Let the model refer to another file."""
        for entry in self.proto.external_data:
            if entry.key == "location":
                entry.value = location


def external_data(model: ModelProto) -> dict[str, External]:
    """Return the initializers with external data, by name."""
    by_name: dict[str, External] = {}
    for proto in model.graph.initializer:
        if proto.data_location == TensorProto.EXTERNAL:
            location, offset, nbytes = place_of(f"initializer {proto.name!r}", proto)
            # The file may omit the length; then it is that of all elements.
            nbytes = nbytes or bytes_of_elements(math.prod(proto.dims), dtype_name(proto.data_type))
            by_name[proto.name] = External(proto, proto.name, location, offset, nbytes)
    return by_name


def put(
    model: ModelProto,
    names: Sequence[str],
    values: Mapping[str, Array],
    known: Mapping[str, Tensor],
    read: Callable[[External], bytes],
) -> dict[str, Array]:
    """Write `values` into `model`; return those that belong into external files.

    Parameters
    ----------
    known
        As in `export`.
    read
        Function that reads the bytes of an external tensor.

    Raises
    ------
    ModelError
        If the model has no tensor for one of the values.
    """
    protos = {proto.name: proto for proto in model.graph.initializer}
    for tie in ties.places(model.graph, lambda name: tuple(protos[name].dims) if name in protos else None):
        if tie.name in protos:
            continue
        if tie.constant and tie.merged in names:
            constant = model.graph.initializer.add()
            constant.CopyFrom(protos[tie.merged])
            constant.name = tie.name
            ties.put(tie)
        elif tie.name in names:
            ties.put(tie)
    external = external_data(model)
    remaining: dict[str, Array] = {}
    copies = _find_copies(protos, external, names, known, read)
    for name in names:
        value = values[name]
        for copy, order in [(name, None), *copies.get(name, ())]:
            array = value if order is None else _permuted(value, order, tuple(protos[copy].dims))
            if copy in external:
                remaining[copy] = array
            elif copy in protos:
                _set_raw_data(protos[copy], array)
            else:
                _write_computed(model, copy, array)
    return remaining


def _set_raw_data(proto: TensorProto, value: Array) -> None:
    for field in _TYPED:
        proto.ClearField(field)
    proto.raw_data = np.ascontiguousarray(value).tobytes()


def _write_computed(model: ModelProto, name: str, value: Array) -> None:
    """Write a value that a node computes, or a statistic that the file merges with equal weights."""
    graph = model.graph
    producer = next((node for node in graph.node if name in node.output), None)
    constant = (
        None
        if producer is None
        else next((a for a in producer.attribute if a.name == "value" and a.HasField("t")), None)
    )
    if producer is not None and producer.op_type == "Constant" and constant is not None:
        _set_raw_data(constant.t, value)
        return
    if producer is not None and len(producer.output) == 1:
        graph.node.remove(producer)
    elif not any(name in node.input for node in graph.node) and not _name_statistic(graph.node, name):
        raise ModelError(
            f"the model has no tensor {name!r} to write the trained values to. They are in the checkpoint, and in "
            "Trainer.values()."
        )
    proto = TensorProto(name=name, data_type=elem_type(value.dtype.name), dims=value.shape)
    proto.raw_data = np.ascontiguousarray(value).tobytes()
    graph.initializer.append(proto)


def _name_statistic(nodes: object, name: str) -> bool:
    """Let the BatchNormalization that the frontend named a statistic after read it under that name."""
    match = re.fullmatch(r"(.*)\.(running_mean|running_var)(\.\d+)?", name)
    if match is None:
        return False
    for node in nodes:  # type: ignore[attr-defined]
        assert isinstance(node, NodeProto)
        if node.op_type == "BatchNormalization" and (node.name or node.output[0]) == match[1]:
            # operands 3 and 4 of BatchNormalization are mean and variance
            node.input[{"running_mean": 3, "running_var": 4}[match[2]]] = name
            return True
    return False


def _find_copies(
    protos: Mapping[str, TensorProto],
    outside: Mapping[str, External],
    names: Sequence[str],
    known: Mapping[str, Tensor],
    read: Callable[[External], bytes],
) -> Mapping[str, list[tuple[str, tuple[int, ...]]]]:
    """Return the initializers that the frontend merged with each parameter, with their order of axes.

    These initializers were not read, and have the same numbers as the parameter.
    """

    def array_of(name: str) -> Array:
        proto = protos[name]
        if name not in outside:
            return numpy_helper.to_array(proto)
        flat = np.frombuffer(read(outside[name]), known[name].dtype if name in known else dtypes[proto.data_type])
        return flat.reshape(tuple(proto.dims))

    dtypes = {elem_type(known[name].dtype): np.dtype(known[name].dtype) for name in names if name in protos}
    sizes = {(elem_type(known[name].dtype), known[name].size) for name in names if name in protos}
    copies: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for name, proto in protos.items():
        size = int(np.prod(list(proto.dims), dtype=np.int64))
        if name in known or (proto.data_type, size) not in sizes:
            continue
        copy = array_of(name)
        for root in names:
            if root in protos and protos[root].data_type == proto.data_type and known[root].size == size:
                order = _order(array_of(root), copy)
                if order is not None:
                    copies.setdefault(root, []).append((name, order))
                    break
    return copies


def _order(root: Array, copy: Array) -> tuple[int, ...] | None:
    """Return the order of axes in which `root` has the numbers of `copy`, ignoring axes of size one."""
    if np.unique(root).size < 2 or root.ndim > 4:
        return None
    for perm in permutations(range(root.ndim)):
        permuted = root.transpose(perm)
        if np.array_equal(permuted.reshape(-1), copy.reshape(-1)):
            return perm
    return None


def _permuted(value: Array, order: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    permuted: Array = np.ascontiguousarray(value.transpose(order)).reshape(shape)
    return permuted
