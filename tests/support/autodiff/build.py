"""Graphs written by hand, for tests of what surrounds the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from poetopt.frontends.onnx_file import load_onnx
from poetopt.graph import Graph

Array = NDArray[Any]


def graph(
    nodes: str, inputs: Mapping[str, Sequence[int]], weights: Mapping[str, Array], outputs: Sequence[str],
    train: str | None = None,
) -> Graph:  # fmt: skip
    """A graph of float32 inputs from lines like `y, z = Split<axis=1>(x, s)`."""
    found = []
    for number, line in enumerate(filter(None, (line.strip() for line in nodes.splitlines()))):
        left, _, right = line.partition(" = ")
        op, _, arguments = right.partition("(")
        name, _, given = op.rstrip(">").partition("<")
        attributes = {key: _value(text) for key, _, text in (a.partition("=") for a in given.split(";") if a)}
        read = [a.strip() for a in arguments.rstrip(")").split(",")] if arguments != ")" else []
        written = [a.strip() for a in left.split(",")]
        found.append(helper.make_node(name, read, written, name=f"{name.lower()}{number}", **attributes))
    body = helper.make_graph(
        found, "test",
        [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in inputs.items()],
        [onnx.ValueInfoProto(name=n) for n in outputs],
        [numpy_helper.from_array(v, n) for n, v in weights.items()],
    )  # fmt: skip
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return load_onnx(model, train=train)


def _value(text: str) -> Any:
    if text.startswith("["):
        return [v if v.isalpha() else int(v) for v in text.strip("[]").split()]
    if "." in text:
        return float(text)
    return int(text) if text.lstrip("-").isdigit() else text
