"""The choice of what is trained: what the file calls a parameter, else what stands in a layer's place.

Everything else is data, and a note names the floats that were left. Of a network of which nothing stands in a layer's
place all stored floats are trained, and where a file has LoRA's pairs these alone. `--train` says otherwise.
"""

from __future__ import annotations

import difflib
import fnmatch
import math
import re
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto, TensorProto

from poetopt.frontends.origins import EXPORT, Origins, merged_by_name
from poetopt.frontends.places import FLOATS, places
from poetopt.frontends.read import Document
from poetopt.ops.op import op_of
from poetopt.util.errors import ModelError
from poetopt.util.notes import About, Note, listed

if TYPE_CHECKING:
    from poetopt.graph import Array


LORA = re.compile(r"(^|[./_])lora_[AB]([./_]|$)")
_CLOSEST = 4


@dataclass(frozen=True)
class ChosenTensors:
    """Names of the trained tensors in the order of the file, and notes on them and on the rest."""

    names: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass
class _Reads:
    """Says who reads the stored floats, by name.

    readers
        How many operators read its values.
    readable
        Whether some operator reads it where a gradient makes sense.
    learnable
        Settings that have a gradient all the same.
    settings
        Which operand a setting without a gradient is, in words.
    """

    readers: dict[str, int] = field(default_factory=dict)
    readable: dict[str, bool] = field(default_factory=dict)
    learnable: set[str] = field(default_factory=set)
    settings: dict[str, str] = field(default_factory=dict)


def choose_trained(
    document: Document,
    in_nodes: Set[str],
    aliases: Mapping[str, str],
    train: str | Sequence[str] | None,
    origin: Origins,
    fixed: Set[str] = frozenset(),
) -> ChosenTensors:
    """The tensors to train: those that match `train`, or those that the file or their places suggest.

    in_nodes
        Names of the values of Constant nodes.
    aliases
        Other names of weights -> those.
    train
        Glob patterns, comma separated or in a sequence. Each must match a float weight, else `ModelError`. Those that
        begin with `!` take away: from all that is trained otherwise, where there are no others.
    fixed
        Names of weights that are no parameters by what the exporter says, beside those of `origin`.
    """
    texts = [train] if isinstance(train, str) else list(train or ())
    patterns = [pattern.strip() for text in texts for pattern in text.split(",") if pattern.strip()]
    frozen = [pattern.removeprefix("!").strip() for pattern in patterns if pattern.startswith("!")]
    patterns = [pattern for pattern in patterns if not pattern.startswith("!")]
    if train is not None and not patterns and not any(frozen):
        raise ModelError(f"{document.where}: --train has no pattern; give one such as 'fc.*', or leave it out")
    found = _reads(document)
    in_nodes = in_nodes - document.fills.keys()
    in_place = places(document, in_nodes)
    data = origin.constants | fixed
    named = found.learnable & (found.learnable if patterns else origin.parameters)
    candidates = [name for name in document.weights if found.readable.get(name) or name in named]
    if patterns:
        names = _matching(document, candidates, aliases, found, in_place.last, origin, patterns)
        notes = [f"{len(names)} of {len(found.readable)} float tensors are trained (--train)"]
        notes += _unmatched([name for name in candidates if document.weights[name].dims and name not in names])
    else:
        # a file that lists its parameters has none in nodes
        beside = in_nodes if origin.parameters else frozenset[str]()
        wanted = origin.parameters if origin.stated else (in_place.names - beside) | origin.held
        names = tuple(name for name in candidates if name in wanted and name not in data)
        names = names or tuple(n for n in candidates if n not in {*data, *in_nodes} and _size(document, n) > 1)
        names = names or tuple(n for n in candidates if n not in origin.constants and document.weights[n].dims)
        lora = {root for name, root in aliases.items() if LORA.search(name)}
        names = tuple(name for name in names if LORA.search(name) or name in lora) or names
        notes = [f"{len(names)} of {len(found.readable)} float tensors are trained (inferred; --train to choose)"]
        nodes_say = not in_place.names or not in_place.names <= in_nodes
        known = {*names, *data, *(in_nodes - in_place.fixed if nodes_say else ())}
        notes += _left([name for name in candidates if name not in known])
    if frozen:
        roots = _roots(names, aliases)
        gone: set[str] = set()
        for pattern in frozen:
            matched = {root for name, root in roots.items() if fnmatch.fnmatchcase(name, pattern)}
            gone |= matched
            if not matched:
                close = difflib.get_close_matches(pattern.strip("*"), list(roots), n=_CLOSEST, cutoff=0.3)
                raise ModelError(
                    f"{document.where}: --freeze {pattern!r} matches nothing that is trained; there are "
                    f"{listed(close or list(roots), _CLOSEST)}"
                )
        names = tuple(name for name in names if name not in gone)
        if not names:
            raise ModelError(f"{document.where}: --freeze leaves nothing that is trained; leave some of it out")
        notes.append(f"{len(names)} of them are trained, the others frozen (--freeze)")
    shared = [name for name in names if found.readers.get(name, 0) > 1]
    if shared:
        count = "1 parameter is" if len(shared) == 1 else f"{len(shared)} parameters are"
        text = f"{count} shared by several operators ({listed(shared, 3)})"
        whole = f"{text}; the gradient of each is their sum (exporters merge initializers of equal value)"
        notes.append(Note(whole, short=f"{text}, maybe as the exporter merges equal ones"))
    return ChosenTensors(names, tuple(notes))


