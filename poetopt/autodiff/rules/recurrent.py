"""LSTM and GRU, step by step backwards, in one operator for each layer.

The states before each step are the layer's own outputs, so that all gates are found again by two products
for the whole sequence, and only what truly depends on the next step is unrolled: about eight small nodes a step. The
derivatives of the gates are prepared for all steps at once. Reads X, the weights, and Y; temporaries are about
four times the gates of all steps (LSTM: 16, GRU: 12 numbers for each element of Y). The two directions of a
bidirectional layer follow one another; the second is the first on reversed sequences.

Since every step is a few nodes, a layer of more than 2,048 steps is refused.

No rule for sequence lengths, peepholes, clipping, other activations than the default ones, or layout 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.autodiff.rules.pieces import affine, column_sum
from poetopt.errors import MissingVjpError, ModelError
from poetopt.graph import Tensor

_MOST_STEPS = 2048
"""About 15 nodes a step and direction; a longer operator takes minutes to lay out."""


@dataclass(frozen=True)
class Layer:
    """One direction: tensors with their time axis in the order of the steps, steps and batch merged where possible.

    x, y, dy
        [steps batch, inputs] and twice [steps batch, hidden].
    before
        States before each step, [steps batch, hidden].
    w, r
        [gates hidden, inputs] and [gates hidden, hidden].
    wb, rb
        Biases [gates hidden], or None.
    last
        Gradient of the last state, [batch, hidden], or None.
    """

    steps: int
    batch: int
    x: Tensor
    y: Tensor
    dy: Tensor | None
    before: Tensor
    w: Tensor
    r: Tensor
    wb: Tensor | None
    rb: Tensor | None
    last: Tensor | None

    @property
    def hidden(self) -> int:
        """Width of the state."""
        return self.r.shape[1]


@dataclass(frozen=True)
class Found:
    """Gradients of one direction: dx [steps batch, inputs], the weights', and the initial states'."""

    dx: Tensor
    dw: Tensor
    dr: Tensor
    dwb: Tensor
    drb: Tensor
    states: tuple[Tensor, ...]


@register_vjp("LSTM", since=7)
def lstm(op: Primal, cotangents: Cotangents) -> Gradients:
    """Gates i, o, f, g: C = f C_before + i g, Y = o tanh(C)."""
    _refuse(op, ("Sigmoid", "Tanh", "Tanh"))
    return _recurrent(op, cotangents, states=2)


@register_vjp("GRU", since=7)
def gru(op: Primal, cotangents: Cotangents) -> Gradients:
    """Gates z, r and the candidate h: Y = (1 - z) h + z Y_before; r acts before or after the recurrent product."""
    _refuse(op, ("Sigmoid", "Tanh"))
    return _recurrent(op, cotangents, states=1)


def _refuse(op: Primal, activations: Sequence[str]) -> None:
    node = op.node
    reasons = {
        "sequence lengths": op.has(4),
        "peepholes": op.has(7),
        "clipping": "clip" in node.attributes,
        "coupled gates": bool(op.attr_int("input_forget", 0)),
        "layout 1": bool(op.attr_int("layout", 0)),
        "other activations": any(name not in activations for name in _strings(node.attributes.get("activations", ()))),
    }
    for reason, there in reasons.items():
        if there:
            raise MissingVjpError(f"{op.where}: there is no gradient rule for {reason}; train a plain layer instead")
    if op.x.shape[0] > _MOST_STEPS:
        raise ModelError(
            f"{op.where}: a sequence of {op.x.shape[0]:,} steps; its backward pass is written out step by step, for "
            f"at most {_MOST_STEPS:,}; export the model for shorter sequences (truncated backpropagation through time)"
        )


def _fits(op: Primal, gates: int) -> None:
    """Raise ModelError where an operand hasn't the shape that the others imply: type inference doesn't compare them."""
    _, batch, width = op.x.shape
    hidden = op.input(2).shape[-1]
    directions = 2 if op.attr_text("direction", "forward") == "bidirectional" else 1
    state = (directions, batch, hidden)
    wanted = {
        1: (directions, gates * hidden, width),
        2: (directions, gates * hidden, hidden),
        3: (directions, 2 * gates * hidden),
        5: state,
        6: state,
    }
    for place, shape in wanted.items():
        if op.has(place) and op.input(place).shape != shape:
            raise ModelError(
                f"{op.where}: input {place} has the shape {list(op.input(place).shape)}, which should be {list(shape)} "
                f"for {hidden} hidden units and inputs of {width} at a batch of {batch}"
            )
    if op.attr_int("hidden_size", hidden) != hidden:
        raise ModelError(
            f"{op.where}: hidden_size is {op.attr_int('hidden_size', hidden)}, and the weights are for {hidden}"
        )


def _strings(value: object) -> list[str]:
    items = value if isinstance(value, (list, tuple)) else ()
    return [v.decode() if isinstance(v, bytes) else str(v) for v in items]


def _recurrent(op: Primal, cotangents: Cotangents, states: int) -> Gradients:
    k = op.emit("grad_input")
    x, w, r = op.x, op.input(1), op.input(2)
    steps, batch, width = x.shape
    directions, _, hidden = r.shape
    _fits(op, 4 if states == 2 else 3)
    y = _sequence(op, k, states)
    given = (*cotangents, None, None, None)[:3]
    found: list[Found] = []
    for d in range(directions):
        turned = d == 1 or op.attr_text("direction", "forward") == "reverse"

        def ordered(t: Tensor, *, turned: bool = turned) -> Tensor:
            flipped = k.flip(t, [0]) if turned else t
            return k.reshape(flipped, (steps * batch, t.shape[-1]))

        def one(t: Tensor, axis: int, *, d: int = d) -> Tensor:
            piece = k.slice(t, [d], [d + 1], [axis])
            return k.reshape(piece, (*t.shape[:axis], *t.shape[axis + 1 :]))

        start = [one(op.input(5 + s), 0) if op.has(5 + s) else k.zeros((batch, hidden), x.dtype) for s in range(states)]
        ys = ordered(one(y, 1))
        early = k.slice(ys, [0], [(steps - 1) * batch], [0]) if steps > 1 else None
        before = start[0] if early is None else k.concat([start[0], early], 0)
        bias = one(op.input(3), 0) if op.has(3) else None
        half = r.shape[1]
        layer = Layer(
            steps, batch, ordered(x), ys, None if given[0] is None else ordered(one(given[0], 1)), before,
            one(w, 0), one(r, 0),
            None if bias is None else k.slice(bias, [0], [half], [0]),
            None if bias is None else k.slice(bias, [half], [2 * half], [0]),
            None if given[1] is None else one(given[1], 0),
        )  # fmt: skip
        if states == 2:
            result = _lstm(k, layer, start[1], None if given[2] is None else one(given[2], 0))
        else:
            result = _gru(k, layer, bool(op.attr_int("linear_before_reset", 0)))
        dx = k.reshape(result.dx, (steps, batch, width))
        found.append(Found(k.flip(dx, [0]) if turned else dx, *(
            result.dw, result.dr, result.dwb, result.drb), result.states))  # fmt: skip

    def stacked(parts: Sequence[Tensor]) -> Tensor:
        return k.concat([k.reshape(part, (1, *part.shape)) for part in parts], 0)

    dx = found[0].dx if directions == 1 else k.add(found[0].dx, found[1].dx)
    biases = stacked([k.concat([f.dwb, f.drb], 0) for f in found]) if op.need(3) else None
    initial = [stacked([f.states[s] for f in found]) if op.need(5 + s) else None for s in range(states)]
    return dx, stacked([f.dw for f in found]), stacked([f.dr for f in found]), biases, None, *initial


def _sequence(op: Primal, k: OperatorBuilder, states: int) -> Tensor:
    """Y; where the model does not ask for it, the layer runs again."""
    if op.outputs and op.outputs[0] is not None:
        return op.output(0)
    steps, batch, _ = op.x.shape
    directions, _, hidden = op.input(2).shape
    y = k.out((steps, directions, batch, hidden), op.x.dtype, f"{k.name}/y")
    k.write(op.node.op_type, list(op.inputs), [y], **dict(op.node.attributes))
    return y


def _product(k: OperatorBuilder, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """x w' + bias."""
    return k.gemm(x, w, bias, trans_b=True)


