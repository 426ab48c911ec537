"""LSTM, GRU and RNN in C, in rounds: for each direction a sweep through w, then one through r at each step.

The gates' sums from x of all steps stay in RAM in between. Each sum has the bits of the plain kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from poetopt.graph import DTYPE_BYTES, Tensor
from poetopt.ops.runtimes.c.kernel import Arguments, Call, Kernel, block, called, real
from poetopt.ops.runtimes.c.tiling import (
    ELEMENT_BYTES,
    FROM,
    INNER,
    PART,
    Chunk,
    ChunkSlice,
    Loop,
    Part,
    Round,
    Sweep,
    Tiling,
    no_code,
)

USUAL = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer_op(call: Call) -> str:
    """Return LSTM, GRU or RNN for a layer or its gradient."""
    return call.node.op_type.partition(".")[0]


def activations(call: Call) -> list[str]:
    """Return the activations of all directions in lower case; ONNX ignores case."""
    names = call.node.attributes.get("activations")
    return [str(name).lower() for name in names] if isinstance(names, (list, tuple)) else []


def refuses(call: Call) -> str | None:
    """Return why no kernel runs a layer or its gradient; None if one does."""
    op, attributes, names = layer_op(call), call.node.attributes, activations(call)
    usual = list(USUAL[op])
    others = [["relu"]] if op == "RNN" else []
    if not any(names in ([], one, one * 2) for one in (usual, *others)):
        return f"{op} with activations {', '.join(names)} is not supported"
    if attributes.get("clip") or attributes.get("layout") or attributes.get("input_forget"):
        return f"{op} with clip, layout or input_forget is not supported"
    if call.has(4):
        return f"{op} with sequence_lens is not supported"
    return real(call)


@dataclass(frozen=True, slots=True)
class CLayer:
    """A layer's op and sizes.

    Attributes
    ----------
    turned
        A bit for each direction that goes backwards.
    variant
        For a GRU, whether the reset gate multiplies the recurrent product; for an RNN, whether it is rectified.
    """

    op: str
    steps: int
    batch: int
    ins: int
    size: int
    directions: int
    turned: int
    variant: int

    @classmethod
    def from_call(cls, call: Call) -> CLayer:
        """Read the layer from a call whose first inputs are x, w and r."""
        op = layer_op(call)
        (steps, batch, ins), recurrence = call.input(0).shape, call.input(2).shape
        variant = {
            "LSTM": 0,
            "GRU": call.integer("linear_before_reset", 0),
            "RNN": int("relu" in activations(call)),
        }[op]
        # a bit for each direction that goes backwards
        turned = {"forward": 0, "reverse": 1, "bidirectional": 2}[call.text("direction", "forward")]
        return cls(op, steps, batch, ins, recurrence[2], recurrence[0], turned, variant)

    @property
    def gates(self) -> int:
        """Rows of the weights of a direction."""
        return GATES[self.op] * self.size

    @property
    def rows(self) -> int:
        """Steps times batch."""
        return self.steps * self.batch

    @property
    def apart(self) -> int:
        """Elements between two steps of y."""
        return self.directions * self.batch * self.size

    def backwards(self, direction: int) -> int:
        """Return 1 if a direction begins with the last step, else 0."""
        return self.turned >> direction & 1

    def time(self, direction: int, step: str) -> str:
        """Return the time of a step as a C expression."""
        return f"{self.steps - 1} - {step}" if self.backwards(direction) else step


def in_rounds(
    call: Call,
    rounds: Sequence[Round],
    rows: int,
    inputs: Collection[int],
    outputs: Collection[int],
    scratch_bytes: int = 0,
) -> tuple[Tiling, ...]:
    """Return the tiling of rounds over matrices [1 or more, `rows`, columns]; `inputs` and `outputs` are positions.

    There is none if all rows are one part of a sum. Sums over rows keep their order: chunks are whole parts.
    """
    if rows <= PART:
        return ()

    def cut(tensors: Sequence[Tensor | None], places: Collection[int]) -> tuple[ChunkSlice | None, ...]:
        return tuple(
            ChunkSlice(INNER, prod(t.shape[2:]) * DTYPE_BYTES[t.dtype]) if t is not None and k in places else None
            for k, t in enumerate(tensors)
        )

    slices = cut(call.inputs, inputs), cut(call.outputs, outputs)
    loop = Loop(rows, PART)
    return (Tiling(None, loop, *slices, no_code, scratch_bytes=lambda outer: scratch_bytes, rounds=tuple(rounds)),)


def at_once(
    call: Call, rounds: Sequence[Round], arguments: Arguments, inputs: Collection[int], outputs: Collection[int]
) -> str:
    """Return the C of the rounds for whole operands: each sweep is one chunk."""

    def parts(
        tensors: Sequence[Tensor | None], at: Sequence[str], places: Collection[int], begin: int
    ) -> tuple[Part, ...]:
        return tuple(
            Part(f"(float *){expression} + {begin * prod(t.shape[2:])}" if k in places and begin else expression, "0")
            if t is not None and expression
            else Part("", "0")
            for k, (t, expression) in enumerate(zip(tensors, at, strict=True))
        )

    def chunk(begin: int, count: int) -> Chunk:
        return Chunk(
            parts(call.inputs, arguments.inputs, inputs, begin),
            parts(call.outputs, arguments.outputs, outputs, begin),
            ("0", FROM[INNER]), ("0", str(count)), arguments.scratch,
        )  # fmt: skip

    lines: list[str] = []
    for turn in rounds:
        body: list[str] = []
        for part in turn.parts:
            if isinstance(part, Sweep):
                code = part.code(call, chunk(part.begin, part.end - part.begin))
                begin = [f"const int32_t {FROM[INNER]} = {part.begin};"] if FROM[INNER] in code else []
                body += [block(*begin, code)] if code else []
            else:
                body.append(part(call, chunk(0, 0)))
        text = "\n".join(body)
        lines.append(f"{turn.head}\n{text}\n}}" if turn.head else text)
    return block(*lines)


Code = Callable[[Call, Chunk], str]


@dataclass(frozen=True)
class Direction:
    """One direction of a layer, and its part of the operands."""

    layer: CLayer
    number: int

    @property
    def many(self) -> int:
        """Elements of the states."""
        return self.layer.batch * self.layer.size

    @property
    def base(self) -> int:
        """The direction's first row of the weights."""
        return self.number * self.layer.gates

    def input_at(self, chunk: Chunk, place: int, offset: int) -> str:
        """Return an input from an offset on in C; "NULL" if it is absent."""
        address = chunk.inputs[place].at if place < len(chunk.inputs) else ""
        return f"(const float *){address} + {offset}" if address else "NULL"

    def states_of(self, chunk: Chunk, place: int) -> str:
        """Return the direction's part of an input with the states of all directions, in C."""
        return self.input_at(chunk, place, self.number * self.many)

    def output_at(self, chunk: Chunk, place: int, offset: int) -> str:
        """Return an output from an offset on in C; "" if it is absent."""
        address = chunk.outputs[place].at if place < len(chunk.outputs) else ""
        return f"(float *){address} + {offset}" if address else ""

    def sweep(self, begin: int, end: int, inputs: tuple[int, ...], outputs: tuple[int, ...], code: Code) -> Sweep:
        """Return the sweep over gates `begin` to `end`."""
        size = self.layer.size
        return Sweep(self.base + begin * size, self.base + end * size, inputs, outputs, code)


