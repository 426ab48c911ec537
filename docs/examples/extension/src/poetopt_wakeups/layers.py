"""Frontend for files that end in `.layers`: a network as a list, one layer a line.

    input 64
    linear 32
    shrink 0.3
    linear 10

Layers are `linear WIDTH`, `relu`, and `shrink LAMBDA`. Weights are drawn anew from a fixed seed each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from poetopt.frontends import load
from poetopt.graph import Graph
from poetopt.util.errors import ModelError


def read(path: Path, *, batch: int | None, train: str | Sequence[str] | None) -> Graph:
    """The network of a `.layers` file. Raises ModelError, naming the line, for what it can't read."""
    try:
        model = _model(path.stem, path.read_text(encoding="utf-8"), batch or 8)
    except ValueError as error:
        raise ModelError(f"{path}: {error}; see the layers that poetopt_wakeups.layers knows") from error
    graph = load(model, train=train)
    assert isinstance(graph, Graph)  # a model in memory is never a problem file
    return graph


def _model(name: str, text: str, batch: int) -> onnx.ModelProto:
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines or lines[0][1][:1] != ["input"]:
        raise ValueError("the first line is `input WIDTH`")
    draw = np.random.default_rng(0)
    first = width = int(_number(*lines[0]))
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    last = "input"
    for number, words in lines[1:]:
        made = f"layer{number}"
        if words[0] == "linear":
            before, width = width, int(_number(number, words))
            values = (draw.standard_normal((before, width)) / np.sqrt(before)).astype(np.float32)
            weights.append(numpy_helper.from_array(values, f"{made}.weight"))
            nodes.append(helper.make_node("MatMul", [last, f"{made}.weight"], [made], name=made))
        elif words[0] == "relu":
            nodes.append(helper.make_node("Relu", [last], [made], name=made))
        elif words[0] == "shrink":
            nodes.append(helper.make_node("Shrink", [last], [made], name=made, lambd=_number(number, words)))
        else:
            raise ValueError(f"line {number}: no layer is called '{words[0]}'")
        last = made
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, [batch, first])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [batch, width])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def _number(number: int, words: list[str]) -> float:
    try:
        return float(words[1])
    except (IndexError, ValueError) as error:
        raise ValueError(f"line {number}: `{' '.join(words)}` needs a number") from error