def _gate(k: OperatorBuilder, x: Tensor, index: int, hidden: int) -> Tensor:
    return k.slice(x, [index * hidden], [(index + 1) * hidden], [1])


def _step(k: OperatorBuilder, x: Tensor, t: int, batch: int) -> Tensor:
    return k.slice(x, [t * batch], [(t + 1) * batch], [0])


def _slope(k: OperatorBuilder, s: Tensor) -> Tensor:
    """s (1 - s)."""
    return k.mul(s, affine(k, s, -1.0, 1.0))


def _arriving(k: OperatorBuilder, layer: Layer, t: int, later: Tensor | None) -> Tensor:
    """The gradient of the state after step t: from Y, and from the next step (or from the last state)."""
    parts = [] if layer.dy is None else [_step(k, layer.dy, t, layer.batch)]
    if later is not None:
        parts.append(later)
    if not parts:
        return k.zeros((layer.batch, layer.hidden), layer.x.dtype)
    return parts[0] if len(parts) == 1 else k.add(parts[0], parts[1])


def _weights(k: OperatorBuilder, layer: Layer, inputs: Tensor, recurrent: Tensor) -> tuple[Tensor, ...]:
    """dx, dw, dr, dwb, drb from the gradients of both products."""
    dwb = column_sum(k, inputs)
    return (
        k.gemm(inputs, layer.w),
        k.gemm(inputs, layer.x, trans_a=True),
        k.gemm(recurrent, layer.before, trans_a=True),
        dwb,
        dwb if inputs is recurrent else column_sum(k, recurrent),
    )


