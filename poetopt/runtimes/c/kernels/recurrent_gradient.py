"""The gradients of LSTM, GRU and RNN: all steps of a layer in one kernel."""

from __future__ import annotations

from poetopt.graph import OWN_DOMAIN
from poetopt.runtimes.c.kernel import Arguments, Call, Kernel
from poetopt.runtimes.c.kernels.layers import GATES, Layer, refuses
from poetopt.runtimes.c.tiles.recurrences_back import DR, DW, R, W, backward_rounds, backward_scratch
from poetopt.runtimes.c.tiles.sweeps import at_once, in_rounds
from poetopt.runtimes.c.tiles.tiling import Tiling

HEADER = "po_recurrent_parts.h"
HEADERS = ("po_recurrent.h", HEADER)


def _code(call: Call, arguments: Arguments) -> str:
    return at_once(call, backward_rounds(Layer.of(call)), arguments, (W, R), (DW, DR))


def _tilings(call: Call) -> tuple[Tiling, ...]:
    layer = Layer.of(call)
    return in_rounds(call, backward_rounds(layer), layer.gates, (W, R), (DW, DR))


KERNELS: tuple[Kernel, ...] = tuple(
    Kernel(
        f"{op}.gradient", _code, OWN_DOMAIN, refuses, lambda call: backward_scratch(Layer.of(call)), tilings=_tilings,
        headers=HEADERS,
    )
    for op in GATES
)  # fmt: skip
