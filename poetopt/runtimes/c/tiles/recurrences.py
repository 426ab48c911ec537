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
    return [turn for direction in range(layer.directions) for turn in Direction(layer, direction).rounds()]


def forward_scratch(layer: Layer) -> int:
    """Bytes of a direction's states, of its cells or what a reset gate lets through, and of its gates."""
    return ELEMENT_BYTES * (2 * layer.batch * layer.size + layer.rows * layer.gates)


def at_direction(expression: str, offset: int) -> str:
    """A float pointer behind an operand's begin, in C; "NULL" for an absent one."""
    return f"(const float *){expression} + {offset}" if expression else "NULL"


@dataclass(frozen=True)
class Direction:
    """One direction of a layer."""

    layer: Layer
    number: int

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

    @property
    def many(self) -> int:
        """Elements of the states."""
        return self.layer.batch * self.layer.size

    def pointers(self, chunk: Chunk) -> dict[str, str]:
        """In C: the states, what else has their size, the gates of all steps, and of this one."""
        layer, scratch = self.layer, f"(float *){chunk.scratch}"
        gates = f"{scratch} + {2 * self.many}"
        time = layer.time(self.number, "po_s")
        return {
            "hidden": scratch, "other": f"{scratch} + {self.many}", "gates": gates,
            "now": f"{gates} + ({time}) * {layer.batch * layer.gates}",
        }  # fmt: skip

    def given(self, chunk: Chunk, place: int, offset: int) -> str:
        """An input from an offset on."""
        return at_direction(chunk.inputs[place].at if place < len(chunk.inputs) else "", offset)

    def bias(self, chunk: Chunk, offset: str, *, again: bool) -> str:
        """That of the inputs, or of the recurrence."""
        begin = (2 * self.number + again) * self.layer.gates
        found = self.given(chunk, 3, begin)
        return found if found == "NULL" else f"{found} + {offset}"

    def begin(self, call: Call, chunk: Chunk) -> str:
        """The first states."""
        at = self.pointers(chunk)
        lines = [called("po_begin", at["hidden"], self.given(chunk, 5, self.number * self.many), self.many)]
        if self.layer.op == "LSTM":
            lines.append(called("po_begin", at["other"], self.given(chunk, 6, self.number * self.many), self.many))
        return "\n".join(lines)

    def of_x(self, begin: int, end: int, *, both: bool) -> Sweep:
        """What the inputs give to gates `begin` to `end`, with the biases of `both` products."""
        layer = self.layer
        base = self.number * layer.gates

        def code(call: Call, chunk: Chunk) -> str:
            own = f"({FROM[INNER]} - {base})"
            more = self.bias(chunk, own, again=True) if both else "NULL"
            return called(
                "po_gates_of", f"{self.pointers(chunk)['gates']} + {own}", chunk.inputs[0].at, chunk.inputs[1].at,
                self.bias(chunk, own, again=False), more, layer.rows, chunk.count[INNER], layer.gates, layer.ins,
            )  # fmt: skip

        return Sweep(base + begin * layer.size, base + end * layer.size, (1,), (), code)

    def of_state(self, begin: int, end: int, made: str, given: str) -> Sweep:
        """What states, or what is let of them, give to gates `begin` to `end` of a step."""
        layer = self.layer
        base = self.number * layer.gates
        offset, row = (base, layer.gates) if made == "now" else (base + begin * layer.size, layer.size)

        def code(call: Call, chunk: Chunk) -> str:
            at, own = self.pointers(chunk), f"({FROM[INNER]} - {offset})"
            return called(
                "po_product", f"{at[made]} + {own}", at[given], chunk.inputs[2].at, layer.batch, chunk.count[INNER],
                layer.size, row, 1, layer.size, 1, 1, layer.size, 1,
            )  # fmt: skip

        return Sweep(base + begin * layer.size, base + end * layer.size, (2,), (), code)

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
        lasts = zip(chunk.outputs[1:3], ("hidden", "other"), strict=False)
        return "\n".join(
            called("po_kept", f"(float *){part.at} + {self.number * self.many}", at[name], self.many)
            for part, name in lasts
            if part.at
        )
