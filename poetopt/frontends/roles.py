"""Which weights are trained, and which are running statistics or constants.

Without `train`, every float initializer is trained that an operator reads where a gradient makes
sense; running statistics, scalars without a module's name, operands like Clip's limits or Resize's scales, first states
of recurrent layers that are all zero, and what `leftovers` takes for data are not. Tensors of Constant (or
ConstantOfShape) nodes are trained only as the weight of a layer, where the file stores all weights so, and not where
they do nothing in a normalization (scale 1, bias 0). What the file calls a parameter is trained, scalar or not,
wherever a gradient exists.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from onnx import AttributeProto, NodeProto, TensorProto

from poetopt.errors import ModelError
from poetopt.frontends import leftovers
from poetopt.frontends.read import Document, array_of, check_size, tensor_array

FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})

_NOT_TRAINED: Mapping[str, frozenset[int]] = {
    "Attention": frozenset({3}),
    "BatchNormalization": frozenset({3, 4}),
    "Clip": frozenset({1, 2}),
    "ConstantOfShape": frozenset({0}),
    "Dropout": frozenset({1, 2}),
    "Equal": frozenset({0, 1}),
    "Greater": frozenset({0, 1}),
    "GreaterOrEqual": frozenset({0, 1}),
    "Less": frozenset({0, 1}),
    "LessOrEqual": frozenset({0, 1}),
    "NonMaxSuppression": frozenset(range(5)),
    "OneHot": frozenset({2}),
    "Pad": frozenset({2}),
    "Range": frozenset({0, 1, 2}),
    "Resize": frozenset({1, 2, 3}),
    "RotaryEmbedding": frozenset({1, 2}),
    "Shape": frozenset({0}),
    "Size": frozenset({0}),
    "SoftmaxCrossEntropyLoss": frozenset({2}),
    "NegativeLogLikelihoodLoss": frozenset({2}),
    "Upsample": frozenset({1}),
}
"""Operands (by index) that are settings or statistics rather than weights."""

_LEARNABLE: Mapping[str, frozenset[int]] = {"Attention": frozenset({3})}
"""Those of them that have a gradient all the same: trained where the file or `--train` says so."""

_WEIGHTS: Mapping[str, frozenset[int]] = {
    "BatchNormalization": frozenset({1, 2}),
    "Conv": frozenset({1, 2}),
    "ConvTranspose": frozenset({1, 2}),
    "Gemm": frozenset({0, 1, 2}),
    "GroupNormalization": frozenset({1, 2}),
    "GRU": frozenset({1, 2, 3}),
    "LayerNormalization": frozenset({1, 2}),
    "LSTM": frozenset({1, 2, 3}),
    "MatMul": frozenset({0, 1}),
    "PRelu": frozenset({1}),
    "RMSNormalization": frozenset({1}),
    "RNN": frozenset({1, 2, 3}),
}
"""Operands (by index) that are always a layer's weights."""

_FIRST_STATES: Mapping[str, frozenset[int]] = {"GRU": frozenset({5}), "LSTM": frozenset({5, 6}), "RNN": frozenset({5})}
"""Operands (by index) that are data where they are all zero, and weights where someone gave them values."""

_NORMALIZATIONS = frozenset({"BatchNormalization", "GroupNormalization", "LayerNormalization", "RMSNormalization"})
"""Operators that must have a scale (input 1), so that exporters write one where the module has none."""


@dataclass(frozen=True)
class Roles:
    """Names of the trained weights in the order of the file, and what was inferred on the way."""

    trained: tuple[str, ...]
    notes: tuple[str, ...]


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
        copy = NodeProto()
        copy.CopyFrom(node)
        if node.op_type != "BatchNormalization":
            copy.input[:] = names
        else:  # The statistics keep their own name for `separate_statistics`.
            copy.input[:] = [*names[:3], *node.input[3:]]
        kept.append(copy)
    del graph.node[:]
    graph.node.extend(kept)
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
    taken = {*document.weights, *(name for node in graph.node for name in node.output), *aliases}
    taken.update(info.name for info in graph.input)
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


def unique(name: str, taken: Iterable[str]) -> str:
    """`name`, with a number appended where it is taken."""
    taken = taken if isinstance(taken, (set, frozenset, dict)) else set(taken)
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    return candidate


def fill_constants(document: Document) -> set[str]:
    """Turn ConstantOfShape nodes that fill a layer's weight into weights; the result has their names.

    Files without their weights (benchmark networks) are written so. The array is made when it is read.
    """
    graph = document.proto.graph
    transposed = _transposed(document)
    wanted = {node.input[i] for node in graph.node for i in _layer_operands(document, node, transposed)}
    kept: list[NodeProto] = []
    filled: set[str] = set()
    for node in graph.node:
        name = node.output[0]
        if node.op_type != "ConstantOfShape" or name not in wanted or node.input[0] not in document.weights:
            copy = NodeProto()
            copy.CopyFrom(node)
            kept.append(copy)
            continue
        dims = tuple(int(dim) for dim in array_of(document, node.input[0]).reshape(-1))
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        fill = value or TensorProto(data_type=TensorProto.FLOAT, float_data=[0.0], dims=[1])
        check_size(f"{document.where}: tensor {name!r}", dims, fill.data_type)
        document.weights[name] = TensorProto(name=name, data_type=fill.data_type, dims=dims)
        document.fills[name] = tensor_array(f"{document.where}: tensor {name!r}", fill)
        filled.add(name)
    del graph.node[:]
    graph.node.extend(kept)
    return filled


