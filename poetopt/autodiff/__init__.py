"""Graph -> TrainingGraph: one reverse loop over a table of rules that emit standard ONNX operators.

Its names load on first use, so that importing the package stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poetopt.util.imports import loading

if TYPE_CHECKING:
    from poetopt.autodiff.losses import label_rule as label_rule
    from poetopt.autodiff.optimizers.attach import parse_rates as parse_rates
    from poetopt.autodiff.optimizers.attach import with_updates as with_updates
    from poetopt.autodiff.registry import declare_nondifferentiable as declare_nondifferentiable
    from poetopt.autodiff.registry import register_vjp as register_vjp
    from poetopt.autodiff.registry import trial_rules as trial_rules
    from poetopt.autodiff.reverse import differentiate as differentiate
    from poetopt.autodiff.reverse import unsupported as unsupported

__getattr__, __all__ = loading(__name__, {
    "losses": "label_rule",
    "optimizers.attach": "parse_rates with_updates",
    "registry": "declare_nondifferentiable register_vjp trial_rules",
    "reverse": "differentiate unsupported",
})  # fmt: skip
