"""Rows for normalizations, reductions, scattering, resizing, contractions and fused attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.autodiff.specs import Spec, distinct, ints, normal, positive, whole


def _f() -> Any:
    import torch.nn.functional as f

    return f


def _t() -> Any:
    import torch

    return torch


def _grid(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    """Numbers between -0.9 and 0.9."""
    return np.asarray(np.random.default_rng([seed, *shape]).uniform(-0.9, 0.9, shape))


def _rotated(x: Any, cos: Any, sin: Any) -> Any:
    """Halves of the last axis turned against each other."""
    a, b = x.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return _t().cat([a * cos - b * sin, b * cos + a * sin], -1)


def _attention(q: Any, k: Any, v: Any, mask: Any = None, *, causal: bool = False, scale: Any = None) -> Any:
    return _f().scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=True)


def _split(x: Any, heads: int) -> Any:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _lstm(x: Any, w: Any, r: Any, b: Any, _: Any = None, h: Any = None, c: Any = None) -> Any:
    t = _t()
    zeros = t.zeros(x.shape[1], r.shape[2], dtype=x.dtype)
    h, c = (zeros if s is None else s[0] for s in (h, c))
    wb, rb = b[0].chunk(2)
    found = []
    for step in x:
        i, o, f, g = (step @ w[0].T + h @ r[0].T + wb + rb).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        found.append(h)
    return t.stack(found)[:, None], h[None], c[None]


def _gru(x: Any, w: Any, r: Any, b: Any) -> Any:
    """As torch's module has it: the reset gate acts after the product."""
    t = _t()
    hidden = r.shape[2]

    def turned(m: Any) -> Any:
        z, reset, h = m.chunk(3)
        return t.cat([reset, z, h])

    wb, rb = b[0].chunk(2)
    h = t.zeros(x.shape[1], hidden, dtype=x.dtype)
    found = []
    for step in x:
        h = t.gru_cell(step, h, turned(w[0]), turned(r[0]), turned(wb), turned(rb))
        found.append(h)
    return t.stack(found)[:, None], h[None]


def _rnn(x: Any, w: Any, r: Any, b: Any, _: Any = None, h: Any = None) -> Any:
    t = _t()
    h = t.zeros(x.shape[1], r.shape[2], dtype=x.dtype) if h is None else h[0]
    found = []
    for step in x:
        h = t.rnn_tanh_cell(step, h, w[0], r[0], *b[0].chunk(2))
        found.append(h)
    return t.stack(found)[:, None], h[None]


def _short(layer: Any, steps: tuple[int, ...]) -> Any:
    """The layer on a batch whose sequences end early: each by itself, with zeros behind."""

    def batch(x: Any, w: Any, r: Any, b: Any, _: Any, *first: Any) -> Any:
        parts = [
            layer(x[:length, n : n + 1], w, r, b, None, *(s[:, n : n + 1] for s in first))
            for n, length in enumerate(steps)
        ]
        longer = [(_t().nn.functional.pad(y, (0, 0) * 3 + (0, x.shape[0] - len(y))), *last) for y, *last in parts]
        return [_t().cat(each, -2) for each in zip(*longer, strict=True)]

    return batch


def _early(*steps: int) -> np.ndarray[Any, Any]:
    return np.array(steps, np.int32)