class _Forwards(Direction):
    """One direction of a layer, forwards."""

    def rounds(self) -> Iterator[Round]:
        """Yield all rounds of the direction."""
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
        """Return C addresses: the states, a buffer of their size, the gates of all steps, and those of this step."""
        layer, scratch = self.layer, f"(float *){chunk.scratch}"
        gates = f"{scratch} + {2 * self.many}"
        time = layer.time(self.number, "po_s")
        return {
            "hidden": scratch, "other": f"{scratch} + {self.many}", "gates": gates,
            "now": f"{gates} + ({time}) * {layer.batch * layer.gates}",
        }  # fmt: skip

    def bias(self, chunk: Chunk, offset: str, *, again: bool) -> str:
        """Return the address of the bias of the inputs, or with `again` of the recurrence."""
        address = self.input_at(chunk, 3, (2 * self.number + again) * self.layer.gates)
        return address if address == "NULL" else f"{address} + {offset}"

    def begin(self, call: Call, chunk: Chunk) -> str:
        """Return C that sets the first states."""
        at = self.pointers(chunk)
        lines = [called("po_begin", at["hidden"], self.states_of(chunk, 5), self.many)]
        if self.layer.op == "LSTM":
            lines.append(called("po_begin", at["other"], self.states_of(chunk, 6), self.many))
        return "\n".join(lines)

    def of_x(self, begin: int, end: int, *, both: bool) -> Sweep:
        """Return the sweep that adds the inputs' products to gates `begin` to `end`, with one or `both` biases."""
        layer = self.layer

        def code(call: Call, chunk: Chunk) -> str:
            first_gate = f"({FROM[INNER]} - {self.base})"
            second_bias = self.bias(chunk, first_gate, again=True) if both else "NULL"
            return called(
                "po_gates_of", f"{self.pointers(chunk)['gates']} + {first_gate}", chunk.inputs[0].at,
                chunk.inputs[1].at, self.bias(chunk, first_gate, again=False), second_bias, layer.rows,
                chunk.count[INNER], layer.gates, layer.ins,
            )  # fmt: skip

        return self.sweep(begin, end, (1,), (), code)

    def of_state(self, begin: int, end: int, target: str, source: str) -> Sweep:
        """Return the sweep that adds the states' products to gates `begin` to `end` of a step."""
        layer = self.layer
        offset, row = (self.base, layer.gates) if target == "now" else (self.base + begin * layer.size, layer.size)

        def code(call: Call, chunk: Chunk) -> str:
            at, first_gate = self.pointers(chunk), f"({FROM[INNER]} - {offset})"
            return called(
                "po_product", f"{at[target]} + {first_gate}", at[source], chunk.inputs[2].at, layer.batch,
                chunk.count[INNER], layer.size, row, 1, layer.size, 1, 1, layer.size, 1,
            )  # fmt: skip

        return self.sweep(begin, end, (2,), (), code)

    def reset(self, call: Call, chunk: Chunk) -> str:
        """Return C that applies a GRU's reset gate to the states, or sets the bias of the product before the gate."""
        layer, at = self.layer, self.pointers(chunk)
        if not layer.variant:
            return called("po_gru_reset", at["other"], at["now"], at["hidden"], layer.batch, layer.size)
        bias = self.bias(chunk, str(2 * layer.size), again=True)
        line = called("po_begin", f"{at['other']} + po_n * {layer.size}", bias, layer.size)
        return f"for (int32_t po_n = 0; po_n < {layer.batch}; ++po_n) {{\n    {line}\n}}"

    def step(self, call: Call, chunk: Chunk) -> str:
        """Return C that computes the states after a step."""
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
        """Return C that writes the last states."""
        at = self.pointers(chunk)
        lasts = [(self.output_at(chunk, k, self.number * self.many), name) for k, name in ((1, "hidden"), (2, "other"))]
        return "\n".join(called("po_kept", last, at[name], self.many) for last, name in lasts if last)


