"""The gradients of LSTM, GRU and RNN in rounds: for each direction sweeps through the weights, one at each step.

The gates of all steps are recomputed from the states before each step, which the layer wrote. Their gradients overwrite
them, step by step backwards. The gradients of inputs and weights are products for all steps at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from poetopt.graph import OWN_DOMAIN
from poetopt.ops.recurrent.c import GATES, CLayer, Code, Direction, at_once, in_rounds, refuses
from poetopt.ops.runtimes.c.kernel import Arguments, Call, Kernel, called
from poetopt.ops.runtimes.c.tiling import ELEMENT_BYTES, FROM, INNER, Chunk, Round, Sweep, Tiling

X, W, R, BIAS, HIDDEN, CELL, Y, DY, LAST, LAST_CELL = 0, 1, 2, 3, 5, 6, 7, 8, 9, 10
"""Positions of inputs: the layer's, then its states, and the gradients of states, of the last state and last cell."""
DX, DW, DR, DBIAS, DHIDDEN, DCELL = range(6)
"""Positions of outputs; those that aren't requested are absent."""


def backward_rounds(layer: CLayer) -> list[Round]:
    """Return the rounds of all directions."""
    return [turn for direction in range(layer.directions) for turn in _Backwards(layer, direction).rounds()]


def backward_scratch(layer: CLayer) -> int:
    """Return the bytes of all steps' gates and states (cells, or a GRU's products), and of three states."""
    beside = 0 if layer.op == "RNN" else layer.rows * layer.size
    return ELEMENT_BYTES * (layer.rows * layer.gates + beside + 3 * layer.batch * layer.size)


