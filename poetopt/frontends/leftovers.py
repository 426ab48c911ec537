"""Data that a file stores as it stores weights, told by what reads it and by its name where the exporter says nothing.

Torch's older exporter writes a buffer that isn't saved as a Constant node, and optimisers (onnxslim, onnxsim,
onnxruntime) turn such nodes into initializers and fold what depends on them alone. These keep the name of the node's
output, `/encoder/Sqrt_1_output_0`, while parameters have the module's, `encoder.scale`. A weight that was folded (a
transpose) has such a name, too: in the place of a layer's weight names say nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from onnx import NodeProto

from poetopt.frontends.exporters import KEEPS_NAMES
from poetopt.frontends.read import Document
from poetopt.util.notes import Note, listed

_OUTPUT = re.compile(r"(^|/)[A-Z]\w*_output_\d+$")
_CONSTANT = re.compile(r"(^|/)Constant(_\d+)?_output_\d+$")
_OF_ONE = re.compile(
    r"^(val_\d+|ortshared_\w+|const_fold_opt__\d+|auto\.cast\.\d+|helper\.constant\.\d+|p2o\.pd_op\.full\.\d+\.\d+)$"
)
"""Names of numbers that were folded or shared. A parameter of one element may be `onnx::Add_621`, but none of these."""
_OF_NODE = re.compile(r"^(val|(new_)?(zeros|full)(_like)?)(_\d+)?$")
"""Names that torch's newer exporter gives to what it made ahead, where an optimiser has dropped what says so."""
_OF_MODULE = re.compile(r"^\w+(\.\w+)*\.[A-Za-z_]\w*$")

_VARIABLE = re.compile(r"ReadVariableOp|(^|/)([Ss]queeze|Reshape|ExpandDims|[Tt]ranspose|Cast)(_\d+)?:0$")
"""TensorFlow's exporter names a variable after what reads it (a bias: after its view), and what it computed of
variables after another node."""

SCATTERED = frozenset({"Scatter", "ScatterElements", "ScatterND"})
"""Operators that write into a copy of their input 0: where that is all zero, it is what `torch.zeros` made."""
ANGLES = frozenset({"Cos", "Sin"})
"""Operators of which a table of positions is made; nobody learns what is only ever an angle."""
FOLDED = "what an optimiser computed of constants, or of parameters"


def constants_by_name(document: Document) -> set[str]:
    """Weights that were the values of Constant nodes before an optimiser, by their names."""
    return {name for name in document.weights if _CONSTANT.search(name)}


def made_up(document: Document, name: str) -> bool:
    """Whether a tensor has a name that exporters and optimisers give to what they computed; scalars are told apart."""
    dims = document.weights[name].dims
    one = math.prod(dims) == 1 and _OF_ONE.match(name) is not None
    return bool(dims) and (one or _OUTPUT.search(name) is not None)


def named_by_exporter(name: str) -> bool:
    """Whether no module has a tensor of this name: the older exporter's for what it folded, or a node's output."""
    return "::" in name or _OUTPUT.search(name) is not None


def anonymous(name: str) -> bool:
    """Whether the name is an exporter's, so that it may be of anything; a module's own tensor has its own name."""
    return named_by_exporter(name) or _OF_NODE.match(name) is not None


def scalar_of_module(document: Document, name: str, readers: Iterable[NodeProto]) -> bool:
    """Whether a scalar has the name of a module's own tensor, as a temperature has (`clip.logit_scale`).

    Buffers that are saved have such names as well, for tensors of all shapes. One that is written where a mask says so
    is a number of minus infinity's kind.
    """
    if document.weights[name].dims or not _OF_MODULE.match(name):
        return False
    return any(node.op_type != "Where" for node in readers)


def computed_by_tensorflow(trained: Iterable[str]) -> list[str]:
    """A note on tensors that TensorFlow's exporter computed ahead, if some stand beside variables."""
    names = list(trained)
    found = [name for name in names if not _VARIABLE.search(name)]
    if not found or not any("ReadVariableOp" in name for name in names):
        return []
    text = f"{len(found)} trained tensors are no variables ({listed(found, 3)}): the exporter computed them ahead"
    return [
        Note(
            f"{text}, as it does with a BatchNormalization in inference mode and a negated slope, or packed them; "
            "a gradient is that of what is stored",
            short=text,
        )
    ]


def unmatched(left: Iterable[str]) -> list[str]:
    """A note on weights that a pattern of a module's names can't match, for the exporter renamed them."""
    names = [name for name in left if "::" in name]
    if not names:
        return []
    one = len(names) == 1
    text = "1 weight has a name of the exporter's" if one else f"{len(names)} weights have names of the exporter's"
    text += f", and --train left {'it' if one else 'them'} out ({listed(names, 3)})"
    return [Note(f"{text}; {KEEPS_NAMES} keeps the module's", short=text)]


def note(left: Mapping[str, Iterable[str]]) -> list[str]:
    """What to say of data: kind -> names."""
    held = {kind: list(names) for kind, names in left.items() if names}
    found = [f"{kind} ({', '.join(names)})" for kind, names in held.items()]
    advice = "--train names them where they are parameters"
    if left.get(FOLDED):
        advice += ", and the file from before the optimiser has what it computed them of"
    if not found:
        return []
    short = "; ".join(f"{kind} ({listed(names, 3)})" for kind, names in held.items())
    return [Note(f"taken for data: {'; '.join(found)}; {advice}", short=f"taken for data, not trained: {short}")]
