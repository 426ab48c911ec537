"""Origins of a file's weights, as PyTorch's newer exporter records them in metadata.

The exporter folds constants: it stores a transposed weight as `val_13`, a causal mask or the tables of a rotary
embedding as `val_136` and `cos`. The graph's metadata lists the module's parameters and buffers, and the metadata of a
folded tensor lists its sources. So poetopt doesn't mistake a mask for a weight, and `--train` accepts the module's
names. poetopt can't undo computations on parameters; the notes name the option of the exporter that avoids them. The
exporter supports BatchNormalization only in evaluation mode, whatever `training` is. poetopt's own files list the
parameters.

An exporter or an optimizer may merge a BatchNormalization into the layer before it. The name of a rule in the node's
metadata shows that, or the names that PyTorch's older exporter, onnxruntime and tf2onnx give weight and bias.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import onnx
from onnx import NodeProto

from poetopt.frontends.proto import PARAMETERS
from poetopt.frontends.read import Document
from poetopt.ops.op import op_of
from poetopt.util.notes import About, Note, listed

EXPORT = "po.torch.export(module, example, 'net.onnx')"
"""The recommended call: it keeps parameters, names and BatchNormalization as the module has them."""
SHORT = "po.torch.export"
"""Short form of `EXPORT`, for notes beside a result."""

_MERGED = re.compile(r"^(onnx::Conv(Transpose)?_)?\d+$|ConvBnFusion|_fused_bn(:0)?$")
_ENTRY = re.compile(r"^\s*\S+: (PARAMETER|BUFFER|CONSTANT_TENSOR|BUFFER_MUTATION) target='([^']*)'", re.MULTILINE)
_FUNCTION = re.compile(
    r"^(?!(val|t|T|mT|numpy_T|permute|transpose|view|reshape|_unsafe_view|unsqueeze|squeeze|flatten|alias|clone|detach"
    r"|contiguous|to|_to_copy|type_as|convert_element_type|lift_fresh_copy)(_default)?(_\d+)?$)[A-Za-z_]\w*$"
)
"""Names of folded tensors after the op that computed them, unless that only changes shape or type."""


def signature(graph: onnx.GraphProto) -> str:
    """Return the lines on the module's parameters and buffers in the metadata, or ""."""
    return next(
        (
            entry.value
            for entry in graph.metadata_props
            if entry.key == "pkg.torch.export.ExportedProgram.graph_signature"
        ),
        "",
    )


@dataclass(frozen=True)
class Origins:
    """Origins of the weights of a file.

    Attributes
    ----------
    constants
        Weights that don't depend on a parameter: buffers, and tensors folded from constants alone.
    names
        The module's name of a parameter -> the only weight of the file folded from it.
    copies
        The module's name of a parameter -> the weights folded from it alone (those of its shape or a permutation have
        the same elements), the parameter first if the file has it.
    functions
        The module's name of a parameter -> the weight that holds a function of it, by the exporter's name.
    parameters
        All names of parameters, in the module and in the file.
    mixed
        Weights folded from a parameter and other tensors: their gradient is that of the result.
    left
        Folded weights -> the parameters among their sources that the file has as well.
    merged
        Weights that BatchNormalization was merged into.
    gone
        Parameters whose name no tensor of the file has.
    frozen_statistics
        Whether the module was training with running statistics while no node of the file updates any.
    stated
        Whether poetopt wrote the file, so that it has no other parameters.
    """

    constants: frozenset[str] = frozenset()
    names: dict[str, str] = field(default_factory=dict)
    copies: dict[str, list[str]] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()
    mixed: tuple[str, ...] = ()
    frozen_statistics: bool = False
    left: dict[str, list[str]] = field(default_factory=dict)
    merged: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    stated: bool = False

    @property
    def held(self) -> frozenset[str]:
        """Parameters, and weights computed from one."""
        return self.parameters.union(self.mixed, *self.copies.values())

    def notes(self, trained: Collection[str], tied: Collection[str]) -> tuple[str, ...]:
        """Return the notes for the user, one line each; `tied` are the weights that are copies."""
        notes: list[str] = []
        renamed = [f"{name} as {weight}" for name, weight in self.names.items() if name not in self.functions]
        if renamed:
            shown = ", ".join(renamed[:3]) + (", ..." if len(renamed) > 3 else "")
            count = "1 parameter is" if len(renamed) == 1 else f"{len(renamed)} parameters are"
            other = "another name" if len(renamed) == 1 else "other names"
            notes.append(f"{count} stored transposed or under {other} ({shown})")
        if self.functions:
            shown = ", ".join(f"{weight} of {name}" for name, weight in self.functions.items())
            text = f"the file holds functions of parameters in their place ({shown})"
            notes.append(
                Note(
                    f"{text}; their gradients are those of the function's result, which is what poetopt trains; "
                    f"{EXPORT} keeps the parameters",
                    short=f"{text}, which are trained",
                )
            )
        mixed = [name for name in self.mixed if name in trained]
        if mixed:
            text = "the exporter computed with parameters, so poetopt trains the results"
            notes.append(
                Note(f"{text}: {', '.join(mixed)}; {EXPORT} keeps the parameters", short=f"{text}: {listed(mixed)}")
            )
        shares = [
            f"{weight} of {name}"
            for weight, names in self.left.items()
            for name in names
            if weight not in tied and name in trained
        ]
        if shares:
            shown = ", ".join(shares[:3]) + (", ..." if len(shares) > 3 else "")
            text = (
                f"the exporter computed tensors from parameters that other nodes read too ({shown}): the gradient of "
            )
            text += "such a parameter lacks the share through them"
            notes.append(Note(f"{text}; {EXPORT} keeps it whole", About.GRADIENTS, text))
        notes += merged_note(self.merged, self.gone)
        if self.frozen_statistics:
            text = "exported from a module in training mode, but the file has BatchNormalization in evaluation mode"
            full = f"{text}; {EXPORT} keeps the module's mode"
            notes.append(full if self.merged else Note(full, short=f"{text}; {SHORT} keeps the module's mode"))
        return tuple(notes)


