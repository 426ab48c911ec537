"""Inputs of differentiable ops that are settings or positions: nothing flows back through these."""

from poetopt.autodiff.registry import declare_nondifferentiable

for _op, _inputs in {
    "GatherElements": (1,),
    "GatherND": (1,),
    "Tile": (1,),
}.items():
    declare_nondifferentiable(_op, inputs=_inputs)