def _transposed(document: Document) -> dict[str, str]:
    """What each Transpose writes -> what it reads."""
    return {n.output[0]: n.input[0] for n in document.proto.graph.node if n.op_type == "Transpose"}


def _layer_operands(document: Document, node: NodeProto, transposed: Mapping[str, str]) -> frozenset[int]:
    """Places of a layer's weights among the inputs of `node`.

    What stands before a weight in a product is data, if constant data: the first state of an unrolled recurrent cell.
    """
    places = frozenset(i for i in _WEIGHTS.get(node.op_type, ()) if i < len(node.input))
    if node.op_type in ("Gemm", "MatMul") and len(node.input) > 1:
        right = transposed.get(node.input[1], node.input[1])
        return places - {0} if right in document.weights else places
    return places


def _all_in_nodes(document: Document, constants: Set[str]) -> bool:
    """Whether the file keeps the weights of its layers in Constant nodes, all of them."""
    read = (node.input[i] for node in document.proto.graph.node for i in _WEIGHTS.get(node.op_type, ())
            if i < len(node.input))  # fmt: skip
    return all(name in constants for name in read if name in document.weights)


def _stored_beside(document: Document, node: NodeProto, constants: Set[str]) -> frozenset[int]:
    """Places of biases in Constant nodes of a layer whose weight is an initializer: parameters as well."""
    if node.op_type in _NORMALIZATIONS or len(node.input) < 3:
        return frozenset()
    weight = any(name in document.weights and name not in constants for name in node.input[:2])
    return frozenset(range(2, len(node.input))) if weight else frozenset()


def _idle(document: Document, node: NodeProto, constants: Set[str]) -> frozenset[int]:
    """Places of a scale of ones and a bias of zeros in Constant nodes: the module of this normalization has none."""
    if node.op_type not in _NORMALIZATIONS:
        return frozenset()
    return frozenset(
        place
        for place, value in ((1, 1.0), (2, 0.0))
        if place < len(node.input) and node.input[place] in constants and _filled(document, node.input[place], value)
    )


def _zero_states(document: Document, node: NodeProto) -> frozenset[int]:
    """Places of first states that are all zero."""
    places = _FIRST_STATES.get(node.op_type, frozenset())
    return frozenset(i for i in places if i < len(node.input) and _filled(document, node.input[i], 0.0))


def _filled(document: Document, name: str, value: float) -> bool:
    """Whether `name` is a float weight whose every element is `value`."""
    proto = document.weights.get(name)
    return proto is not None and proto.data_type in FLOATS and bool((array_of(document, name) == value).all())