def _size(document: Document, name: str) -> int:
    return math.prod(document.weights[name].dims)


def _left(names: Sequence[str]) -> list[str]:
    """A note on stored floats that are data: one line, or nothing."""
    if not names:
        return []
    text = f"data, as they stand in no layer's place: {', '.join(names)}; --train NAME trains them"
    return [Note(text, short=f"data, not trained: {listed(names)}; --train NAME trains them")]


def _reads(document: Document) -> _Reads:
    found = _Reads()
    for node in document.proto.graph.node:
        for name in dict.fromkeys(_valued(node)):
            found.readers[name] = found.readers.get(name, 0) + 1
        for index, name in enumerate(node.input):
            proto = document.weights.get(name)
            if proto is None or proto.data_type not in FLOATS or name in document.given:
                continue
            setting = index in op_of(node.op_type).settings
            found.readable[name] = found.readable.get(name, False) or not setting
            if index in op_of(node.op_type).learnable:
                found.learnable.add(name)
            elif setting:
                found.settings[name] = f"input {index} of {node.op_type} ({node.name or node.output[0]!r})"
    return found


def _valued(node: NodeProto) -> Sequence[str]:
    """The inputs whose values a node reads: of others it asks the shape or the type alone."""
    if op_of(node.op_type).asks_shape:
        return ()
    return list(node.input[:1] if node.op_type == "CastLike" else node.input)


def _matching(
    document: Document,
    candidates: Sequence[str],
    aliases: Mapping[str, str],
    found: _Reads,
    last: Sequence[str],
    origin: Origins,
    patterns: Sequence[str],
) -> tuple[str, ...]:
    """Those of `candidates` that the patterns match. Raises ModelError for one that matches none."""
    roots = _roots(candidates, aliases)
    chosen: set[str] = set()
    for pattern in patterns:
        matched = {root for name, root in roots.items() if fnmatch.fnmatchcase(name, pattern)}
        if not pattern.strip("*"):
            matched -= {name for name in found.learnable if not found.readable.get(name)}
        if not matched:
            why = _why_not(document, roots, aliases, found, last, origin, pattern)
            raise ModelError(f"{document.where}: --train {pattern!r} {why}")
        chosen |= matched
    return tuple(name for name in candidates if name in chosen)


def _roots(names: Sequence[str], aliases: Mapping[str, str]) -> dict[str, str]:
    """All that these weights are called, and which each is."""
    known = set(names)
    return {**{name: name for name in names}, **{name: root for name, root in aliases.items() if root in known}}


