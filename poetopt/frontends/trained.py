"""Select the trained tensors: those that the file lists as parameters, else those that layers read as such.

All other tensors are data, and a note names the float tensors among them. If no layer reads a stored tensor, all stored
floats are trained; if a file has LoRA adapters, only these. `--train` overrides the selection.
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
_HINTS = 4


@dataclass(frozen=True)
class ChosenTensors:
    """Names of the trained tensors in the order of the file, and notes on the selection."""

    names: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass
class _Reads:
    """Readers of the stored float tensors, by tensor name.

    Attributes
    ----------
    readers
        Number of operators that read its values.
    readable
        Whether some operator reads it as an operand that can have a gradient.
    learnable
        Settings that have a gradient nevertheless.
    settings
        Description of the operand that a setting without a gradient is.
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
    """Return the tensors to train: those that match `train`, else those that the file or its layers suggest.

    Parameters
    ----------
    in_nodes
        Names of the values of Constant nodes.
    aliases
        Other names of weights -> the weights.
    train
        Glob patterns, comma separated or in a sequence. Each must match a float weight, else `ModelError` is raised.
        Patterns that begin with `!` exclude weights; if there are no others, from the default selection.
    fixed
        Names of weights that aren't parameters according to the exporter, in addition to those of `origin`.
    """
    texts = [train] if isinstance(train, str) else list(train or ())
    patterns = [pattern.strip() for text in texts for pattern in text.split(",") if pattern.strip()]
    frozen = [pattern.removeprefix("!").strip() for pattern in patterns if pattern.startswith("!")]
    patterns = [pattern for pattern in patterns if not pattern.startswith("!")]
    if train is not None and not patterns and not any(frozen):
        raise ModelError(f"{document.where}: --train has no pattern. Give one such as 'fc.*', or leave the option out")
    reads = _collect_reads(document)
    in_nodes = in_nodes - document.fills.keys()
    sites = places(document, in_nodes)
    constants = origin.constants | fixed
    trained_settings = reads.learnable & (reads.learnable if patterns else origin.parameters)
    candidates = [name for name in document.weights if reads.readable.get(name) or name in trained_settings]
    if patterns:
        names = _match_patterns(document, candidates, aliases, reads, sites.last, origin, patterns)
        notes = [f"{len(names)} of {len(reads.readable)} float tensors are trained (--train)"]
        notes += _note_of_renamed([name for name in candidates if document.weights[name].dims and name not in names])
    else:
        # a file that lists its parameters has none in Constant nodes
        excluded = in_nodes if origin.parameters else frozenset[str]()
        suggested = origin.parameters if origin.stated else (sites.names - excluded) | origin.held
        names = tuple(name for name in candidates if name in suggested and name not in constants)
        names = names or tuple(n for n in candidates if n not in {*constants, *in_nodes} and _size(document, n) > 1)
        names = names or tuple(n for n in candidates if n not in origin.constants and document.weights[n].dims)
        lora = {root for name, root in aliases.items() if LORA.search(name)}
        names = tuple(name for name in names if LORA.search(name) or name in lora) or names
        notes = [f"{len(names)} of {len(reads.readable)} float tensors are trained (inferred; --train to choose)"]
        has_initializers = not sites.names or not sites.names <= in_nodes
        known = {*names, *constants, *(in_nodes - sites.fixed if has_initializers else ())}
        notes += _note_of_data([name for name in candidates if name not in known])
    if frozen:
        roots = _names_of(names, aliases)
        excluded_names: set[str] = set()
        for pattern in frozen:
            matched = {root for name, root in roots.items() if fnmatch.fnmatchcase(name, pattern)}
            excluded_names |= matched
            if not matched:
                close = difflib.get_close_matches(pattern.strip("*"), list(roots), n=_HINTS, cutoff=0.3)
                raise ModelError(
                    f"{document.where}: --freeze {pattern!r} matches no trained tensor. Some are "
                    f"{listed(close or list(roots), _HINTS)}"
                )
        names = tuple(name for name in names if name not in excluded_names)
        if not names:
            raise ModelError(f"{document.where}: --freeze excludes all trained tensors. Leave some patterns out")
        notes.append(f"{len(names)} of them are trained, the others are frozen (--freeze)")
    shared = [name for name in names if reads.readers.get(name, 0) > 1]
    if shared:
        count = "1 parameter is" if len(shared) == 1 else f"{len(shared)} parameters are"
        text = f"{count} shared by several operators ({listed(shared, 3)})"
        full_text = f"{text}; its gradient is the sum over them (exporters merge initializers of equal value)"
        notes.append(Note(full_text, short=f"{text}, maybe because the exporter merged equal ones"))
    return ChosenTensors(names, tuple(notes))


def _size(document: Document, name: str) -> int:
    return math.prod(document.weights[name].dims)


def _note_of_data(names: Sequence[str]) -> list[str]:
    """Return the note on stored floats that are data, if any."""
    if not names:
        return []
    text = f"data, because no layer reads them as parameters: {', '.join(names)}; --train NAME trains them"
    return [Note(text, short=f"data, not trained: {listed(names)}; --train NAME trains them")]


def _collect_reads(document: Document) -> _Reads:
    reads = _Reads()
    for node in document.proto.graph.node:
        for name in dict.fromkeys(_value_inputs(node)):
            reads.readers[name] = reads.readers.get(name, 0) + 1
        for index, name in enumerate(node.input):
            proto = document.weights.get(name)
            if proto is None or proto.data_type not in FLOATS or name in document.given:
                continue
            setting = index in op_of(node.op_type).settings
            reads.readable[name] = reads.readable.get(name, False) or not setting
            if index in op_of(node.op_type).learnable:
                reads.learnable.add(name)
            elif setting:
                reads.settings[name] = f"input {index} of {node.op_type} ({node.name or node.output[0]!r})"
    return reads


