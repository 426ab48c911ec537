"""Which operators of the ONNX file a function of torch is: both come from one program, in one order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poetopt.errors import PlanError
from poetopt.graph import Graph

COUNTERPARTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "aten::_adaptive_avg_pool2d": (("GlobalAveragePool",), ("AveragePool",)),
    "aten::_log_softmax": (("LogSoftmax",),),
    "aten::_native_batch_norm_legit": (("BatchNormalization",),),
    "aten::_softmax": (("Softmax",),),
    "aten::add": (("Add",),),
    "aten::addmm": (("Gemm",), ("MatMul", "Add")),
    "aten::avg_pool2d": (("AveragePool",),),
    "aten::bmm": (("MatMul",),),
    "aten::cat": (("Concat",),),
    "aten::convolution": (("Conv",), ("ConvTranspose",)),
    "aten::div": (("Div",),),
    "aten::elu": (("Elu",), ("Selu",)),
    "aten::embedding": (("Gather",),),
    "aten::exp": (("Exp",),),
    "aten::gelu": (("Gelu",),),
    "aten::hardsigmoid": (("HardSigmoid",),),
    "aten::hardswish": (("HardSwish",),),
    "aten::hardtanh": (("Clip",),),
    "aten::leaky_relu": (("LeakyRelu",),),
    "aten::log": (("Log",),),
    "aten::max_pool2d_with_indices": (("MaxPool",),),
    "aten::mean": (("ReduceMean",), ("GlobalAveragePool",)),
    "aten::mm": (("MatMul",), ("Gemm",)),
    "aten::mul": (("Mul",),),
    "aten::native_batch_norm": (("BatchNormalization",),),
    "aten::native_dropout": (("Dropout",),),
    "aten::native_layer_norm": (("LayerNormalization",),),
    "aten::relu": (("Relu",),),
    "aten::sigmoid": (("Sigmoid",),),
    "aten::silu": (("Swish",), ("Sigmoid", "Mul")),
    "aten::softplus": (("Softplus",),),
    "aten::sqrt": (("Sqrt",),),
    "aten::sub": (("Sub",),),
    "aten::sum": (("ReduceSum",),),
    "aten::tanh": (("Tanh",),),
}
"""For each function of torch that computes: what an exporter writes for it, the likeliest first."""
MASK = "aten::bernoulli_"
"""What draws a Dropout's mask; its module's functions are one Dropout."""
MOVES = frozenset({
    "Cast", "CastLike", "Constant", "ConstantOfShape", "Expand", "Flatten", "Identity", "Reshape", "Shape", "Slice",
    "Split", "Squeeze", "Transpose", "Unsqueeze",
})  # fmt: skip
"""Kinds of ONNX that torch does by looking at the same bytes otherwise."""


@dataclass(frozen=True)
class Call:
    """One function that ran.

    name
        Of its schema (`aten::relu`).
    place
        Of the module's node in its program, as messages call it.
    node
        Its number.
    moves
        Whether what it returns has the bytes of what it was given, or none that anybody computed.
    """

    name: str
    place: str
    node: int
    moves: bool


def matched(calls: Sequence[Call], network: Graph) -> dict[int, str]:
    """For each call that computes: the operator whose output it returns, by the call's index.

    Raises PlanError at the first call that has no counterpart.
    """
    operators = [entry for entry in network.operators if not entry.view and entry.kind not in MOVES]
    masks = {call.node for call in calls if call.name == MASK}
    last = {call.node: index for index, call in enumerate(calls)}
    found: dict[int, str] = {}
    at = 0
    for index, call in enumerate(calls):
        if call.node in masks:
            ways: tuple[tuple[str, ...], ...] = (("Dropout",),) if index == last[call.node] else ()
            if not ways:
                continue
        elif call.moves:
            continue
        else:
            ways = COUNTERPARTS.get(call.name.removesuffix("_"), ())
        kinds = [entry.kind for entry in operators]
        way = next((way for way in ways if tuple(kinds[at : at + len(way)]) == way), None)
        if way is None:
            there = f"{operators[at].name} ({operators[at].kind})" if at < len(operators) else "nothing more"
            raise PlanError(
                f"{call.name} of {call.place} has no counterpart in the plan's network, which has {there} there; a "
                "plan is mapped to the module that its network was exported from with po.torch.export, where each "
                "function that computes is an operator"
            )
        at += len(way)
        found[index] = operators[at - 1].name
    if at < len(operators):
        raise PlanError(
            f"{operators[at].name} ({operators[at].kind}) of the plan's network has no counterpart in the module; give "
            "the module that it was exported from with po.torch.export"
        )
    return found
