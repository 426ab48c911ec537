"""Parameters that an exporter merged since a fresh network has equal numbers in them, apart again.

All scales of ones and all biases of zeros of one size are one initializer of the file, and zero biases of layers are
left out. So a tensor filled with one number in several layers' places is as many parameters: by the names that
PyTorch's metadata gives each node's parameters, by those of the Identity nodes that its older exporter writes (whose
nodes are called `/module/op`), in other files called after the node. What these say is one parameter stays one, and
where a layer has none it reads a constant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import onnx
from onnx import NodeProto, TensorProto, helper

from poetopt.frontends.operands import FEATURES, FLOATS, NOT_TRAINED, WEIGHTS
from poetopt.frontends.origins import signature
from poetopt.frontends.proto import attribute_int, copied
from poetopt.frontends.read import Document, array_of
from poetopt.util.notes import Note, listed

_PARAMETER = re.compile(r"^\s*(\S+): PARAMETER target='([^']*)'", re.MULTILINE)
_HELD = re.compile(r"%(p_\w+)")
_OUTPUT_AXIS = {"Conv": 0, "ConvTranspose": 1}
_NAMES = {1: "weight", 2: "bias"}


class Place(NamedTuple):
    """Where a node reads, or lacks, what may be a parameter of its own.

    node, at
        The node, and which of its inputs.
    merged
        The initializer that it reads there; "" where a bias of zeros was left out.
    name
        The parameter's own name.
    constant
        Whether the layer has no parameter there.
    """

    node: NodeProto
    at: int
    merged: str
    name: str
    constant: bool = False


def places(graph: onnx.GraphProto, dims: Callable[[str], tuple[int, ...] | None]) -> Iterator[Place]:
    """All such places of `graph`, in the order of its nodes.

    dims
        Those of an initializer; None for other names.
    """
    targets = dict(_PARAMETER.findall(signature(graph)))
    writers = {name: node.op_type for node in graph.node for name in node.output}
    sources = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "Identity" and len(node.input) == 1 and dims(node.input[0]) is not None
    }
    for node in graph.node:
        said = {entry.key: entry.value for entry in node.metadata_props}
        held = [targets[name] for name in _HELD.findall(said.get("pkg.torch.onnx.fx_node", "")) if name in targets]
        settings = NOT_TRAINED.get(node.op_type, ())
        read = [(k, sources.get(name, name)) for k, name in enumerate(node.input) if k not in settings]
        read = [(k, name) for k, name in read if dims(name) is not None]
        bias = node.op_type == "Add" and any(writers.get(name) in FEATURES for name in node.input)
        layer = WEIGHTS.get(node.op_type, frozenset()) - {0}
        for k, name in read:
            constant = k in layer and bool(targets) and not held and "pkg.torch.onnx.fx_node" in said
            if node.input[k] in sources:
                own = node.input[k]
            elif len(held) == len(read):
                own = held[read.index((k, name))]
            elif held:
                alike = {target for target in held if target.rpartition(".")[2] == name.rpartition(".")[2]}
                own = alike.pop() if len(alike) == 1 else ""
            elif not targets and node.name.startswith("/"):
                own = name
            elif constant or (not targets and (bias or k in layer)):
                own = f"{node.name or node.output[0]}.{'bias' if bias else _NAMES.get(k, k)}"
            else:
                own = ""
            if own and (dims(name) not in {(), (1,)} or node.op_type == "PRelu"):
                yield Place(node, k, name, own, constant)
        left_out = "RemoveOptionalBias" in said.get("pkg.onnxscript.rewriter.rule_name", "")
        if left_out and len(node.input) == 2 and len(held) == 2:
            yield Place(node, 2, "", held[1])


def put(place: Place) -> None:
    """Have the node read its own parameter there."""
    if place.at < len(place.node.input):
        place.node.input[place.at] = place.name
    else:
        place.node.input.append(place.name)


def take_apart(document: Document) -> tuple[list[Note], frozenset[str]]:
    """Give each such place of `document` a weight of its own where several read one that holds one number.

    Returns notes, and the names of the weights that are constants.
    """
    graph = document.proto.graph
    weights = document.weights
    found = list(places(graph, lambda name: tuple(weights[name].dims) if name in weights else None))
    names: dict[str, list[str]] = {}
    for place in found:
        names.setdefault(place.merged, []).append(place.name)
    stay = {merged if merged in own else own[0] for merged, own in names.items() if merged}
    made: list[str] = []
    taken = {name for node in graph.node for name in node.output if node.op_type != "Identity"}
    taken.update(info.name for info in graph.input)
    for place in found:
        if place.name in stay or place.name in taken or (place.name in weights and place.name not in made):
            continue
        if place.name not in made:
            proto = _own(document, place)
            if proto is None:
                continue
            weights[place.name] = proto
            made.append(place.name)
        put(place)
    kept = [copied(node) for node in graph.node if node.op_type != "Identity" or node.output[0] not in made]
    del graph.node[:]
    graph.node.extend(kept)
    held = {name for place in found if not place.constant for name in (place.merged, place.name)}
    constants = frozenset({n for p in found if p.constant for n in (p.merged, p.name) if n in weights} - held)
    made = [name for name in made if name not in constants]
    if not made:
        return [], constants
    count = "1 parameter was" if len(made) == 1 else f"{len(made)} parameters were"
    text = f"{count} merged with equal ones by the exporter, and apart again"
    return [Note(f"{text}: {', '.join(made)}", short=f"{text}: {listed(made, 3)}")], constants


def _own(document: Document, place: Place) -> TensorProto | None:
    """A weight like the one that is read at `place`, or zeros; None where that one holds several numbers."""
    if place.merged:
        like = document.weights[place.merged]
        value = array_of(document, place.merged) if like.data_type in FLOATS else None
        if value is None or not value.size or not bool((value == value.flat[0]).all()):
            return None
        own = TensorProto()
        own.CopyFrom(like)
        own.name = place.name
        return own
    weight = document.weights.get(place.node.input[1])
    if weight is None or weight.data_type not in FLOATS or len(weight.dims) < 2:
        return None
    axis = _OUTPUT_AXIS.get(place.node.op_type, 0 if attribute_int(place.node, "transB", 0) else 1)
    size = weight.dims[axis] * (attribute_int(place.node, "group", 1) if place.node.op_type == "ConvTranspose" else 1)
    return helper.make_tensor(place.name, weight.data_type, [size], [0.0] * size)
