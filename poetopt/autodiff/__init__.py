"""Graph -> TrainingGraph: one reverse loop over a table of rules that emit standard ONNX operators.

Its names load on first use, so that importing the package stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poetopt.util.imports import loading

if TYPE_CHECKING:
    from poetopt.autodiff.losses import label_rule
    from poetopt.autodiff.optimizers.attach import parse_rates, with_updates
    from poetopt.autodiff.registry import declare_nondifferentiable, register_vjp, trial_rules
    from poetopt.autodiff.reverse import differentiate, unsupported

__all__ = [
    "declare_nondifferentiable", "differentiate", "label_rule", "parse_rates", "register_vjp", "trial_rules",
    "unsupported", "with_updates",
]  # fmt: skip

_HOMES = {
    "differentiate": "poetopt.autodiff.reverse",
    "unsupported": "poetopt.autodiff.reverse",
    "label_rule": "poetopt.autodiff.losses",
    "parse_rates": "poetopt.autodiff.optimizers.attach",
    "with_updates": "poetopt.autodiff.optimizers.attach",
    "register_vjp": "poetopt.autodiff.registry",
    "trial_rules": "poetopt.autodiff.registry",
    "declare_nondifferentiable": "poetopt.autodiff.registry",
}

__getattr__ = loading(__name__, _HOMES)
