"""What gradients are compared with: runs of a training graph, and the same forward network in torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from poetopt.frontends.proto import model_proto
from poetopt.graph import Graph

Array = NDArray[Any]


def session(graph: Graph, outputs: tuple[str, ...] | None = None) -> ort.InferenceSession:
    """One onnxruntime session of the whole graph, unoptimised, one thread."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(
        model_proto(graph, outputs).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run(graph: Graph, feeds: Mapping[str, Array], outputs: tuple[str, ...] | None = None) -> dict[str, Array]:
    """Outputs by name."""
    made = session(graph, outputs)
    names = [output.name for output in made.get_outputs()]
    return dict(zip(names, made.run(names, dict(feeds)), strict=True))


def batch(graph: Graph, seed: int) -> dict[str, Array]:
    """Random inputs: normal floats, and labels within the classes."""
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for name in graph.inputs:
        tensor = graph.tensors[name]
        if tensor.dtype == "int64":
            found[name] = rng.integers(0, 2, tensor.shape).astype(np.int64)
        else:
            found[name] = rng.standard_normal(tensor.shape).astype(tensor.dtype)
    return found
