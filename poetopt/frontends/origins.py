"""Origins of a file's weights, as far as PyTorch's newer exporter says them.

It folds what is constant: a transposed weight is stored as `val_13`, a causal mask or the tables of a rotary embedding
as `val_136` and `cos`. The graph's metadata lists the module's parameters and buffers, and the metadata of a folded
tensor what it was folded from. So a mask is not taken for a weight, and `--train` knows the module's names. What was
computed of parameters can't be undone here; the notes say what to ask of the exporter. It knows BatchNormalization in
evaluation mode alone, whatever `training` says. poetopt's own files list the parameters.

A BatchNormalization that an exporter or an optimiser merged into the layer before it is told by a rule's name in the
node's metadata, or by the names that PyTorch's older exporter, onnxruntime and tf2onnx give weight and bias.
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
"""The call that keeps parameters, names, and BatchNormalization as the module has them: the one that is advised."""
SHORT = "po.torch.export"
"""The same beside an answer."""

_MERGED = re.compile(r"^(onnx::Conv(Transpose)?_)?\d+$|ConvBnFusion|_fused_bn(:0)?$")
_ENTRY = re.compile(r"^\s*\S+: (PARAMETER|BUFFER|CONSTANT_TENSOR|BUFFER_MUTATION) target='([^']*)'", re.MULTILINE)
_FUNCTION = re.compile(
    r"^(?!(val|t|T|mT|numpy_T|permute|transpose|view|reshape|_unsafe_view|unsqueeze|squeeze|flatten|alias|clone|detach"
    r"|contiguous|to|_to_copy|type_as|convert_element_type|lift_fresh_copy)(_default)?(_\d+)?$)[A-Za-z_]\w*$"
)
"""Names of folded tensors, called after what made them, where that was no mere change of shape or type."""


def signature(graph: onnx.GraphProto) -> str:
    """The lines on the module's parameters and buffers in the metadata; "" where there are none."""
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
    """Holds what the exporter said.

    constants
        Weights of the file that are no parameter and hold none: buffers, and what was folded of constants alone.
    names
        The module's name of a parameter -> the weight of the file that alone was folded from it.
    copies
        The module's name of a parameter -> the weights that were folded from it alone (those of one shape or its
        permutation hold the same numbers), itself first if the file has it.
    functions
        The module's name of a parameter -> the weight that holds a function of it, by the name that the exporter gave.
    parameters
        All names of parameters, the file's own among them.
    mixed
        Weights that were folded from a parameter and more: their gradient is that of the result.
    left
        Weights that were folded -> parameters that they were folded from, among others, and that the file has as well.
    merged
        Weights that BatchNormalization was merged into.
    gone
        Parameters of which nothing in the file has the name.
    frozen_statistics
        Whether the module was training with running statistics while no node of the file updates any.
    stated
        Whether the file is poetopt's, and has no other parameters.
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
        """Parameters, and weights that hold something of one."""
        return self.parameters.union(self.mixed, *self.copies.values())

    def notes(self, trained: Collection[str], tied: Collection[str]) -> tuple[str, ...]:
        """Gives what people should know, one line each; `tied` are the weights that turned out to be copies."""
        found: list[str] = []
        renamed = [f"{name} as {weight}" for name, weight in self.names.items() if name not in self.functions]
        if renamed:
            shown = ", ".join(renamed[:3]) + (", ..." if len(renamed) > 3 else "")
            count = "1 parameter is" if len(renamed) == 1 else f"{len(renamed)} parameters are"
            other = "another name" if len(renamed) == 1 else "other names"
            found.append(f"{count} stored transposed or under {other} ({shown})")
        if self.functions:
            shown = ", ".join(f"{weight} of {name}" for name, weight in self.functions.items())
            text = f"the file holds functions of parameters in their place ({shown})"
            found.append(
                Note(
                    f"{text}; a gradient is that of the function's result, which is what can be trained here; "
                    f"{EXPORT} keeps the parameters",
                    short=f"{text}, which are trained",
                )
            )
        mixed = [name for name in self.mixed if name in trained]
        if mixed:
            text = "the exporter computed with parameters, their results are trained"
            found.append(
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
                f"the exporter computed tensors of parameters that are read elsewhere too ({shown}): the gradient of "
            )
            text += "such a parameter lacks the share through them"
            found.append(Note(f"{text}; {EXPORT} keeps it whole", About.GRADIENTS, text))
        found += merged_note(self.merged, self.gone)
        if self.frozen_statistics:
            text = "exported from a module in training mode, but BatchNormalization is in evaluation mode here"
            whole = f"{text}; {EXPORT} keeps the module's mode"
            found.append(whole if self.merged else Note(whole, short=f"{text}; {SHORT} keeps the module's mode"))
        return tuple(found)


def origins(document: Document, merged: tuple[str, ...] = ()) -> Origins:
    """Gives what the metadata says; nothing where there is none, or where it can't be read."""
    graph = document.proto.graph
    own = next((entry.value for entry in document.proto.metadata_props if entry.key == PARAMETERS), "")
    if stated := frozenset(own.splitlines()) & document.weights.keys():
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
    left: dict[str, list[str]] = {}
    gone = set(parameters) - document.weights.keys()
    read = {name for node in graph.node for name in node.input}
    for info in graph.value_info:
        sources = next(
            (
                _listed(entry.value)
                for entry in info.metadata_props
                if entry.key == "pkg.onnxscript.optimizer.folded_from"
            ),
            None,
        )
        if sources is None or info.name not in document.weights or info.name in parameters:
            continue
        held = [source for source in sources if source in parameters]
        gone.difference_update(held)
        if info.name in read and read.intersection(held):
            left[info.name] = [source for source in held if source in read]
        if not held:
            constants.add(info.name)
        elif len(sources) > 1:
            mixed.append(info.name)
        elif held[0] in document.weights:
            # values will tell whether it is a copy
            copies.setdefault(held[0], [held[0]]).append(info.name)
            if _FUNCTION.match(info.name):
                mixed.append(info.name)
        elif _FUNCTION.match(info.name):
            functions[held[0]] = names[held[0]] = info.name
        else:
            copies.setdefault(held[0], []).append(info.name)
            names.setdefault(held[0], info.name)
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
        left,
        merged,
        tuple(sorted(gone)),
    )