def _value_inputs(node: NodeProto) -> Sequence[str]:
    """Return the inputs whose values a node reads, not only their shape or type."""
    if op_of(node.op_type).asks_shape:
        return ()
    return list(node.input[:1] if node.op_type == "CastLike" else node.input)


def _match_patterns(
    document: Document,
    candidates: Sequence[str],
    aliases: Mapping[str, str],
    reads: _Reads,
    last: Sequence[str],
    origin: Origins,
    patterns: Sequence[str],
) -> tuple[str, ...]:
    """Return the candidates that the patterns match. Raise ModelError for a pattern that matches none."""
    roots = _names_of(candidates, aliases)
    chosen: set[str] = set()
    for pattern in patterns:
        matched = {root for name, root in roots.items() if fnmatch.fnmatchcase(name, pattern)}
        if not pattern.strip("*"):
            matched -= {name for name in reads.learnable if not reads.readable.get(name)}
        if not matched:
            reason = _why_not(document, roots, aliases, reads, last, origin, pattern)
            raise ModelError(f"{document.where}: --train {pattern!r} {reason}")
        chosen |= matched
    return tuple(name for name in candidates if name in chosen)


def _names_of(names: Sequence[str], aliases: Mapping[str, str]) -> dict[str, str]:
    """Return the weight of each name and alias of these weights."""
    known = set(names)
    return {**{name: name for name in names}, **{name: root for name, root in aliases.items() if root in known}}


def _why_not(
    document: Document,
    roots: Mapping[str, str],
    aliases: Mapping[str, str],
    reads: _Reads,
    last: Sequence[str],
    origin: Origins,
    pattern: str,
) -> str:
    """Return why a pattern matches no weight, and what to do."""
    settings = reads.settings
    for name, root in (*((name, name) for name in settings), *aliases.items()):
        if root in settings and fnmatch.fnmatchcase(name, pattern):
            return f"names {name!r}, which is {settings[root]}: no rule computes its gradient. Leave it out"
    for name, proto in document.weights.items():
        if proto.data_type not in FLOATS and pattern.strip("*") and fnmatch.fnmatchcase(name, pattern):
            dtype = TensorProto.DataType.Name(proto.data_type).lower()
            return (
                f"names {name!r}, which is {dtype}: only floats are trained. Choose one, or export before quantization"
            )
    if not roots:
        return "matches no weight, because the model has no float weights"
    lost = sorted(origin.parameters - document.weights.keys())
    folded = [name for name in lost if fnmatch.fnmatchcase(name, pattern)]
    if folded:
        return f"matches no weight: the exporter folded {listed(folded, 3)} into others. Export with {EXPORT}"
    last_names = [name for name in last if name in roots][:_HINTS]
    close = difflib.get_close_matches(pattern.strip("*"), list(roots), n=_HINTS, cutoff=0.3) or list(roots)[:_HINTS]
    close = [name for name in close if name not in last_names]
    hints = [f"the last layer's are {', '.join(last_names)}"] if last_names else []
    hints += [f"the closest names are {', '.join(close)}"] if close else []
    return "; ".join(["matches no weight", *hints, *_hints_of_renaming(list(dict.fromkeys(roots.values())))])


def _hints_of_renaming(names: Sequence[str]) -> list[str]:
    """Return hints on names that PyTorch's older exporter changed, and how to keep them."""
    merged = merged_by_name(names)
    hints = []
    if merged:
        hints.append(f"BatchNormalization is merged into {listed(merged, 3)}, export with {EXPORT} to keep both")
    folded = [name for name in names if "::" in name and name not in merged]
    if folded:
        hints.append(
            f"the exporter folded parameters into {listed(folded, 3)}, export with {EXPORT} to keep their names"
        )
    return hints


def _note_of_renamed(unmatched: Collection[str]) -> list[str]:
    """Return the note on unmatched weights that the exporter renamed, so that module names can't match them."""
    names = [name for name in unmatched if "::" in name]
    if not names:
        return []
    one = len(names) == 1
    text = "1 weight has an invented name" if one else f"{len(names)} weights have invented names"
    text += f", and --train doesn't match {'it' if one else 'them'} ({listed(names, 3)})"
    return [Note(f"{text}; {EXPORT} keeps the module's names", short=text)]


def finite_note(arrays: Mapping[str, Array]) -> list[str]:
    """Return the note on parameters with NaN or infinities, if any."""
    names = [name for name, array in arrays.items() if not _finite(array)]
    if not names:
        return []
    text = f"NaN or infinite values in {len(names)} of {len(arrays)} parameters, {names[0]!r} the first: loss and "
    text += "gradients will be NaN or infinite too"
    return [Note(f"{text}. Export the model from a checkpoint without them", About.GRADIENTS, text)]


def _finite(array: Array) -> bool:
    """Return whether all values are finite, in a few percent of the time that reading them takes."""
    flat = np.ascontiguousarray(array).reshape(-1)
    # the bits of plus infinity; those of NaN are larger
    infinity = {"float16": 0x7C00, "bfloat16": 0x7F80}.get(array.dtype.name)
    if infinity is not None:
        return not array.size or int((flat.view(np.uint16) & 0x7FFF).max()) < infinity
    # the sum of squares takes a third of the time of isfinite, which remains for sums that overflow
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.dot(flat, flat))) or bool(np.isfinite(flat).all())