class _Backwards(Direction):
    """One direction of a layer, backwards."""

    def rounds(self) -> Iterator[Round]:
        """Yield all rounds of the direction."""
        layer = self.layer
        count = layer.gates // layer.size
        steps = f"for (int32_t po_s = {layer.steps - 1}; po_s >= 0; --po_s) {{"
        if layer.op == "LSTM":
            yield Round((self.recompute_gates(0, 4), self.open_gates))
            yield Round((self.gate_gradients, self.state_gradients(0, 4, "dh")), layer.steps, steps)
        elif layer.op == "RNN":
            yield Round((self.open_gates,))
            yield Round((self.gate_gradients, self.state_gradients(0, 1, "dh")), layer.steps, steps)
        else:
            yield Round((self.recompute_gates(0, 2), self.open_gates, self.recompute_gates(2, 3), self.candidate))
            parts: tuple[Sweep | Code, ...] = (
                self.state_gradients(0, 2, "dh"),
                self.state_gradients(2, 3, "dh", adds=True),
                self.add_bypass,
            )
            if not layer.variant:
                parts = (
                    self.state_gradients(2, 3, "dc"),
                    self.reset,
                    self.state_gradients(0, 2, "dh"),
                    self.add_bypass,
                )
            yield Round((self.gate_gradients, *parts), layer.steps, steps)
        yield Round((self.small_gradients, self.input_gradient(0, count)))
        yield Round(
            (self.weight_gradients(0, count),)
            if layer.op != "GRU"
            else (self.weight_gradients(0, 2), self.weight_gradients(2, 3))
        )

    def at(self, chunk: Chunk) -> dict[str, str]:
        """Return C addresses: gates of all steps and of this one, the buffer beside them, and gradients of states."""
        layer, scratch = self.layer, f"(float *){chunk.scratch}"
        beside = layer.rows * layer.gates
        states = beside + (0 if layer.op == "RNN" else layer.rows * layer.size)
        time = layer.time(self.number, "po_s")
        addresses = {
            "gates": scratch, "beside": f"{scratch} + {beside}", "time": f"({time})",
            "now": f"{scratch} + ({time}) * {layer.batch * layer.gates}",
            "now beside": f"{scratch} + {beside} + ({time}) * {self.many}",
        }  # fmt: skip
        addresses.update((name, f"{scratch} + {states + k * self.many}") for k, name in enumerate(("dh", "dc", "kept")))
        return addresses

    def states(self, chunk: Chunk) -> tuple[str | int, ...]:
        """Return the C addresses of the layer's states and of the first state."""
        return self.states_of(chunk, Y), self.states_of(chunk, HIDDEN)

    def before(self, chunk: Chunk) -> str:
        """Return the C address of the states before this step."""
        layer, time = self.layer, self.at(chunk)["time"]
        return called(
            "po_states", *self.states(chunk), time, layer.steps, layer.apart, layer.backwards(self.number)
        ).rstrip(";")

    def state_gradient_at(self, chunk: Chunk) -> str:
        """Return the C address of the gradient of this step's states from outside."""
        address = self.states_of(chunk, DY)
        return address if address == "NULL" else f"{address} + {self.at(chunk)['time']} * {self.layer.apart}"

    def recompute_gates(self, begin: int, end: int) -> Sweep:
        """Return the sweep that recomputes the gates' sums; the factor of a GRU's reset gate is stored beside them."""
        layer = self.layer
        apart = layer.op == "GRU" and begin == 2

        def code(call: Call, chunk: Chunk) -> str:
            at, first_gate = self.at(chunk), f"({FROM[INNER]} - {self.base})"
            biases = [self.input_at(chunk, BIAS, (2 * self.number + k) * layer.gates) for k in range(2)]
            wb, rb = (address if address == "NULL" else f"{address} + {first_gate}" for address in biases)
            count, turned = chunk.count[INNER], layer.backwards(self.number)
            gates = f"{at['gates']} + {first_gate}"
            beside = f"{at['beside']} + ({FROM[INNER]} - {self.base + 2 * layer.size})"
            of_x = gates, chunk.inputs[X].at, chunk.inputs[W].at, wb
            sizes = layer.rows, count, layer.gates, layer.ins
            steps = layer.size, layer.apart, turned
            lines = [called("po_gates_of", *of_x, "NULL" if apart and layer.variant else rb, *sizes)]
            sizes_again = chunk.inputs[R].at, layer.steps, layer.batch, count
            if not apart:
                lines.append(called("po_gates_again", gates, *self.states(chunk), *sizes_again, layer.gates, *steps))
            elif layer.variant:
                lines.append(called("po_gates_filled", beside, rb, layer.rows, count, layer.size))
                lines.append(called("po_gates_again", beside, *self.states(chunk), *sizes_again, layer.size, *steps))
            else:
                lines.append(called(
                    "po_product", gates, at["beside"], chunk.inputs[R].at, layer.rows, count, layer.size, layer.gates,
                    1, layer.size, 1, 1, layer.size, 1,
                ))  # fmt: skip
            return "\n".join(lines)

        return self.sweep(begin, end, (W, R), (), code)

    def open_gates(self, call: Call, chunk: Chunk) -> str:
        """Return C that computes the gates' values, and sets the gradients of the last states."""
        layer, at, turned = self.layer, self.at(chunk), self.layer.backwards(self.number)
        lines = [called("po_begin", at["dh"], self.states_of(chunk, LAST), self.many)]
        if layer.op == "LSTM":
            lines.append(called("po_begin", at["dc"], self.states_of(chunk, LAST_CELL), self.many))
            first = self.states_of(chunk, CELL)
            operands = at["gates"], at["beside"], first
            lines.append(called("po_lstm_again", *operands, layer.steps, layer.batch, layer.size, turned))
        elif layer.op == "GRU":
            beside = "NULL" if layer.variant else at["beside"]
            sizes = layer.steps, layer.batch, layer.size, layer.apart, turned
            lines.append(called("po_gru_open", at["gates"], beside, *self.states(chunk), *sizes))
        return "\n".join(lines)

    def candidate(self, call: Call, chunk: Chunk) -> str:
        """Return C that computes a GRU's third gate."""
        at = self.at(chunk)
        beside = at["beside"] if self.layer.variant else "NULL"
        return called("po_gru_again", at["gates"], beside, self.layer.rows, self.layer.size)

    def gate_gradients(self, call: Call, chunk: Chunk) -> str:
        """Return C that computes the gradients of a step's gates."""
        layer, at, turned = self.layer, self.at(chunk), self.layer.backwards(self.number)
        if layer.op == "LSTM":
            first = self.states_of(chunk, CELL)
            operands = at["now"], at["dc"], at["dh"], self.state_gradient_at(chunk), at["beside"], first
            return called("po_lstm_back", *operands, at["time"], layer.steps, layer.batch, layer.size, turned)
        if layer.op == "GRU":
            beside = at["now beside"] if layer.variant else "NULL"
            sizes = self.before(chunk), layer.batch, layer.size
            return called("po_gru_back", at["now"], beside, at["kept"], at["dh"], self.state_gradient_at(chunk), *sizes)
        states = f"{self.states_of(chunk, Y)} + {at['time']} * {layer.apart}"
        return called(
            "po_rnn_back", at["now"], at["dh"], self.state_gradient_at(chunk), states, self.many, layer.variant
        )

    def state_gradients(self, begin: int, end: int, target: str, *, adds: bool = False) -> Sweep:
        """Return the sweep from the gates' gradients to those of the states before the step."""
        layer = self.layer
        beside = layer.op == "GRU" and layer.variant and begin == 2
        first = self.base + begin * layer.size

        def code(call: Call, chunk: Chunk) -> str:
            at = self.at(chunk)
            source, row, offset = (
                (at["now beside"], layer.size, first) if beside else (at["now"], layer.gates, self.base)
            )
            goes_on = "1" if adds else f"{FROM[INNER]} > {first}"
            return called(
                "po_product", at[target], f"{source} + ({FROM[INNER]} - {offset})", chunk.inputs[R].at, layer.batch,
                layer.size, chunk.count[INNER], layer.size, 1, row, 1, layer.size, 1, goes_on,
            )  # fmt: skip

        return self.sweep(begin, end, (R,), (), code)

    def reset(self, call: Call, chunk: Chunk) -> str:
        """Return C that computes the gradient of a GRU's reset gate."""
        at = self.at(chunk)
        sizes = self.before(chunk), self.layer.batch, self.layer.size
        return called("po_gru_reset_back", at["now"], at["kept"], at["dc"], *sizes)

    def add_bypass(self, call: Call, chunk: Chunk) -> str:
        """Return C that adds the gradient that bypasses the gates."""
        at = self.at(chunk)
        return called("po_joined", at["dh"], at["kept"], self.many)

    def small_gradients(self, call: Call, chunk: Chunk) -> str:
        """Return C that computes the gradients of biases and first states."""
        layer, at = self.layer, self.at(chunk)
        lines: list[str] = []
        for recurrent in range(2):
            sums = self.output_at(chunk, DBIAS, (2 * self.number + recurrent) * layer.gates)
            beside = layer.op == "GRU" and layer.variant and recurrent
            if sums:
                count = 2 * layer.size if beside else layer.gates
                lines.append(called("po_gate_sums", sums, at["gates"], layer.rows, count, layer.gates))
            if sums and beside:
                last_sums = f"{sums} + {count}"
                lines.append(called("po_gate_sums", last_sums, at["beside"], layer.rows, layer.size, layer.size))
        for place, name in ((DHIDDEN, "dh"), (DCELL, "dc")):
            first = self.output_at(chunk, place, self.number * self.many)
            if first:
                lines.append(called("po_kept", first, at[name], self.many))
        return "\n".join(lines)

    def input_gradient(self, begin: int, end: int) -> Sweep:
        """Return the sweep for the gradient of the inputs, to which the second direction adds."""
        layer = self.layer

        def code(call: Call, chunk: Chunk) -> str:
            dx = self.output_at(chunk, DX, 0)
            if not dx:
                return ""
            gates = f"{self.at(chunk)['gates']} + ({FROM[INNER]} - {self.base})"
            return called(
                "po_product", dx, gates, chunk.inputs[W].at, layer.rows, layer.ins, chunk.count[INNER], layer.ins, 1,
                layer.gates, 1, layer.ins, 1, f"{FROM[INNER]} > 0",
            )  # fmt: skip

        return self.sweep(begin, end, (W,), (), code)

    def weight_gradients(self, begin: int, end: int) -> Sweep:
        """Return the sweep for the gradients of the weights."""
        layer = self.layer
        third = layer.op == "GRU" and begin == 2

        def code(call: Call, chunk: Chunk) -> str:
            at, count = self.at(chunk), chunk.count[INNER]
            gates = f"{at['gates']} + ({FROM[INNER]} - {self.base})"
            beside = f"{at['beside']} + ({FROM[INNER]} - {self.base + 2 * layer.size})"
            lines: list[str] = []
            target = self.output_at(chunk, DW, 0)
            if target:
                lines.append(called(
                    "po_product", target, gates, chunk.inputs[X].at, count, layer.ins, layer.rows, layer.ins, 1, 1,
                    layer.gates, layer.ins, 1, 0,
                ))  # fmt: skip
            target = self.output_at(chunk, DR, 0)
            gradients, row = (beside, layer.size) if third and layer.variant else (gates, layer.gates)
            if target and third and not layer.variant:
                lines.append(called(
                    "po_product", target, gates, at["beside"], count, layer.size, layer.rows, layer.size, 1, 1,
                    layer.gates, layer.size, 1, 0,
                ))  # fmt: skip
            elif target:
                sizes = layer.steps, layer.batch, count, row, layer.size, layer.apart, layer.backwards(self.number)
                lines.append(called("po_gates_by_states", target, gradients, *self.states(chunk), *sizes))
            return "\n".join(lines)

        return self.sweep(begin, end, (), (DW, DR), code)


HEADER = "po_recurrent_parts.h"


def _code(call: Call, arguments: Arguments) -> str:
    return at_once(call, backward_rounds(CLayer.from_call(call)), arguments, (W, R), (DW, DR))


def _tilings(call: Call) -> tuple[Tiling, ...]:
    layer = CLayer.from_call(call)
    return in_rounds(call, backward_rounds(layer), layer.gates, (W, R), (DW, DR))


KERNELS: tuple[Kernel, ...] = tuple(
    Kernel(
        f"{op}.gradient", _code, OWN_DOMAIN, refuses, lambda call: backward_scratch(CLayer.from_call(call)),
        tilings=_tilings, headers=("po_recurrent.h", HEADER),
    )
    for op in GATES
)  # fmt: skip
