"""LSTM, GRU and RNN forwards in rounds: for each direction a sweep through w, then one through r at each step.

The sums of all steps' gates, as far as they come from x, are in RAM in between. Each is the plain kernel's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from poetopt.runtimes.c.kernel import Call
from poetopt.runtimes.c.kernels.layers import Layer
from poetopt.runtimes.c.tiles.matrices import ELEMENT_BYTES
from poetopt.runtimes.c.tiles.tiling import FROM, INNER, Chunk, Round, Sweep
from poetopt.runtimes.c.write import called

Code = Callable[[Call, Chunk], str]


def forward_rounds(layer: Layer) -> list[Round]:
    """Those of all directions."""
    return [turn for direction in range(layer.directions) for turn in Forwards(layer, direction).rounds()]


def forward_scratch(layer: Layer) -> int:
    """Bytes of a direction's states, of its cells or what a reset gate lets through, and of its gates."""
    return ELEMENT_BYTES * (2 * layer.batch * layer.size + layer.rows * layer.gates)


@dataclass(frozen=True)
class Direction:
    """One direction of a layer, and what of the operands is its own."""

    layer: Layer
    number: int

    @property
    def many(self) -> int:
        """Elements of the states."""
        return self.layer.batch * self.layer.size

    @property
    def base(self) -> int:
        """Its first row of the weights."""
        return self.number * self.layer.gates

    def given(self, chunk: Chunk, place: int, offset: int) -> str:
        """In C, an input from an offset on; "NULL" for an absent one."""
        found = chunk.inputs[place].at if place < len(chunk.inputs) else ""
        return f"(const float *){found} + {offset}" if found else "NULL"

    def states_of(self, chunk: Chunk, place: int) -> str:
        """Its part of an input that has the states of all directions."""
        return self.given(chunk, place, self.number * self.many)

    def made(self, chunk: Chunk, place: int, offset: int) -> str:
        """In C, an output from an offset on; "" for an absent one."""
        found = chunk.outputs[place].at if place < len(chunk.outputs) else ""
        return f"(float *){found} + {offset}" if found else ""

    def sweep(self, begin: int, end: int, inputs: tuple[int, ...], outputs: tuple[int, ...], code: Code) -> Sweep:
        """Of gates `begin` to `end`."""
        size = self.layer.size
        return Sweep(self.base + begin * size, self.base + end * size, inputs, outputs, code)


