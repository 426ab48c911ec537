"""Where the weights of a file come from, as far as PyTorch's newer exporter says it.

It folds what is constant: a transposed weight is stored as `val_13`, a causal mask or the tables of a rotary embedding
as `val_136` and `cos`. The graph's metadata lists the module's parameters and buffers, and the metadata of a folded
tensor what it was folded from. So a mask is not taken for a weight, and `--train` knows the module's names. What was
computed of parameters can't be undone here; the notes say what to ask of the exporter.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from dataclasses import dataclass, field

import onnx
from onnx import NodeProto

from poetopt.frontends.batchnorms import merged_note
from poetopt.frontends.exporters import TRAINING, TRAINING_SHORT, UNFOLDED
from poetopt.frontends.read import Document
from poetopt.util.notes import About, Note, listed

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_FOLDED = "pkg.onnxscript.optimizer.folded_from"
_ENTRY = re.compile(r"^\s*\S+: (PARAMETER|BUFFER|CONSTANT_TENSOR|BUFFER_MUTATION) target='([^']*)'", re.MULTILINE)
_FUNCTION = re.compile(
    r"^(?!(val|t|T|mT|numpy_T|permute|transpose|view|reshape|_unsafe_view|unsqueeze|squeeze|flatten|alias|clone|detach"
    r"|contiguous|to|_to_copy|type_as|convert_element_type|lift_fresh_copy|expand)(_default)?(_\d+)?$)[A-Za-z_]\w*$"
)
"""Names of folded tensors, called after what made them, where that was no mere change of shape or type."""


def signature(graph: onnx.GraphProto) -> str:
    """The lines on the module's parameters and buffers in the metadata; "" where there are none."""
    return next((entry.value for entry in graph.metadata_props if entry.key == _SIGNATURE), "")


@dataclass(frozen=True)
class Origins:
    """What the exporter said.

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

    def notes(self, trained: Collection[str], tied: Collection[str]) -> tuple[str, ...]:
        """What people should know, one line each; `tied` are the weights that turned out to be copies."""
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
                    f"{UNFOLDED} keeps the parameters",
                    short=f"{text}, which are trained",
                )
            )
        mixed = [name for name in self.mixed if name in trained]
        if mixed:
            text = "the exporter computed with parameters, their results are trained"
            found.append(
                Note(f"{text}: {', '.join(mixed)}; {UNFOLDED} keeps the parameters", short=f"{text}: {listed(mixed)}")
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
            found.append(Note(f"{text}; {UNFOLDED} keeps it whole", About.GRADIENTS, text))
        found += merged_note(self.merged, self.gone)
        if self.frozen_statistics:
            text = "exported from a module in training mode, but BatchNormalization is in evaluation mode here"
            whole = f"{text}; to train it, export with {TRAINING}"
            found.append(whole if self.merged else Note(whole, short=f"{text}; {TRAINING_SHORT} trains it"))
        return tuple(found)


def origins(document: Document, merged: tuple[str, ...] = ()) -> Origins:
    """What the metadata says; nothing where there is none, or where it can't be read."""
    graph = document.proto.graph
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
        sources = next((_listed(entry.value) for entry in info.metadata_props if entry.key == _FOLDED), None)
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