def origins(document: Document, merged: tuple[str, ...] = ()) -> Origins:
    """Return the origins that the metadata records; empty ones if there is none, or it is unreadable."""
    graph = document.proto.graph
    listed_names = next((entry.value for entry in document.proto.metadata_props if entry.key == PARAMETERS), "")
    if stated := frozenset(listed_names.splitlines()) & document.weights.keys():
        return Origins(parameters=stated, stated=True, merged=merged)
    targets: dict[str, set[str]] = {}
    for kind, target in _ENTRY.findall(signature(graph)):
        targets.setdefault(kind, set()).add(target)
    parameters = targets.get("PARAMETER", set())
    if not parameters:
        return Origins(merged=merged)
    constants = {name for kind in ("BUFFER", "CONSTANT_TENSOR") for name in targets.get(kind, ())} - parameters
    names: dict[str, str] = {}
    copies: dict[str, list[str]] = {}
    functions: dict[str, str] = {}
    mixed: list[str] = []
    kept_sources: dict[str, list[str]] = {}
    missing = set(parameters) - document.weights.keys()
    read = {name for node in graph.node for name in node.input}
    for info in graph.value_info:
        sources = next(
            (
                _parse_names(entry.value)
                for entry in info.metadata_props
                if entry.key == "pkg.onnxscript.optimizer.folded_from"
            ),
            None,
        )
        if sources is None or info.name not in document.weights or info.name in parameters:
            continue
        own_sources = [source for source in sources if source in parameters]
        missing.difference_update(own_sources)
        if info.name in read and read.intersection(own_sources):
            kept_sources[info.name] = [source for source in own_sources if source in read]
        if not own_sources:
            constants.add(info.name)
        elif len(sources) > 1:
            mixed.append(info.name)
        elif own_sources[0] in document.weights:
            # `tie_copies` compares the values
            copies.setdefault(own_sources[0], [own_sources[0]]).append(info.name)
            if _FUNCTION.match(info.name):
                mixed.append(info.name)
        elif _FUNCTION.match(info.name):
            functions[own_sources[0]] = names[own_sources[0]] = info.name
        else:
            copies.setdefault(own_sources[0], []).append(info.name)
            names.setdefault(own_sources[0], info.name)
    mutated = any(name.endswith("running_mean") for name in targets.get("BUFFER_MUTATION", ()))
    trains = any(_trains(node) for node in graph.node)
    held_names = frozenset(parameters | set(names.values()))
    return Origins(
        frozenset(constants),
        names,
        copies,
        functions,
        held_names,
        tuple(mixed),
        mutated and not trains,
        kept_sources,
        merged,
        tuple(sorted(missing)),
    )


def _parse_names(text: str) -> list[str] | None:
    """Return the names in the text of a Python list; None for another text."""
    try:
        names = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else None


def _trains(node: NodeProto) -> bool:
    return node.op_type == "BatchNormalization" and any(a.name == "training_mode" and a.i for a in node.attribute)


def merged_layers(document: Document) -> tuple[str, ...]:
    """Return the weights that BatchNormalization was merged into; call it while nodes have their metadata."""
    weights: dict[str, None] = {}
    for node in document.proto.graph.node:
        if any(
            entry.key == "pkg.onnxscript.rewriter.rule_name" and "FuseBatchNormInto" in entry.value
            for entry in node.metadata_props
        ):
            weights.update((name, None) for name in node.input if name in document.weights)
    return tuple(weights)


def merged_note(weights: Sequence[str], gone: Sequence[str]) -> list[str]:
    """Return the note on merged layers, if any. `gone` are parameters whose name no tensor of the file has."""
    if not weights:
        return []
    shown = ", ".join(weights[:6]) + (", ..." if len(weights) > 6 else "")
    lost = f" (its parameters {', '.join(gone[:4])}{', ...' * (len(gone) > 4)} are lost)" if gone else ""
    return [
        Note(
            f"the exporter merged BatchNormalization into {shown}{lost}: gradients are those of the merged weights; "
            f"{EXPORT} keeps the layers apart",
            short=f"the exporter merged BatchNormalization into {listed(weights, 3)}; {SHORT} keeps it apart",
        )
    ]


def merged_by_name(names: Iterable[str]) -> list[str]:
    """Return the names that an exporter gives merged layers."""
    return [name for name in names if "onv" in name and _MERGED.search(name)]


def named_note(document: Document) -> list[str]:
    """Return the note on convolutions whose weight and bias have such names, if any."""
    weights = [
        node.input[1]
        for node in document.proto.graph.node
        if op_of(node.op_type).filter_axis is not None
        and len(node.input) > 2
        and all(name in document.weights and _MERGED.search(name) for name in node.input[1:3])
    ]
    if not weights:
        return []
    count = f"{len(weights)} convolution{'s' * (len(weights) > 1)}"
    text = f"the exporter merged BatchNormalization into {count} ({listed(weights, 3)})"
    is_torch = any("::" in name or name.isdigit() for name in weights)
    advice = f"{EXPORT} keeps the layers apart" if is_torch else "the file from before merging keeps the layers apart"
    return [
        Note(
            f"{text}: gradients are those of the merged weights; {advice}",
            short=f"{text}; {SHORT} keeps it apart" if is_torch else text,
        )
    ]
