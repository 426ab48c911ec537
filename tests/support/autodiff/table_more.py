"""Rows for normalizations, reductions, scattering, resizing, contractions and fused attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.autodiff.specs import Array, Spec, distinct, ints, normal, positive, whole


def _early(*steps: int) -> Array:
    return np.array(steps, np.int32)


EINSUMS: tuple[tuple[Any, ...], ...] = (
    ("abc->ca", (2, 3, 4)), ("...ii->...i", (2, 4, 3, 3)), ("ii->", (4, 4)), ("ijij->ji", (2, 3, 2, 3)),
    ("bii,ij->bj", (2, 3, 3), (3, 4)), ("ij,bkkj->bik", (3, 4), (2, 5, 5, 4)), ("iii,i->i", (3, 3, 3), (3,)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
    ("ij,jk->ik", (3, 4), (4, 5)), ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
    ("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)), ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 2)),
    ("abc,cd", (2, 3, 4), (4, 2)), ("ij,j->i", (3, 4), (4,)), ("i,j->ij", (3,), (4,)), ("ij,kj->k", (3, 4), (2, 4)),
)  # fmt: skip

RESIZES: tuple[tuple[str, dict[str, object], tuple[float, ...]], ...] = (
    ("double", {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, (2, 2)),
    ("nearest", {"mode": "nearest"}, (1.5, 0.6)),
    ("linear", {"mode": "linear"}, (2, 1.5)),
    ("corners", {"mode": "linear", "coordinate_transformation_mode": "align_corners"}, (2, 0.5)),
    ("corners-part", {"mode": "linear", "coordinate_transformation_mode": "align_corners"}, (1.3, 1.5)),
    ("cubic", {"mode": "cubic"}, (2, 1.6)),
    ("antialias", {"mode": "linear", "antialias": 1}, (0.5, 0.6)),
)

REDUCTIONS = (("max", distinct), ("min", distinct), ("mul", normal))
"""Values where the gradient is smooth."""

ROWS: tuple[Spec, ...] = (
    # normalization
    Spec("InstanceNormalization", (normal(2, 3, 4, 5), normal(3), normal(3)), (0, 1, 2), {"epsilon": 1e-3}),
    Spec("InstanceNormalization", (normal(2, 3, 7), normal(3), normal(3)), (0,), label="frozen"),
    Spec("GroupNormalization", (normal(2, 6, 3, 2), normal(6), normal(6)), (0, 1, 2),
         {"num_groups": 3, "stash_type": 11}, opset=21),
    Spec("GroupNormalization", (normal(2, 6, 3, 2), normal(3), normal(3)), (0, 1, 2), {"num_groups": 3},
         label="by-group", opset=20),
    Spec("LpNormalization", (normal(3, 4),), attributes={"p": 2}),
    Spec("LpNormalization", (normal(3, 4, 2),), attributes={"p": 1, "axis": 1}, label="p1"),
    Spec("MeanVarianceNormalization", (normal(2, 3, 4, 2),)),
    Spec("MeanVarianceNormalization", (normal(4, 5),), label="axes", attributes={"axes": [-1]}),
    Spec("LRN", (normal(2, 7, 3, 2),), attributes={"size": 3, "alpha": 0.3, "beta": 0.7, "bias": 1.5}),
    # reductions
    Spec("ReduceSumSquare", (normal(2, 3, 4), ints(1))),
    Spec("ReduceL1", (normal(2, 3, 4), ints(0, 2)), attributes={"keepdims": 0}),
    Spec("ReduceL2", (normal(2, 3, 4), ints(-1))),
    Spec("ReduceLogSum", (positive(2, 3, 4), ints(1))),
    Spec("ReduceLogSumExp", (normal(2, 3, 4), ints(1)), attributes={"keepdims": 0}),
    Spec("ReduceProd", (normal(2, 3, 4), ints(1))),
    Spec("ReduceProd", (np.array([[0.0, 2.0, -3.0], [0.0, 1.0, 0.0], [1.5, 2.0, 1.0]]), ints(1)), label="zeros"),
    *(
        Spec(f"Reduce{name}", (positive(2, 3), *axes), label=f"no-axes-{len(axes)}",
             attributes={"noop_with_empty_axes": 1, "keepdims": len(axes)})
        for name in ("Sum", "Mean", "Max", "Min", "Prod", "SumSquare", "L1", "L2", "LogSum", "LogSumExp")
        for axes in ((), (np.zeros(0, np.int64),))
    ),
    Spec("ReduceProd", (normal(2, 3),), attributes={"keepdims": 0, "axes": [0, 1]}, opset=17, label="attribute"),
    Spec("GlobalMaxPool", (distinct(2, 3, 4, 5),)),
    Spec("CumSum", (normal(3, 4), np.array(1))),
    Spec("CumSum", (normal(3, 4), np.array(-2)), attributes={"exclusive": 1, "reverse": 1}, label="exclusive-reverse"),
    # scattering
    Spec("ScatterElements", (normal(3, 4), np.array([[0, 2], [1, -1]]), normal(2, 2)), (0, 2), {"axis": 1}),
    Spec("ScatterElements", (normal(3, 4), np.array([[0, 0], [1, 1]]), normal(2, 2)), (0, 2),
         {"axis": 1, "reduction": "add"}, label="add"),
    Spec("ScatterND", (normal(4, 3), np.array([[2], [0]]), normal(2, 3)), (0, 2)),
    Spec("ScatterND", (normal(4, 3), np.array([[2, 1], [0, 0], [2, 1]]), normal(3)), (0, 2), {"reduction": "add"},
         label="add"),
    *(
        Spec("ScatterElements", (made(3, 4), np.array([[0, 2, 0], [1, -1, 1]]), made(2, 3, seed=1)), trained,
             {"axis": 1, "reduction": how}, label=f"{how}-{len(trained)}")
        for how, made in REDUCTIONS for trained in ((0, 2), (2,))
    ),
    *(
        Spec("ScatterND", (made(2, 3, 2), np.array([[1, 2], [0, 0], [1, -1], [1, 2]]), made(4, 2, seed=1)), trained,
             {"reduction": how}, label=f"{how}-{len(trained)}")
        for how, made in REDUCTIONS for trained in ((0, 2), (0,))
    ),
    Spec("ScatterElements", (np.array([0.0, 2.0, 0.0, 0.0, 3.0]), ints(0, 0, 1, 1, 2, 2, 3, 4, 4),
                             np.array([0.5, 2.0, 0.0, 3.0, 0.0, 2.0, 4.0, 0.0, 0.0])), (0, 2),
         {"reduction": "mul"}, label="zeros"),
    Spec("TopK", (distinct(3, 5), ints(2)), outputs=2, ignored=(1,)),
    Spec("Trilu", (normal(2, 4, 5), np.array(1))),
    Spec("Trilu", (normal(4, 5),), attributes={"upper": 0}, label="lower"),
    # resizing
    *(
        Spec("Resize", (normal(2, 3, 4, 5), None, np.array([1.0, 1.0, *scales], np.float32)), attributes=settings,
             opset=19, label=label)
        for label, settings, scales in RESIZES
    ),
    Spec("Resize", (normal(1, 2, 4, 5), None, None, ints(1, 2, 8, 3)), attributes={"mode": "linear"}, opset=19,
         label="sizes"),
    *(
        Spec("Resize", (normal(1, 2, *shape), None, None, ints(*sizes)), opset=19, label=f"{policy}-{how}-{k}",
             attributes={"mode": mode, "axes": [2, 3], "keep_aspect_ratio_policy": policy,
                         "coordinate_transformation_mode": how})
        for policy in ("not_larger", "not_smaller")
        for mode, how in (("linear", "half_pixel"), ("cubic", "asymmetric"), ("nearest", "pytorch_half_pixel"))
        for k, (shape, sizes) in enumerate((((4, 6), (8, 8)), ((5, 7), (8, 8)), ((6, 5), (4, 3))))
    ),
    # contractions
    *(
        Spec("Einsum", tuple(normal(*shape, seed=k) for k, shape in enumerate(shapes)), tuple(range(len(shapes))),
             {"equation": equation}, label=equation)
        for equation, *shapes in EINSUMS
    ),
    # attention
    Spec("Attention", (normal(2, 2, 3, 4), normal(2, 2, 5, 4, seed=1), normal(2, 2, 5, 3, seed=2)), (0, 1, 2),
         opset=23),
    Spec("Attention", (normal(1, 4, 3, 4), normal(1, 2, 3, 4, seed=1), normal(1, 2, 3, 4, seed=2)), (0, 1, 2),
         {"is_causal": 1, "scale": 0.3}, opset=23, label="grouped-causal"),
    Spec("Attention", (normal(2, 3, 8), normal(2, 5, 8, seed=1), normal(2, 5, 6, seed=2), normal(3, 5, seed=3)),
         (0, 1, 2, 3), {"q_num_heads": 2, "kv_num_heads": 2}, opset=23, label="flat-mask"),
    Spec("Attention", (normal(1, 2, 3, 4), normal(1, 2, 3, 4, seed=1), normal(1, 2, 3, 4, seed=2)), (0, 1, 2),
         {"softcap": 2.0}, opset=23, label="softcap"),
    Spec("RotaryEmbedding", (normal(2, 2, 3, 4), normal(2, 3, 2, seed=1), normal(2, 3, 2, seed=2)), opset=23),
    Spec("RotaryEmbedding", (normal(1, 3, 8), normal(9, 2, seed=1), normal(9, 2, seed=2), np.array([[4, 0, 8]])),
         attributes={"num_heads": 2, "interleaved": 1}, opset=23, label="positions"),
    # recurrent layers
    Spec("LSTM",
         (normal(4, 2, 3), normal(1, 20, 3), normal(1, 20, 5), normal(1, 40), None, normal(1, 2, 5),
          normal(1, 2, 5, seed=1)),
         (0, 1, 2, 3, 5, 6), {"hidden_size": 5}, outputs=3),
    Spec("LSTM", (normal(3, 2, 3), normal(1, 8, 3), normal(1, 8, 2), normal(1, 16)), (0, 1, 2, 3), {"hidden_size": 2},
         label="sequence"),
    Spec("LSTM", (normal(3, 2, 3), normal(1, 8, 3), normal(1, 8, 2), normal(1, 16)), (0, 1, 2, 3), {"hidden_size": 2},
         outputs=3, ignored=(0, 2), label="last"),
    Spec("LSTM", (normal(4, 2, 3), normal(2, 8, 3), normal(2, 8, 2)), (0, 1, 2),
         {"hidden_size": 2, "direction": "bidirectional"}, outputs=3, label="bidirectional"),
    Spec("GRU", (normal(4, 2, 3), normal(1, 15, 3), normal(1, 15, 5), normal(1, 30)), (0, 1, 2, 3),
         {"hidden_size": 5, "linear_before_reset": 1}, outputs=2),
    Spec("GRU", (normal(4, 2, 3), normal(1, 15, 3), normal(1, 15, 5), normal(1, 30), None, normal(1, 2, 5)),
         (0, 1, 2, 3, 5), {"hidden_size": 5, "direction": "reverse"}, outputs=2, label="reverse"),
    Spec("GRU", (normal(4, 2, 3), normal(2, 6, 3), normal(2, 6, 2), normal(2, 12)), (0, 1, 2, 3),
         {"hidden_size": 2, "direction": "bidirectional", "linear_before_reset": 1}, outputs=2, ignored=(0,),
         label="bidirectional-last"),
    Spec("RNN", (normal(4, 2, 3), normal(1, 5, 3), normal(1, 5, 5), normal(1, 10), None, normal(1, 2, 5)),
         (0, 1, 2, 3, 5), {"hidden_size": 5}, outputs=2),
    Spec("RNN", (normal(4, 2, 3), normal(2, 2, 3), normal(2, 2, 2), normal(2, 4)), (0, 1, 2, 3),
         {"hidden_size": 2, "direction": "bidirectional", "activations": ["Relu", "Tanh"]}, outputs=2,
         label="bidirectional"),
    Spec("LSTM",
         (normal(4, 3, 3), normal(1, 8, 3), normal(1, 8, 2), normal(1, 16), _early(2, 4, 1),
          normal(1, 3, 2), normal(1, 3, 2, seed=1)),
         (0, 1, 2, 3, 5, 6), {"hidden_size": 2}, outputs=3, label="lengths"),
    Spec("LSTM", (normal(4, 3, 3), normal(2, 8, 3), normal(2, 8, 2), normal(2, 16), _early(2, 4, 1)), (0, 1, 2, 3),
         {"hidden_size": 2, "direction": "bidirectional"}, outputs=3, ignored=(0, 1), label="lengths-cell"),
    Spec("GRU", (normal(4, 3, 3), normal(1, 6, 3), normal(1, 6, 2), normal(1, 12), _early(3, 1, 2)), (0, 1, 2, 3),
         {"hidden_size": 2, "linear_before_reset": 1}, outputs=2, label="lengths"),
    Spec("RNN", (normal(4, 3, 3), normal(1, 2, 3), normal(1, 2, 2), normal(1, 4), _early(4, 1, 2), normal(1, 3, 2)),
         (0, 1, 2, 3, 5), {"hidden_size": 2}, outputs=2, label="lengths"),
    Spec("RNN", (normal(4, 3, 3), normal(1, 2, 3), normal(1, 2, 2), normal(1, 4), _early(3, 1, 4)), (0, 1, 2, 3),
         {"hidden_size": 2, "direction": "reverse", "activations": ["Relu"]}, outputs=2, label="lengths-reverse"),
    Spec("LSTM", (normal(3, 2, 3), normal(2, 8, 3), normal(2, 8, 2), normal(2, 16)), (0, 1, 2, 3),
         {"hidden_size": 2, "direction": "bidirectional", "activation_alpha": [0.3, 0.1, 0.4], "activation_beta": [0.6],
          "activations": ["Sigmoid", "LeakyRelu", "Tanh", "HardSigmoid", "Tanh", "Elu"]},
         outputs=3, label="two-directions"),
    # functions
    Spec("ThresholdedRelu", (2 * normal(4, 5) + 0.01,), attributes={"alpha": 0.7}),
    Spec("Mod", (whole(2, 3, 4), np.array([1.0, -2.0, 4.0, -1.0])), (0, 1), {"fmod": 1}),
    Spec("Mod", (whole(4), np.array([[4.0], [-2.0]])), (1,), {"fmod": 1}, label="divisor"),
    Spec("Celu", (normal(3, 4),), attributes={"alpha": 0.7}),
    Spec("Swish", (normal(3, 4),), attributes={"alpha": 1.5}, opset=24),
    Spec("Mean", (normal(2, 3), normal(3), normal(2, 1)), (0, 1, 2)),
    Spec("CastLike", (normal(2, 3), normal(1))),
)  # fmt: skip