HEADER, PARTS = "po_recurrent.h", "po_recurrent_parts.h"


def _scratch(call: Call) -> int:
    layer = CLayer.from_call(call)
    floats = {"LSTM": 2 * layer.batch + 4, "GRU": layer.batch + 4, "RNN": layer.batch + 1}[layer.op]
    return floats * layer.size * DTYPE_BYTES["float32"]


def _code(call: Call, arguments: Arguments) -> str:
    layer = CLayer.from_call(call)
    count = 3 if layer.op == "LSTM" else 2
    outputs = [(*arguments.outputs, "", "", "")[k] or "NULL" for k in range(count)]
    inputs = (*arguments.inputs, *[""] * 7)
    # positions of the first states
    firsts = [inputs[k] or "NULL" for k in {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}[layer.op]]
    last = () if layer.op == "LSTM" else (layer.variant,)
    return called(
        f"po_{layer.op.lower()}", *outputs, *inputs[:3], inputs[3] or "NULL", *firsts, arguments.scratch, layer.steps,
        layer.batch, layer.ins, layer.size, layer.directions, layer.turned, *last,
    )  # fmt: skip


def _tilings(call: Call) -> tuple[Tiling, ...]:
    """Return the tiling: one sweep through w for all steps, whose sums stay in RAM, then one through r at each step."""
    layer = CLayer.from_call(call)
    rounds = [turn for direction in range(layer.directions) for turn in _Forwards(layer, direction).rounds()]
    # a direction's states, its cells or reset states, and its gates
    scratch = ELEMENT_BYTES * (2 * layer.batch * layer.size + layer.rows * layer.gates)
    return in_rounds(call, rounds, layer.gates, (1, 2), (), scratch)


KERNELS: tuple[Kernel, ...] = tuple(
    Kernel(
        op, _code,
        refuses=lambda call: f"{call.node.op_type} with peepholes is not supported" if call.has(7) else refuses(call),
        scratch_bytes=_scratch, tilings=_tilings, headers=(HEADER, PARTS),
    )
    for op in GATES
)  # fmt: skip
