"""Normalise a model to the form that the VJP rules expect: opset, separate weight tensors, explicit pads.

ONNX's converter raises older files to `WORKING_OPSET`: from that opset on, reductions, Squeeze, Unsqueeze and Split
take their axes as inputs, and Dropout and BatchNormalization state their training mode. Newer files keep their opset up
to `NEWEST_OPSET`, the newest that released runtimes execute. Beyond it, the converter lowers them if it can. It lowers
them further if onnxruntime supports an operator of the step only in older opsets (`Op.newest_opset`). poetopt emits all
nodes in the resulting opset.

Weights are read directly rather than through an Identity, share no tensor with a statistic, and no node fills them.
Automatic pads of dilated windows become explicit, because onnxruntime's Conv refuses them and its pools ignore the
dilation. The pads are dilation x (kernel - 1) in total, the odd one at the end (SAME_UPPER) or in front (SAME_LOWER).

The converter infers shapes of the whole file before the shapes that a node's checks need are known. So settings are
checked first, and operators that crash shape inference are hidden from it: their meaning is the same in all opsets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper, version_converter

from poetopt.frontends.checks import MOST_AXES, check_settings
from poetopt.frontends.proto import constant_tensor, copied, unique
from poetopt.frontends.read import LIBRARY_ERRORS, Document, array_of, check_size, stored, tensor_array
from poetopt.frontends.structure import describe, first_line
from poetopt.ops.op import op_of
from poetopt.util.errors import ModelError, UnsupportedOpError

WORKING_OPSET = 18
NEWEST_OPSET = 26
_TRAINING_MODE_SINCE = 14
_HIDDEN = "poetopt.hidden"
"""Domain of nodes that are hidden from the converter."""
_SMALL_BYTES, _LARGEST_NUMBER_BYTES = 1024, 8
"""The size of a weight is estimated from its shape: protobuf would serialize it twice to measure it."""
_CONVERTER_ERRORS = (*LIBRARY_ERRORS, version_converter.ConvertError)


def lift_constants(document: Document) -> set[str]:
    """Turn Constant nodes of dense numbers into weights, and return their names.

    Raises
    ------
    UnsupportedOpError
        For a sparse constant.
    """
    graph = document.proto.graph
    lifted: set[str] = set()
    kept = []
    for node in graph.node:
        if node.op_type == "Constant" and any(a.name == "sparse_value" for a in node.attribute):
            at = describe(document.where, node, document.opset)
            raise UnsupportedOpError(f"{at}: its value is sparse, which is not supported. Export it as a dense tensor")
        tensor = constant_tensor(node)
        if tensor is None or len(node.output) != 1:
            kept.append(node)
            continue
        weight = TensorProto()
        weight.CopyFrom(tensor)
        weight.name = node.output[0]
        check_size(describe(document.where, node, document.opset), tuple(weight.dims), weight.data_type)
        document.weights[weight.name] = weight
        lifted.add(weight.name)
    document.put_nodes(kept)
    return lifted


def convert(
    document: Document, least: int = WORKING_OPSET, elements: Callable[[str], int | None] = lambda name: None
) -> str:
    """Convert `document` in place to a suitable opset, and return a note for the user, or "".

    The converter sees only the small weights, which it may have to read. No file is rejected for its age: if the
    converter fails, the nearest opset that it reaches is used.

    Parameters
    ----------
    least
        Oldest opset of the result.
    elements
        Returns the number of elements of a tensor that isn't a weight; None if unknown.

    Raises
    ------
    ModelError
        For invalid settings of a node.
    UnsupportedOpError
        For an operator that onnxruntime lacks in the resulting opset.
    """
    opset = document.opset
    newest = max(least, min(_last_opsets(document), default=NEWEST_OPSET))
    if least <= opset <= newest:
        return ""
    for node in document.proto.graph.node:
        check_settings(describe(document.where, node, opset), node)
    _hide(document, elements, down=opset > newest)
    try:
        note = _convert_stepwise(document, least, newest)
    finally:
        for node in document.proto.graph.node:
            if node.domain == _HIDDEN:
                node.domain = ""
    for last, node in _last_opsets(document).items():
        if document.opset > max(last, least):
            raise UnsupportedOpError(
                f"{describe(document.where, node, document.opset)}: onnxruntime supports it up to opset {last}, "
                f"and the model can't be converted to that: {note}. Export it with opset {last} or older"
            )
    return note


def _last_opsets(document: Document) -> Mapping[int, NodeProto]:
    """Return the opsets beyond which onnxruntime lacks an operator, each with a node that needs it."""
    nodes: dict[int, NodeProto] = {}
    for node in document.proto.graph.node:
        if node.domain:
            continue
        drawn = node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] != ""
        mode = stored(document, node.input[2]) if drawn else None
        # in training mode, a Dropout draws with RandomUniform
        newest = op_of("RandomUniform" if drawn and (mode is None or mode.any()) else node.op_type).newest_opset
        if newest is not None:
            nodes[newest] = node
    return nodes


def _hide(document: Document, elements: Callable[[str], int | None], *, down: bool) -> None:
    """Move nodes on which ONNX's shape inference may loop or crash to a domain of their own.

    Inference of LayerNormalization writes past the end if its input lacks the axis, and Expand creates as many axes as
    its shape has elements. The converter can't lower GlobalMaxPool.
    """
    for node in document.proto.graph.node:
        if node.domain:
            continue
        if node.op_type == "Expand" and len(node.input) == 2:
            name = node.input[1]
            count = math.prod(document.weights[name].dims) if name in document.weights else elements(name)
            if count is None or count > MOST_AXES:
                node.domain = _HIDDEN
        elif node.op_type == "LayerNormalization" or (node.op_type == "GlobalMaxPool" and down):
            node.domain = _HIDDEN


def _convert_stepwise(document: Document, least: int, newest: int) -> str:
    opset = document.opset
    targets = range(newest, opset) if opset > newest else range(least, opset, -1)
    training = _drop_training_outputs(document) if opset < _TRAINING_MODE_SINCE else {}
    skeleton = _skeleton(document)
    failure = ""
    for target in targets:
        try:
            converted = version_converter.convert_version(skeleton, target)
        except _CONVERTER_ERRORS as error:
            failure = failure or first_line(error)
            continue
        _replace_proto(document, converted)
        if opset <= 10:
            _set_old_resize_modes(document)
        if target >= _TRAINING_MODE_SINCE:
            _restore_training(document, training)
        suffix = f" (not {targets[0]}: {failure})" if failure else ""
        return f"converted from opset {opset} to {target}{suffix}"
    return f"kept at opset {opset}, because the converter failed: {failure}"


def _drop_training_outputs(document: Document) -> dict[str, list[str]]:
    """Remove all but the first output of BatchNormalization; return the two statistics by the first output's name.

    Up to opset 13 a node with five outputs trains and one with a single output does not. The converter knows
    only the latter.
    """
    statistics: dict[str, list[str]] = {}
    read = {name for node in document.proto.graph.node for name in node.input}
    for node in document.proto.graph.node:
        if node.op_type == "BatchNormalization" and len(node.output) > 1 and not read.intersection(node.output[3:]):
            statistics[node.output[0]] = list(node.output[1:3])
            del node.output[1:]
    return statistics


def _restore_training(document: Document, training: Mapping[str, list[str]]) -> None:
    """Restore the statistics of the nodes that train, and set their training mode."""
    for node in document.proto.graph.node:
        if node.op_type == "BatchNormalization" and node.output[0] in training:
            node.output.extend(training[node.output[0]])
            kept = [a for a in node.attribute if a.name != "training_mode"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("training_mode", 1)])


def _set_old_resize_modes(document: Document) -> None:
    """Set the coordinate and rounding modes that Resize and Upsample had up to opset 10.

    They scaled coordinates from the corner, and the converter drops that. The nearest neighbour was rounded down on an
    axis that grows, and up on one that shrinks. A node that does both becomes two nodes.
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
    """Return the scales of a Resize; empty if the file doesn't store them."""
    name = node.input[2] if len(node.input) > 2 else ""
    return np.asarray(array_of(document, name) if name in document.weights else [], np.float32)


