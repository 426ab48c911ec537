"""Gradients of LSTM, GRU and RNN, step by step backwards, in one operator per layer.

The states before each step are the layer's own outputs. So two products recompute all gates of the whole sequence, and
only operations that depend on the next step are unrolled (`poetopt.ops.recurrent.steps`): about eight small nodes per
step, four in an RNN. The derivatives of the gates are computed for all steps at once. The operator reads X, the weights
and Y. Temporaries are about four times the gates of all steps (LSTM: 16, GRU: 12, RNN: 4 numbers per element of Y). The
two directions of a bidirectional layer follow one another; the second is the first on reversed sequences.

If sequences of a batch end early (`sequence_lens`), their gradient starts at their last step: the gradient of Y is 0
behind the end, and the last state's is added at the end. Steps behind the end pass on zeros, so that they don't change
the weights' gradients. The second direction reverses each sequence separately.

As every step has a few nodes, a layer of more than 4,096 steps is refused.

Peepholes, clipping, coupled gates and layout 1 have no rule. `poetopt.ops.recurrent.steps` lists the activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.frontends import checks
from poetopt.graph import Tensor
from poetopt.ops import flops
from poetopt.ops.op import Allowed, Op, Steps, declare
from poetopt.ops.recurrent.steps import Cell, FoundSteps, Layer, activations, gru_steps, lstm_steps, rnn_steps, shifted
from poetopt.ops.runtimes.onnxruntime import kernels
from poetopt.util.errors import MissingVjpError, ModelError

layer = partial(
    Op, evaluation=Steps.UNKNOWN, is_heavy=True, blocked=(4,), weights=(1, 2, 3), first_states=(5,), lengths=4,
    settings_check=checks.recurrent,
)  # fmt: skip

sizes: Allowed = {"direction": ("forward", "reverse", "bidirectional"), "hidden_size": 1, "layout": (0, 1)}

declare("GRU", op=layer(
    flops=flops.gated(3), attributes=sizes | {"linear_before_reset": (0, 1)}, workspace=kernels.recurrent,
))  # fmt: skip
declare("LSTM", op=layer(
    flops=flops.gated(5), weights=(1, 2, 3, 7), first_states=(5, 6),
    attributes=sizes | {"input_forget": (0, 1)}, workspace=kernels.recurrent,
))  # fmt: skip
declare("RNN", op=layer(flops=flops.rnn, attributes=sizes, workspace=kernels.rnn))


_MOST_STEPS = 4096
"""At about 15 nodes per step and direction, differentiation and costs take 5 s, and preparing a run takes minutes."""


def _check_supported(op: Primal) -> None:
    node = op.node
    reasons = {
        "peepholes": op.has(7),
        "clipping": "clip" in node.attributes,
        "coupled gates": bool(op.attr_int("input_forget", 0)),
        "layout 1": bool(op.attr_int("layout", 0)),
    }
    for reason, is_present in reasons.items():
        if is_present:
            raise MissingVjpError(f"{op.where}: there is no gradient rule for {reason}; train a plain layer instead")
    if op.x.shape[0] > _MOST_STEPS:
        raise ModelError(
            f"{op.where}: a sequence of {op.x.shape[0]:,} steps; its backward pass is written out step by step, for "
            f"at most {_MOST_STEPS:,}; export the model for shorter sequences (truncated backpropagation through time)"
        )


def _check_shapes(op: Primal, gates: int) -> None:
    """Raise ModelError if shapes of operands contradict each other: type inference doesn't compare them."""
    _, batch, width = op.x.shape
    hidden = op.input(2).shape[-1]
    directions = 2 if op.attr_text("direction", "forward") == "bidirectional" else 1
    state = (directions, batch, hidden)
    expected = {
        1: (directions, gates * hidden, width),
        2: (directions, gates * hidden, hidden),
        3: (directions, 2 * gates * hidden),
        4: (batch,),
        5: state,
        6: state,
    }
    for place, shape in expected.items():
        if op.has(place) and op.input(place).shape != shape:
            raise ModelError(
                f"{op.where}: input {place} has the shape {list(op.input(place).shape)}, which should be {list(shape)} "
                f"for {hidden} hidden units and inputs of {width} at a batch of {batch}"
            )
    if op.attr_int("hidden_size", hidden) != hidden:
        raise ModelError(
            f"{op.where}: hidden_size is {op.attr_int('hidden_size', hidden)}, and the weights are for {hidden}"
        )


@dataclass(frozen=True)
class Lengths:
    """The ends of the sequences of a batch.

    Attributes
    ----------
    steps
        Number of steps of each sequence, int64 [batch].
    within, last
        1 at the steps of each sequence, and at its last step; 0 elsewhere. [steps, batch, 1].
    """

    steps: Tensor
    within: Tensor
    last: Tensor

    def outside(self, k: OperatorBuilder, dy: Tensor | None, last: Tensor | None) -> Tensor | None:
        """Return the gradient of each step's state [steps, batch, hidden], from that of Y and of the last state."""
        parts = [k.mul(each, t) for each, t in ((self.within, dy), (self.last, last)) if t is not None]
        return k.add(*parts) if len(parts) == 2 else parts[0] if parts else None


