"""LSTM, GRU and RNN forwards."""

from __future__ import annotations

from poetopt.graph import DTYPE_BYTES
from poetopt.runtimes.c.kernel import Arguments, Call, Kernel
from poetopt.runtimes.c.kernels.layers import GATES, Layer, refuses
from poetopt.runtimes.c.tiles.recurrences import forward_rounds, forward_scratch
from poetopt.runtimes.c.tiles.sweeps import in_rounds
from poetopt.runtimes.c.tiles.tiling import Tiling
from poetopt.runtimes.c.write import called

HEADER, PARTS = "po_recurrent.h", "po_recurrent_parts.h"
PLACES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
"""Which inputs are the first states."""


def _refuses(call: Call) -> str | None:
    return f"{call.node.op_type} with peepholes" if call.has(7) else refuses(call)


def _scratch(call: Call) -> int:
    layer = Layer.of(call)
    floats = {"LSTM": 2 * layer.batch + 4, "GRU": layer.batch + 4, "RNN": layer.batch + 1}[layer.op]
    return floats * layer.size * DTYPE_BYTES["float32"]


def _code(call: Call, arguments: Arguments) -> str:
    layer = Layer.of(call)
    count = 3 if layer.op == "LSTM" else 2
    outputs = [(*arguments.outputs, "", "", "")[k] or "NULL" for k in range(count)]
    given = (*arguments.inputs, *[""] * 7)
    firsts = [given[k] or "NULL" for k in PLACES[layer.op]]
    last = () if layer.op == "LSTM" else (layer.variant,)
    return called(
        f"po_{layer.op.lower()}", *outputs, *given[:3], given[3] or "NULL", *firsts, arguments.scratch, layer.steps,
        layer.batch, layer.ins, layer.size, layer.directions, layer.turned, *last,
    )  # fmt: skip


def _tilings(call: Call) -> tuple[Tiling, ...]:
    """All gates' share of x in one sweep, with the sums of all steps in RAM; then one sweep through r at each step."""
    layer = Layer.of(call)
    return in_rounds(call, forward_rounds(layer), layer.gates, (1, 2), (), forward_scratch(layer))


KERNELS: tuple[Kernel, ...] = tuple(
    Kernel(op, _code, refuses=_refuses, scratch_bytes=_scratch, tilings=_tilings, headers=(HEADER, PARTS))
    for op in GATES
)
