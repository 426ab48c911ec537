"""The sizes of recurrent layers, and which activations their kernels have."""

from __future__ import annotations

from dataclasses import dataclass

from poetopt.runtimes.c.kernel import Call
from poetopt.runtimes.c.write import refuse_types

TURNED = {"forward": 0, "reverse": 1, "bidirectional": 2}
"""A bit for each direction that goes backwards."""
USUAL = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer_op(call: Call) -> str:
    """LSTM, GRU or RNN, of the layer or of its gradient."""
    return call.node.op_type.partition(".")[0]


def activations(call: Call) -> list[str]:
    """Names in small letters, those of all directions; ONNX doesn't tell large letters from small ones."""
    given = call.node.attributes.get("activations")
    return [str(name).lower() for name in given] if isinstance(given, (list, tuple)) else []


def refuses(call: Call) -> str | None:
    """Why no kernel of ours runs a layer, or its gradient."""
    op, given, names = layer_op(call), call.node.attributes, activations(call)
    usual = list(USUAL[op])
    others = [["relu"]] if op == "RNN" else []
    if not any(names in ([], one, one * 2) for one in (usual, *others)):
        return f"{op} with activations {', '.join(names)}"
    if given.get("clip") or given.get("layout") or given.get("input_forget"):
        return f"{op} with clip, layout or input_forget"
    if call.has(4):
        return f"{op} with lengths of sequences"
    return refuse_types(call, "float32")


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer's op and sizes.

    turned
        A bit for each direction that goes backwards.
    variant
        Of a GRU, whether the reset gate multiplies what the recurrent weights made; of an RNN, whether it is rectified.
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
    def of(cls, call: Call) -> Layer:
        """Of a call whose first inputs are x, w and r."""
        op = layer_op(call)
        (steps, batch, ins), recurrence = call.input(0).shape, call.input(2).shape
        variant = {
            "LSTM": 0,
            "GRU": call.integer("linear_before_reset", 0),
            "RNN": int("relu" in activations(call)),
        }[op]
        turned = TURNED[call.text("direction", "forward")]
        return cls(op, steps, batch, ins, recurrence[2], recurrence[0], turned, variant)

    @property
    def gates(self) -> int:
        """Rows of the weights of a direction."""
        return GATES[self.op] * self.size

    @property
    def rows(self) -> int:
        """Steps and batch as one."""
        return self.steps * self.batch

    @property
    def apart(self) -> int:
        """Elements between two steps of y."""
        return self.directions * self.batch * self.size

    def backwards(self, direction: int) -> int:
        """1 where a direction begins with the last step."""
        return self.turned >> direction & 1

    def time(self, direction: int, step: str) -> str:
        """In C, which place in time a step has."""
        return f"{self.steps - 1} - {step}" if self.backwards(direction) else step
