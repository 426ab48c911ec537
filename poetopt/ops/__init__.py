"""Knowledge of operators, one folder per family: gradients, kernels in C, and how kernels run chunk by chunk."""

VJPS = (
    "convolution.vjp",
    "convolution.windows",
    "elementwise.activations",
    "elementwise.vjp",
    "losses.vjp",
    "movement.vjp",
    "normalization.vjp",
    "picking.sampling",
    "picking.vjp",
    "pooling.vjp",
    "product.vjp",
    "recurrent.vjp",
    "reduction.vjp",
)
"""Modules that declare ops and register gradient rules."""

KERNELS = (
    "convolution.c",
    "elementwise.c",
    "elementwise.updates",
    "losses.c",
    "movement.c",
    "normalization.c",
    "picking.c",
    "pooling.c",
    "product.c",
    "quantization.c",
    "recurrent.c",
    "recurrent.c_gradient",
    "reduction.c",
)
"""Modules with kernels of the runtime c; each has a tuple `KERNELS`."""