def _lengths(op: Primal, k: OperatorBuilder) -> Lengths | None:
    """Return the ends of sequences; None if all are as long as X."""
    steps, batch, _ = op.x.shape
    known = op.value(4)
    if not op.has(4) or (known is not None and bool(np.all(np.asarray(known) == steps))):
        return None
    ends = k.cast(op.input(4), "int64")
    row = k.reshape(ends, (1, batch, 1))
    index = np.arange(steps, dtype=np.int64).reshape(steps, 1, 1)
    within = k.cast(k.compare("Less", k.graph.constant(index), row), op.x.dtype)
    return Lengths(ends, within, k.cast(k.compare("Equal", k.graph.constant(index + 1), row), op.x.dtype))


@register_vjp("GRU", since=7)
@register_vjp("LSTM", since=7)
@register_vjp("RNN", since=7)
def recurrent(op: Primal, cotangents: Cotangents) -> Gradients:
    """Return all gradients of a layer; f and h are Tanh by default.

    LSTM: gates i, o, f, g, C = f C_before + i g, Y = o h(C). GRU: gates z, r and the candidate h,
    Y = (1 - z) h + z Y_before; r acts before or after the recurrent product. RNN: Y = f(W X + R Y_before + biases).
    """
    states = 2 if op.node.op_type == "LSTM" else 1
    _check_supported(op)
    _check_shapes(op, {"LSTM": 4, "GRU": 3, "RNN": 1}[op.node.op_type])
    k = op.emit("grad_input")
    x, w, r = op.x, op.input(1), op.input(2)
    steps, batch, width = x.shape
    directions, _, hidden = r.shape
    functions = activations(op, directions)
    y = _sequence(op, k)
    lengths = _lengths(op, k)
    output_gradients = (*cotangents, None, None, None)[:3]
    results: list[FoundSteps] = []
    for d in range(directions):
        turned = d == 1 or op.attr_text("direction", "forward") == "reverse"

        def reverse(t: Tensor, *, turned: bool = turned) -> Tensor:
            if not turned or lengths is None:
                return k.flip(t, [0]) if turned else t
            return k.node("ReverseSequence", [t, lengths.steps], t.shape, t.dtype, time_axis=0, batch_axis=1)

        def flat(t: Tensor) -> Tensor:
            return k.reshape(t, (steps * batch, t.shape[-1]))

        def one(t: Tensor, axis: int, *, d: int = d) -> Tensor:
            piece = k.slice(t, [d], [d + 1], [axis])
            return k.reshape(piece, (*t.shape[:axis], *t.shape[axis + 1 :]))

        start = [one(op.input(5 + s), 0) if op.has(5 + s) else k.zeros((batch, hidden), x.dtype) for s in range(states)]
        ys = flat(reverse(one(y, 1)))
        bias = one(op.input(3), 0) if op.has(3) else None
        half = r.shape[1]
        dy = None if output_gradients[0] is None else reverse(one(output_gradients[0], 1))
        last, last_cell = (None if t is None else one(t, 0) for t in output_gradients[1:])
        ends: Tensor | None = None
        if lengths is not None:
            dy, last = lengths.outside(k, dy, last), None
            ends, last_cell = lengths.outside(k, None, last_cell), None
        layer = Layer(
            steps, batch, flat(reverse(x)), ys, None if dy is None else flat(dy), shifted(k, start[0], ys),
            one(w, 0), one(r, 0),
            None if bias is None else k.slice(bias, [0], [half], [0]),
            None if bias is None else k.slice(bias, [half], [2 * half], [0]),
            last, functions[d],
        )  # fmt: skip
        if op.node.op_type == "LSTM":
            result = lstm_steps(k, layer, Cell(start[1], last_cell, None if ends is None else flat(ends)))
        elif op.node.op_type == "GRU":
            result = gru_steps(k, layer, linear_first=bool(op.attr_int("linear_before_reset", 0)))
        else:
            result = rnn_steps(k, layer)
        dx = reverse(k.reshape(result.dx, (steps, batch, width)))
        results.append(FoundSteps(dx, result.dw, result.dr, result.dwb, result.drb, result.states))

    def stacked(parts: Sequence[Tensor]) -> Tensor:
        return k.concat([k.reshape(part, (1, *part.shape)) for part in parts], 0)

    dx = results[0].dx if directions == 1 else k.add(results[0].dx, results[1].dx)
    biases = stacked([k.concat([f.dwb, f.drb], 0) for f in results]) if op.need(3) else None
    initial = [stacked([f.states[s] for f in results]) if op.need(5 + s) else None for s in range(states)]
    weights = [stacked([getattr(f, name) for f in results]) for name in ("dw", "dr")]
    if lengths is None and op.outputs and op.outputs[0] is not None:
        operands = [op.input(place) if op.has(place) else None for place in (0, 1, 2, 3)]
        firsts = [op.input(5 + s) if s < states and op.has(5 + s) else None for s in range(2)]
        read = [*operands, None, *firsts, y, *output_gradients]
        candidates = zip((dx, *weights, biases, *initial), (0, 1, 2, 3, 5, 6), strict=False)
        gradients = [tensor if op.need(place) else None for tensor, place in candidates]
        k.amounts_to(f"{op.node.op_type}.gradient", read, gradients, **op.node.attributes)
    return dx, *weights, biases, None, *initial


def _sequence(op: Primal, k: OperatorBuilder) -> Tensor:
    """Return Y; the layer runs again if the model doesn't output it."""
    if op.outputs and op.outputs[0] is not None:
        return op.output(0)
    steps, batch, _ = op.x.shape
    directions, _, hidden = op.input(2).shape
    y = k.out((steps, directions, batch, hidden), op.x.dtype, f"{k.name}/y")
    k.write(op.node.op_type, list(op.inputs), [y], **dict(op.node.attributes))
    return y
