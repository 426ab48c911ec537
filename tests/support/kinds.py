"""Small networks as exporters write them: what is stored, what of it is trained, and what is data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tests.support.frontends import floats, model_of

Array = NDArray[Any]


@dataclass(frozen=True)
class Kind:
    """A network: its nodes and all that is stored; `data` says what is not trained of the floats."""

    nodes: tuple[NodeProto, ...]
    shape: tuple[int, ...]
    weights: Mapping[str, Array]
    data: frozenset[str] = frozenset()
    opset: int = 18

    @property
    def trained(self) -> set[str]:
        """What is trained."""
        kept = (name for name, array in self.weights.items() if array.dtype.kind == "f" and array.ndim)
        return set(kept) - self.data

    def model(self, in_nodes: Collection[str] = ()) -> onnx.ModelProto:
        """The file, with some tensors as the values of Constant nodes."""
        first = [
            helper.make_node("Constant", [], [name], value=numpy_helper.from_array(self.weights[name]))
            for name in self.weights
            if name in in_nodes
        ]
        stored = {name: array for name, array in self.weights.items() if name not in in_nodes}
        return model_of([*first, *self.nodes], {"x": self.shape}, ["y"], stored, opset=self.opset)


def node(op: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
    """A node that reads names separated by blanks."""
    return helper.make_node(op, inputs.split(), [output], **attributes)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def positive(*shape: int) -> Array:
    return np.asarray(np.abs(floats(*shape, seed=5)) + 0.5, np.float32)


def kind(
    nodes: Sequence[NodeProto], shape: Sequence[int], weights: Mapping[str, Array], *, data: str = "", opset: int = 18
) -> Kind:
    """A kind, its names separated by blanks."""
    return Kind(tuple(nodes), tuple(shape), weights, frozenset(data.split()), opset)


HALF = np.array([0.5], np.float32)
PADDLE = {
    "mlp": kind(
        [
            node("MatMul", "x linear_0.w_0", "a"), node("Add", "a linear_0.b_0", "b"), node("Relu", "b", "c"),
            node("MatMul", "c linear_1.w_0", "d"), node("Add", "d linear_1.b_0", "y"),
        ],
        [4, 6],
        {"linear_0.w_0": floats(6, 5), "linear_0.b_0": floats(5), "linear_1.w_0": floats(5, 3),
         "linear_1.b_0": floats(3)},
        opset=13,
    ),
    "conv": kind(
        [
            node("Conv", "x conv2d_0.w_0", "a", kernel_shape=[3, 3]), node("Reshape", "conv2d_0.b_0 shape", "r"),
            node("Add", "a r", "b"), node("Sigmoid", "b", "s"), node("Mul", "b s", "h"),
            node("Mul", "h p2o.pd_op.full.2.0", "c"), node("GlobalAveragePool", "c", "g"), node("Flatten", "g", "f"),
            node("MatMul", "f linear_0.w_0", "m"), node("Add", "m linear_0.b_0", "y"),
        ],
        [2, 2, 5, 5],
        {"conv2d_0.w_0": floats(4, 2, 3, 3), "conv2d_0.b_0": floats(4), "shape": ints(1, 4, 1, 1),
         "p2o.pd_op.full.2.0": HALF, "linear_0.w_0": floats(4, 3), "linear_0.b_0": floats(3)},
        data="p2o.pd_op.full.2.0",
    ),
}  # fmt: skip
CNTK = {
    "mnist": kind(
        [
            node("Div", "x Constant340", "p"), node("Conv", "p Parameter5", "a", auto_pad="SAME_UPPER"),
            node("Add", "a Parameter6", "b"), node("Relu", "b", "c"), node("Reshape", "c Pooling_shape", "d"),
            node("Reshape", "Parameter193 Times_shape", "w"), node("MatMul", "d w", "m"),
            node("Add", "m Parameter194", "y"),
        ],
        [1, 1, 4, 4],
        {"Constant340": np.array(255, np.float32), "Parameter5": floats(2, 1, 3, 3), "Parameter6": floats(2, 1, 1),
         "Pooling_shape": ints(1, 32), "Parameter193": floats(2, 4, 4, 3), "Times_shape": ints(32, 3),
         "Parameter194": floats(1, 3)},
    ),
    "mean": kind(
        [
            node("Sub", "x Constant12", "p"), node("Transpose", "Parameter1", "w", perm=[1, 0]),
            node("MatMul", "p w", "a"), node("Add", "Parameter2 a", "b"), node("Tanh", "b", "c"),
            node("MatMul", "c Parameter3", "d"), node("Add", "d Parameter4", "y"),
        ],
        [3, 4],
        {"Constant12": floats(1, 4), "Parameter1": floats(5, 4), "Parameter2": floats(5), "Parameter3": floats(5, 2),
         "Parameter4": floats(2)},
        data="Constant12",
    ),
}  # fmt: skip
KERAS = {
    "normalization": kind(
        [
            node("Sub", "x model/normalization/mean", "s"), node("Sqrt", "model/normalization/variance", "q"),
            node("Max", "q model/normalization/epsilon", "d"), node("Div", "s d", "n"),
            node("MatMul", "n model/dense/kernel", "a"), node("Add", "a model/dense/bias", "b"), node("Relu", "b", "c"),
            node("MatMul", "c model/out/kernel", "d2"), node("Add", "d2 model/out/bias", "y"),
        ],
        [4, 3],
        {"model/normalization/mean": floats(1, 3), "model/normalization/variance": positive(1, 3),
         "model/normalization/epsilon": np.array(1e-7, np.float32), "model/dense/kernel": floats(3, 5),
         "model/dense/bias": floats(5), "model/out/kernel": floats(5, 2), "model/out/bias": floats(2)},
        data="model/normalization/mean model/normalization/variance",
    ),
    "reciprocal": kind(
        [
            node("Transpose", "x", "t", perm=[0, 3, 1, 2]), node("Mul", "t norm/inverse", "m"),
            node("Add", "m norm/shift", "n"), node("Conv", "n conv/kernel conv/bias", "c"), node("Relu", "c", "r"),
            node("ReduceMean", "r axes", "g", keepdims=0), node("MatMul", "g head/kernel", "y"),
        ],
        [2, 4, 4, 3],
        {"norm/inverse": positive(1, 3, 1, 1), "norm/shift": floats(1, 3, 1, 1), "conv/kernel": floats(4, 3, 2, 2),
         "conv/bias": floats(4), "axes": ints(2, 3), "head/kernel": floats(4, 2)},
        data="norm/inverse norm/shift",
    ),
}  # fmt: skip
MATLAB = {
    "zerocenter": kind(
        [
            node("Sub", "x imageinput_Mean", "imageinput"), node("Conv", "imageinput conv_W conv_B", "conv"),
            node("Relu", "conv", "relu"), node("GlobalAveragePool", "relu", "gap"),
            node("Conv", "gap fc_W fc_B", "fc"), node("Flatten", "fc", "y"),
        ],
        [1, 2, 4, 4],
        {"imageinput_Mean": floats(1, 2, 4, 4), "conv_W": floats(3, 2, 3, 3), "conv_B": floats(3),
         "fc_W": floats(2, 3, 1, 1), "fc_B": floats(2)},
        data="imageinput_Mean",
    ),
    "zscore": kind(
        [
            node("Sub", "x in_Mean", "s"), node("Div", "s in_StandardDeviation", "n"),
            node("Conv", "n conv_W conv_B", "conv"),
            node("BatchNormalization", "conv batchnorm_scale batchnorm_B batchnorm_mean batchnorm_var", "b"),
            node("GlobalAveragePool", "b", "gap"), node("Conv", "gap fc_W fc_B", "fc"), node("Flatten", "fc", "y"),
        ],
        [2, 3, 4, 4],
        {"in_Mean": floats(1, 3, 1, 1), "in_StandardDeviation": positive(1, 3, 1, 1), "conv_W": floats(4, 3, 3, 3),
         "conv_B": floats(4), "batchnorm_scale": floats(4), "batchnorm_B": floats(4), "batchnorm_mean": floats(4),
         "batchnorm_var": positive(4), "fc_W": floats(2, 4, 1, 1), "fc_B": floats(2)},
        data="in_Mean in_StandardDeviation batchnorm_mean batchnorm_var",
    ),
}  # fmt: skip
_CONV, _BIAS, _DENSE = (f"call/model/{name}/ReadVariableOp:0" for name in ("c/Conv2D", "c/BiasAdd", "d/MatMul"))
TF2ONNX = {
    "nhwc": kind(
        [
            node("Transpose", "x", "t", perm=[0, 3, 1, 2]), node("Conv", f"t {_CONV} {_BIAS}", "c"),
            node("Relu", "c", "r"), node("Transpose", "r", "u", perm=[0, 2, 3, 1]),
            node("ReduceMean", "u axes", "g", keepdims=0), node("MatMul", f"g {_DENSE}", "y"),
        ],
        [2, 4, 4, 3],
        {_CONV: floats(4, 3, 2, 2), _BIAS: floats(4), "axes": ints(1, 2), _DENSE: floats(4, 2)},
    ),
    "normalized": kind(
        [
            node("Cast", "x", "f", to=TensorProto.FLOAT), node("Sub", "f call/model/normalization/sub/y:0", "s"),
            node("Div", "s call/model/normalization/Sqrt:0", "n"), node("Transpose", "n", "t", perm=[0, 3, 1, 2]),
            node("Conv", f"t {_CONV} {_BIAS}", "c"), node("GlobalAveragePool", "c", "g"),
            node("Squeeze", "g axes", "q"), node("MatMul", f"q {_DENSE}", "y"),
        ],
        [2, 4, 4, 3],
        {"call/model/normalization/sub/y:0": floats(1, 1, 1, 3),
         "call/model/normalization/Sqrt:0": positive(1, 1, 1, 3), _CONV: floats(4, 3, 2, 2), _BIAS: floats(4),
         "axes": ints(2, 3), _DENSE: floats(4, 2)},
        data="call/model/normalization/sub/y:0 call/model/normalization/Sqrt:0",
    ),
}  # fmt: skip
SKLEARN = {
    "classifier": kind(
        [
            node("Cast", "x", "cast", to=TensorProto.FLOAT), node("MatMul", "cast coefficient", "m"),
            node("Add", "m intercepts", "a"), node("Relu", "a", "r"), node("MatMul", "r coefficient1", "m1"),
            node("Add", "m1 intercepts1", "y"),
        ],
        [5, 4],
        {"coefficient": floats(4, 6), "intercepts": floats(1, 6), "coefficient1": floats(6, 3),
         "intercepts1": floats(1, 3)},
    ),
    "scaled": kind(
        [
            node("Sub", "x Su_Subcst", "s"), node("Div", "s Di_Divcst", "n"), node("MatMul", "n coefficient", "m"),
            node("Add", "m intercepts", "y"),
        ],
        [5, 4],
        {"Su_Subcst": floats(4), "Di_Divcst": positive(4), "coefficient": floats(4, 3), "intercepts": floats(1, 3)},
        data="Su_Subcst Di_Divcst",
    ),
}  # fmt: skip
KINDS = {
    f"{group}-{name}": found
    for group, networks in {
        "paddle": PADDLE, "cntk": CNTK, "keras": KERAS, "matlab": MATLAB, "tf2onnx": TF2ONNX, "sklearn": SKLEARN,
    }.items()
    for name, found in networks.items()
}  # fmt: skip