EINSUMS = (
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

REDUCTIONS = (("max", "amax", distinct), ("min", "amin", distinct), ("mul", "prod", normal))
"""ONNX's name, torch's, and values where the gradient is smooth."""

ROWS: tuple[Spec, ...] = (
    # normalization
    Spec("InstanceNormalization", (normal(2, 3, 4, 5), normal(3), normal(3)), (0, 1, 2),
         lambda x, s, b: _f().instance_norm(x, weight=s, bias=b, eps=1e-3), {"epsilon": 1e-3}),
    Spec("InstanceNormalization", (normal(2, 3, 7), normal(3), normal(3)), (0,),
         lambda x, s, b: _f().instance_norm(x, weight=s, bias=b), label="frozen"),
    Spec("GroupNormalization", (normal(2, 6, 3, 2), normal(6), normal(6)), (0, 1, 2),
         lambda x, s, b: _f().group_norm(x, 3, s, b), {"num_groups": 3, "stash_type": 11}, opset=21),
    Spec("GroupNormalization", (normal(2, 6, 3, 2), normal(3), normal(3)), (0, 1, 2),
         lambda x, s, b: _f().group_norm(x, 3, s.repeat_interleave(2), b.repeat_interleave(2)), {"num_groups": 3},
         label="by-group", opset=20),
    Spec("LpNormalization", (normal(3, 4),), torch=lambda x: _f().normalize(x, 2, 1), attributes={"p": 2}),
    Spec("LpNormalization", (normal(3, 4, 2),), torch=lambda x: _f().normalize(x, 1, 1),
         attributes={"p": 1, "axis": 1}, label="p1"),
    Spec("MeanVarianceNormalization", (normal(2, 3, 4, 2),),
         torch=lambda x: (x - x.mean((0, 2, 3), True)) / x.std((0, 2, 3), False, keepdim=True)),
    Spec("MeanVarianceNormalization", (normal(4, 5),), label="axes", attributes={"axes": [-1]},
         torch=lambda x: (x - x.mean(1, True)) / x.std(1, False, keepdim=True)),
    Spec("LRN", (normal(2, 7, 3, 2),), torch=lambda x: _f().local_response_norm(x, 3, 0.3, 0.7, 1.5),
         attributes={"size": 3, "alpha": 0.3, "beta": 0.7, "bias": 1.5}),
    # reductions
    Spec("ReduceSumSquare", (normal(2, 3, 4), ints(1)), torch=lambda x, a: (x * x).sum(1, keepdim=True)),
    Spec("ReduceL1", (normal(2, 3, 4), ints(0, 2)), torch=lambda x, a: x.abs().sum((0, 2)), attributes={"keepdims": 0}),
    Spec("ReduceL2", (normal(2, 3, 4), ints(-1)), torch=lambda x, a: x.norm(dim=-1, keepdim=True)),
    Spec("ReduceLogSum", (positive(2, 3, 4), ints(1)), torch=lambda x, a: x.sum(1, keepdim=True).log()),
    Spec("ReduceLogSumExp", (normal(2, 3, 4), ints(1)), torch=lambda x, a: x.logsumexp(1), attributes={"keepdims": 0}),
    Spec("ReduceProd", (normal(2, 3, 4), ints(1)), torch=lambda x, a: x.prod(1, keepdim=True)),
    Spec("ReduceProd", (np.array([[0.0, 2.0, -3.0], [0.0, 1.0, 0.0], [1.5, 2.0, 1.0]]), ints(1)),
         torch=lambda x, a: x.prod(1, keepdim=True), label="zeros"),
    *(
        Spec(f"Reduce{name}", (positive(2, 3), *axes), label=f"no-axes-{len(axes)}",
             attributes={"noop_with_empty_axes": 1, "keepdims": len(axes)})
        for name in ("Sum", "Mean", "Max", "Min", "Prod", "SumSquare", "L1", "L2", "LogSum", "LogSumExp")
        for axes in ((), (np.zeros(0, np.int64),))
    ),
    Spec("ReduceProd", (normal(2, 3),), torch=lambda x: x.prod(), attributes={"keepdims": 0, "axes": [0, 1]},
         opset=17, label="attribute"),
    Spec("GlobalMaxPool", (distinct(2, 3, 4, 5),), torch=lambda x: x.amax((2, 3), keepdim=True)),
    Spec("CumSum", (normal(3, 4), np.array(1)), torch=lambda x, a: x.cumsum(1)),
    Spec("CumSum", (normal(3, 4), np.array(-2)), torch=lambda x, a: x.flip(0).cumsum(0).flip(0) - x,
         attributes={"exclusive": 1, "reverse": 1}, label="exclusive-reverse"),
    # scattering
    Spec("ScatterElements", (normal(3, 4), np.array([[0, 2], [1, -1]]), normal(2, 2)), (0, 2),
         lambda x, i, u: x.scatter(1, i % 4, u), {"axis": 1}),
    Spec("ScatterElements", (normal(3, 4), np.array([[0, 0], [1, 1]]), normal(2, 2)), (0, 2),
         lambda x, i, u: x.scatter_add(1, i, u), {"axis": 1, "reduction": "add"}, label="add"),
    Spec("ScatterND", (normal(4, 3), np.array([[2], [0]]), normal(2, 3)), (0, 2),
         lambda x, i, u: x.index_put((i[:, 0],), u)),
    Spec("ScatterND", (normal(4, 3), np.array([[2, 1], [0, 0], [2, 1]]), normal(3)), (0, 2),
         lambda x, i, u: x.index_put((i[:, 0], i[:, 1]), u, accumulate=True), {"reduction": "add"}, label="add"),
    *(
        Spec("ScatterElements", (made(3, 4), np.array([[0, 2, 0], [1, -1, 1]]), made(2, 3, seed=1)), trained,
             lambda x, i, u, r=reduction: x.scatter_reduce(1, i % 4, u, r), {"axis": 1, "reduction": how},
             label=f"{how}-{len(trained)}")
        for how, reduction, made in REDUCTIONS for trained in ((0, 2), (2,))
    ),
    *(
        Spec("ScatterND", (made(2, 3, 2), np.array([[1, 2], [0, 0], [1, -1], [1, 2]]), made(4, 2, seed=1)), trained,
             lambda x, i, u, r=reduction: x.flatten(0, 1).scatter_reduce(
                 0, _t().tensor([5, 0, 5, 5])[:, None].expand(4, 2), u, r).view(2, 3, 2),
             {"reduction": how}, label=f"{how}-{len(trained)}")
        for how, reduction, made in REDUCTIONS for trained in ((0, 2), (0,))
    ),
    Spec("ScatterElements", (np.array([0.0, 2.0, 0.0, 0.0, 3.0]), ints(0, 0, 1, 1, 2, 2, 3, 4, 4),
                             np.array([0.5, 2.0, 0.0, 3.0, 0.0, 2.0, 4.0, 0.0, 0.0])), (0, 2),
         lambda x, i, u: x.scatter_reduce(0, i, u, "prod"), {"reduction": "mul"}, label="zeros"),
    Spec("TopK", (distinct(3, 5), ints(2)), torch=lambda x, k: x.topk(2, 1), outputs=2, ignored=(1,)),
    Spec("Trilu", (normal(2, 4, 5), np.array(1)), torch=lambda x, k: x.triu(1)),
    Spec("Trilu", (normal(4, 5),), torch=lambda x: x.tril(), attributes={"upper": 0}, label="lower"),
    # resizing
    *(
        Spec("Resize", (normal(2, 3, 4, 5), None, np.array([1.0, 1.0, *scales], np.float32)), attributes=settings,
             opset=19, label=label)
        for label, settings, scales in RESIZES
    ),
    Spec("Resize", (normal(1, 2, 4, 5), None, None, ints(1, 2, 8, 3)), attributes={"mode": "linear"}, opset=19,
         torch=lambda x, *a: _f().interpolate(x, (8, 3), mode="bilinear"), label="sizes"),
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
        Spec("Einsum", (normal(*a), normal(*b, seed=1)), (0, 1), lambda x, y, e=e: _t().einsum(e, x, y),
             {"equation": e}, label=e)
        for e, a, b in (("bii,ij->bj", (2, 3, 3), (3, 4)), ("ij,bkkj->bik", (3, 4), (2, 5, 5, 4)),
                        ("iii,i->i", (3, 3, 3), (3,)))
    ),
    *(
        Spec("Einsum", (normal(*a),), (0,), lambda x, e=e: _t().einsum(e, x), {"equation": e}, label=e)
        for e, a in (("...ii->...i", (2, 4, 3, 3)), ("ii->", (4, 4)), ("ijij->ji", (2, 3, 2, 3)))
    ),
    *(
        Spec("Einsum", (normal(*a), normal(*b, seed=1)), (0, 1), lambda x, y, e=e: _t().einsum(e, x, y),
             {"equation": e}, label=e)
        for e, a, b in EINSUMS
    ),
    Spec("Einsum", (normal(2, 3), normal(3, 4), normal(4, 2)), (0, 1, 2),
         lambda a, b, c: _t().einsum("ij,jk,kl->il", a, b, c), {"equation": "ij,jk,kl->il"}, label="three"),
    Spec("Einsum", (normal(2, 3, 4),), torch=lambda x: x.sum(1).T, attributes={"equation": "abc->ca"}, label="one"),
    # attention
    Spec("Attention", (normal(2, 2, 3, 4), normal(2, 2, 5, 4, seed=1), normal(2, 2, 5, 3, seed=2)), (0, 1, 2),
         _attention, opset=23),
    Spec("Attention", (normal(1, 4, 3, 4), normal(1, 2, 3, 4, seed=1), normal(1, 2, 3, 4, seed=2)), (0, 1, 2),
         lambda q, k, v: _attention(q, k, v, causal=True, scale=0.3), {"is_causal": 1, "scale": 0.3}, opset=23,
         label="grouped-causal"),
    Spec("Attention", (normal(2, 3, 8), normal(2, 5, 8, seed=1), normal(2, 5, 6, seed=2), normal(3, 5, seed=3)),
         (0, 1, 2, 3),
         lambda q, k, v, m: _attention(_split(q, 2), _split(k, 2), _split(v, 2), m).transpose(1, 2).flatten(2),
         {"q_num_heads": 2, "kv_num_heads": 2}, opset=23, label="flat-mask"),
    Spec("Attention", (normal(1, 2, 3, 4), normal(1, 2, 3, 4, seed=1), normal(1, 2, 3, 4, seed=2)), (0, 1, 2),
         lambda q, k, v: (2 * ((q @ k.mT / 2) / 2).tanh()).softmax(-1) @ v, {"softcap": 2.0}, opset=23,
         label="softcap"),
    Spec("RotaryEmbedding", (normal(2, 2, 3, 4), normal(2, 3, 2, seed=1), normal(2, 3, 2, seed=2)),
         torch=_rotated, opset=23),
    Spec("RotaryEmbedding", (normal(1, 3, 8), normal(9, 2, seed=1), normal(9, 2, seed=2), np.array([[4, 0, 8]])),
         attributes={"num_heads": 2, "interleaved": 1}, opset=23, label="positions"),
    # recurrent layers
    Spec("LSTM", (normal(4, 2, 3), normal(1, 20, 3), normal(1, 20, 5), normal(1, 40), None, normal(1, 2, 5),
                  normal(1, 2, 5, seed=1)),
         (0, 1, 2, 3, 5, 6), _lstm, {"hidden_size": 5}, outputs=3),
    Spec("LSTM", (normal(3, 2, 3), normal(1, 8, 3), normal(1, 8, 2), normal(1, 16)), (0, 1, 2, 3),
         lambda *a: _lstm(*a)[0], {"hidden_size": 2}, label="sequence"),
    Spec("LSTM", (normal(3, 2, 3), normal(1, 8, 3), normal(1, 8, 2), normal(1, 16)), (0, 1, 2, 3), _lstm,
         {"hidden_size": 2}, outputs=3, ignored=(0, 2), label="last"),
    Spec("LSTM", (normal(4, 2, 3), normal(2, 8, 3), normal(2, 8, 2)), (0, 1, 2), None,
         {"hidden_size": 2, "direction": "bidirectional"}, outputs=3, label="bidirectional"),
    Spec("GRU", (normal(4, 2, 3), normal(1, 15, 3), normal(1, 15, 5), normal(1, 30)), (0, 1, 2, 3), _gru,
         {"hidden_size": 5, "linear_before_reset": 1}, outputs=2),
    Spec("GRU", (normal(4, 2, 3), normal(1, 15, 3), normal(1, 15, 5), normal(1, 30), None, normal(1, 2, 5)),
         (0, 1, 2, 3, 5), None, {"hidden_size": 5, "direction": "reverse"}, outputs=2, label="reverse"),
    Spec("GRU", (normal(4, 2, 3), normal(2, 6, 3), normal(2, 6, 2), normal(2, 12)), (0, 1, 2, 3), None,
         {"hidden_size": 2, "direction": "bidirectional", "linear_before_reset": 1}, outputs=2, ignored=(0,),
         label="bidirectional-last"),
    Spec("RNN", (normal(4, 2, 3), normal(1, 5, 3), normal(1, 5, 5), normal(1, 10), None, normal(1, 2, 5)),
         (0, 1, 2, 3, 5), _rnn, {"hidden_size": 5}, outputs=2),
    Spec("RNN", (normal(4, 2, 3), normal(2, 2, 3), normal(2, 2, 2), normal(2, 4)), (0, 1, 2, 3), None,
         {"hidden_size": 2, "direction": "bidirectional", "activations": ["Relu", "Tanh"]}, outputs=2,
         label="bidirectional"),
    Spec("LSTM", (normal(4, 3, 3), normal(1, 8, 3), normal(1, 8, 2), normal(1, 16), _early(2, 4, 1), normal(1, 3, 2),
                  normal(1, 3, 2, seed=1)),
         (0, 1, 2, 3, 5, 6), _short(_lstm, (2, 4, 1)), {"hidden_size": 2}, outputs=3, label="lengths"),
    Spec("LSTM", (normal(4, 3, 3), normal(2, 8, 3), normal(2, 8, 2), normal(2, 16), _early(2, 4, 1)), (0, 1, 2, 3),
         None, {"hidden_size": 2, "direction": "bidirectional"}, outputs=3, ignored=(0, 1), label="lengths-cell"),
    Spec("GRU", (normal(4, 3, 3), normal(1, 6, 3), normal(1, 6, 2), normal(1, 12), _early(3, 1, 2)), (0, 1, 2, 3),
         _short(lambda *a: _gru(*a[:4]), (3, 1, 2)), {"hidden_size": 2, "linear_before_reset": 1}, outputs=2,
         label="lengths"),
    Spec("RNN", (normal(4, 3, 3), normal(1, 2, 3), normal(1, 2, 2), normal(1, 4), _early(4, 1, 2), normal(1, 3, 2)),
         (0, 1, 2, 3, 5), _short(_rnn, (4, 1, 2)), {"hidden_size": 2}, outputs=2, label="lengths"),
    Spec("RNN", (normal(4, 3, 3), normal(1, 2, 3), normal(1, 2, 2), normal(1, 4), _early(3, 1, 4)), (0, 1, 2, 3),
         None, {"hidden_size": 2, "direction": "reverse", "activations": ["Relu"]}, outputs=2, label="lengths-reverse"),
    Spec("LSTM", (normal(3, 2, 3), normal(2, 8, 3), normal(2, 8, 2), normal(2, 16)), (0, 1, 2, 3), None,
         {"hidden_size": 2, "direction": "bidirectional", "activation_alpha": [0.3, 0.1, 0.4], "activation_beta": [0.6],
          "activations": ["Sigmoid", "LeakyRelu", "Tanh", "HardSigmoid", "Tanh", "Elu"]}, outputs=3,
         label="two-directions"),
    # functions
    Spec("Tan", (_grid((3, 4)),), torch=lambda x: x.tan()),
    Spec("Sinh", (normal(3, 4),), torch=lambda x: x.sinh()),
    Spec("Cosh", (normal(3, 4),), torch=lambda x: x.cosh()),
    Spec("Atan", (normal(3, 4),), torch=lambda x: x.atan()),
    Spec("Atanh", (_grid((3, 4)),), torch=lambda x: x.atanh()),
    Spec("Asin", (_grid((3, 4)),), torch=lambda x: x.asin()),
    Spec("Acos", (_grid((3, 4)),), torch=lambda x: x.acos()),
    Spec("Asinh", (normal(3, 4),), torch=lambda x: x.asinh()),
    Spec("Acosh", (1 + positive(3, 4),), torch=lambda x: x.acosh()),
    Spec("Softsign", (normal(3, 4),), torch=lambda x: _f().softsign(x)),
    Spec("ThresholdedRelu", (2 * normal(4, 5) + 0.01,), torch=lambda x: x * (x > 0.7), attributes={"alpha": 0.7}),
    Spec("Mod", (whole(2, 3, 4), np.array([1.0, -2.0, 4.0, -1.0])), (0, 1), lambda a, b: _t().fmod(a, b), {"fmod": 1}),
    Spec("Mod", (whole(4), np.array([[4.0], [-2.0]])), (1,), lambda a, b: _t().fmod(a, b), {"fmod": 1},
         label="divisor"),
    Spec("Celu", (normal(3, 4),), torch=lambda x: _f().celu(x, 0.7), attributes={"alpha": 0.7}),
    Spec("Swish", (normal(3, 4),), torch=lambda x: x * (1.5 * x).sigmoid(), attributes={"alpha": 1.5}, opset=24),
    Spec("Mean", (normal(2, 3), normal(3), normal(2, 1)), (0, 1, 2), lambda a, b, c: (a + b + c) / 3),
    Spec("CastLike", (normal(2, 3), normal(1)), torch=lambda x, y: x * 1),
)  # fmt: skip
