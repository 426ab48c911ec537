"""The form that the rules are written for: an opset, weights as tensors of their own, pads spelt out.

Older files are converted up with ONNX's own converter to `WORKING_OPSET`: from there on reductions, Squeeze, Unsqueeze
and Split take their axes as inputs, and Dropout and BatchNormalization state their training mode. Newer files are kept
as they are up to `NEWEST_OPSET`, the newest that released runtimes execute; beyond it they are converted down where the
converter can, and further down where the step has operators that onnxruntime has in older opsets alone
(`Op.newest_opset`). All that is emitted is in the opset that the file has then.

Weights stand behind no Identity, share no tensor with a statistic, and are filled by no node. Automatic pads of dilated
windows are spelt out, as onnxruntime's Conv refuses them and its pools forget the dilation: dilation x (kernel - 1) in
all, the odd one at the end (SAME_UPPER) or in front (SAME_LOWER).

The converter infers shapes of the whole file, before those are known that the checks of a node need. So settings are
checked first, and operators that inference can't be trusted with take no part: no opset means anything else by them.
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
"""Domain of nodes that take no part in a conversion."""
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
    document.put_nodes(kept)
    return lifted


def convert(
    document: Document, least: int = WORKING_OPSET, elements: Callable[[str], int | None] = lambda name: None
) -> str:
    """Convert `document` to a suitable opset in place, `least` or newer; the result is a note for people, or "".

    Weights don't take part, except the small ones that the converter may have to read. Nothing is
    rejected for its age: where the converter fails, the nearest opset that it reaches is used.

    elements
        Says how many elements a tensor has that no weight is, where that can be told.

    Raises `ModelError` for settings that nothing can have.
    """
    opset = document.opset
    newest = max(least, min(_last(document), default=NEWEST_OPSET))
    if least <= opset <= newest:
        return ""
    for node in document.proto.graph.node:
        check_settings(describe(document.where, node, opset), node)
    _hide(document, elements, down=opset > newest)
    try:
        note = _converted(document, least, newest)
    finally:
        for node in document.proto.graph.node:
            if node.domain == _HIDDEN:
                node.domain = ""
    for last, node in _last(document).items():
        if document.opset > max(last, least):
            raise UnsupportedOpError(
                f"{describe(document.where, node, document.opset)}: onnxruntime has what it needs up to opset {last}, "
                f"and the model can't be converted to that: {note}; export it with opset {last} or older"
            )
    return note


def _last(document: Document) -> Mapping[int, NodeProto]:
    """The opsets beyond which onnxruntime lacks what a node needs, each with a node of which that is so."""
    found: dict[int, NodeProto] = {}
    for node in document.proto.graph.node:
        if node.domain:
            continue
        drawn = node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] != ""
        mode = stored(document, node.input[2]) if drawn else None
        # in training form a Dropout draws with RandomUniform
        newest = op_of("RandomUniform" if drawn and (mode is None or mode.any()) else node.op_type).newest_opset
        if newest is not None:
            found[newest] = node
    return found


def _hide(document: Document, elements: Callable[[str], int | None], *, down: bool) -> None:
    """Give those nodes another domain that make ONNX's inference loop or crash, or could.

    LayerNormalization writes past the end where its axis isn't one of its input's, and Expand makes as many axes as its
    shape has elements. The converter has no step down for GlobalMaxPool.
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


def _converted(document: Document, least: int, newest: int) -> str:
    opset = document.opset
    targets = range(newest, opset) if opset > newest else range(least, opset, -1)
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
    taken = document.names
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
    if document.opset < 13:
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
    kept = [entry for entry in converted.opset_import if entry.domain != _HIDDEN]
    del converted.opset_import[:]
    converted.opset_import.extend(kept)
    document.proto.CopyFrom(converted)


def resolve_identities(document: Document) -> dict[str, str]:
    """Let readers of an Identity of a weight read the weight; the result maps the vanished names to the weights'.

    Exporters write such nodes where they merged initializers of equal value: the readers share one parameter.
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
    """Give running statistics a tensor of their own where a merged initializer serves another purpose too.

    A fresh network's means (all 0) and variances (all 1) equal its biases and scales, and exporters merge
    what is equal. But a statistic changes with each step, and no gradient flows to it. Returns notes.
    """
    graph = document.proto.graph
    uses: dict[str, int] = {}
    for node in graph.node:
        for name in node.input:
            root = aliases.get(name, name)
            uses[root] = uses.get(root, 0) + 1
    taken = document.names | aliases.keys()
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
            own = name if name not in document.weights else unique(f"{node.name or node.output[0]}.{suffix}", taken)
            if own not in document.weights:
                proto = TensorProto()
                proto.CopyFrom(document.weights[root])
                proto.name = own
                document.weights[own] = proto
                taken.add(own)
                separated += 1
            node.input[index] = own
            uses[root] -= 1
    if separated:
        return [f"{separated} running statistics that the file merges with equal weights were given their own tensors"]
    return []


def fill_constants(document: Document) -> set[str]:
    """Turn ConstantOfShape nodes that fill a layer's weight into weights; the result has their names.

    Files without their weights (benchmark networks) are written so. The array is made when it is read.
    """
    graph = document.proto.graph
    wanted = {name for n in graph.node for k, name in enumerate(n.input) if k in op_of(n.op_type).weights}
    kept: list[NodeProto] = []
    filled: set[str] = set()
    for node in graph.node:
        name = node.output[0]
        if node.op_type != "ConstantOfShape" or name not in wanted or node.input[0] not in document.weights:
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
    """Give dilated windows with automatic pads explicit ones, in place.

    Raises `ModelError` where the pads depend on the input's size, or the kernel's size is not in the file.
    """
    for node in document.proto.graph.node:
        auto = next((a.s.decode("utf-8", "replace") for a in node.attribute if a.name == "auto_pad"), "")
        if auto not in ("SAME_UPPER", "SAME_LOWER") or node.domain:
            continue
        added = _ints(node, "output_padding")
        if node.op_type == "ConvTranspose" and any(added):
            raise ModelError(
                f"{describe(document.where, node, document.opset)}: auto_pad {auto} with output_padding {added} has "
                "one size in onnxruntime and another in ONNX's shape inference; export the model with explicit pads"
            )
        dilations = _ints(node, "dilations")
        if not op_of(node.op_type).window or node.op_type == "ConvTranspose" or all(d == 1 for d in dilations):
            continue
        kernel = _ints(node, "kernel_shape")
        if not kernel and len(node.input) > 1 and node.input[1] in document.weights:
            kernel = list(document.weights[node.input[1]].dims)[2:]
        if len(kernel) != len(dilations) or any(stride != 1 for stride in _ints(node, "strides")):
            raise ModelError(
                f"{describe(document.where, node, document.opset)}: auto_pad {auto} with dilations {dilations} is "
                "something that onnxruntime doesn't compute; export the model with explicit pads"
            )
        total = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
        before = [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total]
        kept = [a for a in node.attribute if a.name not in ("auto_pad", "pads")]
        del node.attribute[:]
        pads = [*before, *(t - b for t, b in zip(total, before, strict=True))]
        node.attribute.extend([*kept, helper.make_attribute("pads", pads)])


def _ints(node: NodeProto, name: str) -> list[int]:
    return next((list(a.ints) for a in node.attribute if a.name == name and a.type == AttributeProto.INTS), [])