def _listed(text: str) -> list[str] | None:
    """The names in the text of a Python list."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else None


def _trains(node: NodeProto) -> bool:
    return node.op_type == "BatchNormalization" and any(a.name == "training_mode" and a.i for a in node.attribute)


def merged_layers(document: Document) -> tuple[str, ...]:
    """Weights of the nodes that took in a BatchNormalization, while the nodes still have their metadata."""
    found: dict[str, None] = {}
    for node in document.proto.graph.node:
        if any(
            entry.key == "pkg.onnxscript.rewriter.rule_name" and "FuseBatchNormInto" in entry.value
            for entry in node.metadata_props
        ):
            found.update((name, None) for name in node.input if name in document.weights)
    return tuple(found)


def merged_note(weights: Sequence[str], gone: Sequence[str]) -> list[str]:
    """Notes on those: one line, or nothing. `gone` are parameters that nothing in the file is called after."""
    if not weights:
        return []
    shown = ", ".join(weights[:6]) + (", ..." if len(weights) > 6 else "")
    lost = f" (of its own, {', '.join(gone[:4])}{', ...' * (len(gone) > 4)} are gone)" if gone else ""
    return [
        Note(
            f"the exporter merged BatchNormalization into {shown}{lost}: gradients are those of what was merged; "
            f"{EXPORT} keeps the layers apart",
            short=f"the exporter merged BatchNormalization into {listed(weights, 3)}; {SHORT} keeps it apart",
        )
    ]


def merged_by_name(names: Iterable[str]) -> list[str]:
    """Those of `names` that say so."""
    return [name for name in names if "onv" in name and _MERGED.search(name)]


def named_note(document: Document) -> list[str]:
    """Gives the notes on convolutions whose weight and bias have such names: one line, or nothing."""
    found = [
        node.input[1]
        for node in document.proto.graph.node
        if op_of(node.op_type).filter_axis is not None
        and len(node.input) > 2
        and all(name in document.weights and _MERGED.search(name) for name in node.input[1:3])
    ]
    if not found:
        return []
    count = f"{len(found)} convolution{'s' * (len(found) > 1)}"
    text = f"the exporter merged BatchNormalization into {count} ({listed(found, 3)})"
    torchs = any("::" in name or name.isdigit() for name in found)
    advice = f"{EXPORT} keeps the layers apart" if torchs else "the file from before that has it apart"
    return [
        Note(
            f"{text}: gradients are those of what was merged; {advice}",
            short=f"{text}; {SHORT} keeps it apart" if torchs else text,
        )
    ]