def choose_trained(
    document: Document,
    constants: set[str],
    aliases: Mapping[str, str],
    train: str | Sequence[str] | None,
    fixed: Set[str] = frozenset(),
    parameters: Set[str] = frozenset(),
) -> Roles:
    """The weights to train: those that match `train`, or those that the operators that read them suggest.

    constants
        Names of the weights that stood in Constant nodes.
    train
        Glob patterns, comma separated or in a sequence. Each must match a float weight, else `ModelError`.
    fixed
        Names of weights that the exporter calls buffers or constants: trained only where `train` says so.
    parameters
        Names of weights that the exporter calls parameters.
    """
    readable: dict[str, bool] = {}
    settings: dict[str, str] = {}
    learnable: set[str] = set()
    transposed = _transposed(document)
    layer: dict[str, bool] = {}
    readers: dict[str, int] = {}
    wanted: set[str] = set()
    states: dict[str, None] = {}
    scattered: dict[str, None] = {}
    angles: dict[str, None] = {}
    replaced: dict[str, None] = {}
    unstored = _all_in_nodes(document, constants)
    for node in document.proto.graph.node:
        skipped = _NOT_TRAINED.get(node.op_type, frozenset())
        weights = _layer_operands(document, node, transposed)
        if not unstored:
            weights -= _idle(document, node, constants)
            beside = _stored_beside(document, node, constants)
            for index in sorted(weights - beside):
                name = node.input[index]
                if name in constants and name in document.weights and name not in document.fills:
                    weights -= {index}
                    replaced[name] = None
        zero = _zero_states(document, node)
        for name in dict.fromkeys(node.input):
            readers[name] = readers.get(name, 0) + 1
        for index, name in enumerate(node.input):
            proto = document.weights.get(name)
            if proto is not None and proto.data_type in FLOATS:
                readable[name] = readable.get(name, False) or index not in skipped
                if index in _LEARNABLE.get(node.op_type, ()):
                    learnable.add(name)
                elif index in skipped:
                    settings[name] = f"input {index} of {node.op_type} ({node.name or node.output[0]!r})"
                layer[name] = layer.get(name, False) or index in weights
                if index in zero:
                    states[name] = None
                elif not leftovers.anonymous(name):
                    wanted.add(name)
                elif node.op_type in leftovers.SCATTERED and index == 0 and _filled(document, name, 0.0):
                    scattered[name] = None
                elif node.op_type in leftovers.ANGLES:
                    angles[name] = None
                else:
                    wanted.add(name)
    named = learnable & (parameters if train is None else learnable)
    candidates = [name for name in document.weights if readable.get(name) or name in named]
    if train is None:
        made_up = {name for name in candidates if leftovers.made_up(document, name)}
        scalars = {} if parameters else _scalars(document)
        trained = tuple(
            name
            for name in candidates
            if name not in fixed
            and (
                layer[name]
                or name in parameters
                or (
                    readable[name]
                    and name in wanted
                    and name not in constants
                    and name not in made_up
                    and (document.weights[name].dims or name in scalars)
                )
            )
        )
        notes = [f"{len(trained)} of {len(readable)} float tensors are trained (inferred; --train to choose)"]
        known = {*constants, *fixed, *trained}
        single = [n for n in candidates if not document.weights[n].dims and n not in known]
        idle = [name for name in states if name not in known]
        if idle:
            notes.append(
                f"first states of recurrent layers that are all zero are data ({', '.join(idle)}); "
                "--train names them where they are parameters"
            )
        notes += leftovers.note(
            {
                "Constant nodes, while weights are initializers": [
                    n for n in candidates if n in replaced and n not in {*fixed, *trained}
                ],
                leftovers.FOLDED: [n for n in candidates if n in made_up and n in wanted and n not in known],
                "zeros that are scattered into": [n for n in scattered if n not in {*known, *made_up}],
                "read by Sin and Cos alone": [n for n in angles if n not in {*known, *made_up, *wanted}],
            }
        )
        if any(name in scalars for name in trained):
            shown = ", ".join(name for name in trained if name in scalars)
            notes.append(f"scalars with a module's name are trained ({shown}); --train leaves out what is none")
        if single:
            notes.append(f"scalars are not trained ({', '.join(single)}); --train names them where they are parameters")
    else:
        hidden = {name for name in learnable if not readable.get(name)}
        trained = _matching(document.where, candidates, aliases, train, settings, hidden)
        notes = [f"{len(trained)} of {len(readable)} float tensors are trained (--train)"]
    shared = [name for name in trained if readers[name] > 1]
    if shared:
        shown = ", ".join(shared[:3]) + (", ..." if len(shared) > 3 else "")
        notes.append(
            f"{len(shared)} parameters are shared by several operators ({shown}); the gradient of each is their sum "
            "(exporters merge initializers of equal value)"
        )
    return Roles(trained, tuple(notes))


def _scalars(document: Document) -> dict[str, None]:
    """Scalars with the name of a module's own tensor, in the order of the file."""
    readers: dict[str, list[NodeProto]] = {}
    for node in document.proto.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found = (name for name in readers if name in document.weights)
    return {name: None for name in found if leftovers.scalar_of_module(document, name, readers[name])}


def _matching(
    where: str,
    candidates: Sequence[str],
    aliases: Mapping[str, str],
    train: str | Sequence[str],
    settings: Mapping[str, str],
    hidden: Set[str],
) -> tuple[str, ...]:
    """The candidates that `train` names; `settings` says what other weights are, `hidden` ones are not meant by `*`."""
    texts = [train] if isinstance(train, str) else list(train)
    patterns = [pattern.strip() for text in texts for pattern in text.split(",") if pattern.strip()]
    if not patterns:
        raise ModelError(f"{where}: --train has no pattern; give one such as 'fc.*', or leave it out")
    known = set(candidates)
    roots = {**{name: name for name in candidates}, **{name: root for name, root in aliases.items() if root in known}}
    chosen: set[str] = set()
    for pattern in patterns:
        found = {root for name, root in roots.items() if fnmatch.fnmatchcase(name, pattern)}
        if not pattern.strip("*"):
            found -= hidden
        if not found:
            for name, root in (*((n, n) for n in settings), *aliases.items()):
                if root in settings and fnmatch.fnmatchcase(name, pattern):
                    raise ModelError(
                        f"{where}: --train {pattern!r} names {name!r}, which is {settings[root]}: "
                        "no gradient rule gives one for it; leave it out"
                    )
            close = difflib.get_close_matches(pattern.strip("*"), list(roots), n=4, cutoff=0.3) or list(roots)[:4]
            hint = f"the closest names are {', '.join(close)}" if close else "the model has no float weights"
            raise ModelError(f"{where}: --train {pattern!r} matches no weight; {hint}")
        chosen |= found
    return tuple(name for name in candidates if name in chosen)


def attribute_int(node: NodeProto, name: str, default: int) -> int:
    """An integer attribute of `node`."""
    return next((int(a.i) for a in node.attribute if a.name == name and a.type == AttributeProto.INT), default)
