"""Activations of recurrent layers with their slopes, and the layers' steps backwards.

Activations are onnxruntime's. With y = f(s), a slope is computed from y where y determines it. Names may have any case,
except for RNN, whose kernel needs ONNX's spelling. Activations with an alpha (or beta) use the list of alphas in order,
one direction after the other. Activations beyond the list have their default.

| activation | f | slope | alpha | beta |
|---|---|---|---|---|
| Sigmoid | 1 / (1 + exp(-s)) | y (1 - y) | | |
| Tanh | tanh(s) | 1 - y^2 | | |
| Relu | max(s, 0) | 1 where y > 0 | | |
| HardSigmoid | alpha s + beta, between 0 and 1 | alpha where 0 < y < 1 | 0.2 | 0.5 |
| LeakyRelu | s, alpha s where s < 0 | 1, alpha where s <= 0 | 0.01 | |
| ThresholdedRelu | s where s > alpha, else 0 | 1 where s > alpha | 0 | |
| Elu | s, alpha (exp(s) - 1) where s < 0 | 1, y + alpha where s <= 0 | 1 | |
| Softsign | s / (1 + abs(s)) | (1 - abs(y))^2 | | |
| Softplus | log(1 + exp(s)) | 1 - exp(-y) | | |
| ScaledTanh | alpha tanh(beta s) | beta (alpha - y^2 / alpha) | 0 | 0 |
| Affine | alpha s + beta | alpha | 0 | 0 |

The defaults of ScaledTanh, Affine and ThresholdedRelu are onnxruntime's; ONNX has none.

The steps go backwards through one direction of an LSTM, a GRU or an RNN. Only operations that depend on the next step
are unrolled: a few small nodes per step. Products and derivatives are computed for all steps at once, before and after.
Results of many steps are joined in runs (`_Pile`), so that few small buffers are alive at any time, and laying them out
takes time in proportion to the steps.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from poetopt.autodiff.emit import OperatorBuilder
from poetopt.autodiff.registry import Primal
from poetopt.graph import Tensor
from poetopt.ops.pieces import affine, column_sum, masked, positive
from poetopt.util.errors import MissingVjpError

DEFAULTS: dict[str, tuple[float | None, float | None]] = {
    "Sigmoid": (None, None), "Tanh": (None, None), "Relu": (None, None), "HardSigmoid": (0.2, 0.5),
    "LeakyRelu": (0.01, None), "ThresholdedRelu": (0.0, None), "Elu": (1.0, None), "Softsign": (None, None),
    "Softplus": (None, None), "ScaledTanh": (0.0, 0.0), "Affine": (0.0, 0.0),
}  # fmt: skip
"""Default alpha and beta; None if an activation has none."""

USUAL = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
"""Default activations of one direction."""


@dataclass(frozen=True)
class _Activation:
    """An activation of the module's table; `alpha` and `beta` are 0 if it has none."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0

    @property
    def of_sum(self) -> bool:
        """Return whether `slope` needs the sum."""
        # for a negative alpha, y doesn't determine the sign of the sum
        return self.name in ("LeakyRelu", "ThresholdedRelu", "Elu") and self.alpha < 0

    def value(self, k: OperatorBuilder, s: Tensor) -> Tensor:
        """Return f(s)."""
        if self.name == "ScaledTanh":
            return k.mul(k.unary("Tanh", k.mul(s, self.beta)), self.alpha)
        if self.name == "Affine":
            return affine(k, s, self.alpha, self.beta)
        attributes: dict[str, object] = {}
        for name, default, value in zip(("alpha", "beta"), DEFAULTS[self.name], (self.alpha, self.beta), strict=True):
            if default is not None:
                attributes[name] = value
        return k.unary(self.name, s, **attributes)

    def slope(self, k: OperatorBuilder, s: Tensor | None, y: Tensor) -> Tensor:
        """Return f'(s) in y's shape; `s` may be None unless `of_sum`."""
        where = s if self.of_sum and s is not None else y
        if self.name == "Sigmoid":
            return k.mul(y, affine(k, y, -1.0, 1.0))
        if self.name == "Tanh":
            return affine(k, k.mul(y, y), -1.0, 1.0)
        if self.name == "Relu":
            return positive(k, y)
        if self.name == "HardSigmoid":
            inside = k.mul(positive(k, y), positive(k, affine(k, y, -1.0, 1.0)))
            return k.mul(inside, self.alpha)
        if self.name == "LeakyRelu":
            return affine(k, positive(k, where), 1.0 - self.alpha, self.alpha)
        if self.name == "ThresholdedRelu":
            return positive(k, affine(k, where, 1.0, -self.alpha) if self.of_sum else y)
        if self.name == "Elu":
            above = positive(k, where)
            return k.add(above, k.mul(affine(k, above, -1.0, 1.0), affine(k, y, 1.0, self.alpha)))
        if self.name == "Softsign":
            left = affine(k, k.unary("Abs", y), -1.0, 1.0)
            return k.mul(left, left)
        if self.name == "Softplus":
            return affine(k, k.unary("Exp", k.neg(y)), -1.0, 1.0)
        if self.name == "ScaledTanh":
            shared = self.beta / self.alpha if self.alpha else 0.0
            return affine(k, k.mul(y, y), -shared, self.alpha * self.beta)
        return k.expand(k.graph.constant(np.full([1] * len(y.shape), self.alpha, y.dtype)), y.shape)


