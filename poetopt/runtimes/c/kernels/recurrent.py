"""LSTM, GRU and RNN forwards; their gradients are many small nodes, which have kernels of their own."""

from __future__ import annotations

from poetopt.graph import DTYPE_BYTES
from poetopt.runtimes.c.kernel import Arguments, Call, Kernel
from poetopt.runtimes.c.write import called, refuse_types

HEADER = "po_recurrent.h"
TURNED = {"forward": 0, "reverse": 1, "bidirectional": 2}
"""A bit for each direction that goes backwards."""
USUAL = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
PLACES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
"""Which inputs are the first states."""


def _activations(call: Call) -> list[str]:
    """Names in small letters, those of all directions; ONNX doesn't tell large letters from small ones."""
    given = call.node.attributes.get("activations")
    return [str(name).lower() for name in given] if isinstance(given, (list, tuple)) else []


def _refuses(call: Call) -> str | None:
    op, given, names = call.node.op_type, call.node.attributes, _activations(call)
    usual = list(USUAL[op])
    others = [["relu"]] if op == "RNN" else []
    if not any(names in ([], one, one * 2) for one in (usual, *others)):
        return f"{op} with activations {', '.join(names)}"
    if given.get("clip") or given.get("layout") or given.get("input_forget"):
        return f"{op} with clip, layout or input_forget"
    if call.has(4) or (op == "LSTM" and call.has(7)):
        return f"{op} with lengths of sequences or peepholes"
    return refuse_types(call, "float32")


def _sizes(call: Call) -> tuple[int, int, int, int, int]:
    """Steps, batch, inputs, states, directions."""
    (steps, batch, ins), recurrence = call.input(0).shape, call.input(2).shape
    return steps, batch, ins, recurrence[2], recurrence[0]


def _scratch(call: Call) -> int:
    _, batch, _, size, _ = _sizes(call)
    floats = {"LSTM": 2 * batch + 4, "GRU": batch + 4, "RNN": batch + 1}[call.node.op_type]
    return floats * size * DTYPE_BYTES["float32"]


def _code(call: Call, arguments: Arguments) -> str:
    op = call.node.op_type
    count = 3 if op == "LSTM" else 2
    outputs = [(*arguments.outputs, "", "", "")[k] or "NULL" for k in range(count)]
    given = (*arguments.inputs, *[""] * 7)
    firsts = [given[k] or "NULL" for k in PLACES[op]]
    last = {
        "LSTM": (),
        "GRU": (call.integer("linear_before_reset", 0),),
        "RNN": (int("relu" in _activations(call)),),
    }[op]
    turned = TURNED[call.text("direction", "forward")]
    return called(
        f"po_{op.lower()}", *outputs, *given[:3], given[3] or "NULL", *firsts, arguments.scratch, *_sizes(call), turned,
        *last,
    )  # fmt: skip


KERNELS: tuple[Kernel, ...] = tuple(
    Kernel(op, _code, refuses=_refuses, scratch_bytes=_scratch, headers=(HEADER,)) for op in USUAL
)