def _shrink_first(document: Document, node: onnx.NodeProto, scales: NDArray[np.float32]) -> onnx.NodeProto:
    """Return a Resize of the axes that shrink, and leave `node` those that grow."""
    first = copied(node)
    first.attribute.append(helper.make_attribute("nearest_mode", "ceil"))
    first.name = f"{node.name or node.output[0]}.shrink"
    used_names = document.names
    first.output[0] = node.input[0] = unique(f"{node.output[0]}.shrink", used_names)
    for part, values in ((first, np.minimum(scales, 1)), (node, np.maximum(scales, 1))):
        part.input[2] = unique(f"{part.output[0]}.scales", used_names)
        document.weights[part.input[2]] = numpy_helper.from_array(values, part.input[2])
    return first


def leave_out_empty(document: Document) -> None:
    """Remove the region and scales of a Resize if they are empty tensors.

    Up to opset 12 the file must have them if it has sizes. A kernel that runs alone, with these as inputs, would read
    them as scales.
    """
    if document.opset < 13:
        return
    for node in document.proto.graph.node:
        if node.op_type == "Resize":
            for index in range(1, len(node.input)):
                proto = document.weights.get(node.input[index])
                if proto is not None and 0 in proto.dims:
                    node.input[index] = ""


def _skeleton(document: Document) -> onnx.ModelProto:
    """Return the model with its large weights as inputs and without shapes of intermediate tensors."""
    skeleton = onnx.ModelProto()
    skeleton.CopyFrom(document.proto)
    # The converter requires each default-domain import once, and an IR in which initializers need not be inputs.
    skeleton.ir_version = max(skeleton.ir_version, 4)
    del skeleton.opset_import[:]
    skeleton.opset_import.append(helper.make_opsetid("", document.opset))
    skeleton.opset_import.append(helper.make_opsetid(_HIDDEN, 1))
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