def activations(op: Primal, directions: int) -> list[tuple[_Activation, ...]]:
    """Return the activations of each direction.

    Raises
    ------
    MissingVjpError
        onnxruntime doesn't know a name, or the number of names is wrong.
    """
    kind = op.node.op_type
    usual = USUAL[kind]
    names = _strings(op.node.attributes.get("activations", ())) or list(usual * directions)
    if len(names) != len(usual) * directions and not (kind == "RNN" and len(names) > directions):
        raise MissingVjpError(
            f"{op.where}: it has {len(names)} activations, but needs {len(usual)} per direction; export it again"
        )
    known = {name.lower(): name for name in DEFAULTS}
    result: list[_Activation] = []
    left = [list(map(float, _numbers(op.node.attributes.get(f"activation_{what}", ())))) for what in ("alpha", "beta")]
    for name in names:
        canonical = known.get(name.lower())
        if canonical is None:
            raise MissingVjpError(
                f"{op.where}: there is no gradient rule for the activation {name!r}, which onnxruntime doesn't "
                f"compute; it has {', '.join(DEFAULTS)}"
            )
        if kind == "RNN" and name != canonical:
            raise MissingVjpError(
                f"{op.where}: onnxruntime takes the activation {name!r} of an RNN as {canonical!r} only; rename it"
            )
        coefficients = [
            0.0 if default is None else rest.pop(0) if rest else default
            for default, rest in zip(DEFAULTS[canonical], left, strict=True)
        ]
        result.append(_Activation(canonical, *coefficients))
    each = len(usual)
    return [tuple(result[d * each : (d + 1) * each]) for d in range(directions)]


def _strings(value: object) -> list[str]:
    items = value if isinstance(value, (list, tuple)) else ()
    return [v.decode() if isinstance(v, bytes) else str(v) for v in items]


def _numbers(value: object) -> Sequence[float]:
    return [float(v) for v in value] if isinstance(value, (list, tuple, np.ndarray)) else []


FEW, RUN = 256, 32
"""Up to FEW steps are joined at once; more steps in runs of RUN, of which two copies exist during the Concat."""


@dataclass(frozen=True)
class Layer:
    """One direction: tensors with their time axis in the order of the steps, steps and batch merged where possible.

    Attributes
    ----------
    x, y
        [steps batch, inputs] and [steps batch, hidden].
    dy
        The gradient of each step's state from outside, [steps batch, hidden], or None. If sequences end early, it is
        zero behind their end, and includes the gradient of the last state.
    before
        States before each step, [steps batch, hidden].
    w, r
        [gates hidden, inputs] and [gates hidden, hidden].
    wb, rb
        Biases [gates hidden], or None.
    last
        Gradient of the last state, [batch, hidden], or None.
    activations
        Activations of the gates, of the gates' input, and of an LSTM's cell; an RNN has one.
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
    activations: tuple[_Activation, ...]

    @property
    def hidden(self) -> int:
        """Width of the state."""
        return self.r.shape[1]


@dataclass(frozen=True)
class Cell:
    """The cell of an LSTM.

    Attributes
    ----------
    first
        The cell before the first step, [batch, hidden].
    last
        Gradient of the last cell, [batch, hidden], or None.
    ends
        If sequences end early, the gradient of the last cell at each one's last step and zero elsewhere,
        [steps batch, hidden]; else None.
    """

    first: Tensor
    last: Tensor | None
    ends: Tensor | None


@dataclass(frozen=True)
class FoundSteps:
    """Gradients of one direction: dx [steps batch, inputs], the weights', and the initial states'."""

    dx: Tensor
    dw: Tensor
    dr: Tensor
    dwb: Tensor
    drb: Tensor
    states: tuple[Tensor, ...]


class _Pile:
    """Tensors of all steps, joined along the first axis; `backwards` if the last step is added first."""

    def __init__(self, k: OperatorBuilder, steps: int, *, backwards: bool) -> None:
        self._k, self._backwards = k, backwards
        self._run = steps if steps <= FEW else RUN
        self._loose: list[Tensor] = []
        self._runs: list[Tensor] = []

    def add(self, tensor: Tensor) -> None:
        """Add the tensor of the next step."""
        self._loose.append(tensor)
        if len(self._loose) == self._run:
            self._runs.append(self._joined(self._loose))
            self._loose = []

    def whole(self) -> Tensor:
        """Return all steps in their order in time."""
        return self._joined(self._runs + ([self._joined(self._loose)] if self._loose else []))

    def _joined(self, parts: Sequence[Tensor]) -> Tensor:
        return self._k.concat(parts[::-1] if self._backwards else parts, 0)


def _product(k: OperatorBuilder, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """Return x w' + bias."""
    return k.gemm(x, w, bias, trans_b=True)


