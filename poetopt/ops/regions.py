"""Rules of composite regions: those of the ops that they amount to, at every opset."""

from __future__ import annotations

from poetopt.autodiff.regions import DOMAIN
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp
from poetopt.ops.elementwise import activations, vjp
from poetopt.ops.normalization.vjp import row_norm

for _op, _rule in {
    "Gelu": activations.gelu,
    "HardSwish": vjp.hard_swish,
    "Mish": vjp.mish,
    "Sigmoid": activations.sigmoid,
    "Softmax": activations.softmax,
    "Swish": activations.swish,
}.items():
    register_vjp(_op, since=1, domain=DOMAIN)(_rule)


@register_vjp("LayerNormalization", since=1, domain=DOMAIN)
def layer_normalization(op: Primal, cotangents: Cotangents) -> Gradients:
    """LayerNormalization's, with the mean and the deviation that the region writes."""
    dy = op.only(cotangents)
    k = op.emit("grad_input")
    return row_norm(op, k, dy, op.output(1), k.unary("Reciprocal", op.output(2)))


@register_vjp("RMSNormalization", since=1, domain=DOMAIN)
def rms_normalization(op: Primal, cotangents: Cotangents) -> Gradients:
    """RMSNormalization's, with the root of the mean square that the region writes."""
    dy = op.only(cotangents)
    k = op.emit("grad_input")
    return row_norm(op, k, dy, None, k.unary("Reciprocal", op.output(1)))