def _replace_proto(document: Document, converted: onnx.ModelProto) -> None:
    graph = converted.graph
    for proto in graph.initializer:
        if proto.name not in document.weights:
            copy = TensorProto()
            copy.CopyFrom(proto)
            document.weights[proto.name] = copy
    del graph.initializer[:]
    inputs = list(document.proto.graph.input)
    del graph.input[:]
    graph.input.extend(inputs)
    kept = [entry for entry in converted.opset_import if entry.domain != _HIDDEN]
    del converted.opset_import[:]
    converted.opset_import.extend(kept)
    document.proto.CopyFrom(converted)


def resolve_identities(document: Document) -> dict[str, str]:
    """Let readers of an Identity of a weight read the weight; return the weight's name by the removed name.

    Exporters write such nodes when they merge initializers of equal value: the readers share one parameter.
    """
    graph = document.proto.graph
    outputs = {info.name for info in graph.output}
    aliases: dict[str, str] = {}
    kept: list[NodeProto] = []
    for node in graph.node:
        names = [aliases.get(name, name) for name in node.input]
        if node.op_type == "Identity" and names[0] in document.weights and node.output[0] not in outputs:
            aliases[node.output[0]] = names[0]
            continue
        copy = copied(node)
        if node.op_type != "BatchNormalization":
            copy.input[:] = names
        else:  # The statistics keep their own name for `separate_statistics`.
            copy.input[:] = [*names[:3], *node.input[3:]]
        kept.append(copy)
    document.put_nodes(kept)
    return aliases