def _why_not(
    document: Document,
    roots: Mapping[str, str],
    aliases: Mapping[str, str],
    found: _Reads,
    last: Sequence[str],
    origin: Origins,
    pattern: str,
) -> str:
    """Says why a pattern names nothing, and what to do."""
    settings = found.settings
    for name, root in (*((name, name) for name in settings), *aliases.items()):
        if root in settings and fnmatch.fnmatchcase(name, pattern):
            return f"names {name!r}, which is {settings[root]}: no gradient rule gives one for it; leave it out"
    for name, proto in document.weights.items():
        if proto.data_type not in FLOATS and pattern.strip("*") and fnmatch.fnmatchcase(name, pattern):
            held = TensorProto.DataType.Name(proto.data_type).lower()
            return (
                f"names {name!r}, which is {held}: only floats are trained; choose one, or export before quantization"
            )
    if not roots:
        return "matches no weight; the model has no float weights"
    lost = sorted(origin.parameters - document.weights.keys())
    gone = [name for name in lost if fnmatch.fnmatchcase(name, pattern)]
    if gone:
        return f"matches no weight of the file: the exporter folded {listed(gone, 3)} into others; export with {EXPORT}"
    behind = [name for name in last if name in roots][:_CLOSEST]
    close = difflib.get_close_matches(pattern.strip("*"), list(roots), n=_CLOSEST, cutoff=0.3) or list(roots)[:_CLOSEST]
    close = [name for name in close if name not in behind]
    hints = [f"the last layer's are {', '.join(behind)}"] if behind else []
    hints += [f"the closest names are {', '.join(close)}"] if close else []
    return "; ".join(["matches no weight", *hints, *_renamed(list(dict.fromkeys(roots.values())))])


def _renamed(names: Sequence[str]) -> list[str]:
    """Gives what torch's older exporter did to names, and how they are kept."""
    merged = merged_by_name(names)
    found = []
    if merged:
        found.append(f"BatchNormalization is merged into {listed(merged, 3)}, export with {EXPORT} to keep both")
    folded = [name for name in names if "::" in name and name not in merged]
    if folded:
        found.append(
            f"the exporter folded parameters into {listed(folded, 3)}, export with {EXPORT} to keep their names"
        )
    return found


def _unmatched(left: Collection[str]) -> list[str]:
    """A note on weights that a pattern of a module's names can't match, for the exporter renamed them."""
    names = [name for name in left if "::" in name]
    if not names:
        return []
    one = len(names) == 1
    text = "1 weight has a name of the exporter's" if one else f"{len(names)} weights have names of the exporter's"
    text += f", and --train left {'it' if one else 'them'} out ({listed(names, 3)})"
    return [Note(f"{text}; {EXPORT} keeps the module's", short=text)]


def finite_note(arrays: Mapping[str, Array]) -> list[str]:
    """Gives the notes on parameters with NaN or infinities: one line, or nothing."""
    found = [name for name, array in arrays.items() if not _finite(array)]
    if not found:
        return []
    text = f"NaN or infinite values in {len(found)} of {len(arrays)} parameters, {found[0]!r} the first: loss and "
    text += "gradients won't be numbers either"
    return [Note(f"{text}; export the model from a checkpoint without them", About.GRADIENTS, text)]


def _finite(array: Array) -> bool:
    """Says whether all values are numbers, at a few percent of what reading them takes."""
    flat = np.ascontiguousarray(array).reshape(-1)
    # the bits of plus infinity, above which are those of what is no number
    least = {"float16": 0x7C00, "bfloat16": 0x7F80}.get(array.dtype.name)
    if least is not None:
        return not array.size or int((flat.view(np.uint16) & 0x7FFF).max()) < least
    # a third of the time of asking each value, which is what is left where the squares are too large
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.dot(flat, flat))) or bool(np.isfinite(flat).all())