def _gate(k: OperatorBuilder, x: Tensor, index: int, hidden: int) -> Tensor:
    return k.slice(x, [index * hidden], [(index + 1) * hidden], [1])


def _step(k: OperatorBuilder, x: Tensor, t: int, batch: int) -> Tensor:
    return k.slice(x, [t * batch], [(t + 1) * batch], [0])


def _state_gradient(k: OperatorBuilder, layer: Layer, t: int, later: Tensor | None) -> Tensor:
    """Return the gradient of the state after step t: from Y, and from the next step (or from the last state)."""
    parts = [] if layer.dy is None else [_step(k, layer.dy, t, layer.batch)]
    if later is not None:
        parts.append(later)
    if not parts:
        return k.zeros((layer.batch, layer.hidden), layer.x.dtype)
    return parts[0] if len(parts) == 1 else k.add(parts[0], parts[1])


def shifted(k: OperatorBuilder, first: Tensor, each: Tensor) -> Tensor:
    """Return the values before each step, from the values after each step and the value before the first."""
    rows, batch = each.shape[0], first.shape[0]
    return first if rows == batch else k.concat([first, k.slice(each, [0], [rows - batch], [0])], 0)


def _weight_gradients(
    k: OperatorBuilder, layer: Layer, inputs: Tensor, recurrent: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return dx, dw, dr, dwb, drb from the gradients of both products."""
    dwb = column_sum(k, inputs)
    return (
        k.gemm(inputs, layer.w),
        k.gemm(inputs, layer.x, trans_a=True),
        k.gemm(recurrent, layer.before, trans_a=True),
        dwb,
        dwb if inputs is recurrent else column_sum(k, recurrent),
    )


def _require_state(k: OperatorBuilder, state: Tensor | None) -> Tensor:
    if state is None:
        raise MissingVjpError(f"{k.name}: a sequence without steps has no gradient; train on one step or more")
    return state


def lstm_steps(k: OperatorBuilder, layer: Layer, inner: Cell) -> FoundSteps:
    """Return the gradients of one direction of an LSTM."""
    steps, batch, hidden = layer.steps, layer.batch, layer.hidden
    sums = k.add(_product(k, layer.x, layer.w, layer.wb), _product(k, layer.before, layer.r, layer.rb))
    gating, entering, leaving = layer.activations
    parts = [_gate(k, sums, index, hidden) for index in range(4)]
    i, o, f = (gating.value(k, part) for part in parts[:3])
    g = entering.value(k, parts[3])
    added, now, cells = k.mul(i, g), inner.first, _Pile(k, layer.steps, backwards=False)
    for t in range(steps):
        now = k.add(k.mul(_step(k, f, t, batch), now), _step(k, added, t, batch))
        cells.add(now)
    later = cells.whole()
    early = shifted(k, inner.first, later)
    bent = leaving.value(k, later)
    through = k.mul(o, leaving.slope(k, later, bent))
    factors = k.concat(
        [
            k.mul(g, gating.slope(k, parts[0], i)),
            k.mul(bent, gating.slope(k, parts[1], o)),
            k.mul(early, gating.slope(k, parts[2], f)),
            k.mul(i, entering.slope(k, parts[3], g)),
        ],
        1,
    )
    state, cell = layer.last, inner.last
    gates = _Pile(k, layer.steps, backwards=True)
    for t in reversed(range(steps)):
        arriving = _state_gradient(k, layer, t, state)
        added_up = [masked(k, arriving, _step(k, through, t, batch)), cell]
        added_up.append(None if inner.ends is None else _step(k, inner.ends, t, batch))
        cell = functools.reduce(k.add, [part for part in added_up if part is not None])
        gate = masked(k, k.concat([cell, arriving, cell, cell], 1), _step(k, factors, t, batch))
        gates.add(gate)
        state = k.gemm(gate, layer.r)
        cell = k.mul(cell, _step(k, f, t, batch))
    ended = (_require_state(k, state), _require_state(k, cell))
    whole = gates.whole()
    return FoundSteps(*_weight_gradients(k, layer, whole, whole), ended)


def gru_steps(k: OperatorBuilder, layer: Layer, *, linear_first: bool) -> FoundSteps:
    """Return the gradients of one direction of a GRU; `linear_first` if the reset gate acts after the product."""
    steps, batch, hidden = layer.steps, layer.batch, layer.hidden
    both = 2 * hidden
    left = _product(k, layer.x, layer.w, layer.wb)
    head = k.slice(layer.r, [0], [both], [0])
    tail = k.slice(layer.r, [both], [3 * hidden], [0])
    bias = (None, None) if layer.rb is None else (
        k.slice(layer.rb, [0], [both], [0]), k.slice(layer.rb, [both], [3 * hidden], [0]),
    )  # fmt: skip
    sums = k.add(k.slice(left, [0], [both], [1]), _product(k, layer.before, head, bias[0]))
    gating, entering = layer.activations
    gates = [_gate(k, sums, index, hidden) for index in range(2)]
    z, r = (gating.value(k, part) for part in gates)
    candidate = _gate(k, left, 2, hidden)
    if linear_first:
        q = _product(k, layer.before, tail, bias[1])
        total = k.add(candidate, k.mul(r, q))
    else:
        q = k.mul(r, layer.before)
        total = k.add(candidate, _product(k, q, tail, bias[1]))
    h = entering.value(k, total)
    to_z = k.mul(k.sub(layer.before, h), gating.slope(k, gates[0], z))
    to_h = k.mul(affine(k, z, -1.0, 1.0), entering.slope(k, total, h))
    to_r = k.mul(q if linear_first else layer.before, gating.slope(k, gates[1], r))
    state = layer.last
    inputs = _Pile(k, layer.steps, backwards=True)
    for t in reversed(range(steps)):
        arriving = _state_gradient(k, layer, t, state)
        dz, dh = (masked(k, arriving, _step(k, factor, t, batch)) for factor in (to_z, to_h))
        reset = _step(k, r, t, batch)
        back = dh if linear_first else k.gemm(dh, tail)
        dr = masked(k, back, _step(k, to_r, t, batch))
        inputs.add(k.concat([dz, dr, dh], 1))
        kept = k.mul(arriving, _step(k, z, t, batch))
        if linear_first:
            state = k.gemm(k.concat([dz, dr, k.mul(dh, reset)], 1), layer.r, kept)
        else:
            state = k.add(k.gemm(k.concat([dz, dr], 1), head, kept), k.mul(back, reset))
    ended = _require_state(k, state)
    whole = inputs.whole()
    if linear_first:
        turned = k.concat([k.slice(whole, [0], [both], [1]), k.mul(_gate(k, whole, 2, hidden), r)], 1)
        dx, dw, dr_all, dwb, drb = _weight_gradients(k, layer, whole, turned)
    else:
        dx, dw = k.gemm(whole, layer.w), k.gemm(whole, layer.x, trans_a=True)
        dwb = drb = column_sum(k, whole)
        upper = k.gemm(k.slice(whole, [0], [both], [1]), layer.before, trans_a=True)
        dr_all = k.concat([upper, k.gemm(_gate(k, whole, 2, hidden), q, trans_a=True)], 0)
    return FoundSteps(dx, dw, dr_all, dwb, drb, (ended,))


def rnn_steps(k: OperatorBuilder, layer: Layer) -> FoundSteps:
    """Return the gradients of one direction of an RNN; the activation's slope comes from Y if Y determines it."""
    (activation,) = layer.activations
    inner: Tensor | None = None
    if activation.of_sum:
        inner = k.add(_product(k, layer.x, layer.w, layer.wb), _product(k, layer.before, layer.r, layer.rb))
    slope = activation.slope(k, inner, layer.y)
    state, sums = layer.last, _Pile(k, layer.steps, backwards=True)
    for t in reversed(range(layer.steps)):
        total = masked(k, _state_gradient(k, layer, t, state), _step(k, slope, t, layer.batch))
        sums.add(total)
        state = k.gemm(total, layer.r)
    ended = _require_state(k, state)
    whole = sums.whole()
    return FoundSteps(*_weight_gradients(k, layer, whole, whole), (ended,))