def separate_statistics(document: Document, aliases: Mapping[str, str]) -> list[str]:
    """Separate running statistics from parameters that share their initializer; return notes.

    A fresh network's means (all 0) and variances (all 1) equal its biases and scales, and exporters merge
    equal tensors. But a statistic changes with each step, and no gradient flows to it.
    """
    graph = document.proto.graph
    uses: dict[str, int] = {}
    for node in graph.node:
        for name in node.input:
            root = aliases.get(name, name)
            uses[root] = uses.get(root, 0) + 1
    used = document.names | aliases.keys()
    separated = 0
    for node in graph.node:
        if node.op_type != "BatchNormalization":
            continue
        for index, suffix in ((3, "running_mean"), (4, "running_var")):
            name = node.input[index]
            root = aliases.get(name, name)
            if root not in document.weights or uses[root] == 1:
                node.input[index] = root
                continue
            new = name if name not in document.weights else unique(f"{node.name or node.output[0]}.{suffix}", used)
            if new not in document.weights:
                proto = TensorProto()
                proto.CopyFrom(document.weights[root])
                proto.name = new
                document.weights[new] = proto
                used.add(new)
                separated += 1
            node.input[index] = new
            uses[root] -= 1
    if separated:
        return [f"{separated} running statistics got separate tensors, because the file merges them with equal weights"]
    return []


def fill_constants(document: Document) -> set[str]:
    """Turn ConstantOfShape nodes that fill a layer's weight into weights, and return their names.

    Files without their weights (benchmark networks) have such nodes. The array is allocated when it is read.
    """
    graph = document.proto.graph
    weight_names = {name for n in graph.node for k, name in enumerate(n.input) if k in op_of(n.op_type).weights}
    kept: list[NodeProto] = []
    filled: set[str] = set()
    for node in graph.node:
        name = node.output[0]
        if node.op_type != "ConstantOfShape" or name not in weight_names or node.input[0] not in document.weights:
            kept.append(node)
            continue
        dims = tuple(int(dim) for dim in array_of(document, node.input[0]).reshape(-1))
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        fill = value or TensorProto(data_type=TensorProto.FLOAT, float_data=[0.0], dims=[1])
        check_size(f"{document.where}: tensor {name!r}", dims, fill.data_type)
        document.weights[name] = TensorProto(name=name, data_type=fill.data_type, dims=dims)
        document.fills[name] = tensor_array(f"{document.where}: tensor {name!r}", fill)
        filled.add(name)
    document.put_nodes(kept)
    return filled


def spell_out_pads(document: Document) -> None:
    """Replace automatic pads of dilated windows by explicit ones, in place.

    Raises
    ------
    ModelError
        If the pads depend on the input's size, or the file lacks the kernel's size.
    """
    for node in document.proto.graph.node:
        auto = next((a.s.decode("utf-8", "replace") for a in node.attribute if a.name == "auto_pad"), "")
        if auto not in ("SAME_UPPER", "SAME_LOWER") or node.domain:
            continue
        added = _int_attributes(node, "output_padding")
        if node.op_type == "ConvTranspose" and any(added):
            raise ModelError(
                f"{describe(document.where, node, document.opset)}: auto_pad {auto} with output_padding {added} has "
                "one size in onnxruntime and another in ONNX's shape inference. Export the model with explicit pads"
            )
        dilations = _int_attributes(node, "dilations")
        if not op_of(node.op_type).window or node.op_type == "ConvTranspose" or all(d == 1 for d in dilations):
            continue
        kernel = _int_attributes(node, "kernel_shape")
        if not kernel and len(node.input) > 1 and node.input[1] in document.weights:
            kernel = list(document.weights[node.input[1]].dims)[2:]
        if len(kernel) != len(dilations) or any(stride != 1 for stride in _int_attributes(node, "strides")):
            raise ModelError(
                f"{describe(document.where, node, document.opset)}: auto_pad {auto} with dilations {dilations} is "
                "not supported by onnxruntime. Export the model with explicit pads"
            )
        total = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
        before = [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total]
        kept = [a for a in node.attribute if a.name not in ("auto_pad", "pads")]
        del node.attribute[:]
        pads = [*before, *(t - b for t, b in zip(total, before, strict=True))]
        node.attribute.extend([*kept, helper.make_attribute("pads", pads)])


def _int_attributes(node: NodeProto, name: str) -> list[int]:
    return next((list(a.ints) for a in node.attribute if a.name == name and a.type == AttributeProto.INTS), [])
