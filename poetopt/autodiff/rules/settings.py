"""Inputs of differentiable ops that are settings or positions, and ops of steps: nothing flows back through these."""

from poetopt.autodiff.registry import declare_nondifferentiable

for _op, _inputs in {
    "CastLike": (1,),
    "Col2Im": (1, 2),
    "CumSum": (1,),
    "DFT": (1, 2),
    "GRU": (4,),
    "GatherElements": (1,),
    "GatherND": (1,),
    "LSTM": (4,),
    "RNN": (4,),
    "ReduceL1": (1,),
    "ReduceL2": (1,),
    "ReduceLogSum": (1,),
    "ReduceLogSumExp": (1,),
    "ReduceProd": (1,),
    "ReduceSumSquare": (1,),
    "ScatterElements": (1,),
    "ScatterND": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
}.items():
    declare_nondifferentiable(_op, inputs=_inputs)

for _op in (
    "Bernoulli", "BitCast", "Hardmax", "Multinomial", "NonMaxSuppression",
):  # fmt: skip
    declare_nondifferentiable(_op)

declare_nondifferentiable("Resize", inputs=(1, 2, 3), missing=(1,))
declare_nondifferentiable("RotaryEmbedding", inputs=(1, 2, 3), missing=(1, 2))
