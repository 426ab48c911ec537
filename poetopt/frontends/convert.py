"""Bring a model to an opset that the gradient rules are written for.

Older files are converted up with ONNX's own converter to `WORKING_OPSET`: from there on reductions,
Squeeze, Unsqueeze and Split take their axes as inputs, and Dropout and BatchNormalization state their
training mode. Newer files are kept as they are up to `NEWEST_OPSET`, the newest that released
runtimes execute; beyond it they are converted down where the converter can.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, version_converter

from poetopt.frontends.proto import constant_tensor, copied
from poetopt.frontends.read import LIBRARY_ERRORS, Document, array_of, check_size
from poetopt.frontends.structure import describe, first_line
from poetopt.frontends.unique import unique
from poetopt.util.errors import UnsupportedOpError

WORKING_OPSET = 18
NEWEST_OPSET = 26

_TRAINING_MODE_SINCE = 14
_OPTIONAL_SCALES_SINCE = 13
_SMALL_BYTES, _LARGEST_NUMBER_BYTES = 1024, 8
"""Protobuf would serialize a weight, twice, to say how long it is."""
_CONVERTER_ERRORS = (*LIBRARY_ERRORS, version_converter.ConvertError)


def lift_constants(document: Document) -> set[str]:
    """Turn Constant nodes of dense numbers into weights; the result has their names.

    Raises `UnsupportedOpError` for a sparse one.
    """
    graph = document.proto.graph
    lifted: set[str] = set()
    kept = []
    for node in graph.node:
        if node.op_type == "Constant" and any(a.name == "sparse_value" for a in node.attribute):
            at = describe(document.where, node, document.opset)
            raise UnsupportedOpError(f"{at}: its value is sparse, which is not supported; export it as a dense tensor")
        tensor = constant_tensor(node)
        if tensor is None or len(node.output) != 1:
            kept.append(node)
            continue
        own = TensorProto()
        own.CopyFrom(tensor)
        own.name = node.output[0]
        check_size(describe(document.where, node, document.opset), tuple(own.dims), own.data_type)
        document.weights[own.name] = own
        lifted.add(own.name)
    copies = [copied(node) for node in kept]
    del graph.node[:]
    graph.node.extend(copies)
    return lifted


def convert(document: Document) -> str:
    """Convert `document` to a suitable opset in place; the result is a note for people, or "".

    Weights don't take part, except the small ones that the converter may have to read. Nothing is
    rejected for its age: where the converter fails, the nearest opset that it reaches is used.
    """
    opset = document.opset
    if WORKING_OPSET <= opset <= NEWEST_OPSET:
        return ""
    targets = range(NEWEST_OPSET, opset) if opset > NEWEST_OPSET else range(WORKING_OPSET, opset, -1)
    training = _training_statistics(document) if opset < _TRAINING_MODE_SINCE else {}
    skeleton = _skeleton(document)
    failure = ""
    for target in targets:
        try:
            converted = version_converter.convert_version(skeleton, target)
        except _CONVERTER_ERRORS as error:
            failure = failure or first_line(error)
            continue
        _adopt(document, converted)
        if opset <= 10:
            _keep_old_resize(document)
        if target >= _TRAINING_MODE_SINCE:
            _keep_training(document, training)
        suffix = f" (not {targets[0]}: {failure})" if failure else ""
        return f"converted from opset {opset} to {target}{suffix}"
    return f"kept at opset {opset}, the converter failed: {failure}"


def _training_statistics(document: Document) -> dict[str, list[str]]:
    """Cut BatchNormalization down to its first output; the result has its two statistics, by the first output's name.

    Up to opset 13 a node with five outputs trains and one with a single output does not; the converter knows
    only the latter.
    """
    found: dict[str, list[str]] = {}
    read = {name for node in document.proto.graph.node for name in node.input}
    for node in document.proto.graph.node:
        if node.op_type == "BatchNormalization" and len(node.output) > 1 and not read.intersection(node.output[3:]):
            found[node.output[0]] = list(node.output[1:3])
            del node.output[1:]
    return found


def _keep_training(document: Document, training: Mapping[str, list[str]]) -> None:
    """Give the nodes that train their statistics again, and say that they train."""
    for node in document.proto.graph.node:
        if node.op_type == "BatchNormalization" and node.output[0] in training:
            node.output.extend(training[node.output[0]])
            kept = [a for a in node.attribute if a.name != "training_mode"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("training_mode", 1)])


def _keep_old_resize(document: Document) -> None:
    """Up to opset 10, Resize and Upsample scaled coordinates from the corner; the converter forgets to say so.

    The nearest neighbour was the one before where an axis grows, and the one behind where it shrinks: where a node
    does both, it becomes two.
    """
    kept: list[onnx.NodeProto] = []
    for original in document.proto.graph.node:
        node = copied(original)
        kept.append(node)
        if node.op_type != "Resize" or any(a.name == "coordinate_transformation_mode" for a in node.attribute):
            continue
        node.attribute.append(helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
        if any(attribute.name == "nearest_mode" for attribute in node.attribute):
            continue
        scales = _scales(document, node)
        shrinks = bool((scales < 1).any())
        if shrinks and (scales > 1).any():
            kept.insert(-1, _shrink_first(document, node, scales))
            shrinks = False
        node.attribute.append(helper.make_attribute("nearest_mode", "ceil" if shrinks else "floor"))
    del document.proto.graph.node[:]
    document.proto.graph.node.extend(kept)


def _scales(document: Document, node: onnx.NodeProto) -> NDArray[np.float32]:
    """The scales of a Resize where the file has them."""
    name = node.input[2] if len(node.input) > 2 else ""
    return np.asarray(array_of(document, name) if name in document.weights else [], np.float32)


def _shrink_first(document: Document, node: onnx.NodeProto, scales: NDArray[np.float32]) -> onnx.NodeProto:
    """A Resize of the axes that shrink; `node` is left with those that grow."""
    first = copied(node)
    first.attribute.append(helper.make_attribute("nearest_mode", "ceil"))
    first.name = f"{node.name or node.output[0]}.shrink"
    taken = {*document.weights, *(name for n in document.proto.graph.node for name in n.output)}
    first.output[0] = node.input[0] = unique(f"{node.output[0]}.shrink", taken)
    for part, values in ((first, np.minimum(scales, 1)), (node, np.maximum(scales, 1))):
        part.input[2] = unique(f"{part.output[0]}.scales", taken)
        document.weights[part.input[2]] = numpy_helper.from_array(values, part.input[2])
    return first


def leave_out_empty(document: Document) -> None:
    """Leave out region and scales of a Resize that are tensors of no element.

    Up to opset 12 the file must have them where sizes are given; a kernel that is run alone, with these as inputs,
    takes them for scales.
    """
    if document.opset < _OPTIONAL_SCALES_SINCE:
        return
    for node in document.proto.graph.node:
        if node.op_type == "Resize":
            for index in range(1, len(node.input)):
                proto = document.weights.get(node.input[index])
                if proto is not None and 0 in proto.dims:
                    node.input[index] = ""


def _skeleton(document: Document) -> onnx.ModelProto:
    """The model with its large weights as inputs, and without shapes of intermediate tensors."""
    skeleton = onnx.ModelProto()
    skeleton.CopyFrom(document.proto)
    # The converter requires each default-domain import once, and an IR in which initializers need not be inputs.
    skeleton.ir_version = max(skeleton.ir_version, 4)
    del skeleton.opset_import[:]
    skeleton.opset_import.append(helper.make_opsetid("", document.opset))
    graph = skeleton.graph
    del graph.value_info[:]
    for info in graph.output:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    read = {name for node in graph.node for name in node.input} | {info.name for info in graph.output}
    for name, proto in document.weights.items():
        if name not in read:
            continue
        small = _LARGEST_NUMBER_BYTES * math.prod(proto.dims) <= _SMALL_BYTES
        if small and proto.data_location != TensorProto.EXTERNAL:
            graph.initializer.append(proto)
        else:
            graph.input.append(helper.make_tensor_value_info(name, proto.data_type, list(proto.dims)))
    return skeleton


def _adopt(document: Document, converted: onnx.ModelProto) -> None:
    graph = converted.graph
    for proto in graph.initializer:
        if proto.name not in document.weights:
            own = TensorProto()
            own.CopyFrom(proto)
            document.weights[proto.name] = own
    del graph.initializer[:]
    inputs = list(document.proto.graph.input)
    del graph.input[:]
    graph.input.extend(inputs)
    document.proto.CopyFrom(converted)