class Forwards(Direction):
    """One direction of a layer, forwards."""

    def rounds(self) -> Iterator[Round]:
        """All of them."""
        layer = self.layer
        steps = f"for (int32_t po_s = 0; po_s < {layer.steps}; ++po_s) {{"
        if layer.op == "GRU":
            yield Round((self.begin, self.of_x(0, 2, both=True), self.of_x(2, 3, both=not layer.variant)))
            last = self.of_state(2, 3, "other", "hidden") if layer.variant else self.of_state(2, 3, "now", "other")
            parts: tuple[Sweep | Code, ...] = (self.of_state(0, 2, "now", "hidden"), self.reset, last, self.step)
        else:
            yield Round((self.begin, self.of_x(0, layer.gates // layer.size, both=True)))
            parts = (self.of_state(0, layer.gates // layer.size, "now", "hidden"), self.step)
        yield Round(parts, layer.steps, steps)
        yield Round((self.end,))

    def pointers(self, chunk: Chunk) -> dict[str, str]:
        """In C: the states, what else has their size, the gates of all steps, and of this one."""
        layer, scratch = self.layer, f"(float *){chunk.scratch}"
        gates = f"{scratch} + {2 * self.many}"
        time = layer.time(self.number, "po_s")
        return {
            "hidden": scratch, "other": f"{scratch} + {self.many}", "gates": gates,
            "now": f"{gates} + ({time}) * {layer.batch * layer.gates}",
        }  # fmt: skip

    def bias(self, chunk: Chunk, offset: str, *, again: bool) -> str:
        """That of the inputs, or of the recurrence."""
        found = self.given(chunk, 3, (2 * self.number + again) * self.layer.gates)
        return found if found == "NULL" else f"{found} + {offset}"

    def begin(self, call: Call, chunk: Chunk) -> str:
        """The first states."""
        at = self.pointers(chunk)
        lines = [called("po_begin", at["hidden"], self.states_of(chunk, 5), self.many)]
        if self.layer.op == "LSTM":
            lines.append(called("po_begin", at["other"], self.states_of(chunk, 6), self.many))
        return "\n".join(lines)

    def of_x(self, begin: int, end: int, *, both: bool) -> Sweep:
        """What the inputs give to gates `begin` to `end`, with the biases of `both` products."""
        layer = self.layer

        def code(call: Call, chunk: Chunk) -> str:
            own = f"({FROM[INNER]} - {self.base})"
            more = self.bias(chunk, own, again=True) if both else "NULL"
            return called(
                "po_gates_of", f"{self.pointers(chunk)['gates']} + {own}", chunk.inputs[0].at, chunk.inputs[1].at,
                self.bias(chunk, own, again=False), more, layer.rows, chunk.count[INNER], layer.gates, layer.ins,
            )  # fmt: skip

        return self.sweep(begin, end, (1,), (), code)

    def of_state(self, begin: int, end: int, made: str, given: str) -> Sweep:
        """What states, or what is let of them, give to gates `begin` to `end` of a step."""
        layer = self.layer
        offset, row = (self.base, layer.gates) if made == "now" else (self.base + begin * layer.size, layer.size)

        def code(call: Call, chunk: Chunk) -> str:
            at, own = self.pointers(chunk), f"({FROM[INNER]} - {offset})"
            return called(
                "po_product", f"{at[made]} + {own}", at[given], chunk.inputs[2].at, layer.batch, chunk.count[INNER],
                layer.size, row, 1, layer.size, 1, 1, layer.size, 1,
            )  # fmt: skip

        return self.sweep(begin, end, (2,), (), code)

    def reset(self, call: Call, chunk: Chunk) -> str:
        """What a GRU's reset gate lets of the states; or the bias of what it multiplies."""
        layer, at = self.layer, self.pointers(chunk)
        if not layer.variant:
            return called("po_gru_reset", at["other"], at["now"], at["hidden"], layer.batch, layer.size)
        bias = self.bias(chunk, str(2 * layer.size), again=True)
        line = called("po_begin", f"{at['other']} + po_n * {layer.size}", bias, layer.size)
        return f"for (int32_t po_n = 0; po_n < {layer.batch}; ++po_n) {{\n    {line}\n}}"

    def step(self, call: Call, chunk: Chunk) -> str:
        """The states after a step."""
        layer, at = self.layer, self.pointers(chunk)
        gates, hidden = f"{at['now']} + po_n * {layer.gates}", f"{at['hidden']} + po_n * {layer.size}"
        lines: list[str] = []
        if layer.op == "GRU" and layer.variant:
            lines.append(called("po_gru_joined", at["now"], at["other"], layer.batch, layer.size))
        cell = {
            "LSTM": called("po_lstm_cell", hidden, f"{at['other']} + po_n * {layer.size}", gates, layer.size),
            "GRU": called("po_gru_cell", hidden, gates, layer.size),
            "RNN": called("po_rnn_cell", hidden, gates, layer.size, layer.variant),
        }[layer.op]
        lines.append(f"for (int32_t po_n = 0; po_n < {layer.batch}; ++po_n) {{\n    {cell}\n}}")
        if chunk.outputs[0].at:
            place = f"({layer.time(self.number, 'po_s')}) * {layer.apart} + {self.number * self.many}"
            lines.append(called("po_kept", f"(float *){chunk.outputs[0].at} + {place}", at["hidden"], self.many))
        return "\n".join(lines)

    def end(self, call: Call, chunk: Chunk) -> str:
        """The last states."""
        at = self.pointers(chunk)
        lasts = [(self.made(chunk, k, self.number * self.many), name) for k, name in ((1, "hidden"), (2, "other"))]
        return "\n".join(called("po_kept", last, at[name], self.many) for last, name in lasts if last)