def _lstm(k: OperatorBuilder, layer: Layer, first_cell: Tensor, last_cell: Tensor | None) -> Found:
    steps, batch, hidden = layer.steps, layer.batch, layer.hidden
    sums = k.add(_product(k, layer.x, layer.w, layer.wb), _product(k, layer.before, layer.r, layer.rb))
    i, o, f = (k.unary("Sigmoid", _gate(k, sums, index, hidden)) for index in range(3))
    g = k.unary("Tanh", _gate(k, sums, 3, hidden))
    added, cells = k.mul(i, g), [first_cell]
    for t in range(steps):
        cells.append(k.add(k.mul(_step(k, f, t, batch), cells[-1]), _step(k, added, t, batch)))
    bent = k.unary("Tanh", k.concat(cells[1:], 0))
    early = k.concat(cells[:-1], 0)
    through = k.mul(o, affine(k, k.mul(bent, bent), -1.0, 1.0))
    factors = k.concat(
        [
            k.mul(g, _slope(k, i)),
            k.mul(bent, _slope(k, o)),
            k.mul(early, _slope(k, f)),
            k.mul(i, affine(k, k.mul(g, g), -1.0, 1.0)),
        ],
        1,
    )
    state, cell = layer.last, last_cell
    gates: list[Tensor] = []
    for t in reversed(range(steps)):
        arriving = _arriving(k, layer, t, state)
        inner = k.mul(arriving, _step(k, through, t, batch))
        cell = inner if cell is None else k.add(inner, cell)
        gate = k.mul(k.concat([cell, arriving, cell, cell], 1), _step(k, factors, t, batch))
        gates.append(gate)
        state = k.gemm(gate, layer.r)
        cell = k.mul(cell, _step(k, f, t, batch))
    whole = k.concat(gates[::-1], 0)
    if state is None or cell is None:
        raise MissingVjpError(f"{k.name}: a sequence of no steps has no gradient")
    dx, dw, dr, dwb, drb = _weights(k, layer, whole, whole)
    return Found(dx, dw, dr, dwb, drb, (state, cell))


def _gru(k: OperatorBuilder, layer: Layer, linear_first: bool) -> Found:
    steps, batch, hidden = layer.steps, layer.batch, layer.hidden
    both = 2 * hidden
    left = _product(k, layer.x, layer.w, layer.wb)
    head = k.slice(layer.r, [0], [both], [0])
    tail = k.slice(layer.r, [both], [3 * hidden], [0])
    bias = (None, None) if layer.rb is None else (
        k.slice(layer.rb, [0], [both], [0]), k.slice(layer.rb, [both], [3 * hidden], [0]),
    )  # fmt: skip
    sums = k.add(k.slice(left, [0], [both], [1]), _product(k, layer.before, head, bias[0]))
    z, r = (k.unary("Sigmoid", _gate(k, sums, index, hidden)) for index in range(2))
    candidate = _gate(k, left, 2, hidden)
    if linear_first:
        q = _product(k, layer.before, tail, bias[1])
        h = k.unary("Tanh", k.add(candidate, k.mul(r, q)))
    else:
        q = k.mul(r, layer.before)
        h = k.unary("Tanh", k.add(candidate, _product(k, q, tail, bias[1])))
    to_z = k.mul(k.sub(layer.before, h), _slope(k, z))
    to_h = k.mul(affine(k, z, -1.0, 1.0), affine(k, k.mul(h, h), -1.0, 1.0))
    to_r = k.mul(q if linear_first else layer.before, _slope(k, r))
    state = layer.last
    inputs: list[Tensor] = []
    for t in reversed(range(steps)):
        arriving = _arriving(k, layer, t, state)
        dz, dh = (k.mul(arriving, _step(k, factor, t, batch)) for factor in (to_z, to_h))
        reset = _step(k, r, t, batch)
        back = dh if linear_first else k.gemm(dh, tail)
        dr = k.mul(back, _step(k, to_r, t, batch))
        inputs.append(k.concat([dz, dr, dh], 1))
        kept = k.mul(arriving, _step(k, z, t, batch))
        if linear_first:
            state = k.gemm(k.concat([dz, dr, k.mul(dh, reset)], 1), layer.r, kept)
        else:
            state = k.add(k.gemm(k.concat([dz, dr], 1), head, kept), k.mul(back, reset))
    if state is None:
        raise MissingVjpError(f"{k.name}: a sequence of no steps has no gradient")
    whole = k.concat(inputs[::-1], 0)
    if linear_first:
        turned = k.concat([k.slice(whole, [0], [both], [1]), k.mul(_gate(k, whole, 2, hidden), r)], 1)
        dx, dw, dr_all, dwb, drb = _weights(k, layer, whole, turned)
    else:
        dx, dw = k.gemm(whole, layer.w), k.gemm(whole, layer.x, trans_a=True)
        dwb = drb = column_sum(k, whole)
        upper = k.gemm(k.slice(whole, [0], [both], [1]), layer.before, trans_a=True)
        dr_all = k.concat([upper, k.gemm(_gate(k, whole, 2, hidden), q, trans_a=True)], 0)
    return Found(dx, dw, dr_all, dwb, drb, (state,))
