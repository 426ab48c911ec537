"""Which weights are trained, and which are running statistics or constants.

Without `train`, every float initializer is trained that an operator reads where a gradient makes sense; running
statistics, scalars without a module's name (and the 1 of `1 - p`, in whatever shape), operands like Clip's limits or
Resize's scales, first states of recurrent layers that are all zero, and what `leftovers` takes for data are not.
Tensors of Constant (or ConstantOfShape) nodes are trained only as the weight of a layer, where the file stores all
weights so, and not where they do nothing in a normalization (scale 1, bias 0). What the file calls a parameter is
trained, scalar or not, wherever a gradient exists.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field

from onnx import NodeProto, TensorProto

from poetopt.frontends import leftovers, numbers
from poetopt.frontends.matching import Choice, matching
from poetopt.frontends.operands import (
    FLOATS,
    LEARNABLE,
    NOT_TRAINED,
    biases,
    filled,
    idle,
    layer_operands,
    stored_beside,
    zero_states,
)
from poetopt.frontends.places import written_out
from poetopt.frontends.read import Document
from poetopt.frontends.views import Views, reads, roots
from poetopt.util.notes import Note, listed


@dataclass(frozen=True)
class Roles:
    """Names of the trained weights in the order of the file, and what was inferred on the way."""

    trained: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass
class _Uses:
    """What the operators that read the weights tell of them, by name; names in a dict are in the order of the file.

    readers
        How many operators read it.
    readable
        Of a float weight, whether some operator reads it where a gradient makes sense.
    layer
        Of a float weight, whether it stands where a layer has its weights.
    learnable
        Settings that have a gradient all the same.
    settings
        Which operand a setting without a gradient is, in words.
    wanted
        Read in a place that tells nothing against a parameter.
    states
        First states of recurrent layers that are all zero.
    scattered, angles
        Under an exporter's name: zeros that are scattered into, and what Sin or Cos reads.
    replaced
        Values of Constant nodes in the place of a layer's weight, where the file keeps weights elsewhere.
    last
        Weights of the last layer that has any.
    told
        Biases behind layers and tables of an embedding.
    written
        What a layer's weight is computed of, and scales and biases of normalizations that are written out.
    """

    readers: dict[str, int] = field(default_factory=dict)
    readable: dict[str, bool] = field(default_factory=dict)
    layer: dict[str, bool] = field(default_factory=dict)
    learnable: set[str] = field(default_factory=set)
    settings: dict[str, str] = field(default_factory=dict)
    wanted: set[str] = field(default_factory=set)
    states: dict[str, None] = field(default_factory=dict)
    scattered: dict[str, None] = field(default_factory=dict)
    angles: dict[str, None] = field(default_factory=dict)
    replaced: dict[str, None] = field(default_factory=dict)
    last: dict[str, None] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)


def choose_trained(
    document: Document,
    constants: Set[str],
    aliases: Mapping[str, str],
    train: str | Sequence[str] | None,
    seen: Views,
    fixed: Set[str] = frozenset(),
    parameters: Set[str] = frozenset(),
    gone: Collection[str] = (),
) -> Roles:
    """The weights to train: those that match `train`, or those that the operators that read them suggest.

    constants
        Names of the weights that stood in Constant nodes and don't count as stored (`stored`).
    train
        Glob patterns, comma separated or in a sequence. Each must match a float weight, else `ModelError`.
    seen
        Views of weights.
    fixed
        Names of weights that the exporter calls buffers or constants: trained only where `train` says so.
    parameters
        Names of weights that the exporter calls parameters.
    gone
        Names of parameters that it left nothing of.
    """
    uses = _uses(document, constants, seen)
    named = uses.learnable & (parameters if train is None else uses.learnable)
    candidates = [name for name in document.weights if uses.readable.get(name) or name in named]
    if train is None:
        trained, notes = _inferred(document, uses, candidates, constants, fixed, parameters)
    else:
        hidden = {name for name in uses.learnable if not uses.readable.get(name)}
        whole = {
            name: TensorProto.DataType.Name(proto.data_type).lower()
            for name, proto in document.weights.items()
            if proto.data_type not in FLOATS
        }
        choice = Choice(candidates, aliases, uses.settings, hidden, tuple(uses.last), gone, whole)
        trained = matching(document.where, choice, train)
        notes = [f"{len(trained)} of {len(uses.readable)} float tensors are trained (--train)"]
        notes += leftovers.unmatched(name for name in candidates if document.weights[name].dims and name not in trained)
    notes += _beside_layers(uses, trained)
    shared = [name for name in trained if uses.readers.get(name, 0) > 1]
    if shared:
        count = "1 parameter is" if len(shared) == 1 else f"{len(shared)} parameters are"
        text = f"{count} shared by several operators ({listed(shared, 3)})"
        notes.append(
            Note(
                f"{text}; the gradient of each is their sum (exporters merge initializers of equal value)",
                short=f"{text}, maybe as the exporter merges equal ones",
            )
        )
    return Roles(trained, tuple(notes))


def _uses(document: Document, constants: Set[str], seen: Views) -> _Uses:
    """Who reads the weights, and as what."""
    found = _Uses(told=biases(document, seen), written=written_out(document))
    for node in document.proto.graph.node:
        weights = layer_operands(document, node, seen) - idle(document, node, constants)
        beside = stored_beside(document, node, constants, seen)
        replaced = _replaced(document, node, weights - beside, constants, seen)
        weights -= replaced.keys()
        found.replaced.update((name, None) for index in sorted(replaced) for name in replaced[index])
        for name in dict.fromkeys(_valued(node)):
            found.readers[name] = found.readers.get(name, 0) + 1
        states = zero_states(document, node)
        for index, name in enumerate(node.input):
            proto = document.weights.get(name)
            if proto is not None and proto.data_type in FLOATS and name not in document.given:
                _note_use(found, document, node, index, in_layer=index in weights, zero_state=index in states)
        held = [name for index, name in reads(document, seen, node) if index in weights]
        found.layer.update(dict.fromkeys(held, True))
        if held:
            found.last = dict.fromkeys(held)
        elif node.op_type == "Add" and found.last:
            found.last.update((name, None) for _, name in reads(document, seen, node) if name in found.told)
        elif node.op_type == "Gather":
            found.told.update(node.input[:1])
    return found


def _valued(node: NodeProto) -> Sequence[str]:
    """The inputs whose values a node reads: of others it asks the shape or the type alone."""
    if node.op_type in ("Shape", "Size"):
        return ()
    names = list(node.input)
    return names[:1] if node.op_type == "CastLike" else names


def _replaced(
    document: Document, node: NodeProto, places: Set[int], constants: Set[str], seen: Views
) -> dict[int, tuple[str, ...]]:
    """Those of a layer's places in which Constant nodes' values stand instead of a weight, and these."""
    held = {index: roots(document, seen, node.input[index]) for index in places}
    return {
        index: names
        for index, names in held.items()
        if names and all(name in constants and name not in document.fills for name in names)
    }


def _note_use(
    found: _Uses, document: Document, node: NodeProto, index: int, *, in_layer: bool, zero_state: bool
) -> None:
    """Note what it tells of a float weight that it is input `index` of `node`."""
    name = node.input[index]
    setting = index in NOT_TRAINED.get(node.op_type, ())
    found.readable[name] = found.readable.get(name, False) or not setting
    found.layer[name] = found.layer.get(name, False) or in_layer
    if index in LEARNABLE.get(node.op_type, ()):
        found.learnable.add(name)
    elif setting:
        found.settings[name] = f"input {index} of {node.op_type} ({node.name or node.output[0]!r})"
    if zero_state:
        found.states[name] = None
    elif not leftovers.anonymous(name):
        found.wanted.add(name)
    elif node.op_type in leftovers.SCATTERED and index == 0 and filled(document, name, 0.0):
        found.scattered[name] = None
    elif node.op_type in leftovers.ANGLES:
        found.angles[name] = None
    else:
        found.wanted.add(name)


def _inferred(
    document: Document,
    uses: _Uses,
    candidates: Sequence[str],
    constants: Set[str],
    fixed: Set[str],
    parameters: Set[str],
) -> tuple[tuple[str, ...], list[str]]:
    """The candidates that their uses and names suggest to train, and notes on these and on the rest."""
    made_up = {name for name in candidates if leftovers.made_up(document, name)}
    scalars = {} if parameters else _scalars(document)
    single = numbers.constants(document, uses.told)

    def suggested(name: str) -> bool:
        told_against = name in constants or name in made_up or name in single or name not in uses.wanted
        return uses.readable[name] and not told_against and bool(document.weights[name].dims or name in scalars)

    trained = tuple(
        name for name in candidates if name not in fixed and (uses.layer[name] or name in parameters or suggested(name))
    )
    notes = [f"{len(trained)} of {len(uses.readable)} float tensors are trained (inferred; --train to choose)"]
    known = {*constants, *fixed, *trained}
    states = [name for name in uses.states if name not in known]
    if states:
        text = f"first states of recurrent layers that are all zero are data ({listed(states)})"
        notes.append(Note(f"{text}; --train names them where they are parameters", short=text))
    notes += leftovers.note(
        {
            "Constant nodes, while weights are initializers": [
                name for name in candidates if name in uses.replaced and name not in {*fixed, *trained}
            ],
            leftovers.FOLDED: [
                name for name in candidates if name in made_up and name in uses.wanted and name not in known
            ],
            "zeros that are scattered into": [name for name in uses.scattered if name not in known | made_up],
            "read by Sin and Cos alone": [name for name in uses.angles if name not in known | made_up | uses.wanted],
        }
    )
    notes += leftovers.computed_by_tensorflow(trained)
    trained_scalars = [name for name in trained if name in scalars]
    if trained_scalars:
        text = f"scalars with a module's name are trained ({listed(trained_scalars)})"
        notes.append(Note(f"{text}; --train leaves out what is none", short=text))
    left = [n for n in candidates if n not in known | made_up and (n in single or not document.weights[n].dims)]
    return trained, notes + numbers.note(document, left, bool(parameters))


def _beside_layers(uses: _Uses, trained: Sequence[str]) -> list[str]:
    """A note on what is trained and no layer's weight or bias, by its place: names are no proof."""
    found = [name for name in trained if not uses.layer[name] and name not in uses.told | uses.written]
    if not found:
        return []
    text = "trained, though no layer's weight or bias"
    return [Note(f"{text}: {', '.join(found)}; --train chooses others", short=f"{text}: {listed(found)}")]


def _scalars(document: Document) -> dict[str, None]:
    """Scalars with the name of a module's own tensor, in the order of the file."""
    readers: dict[str, list[NodeProto]] = {}
    for node in document.proto.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found = (name for name in readers if name in document.weights)
    return {name: None for name in found if leftovers.scalar_of_module(document, name, readers[name])}
