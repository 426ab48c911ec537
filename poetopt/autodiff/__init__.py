"""Graph -> TrainingGraph: one reverse loop over a table of rules that emit standard ONNX operators.

Public names: `differentiate`, `unsupported`, `register_vjp`, `trial_rules`, `declare_nondifferentiable`. They load
on first use, so that importing the package stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poetopt.util.imports import loading

if TYPE_CHECKING:
    from poetopt.autodiff.registry import declare_nondifferentiable, register_vjp, trial_rules
    from poetopt.autodiff.reverse import differentiate, unsupported

__all__ = ["declare_nondifferentiable", "differentiate", "register_vjp", "trial_rules", "unsupported"]

_HOMES = {
    "differentiate": "poetopt.autodiff.reverse",
    "unsupported": "poetopt.autodiff.reverse",
    "register_vjp": "poetopt.autodiff.registry",
    "trial_rules": "poetopt.autodiff.registry",
    "declare_nondifferentiable": "poetopt.autodiff.registry",
}

__getattr__ = loading(__name__, _HOMES)
