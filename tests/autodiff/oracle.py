"""What gradients are compared with: runs of a training graph, and the same forward network in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from poetopt.frontends.proto import model_proto
from poetopt.graph import Graph, Node, TrainingGraph

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


def torch_step(graph: TrainingGraph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Loss and parameter gradients of the forward part of `graph`, computed by torch from its ONNX nodes."""
    import torch

    values: dict[str, Any] = {name: torch.from_numpy(np.array(value)) for name, value in graph.values.items()}
    values.update({name: torch.from_numpy(np.array(value)) for name, value in feeds.items()})
    for name in graph.trained:
        values[name].requires_grad_(True)
    for operator in graph.operators:
        if operator.backward:
            continue
        for node in operator.nodes:
            if node.op_type != operator.kind and any(n.op_type == operator.kind for n in operator.nodes):
                continue
            made = _TORCH[node.op_type](node, [values.get(name) for name in node.inputs])
            values.update(zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=False))
    loss = values[graph.loss]
    loss.backward()
    found = {graph.gradients[name]: values[name].grad.numpy() for name in graph.trained}
    return {graph.loss: loss.detach().numpy(), **found}


def _functions() -> dict[str, Callable[[Node, list[Any]], Any]]:
    def conv(node: Node, i: list[Any]) -> Any:
        import torch.nn.functional as f

        pads: Any = node.attributes.get("pads") or [0, 0, 0, 0]
        strides: Any = node.attributes.get("strides", [1, 1])
        x = f.pad(i[0], (pads[1], pads[3], pads[0], pads[2]))
        group: Any = node.attributes.get("group", 1)
        return f.conv2d(x, i[1], i[2] if len(i) > 2 else None, strides, groups=group)

    def pool(node: Node, i: list[Any]) -> Any:
        import torch.nn.functional as f

        kernel: Any = node.attributes["kernel_shape"]
        strides: Any = node.attributes.get("strides", [1, 1])
        pads: Any = node.attributes.get("pads") or [0, 0, 0, 0]
        x = f.pad(i[0], (pads[1], pads[3], pads[0], pads[2]), value=-np.inf)
        return f.max_pool2d(x, kernel, strides)

    def gemm(node: Node, i: list[Any]) -> Any:
        a = i[0].T if node.attributes.get("transA") else i[0]
        b = i[1].T if node.attributes.get("transB") else i[1]
        y = a @ b
        return y + i[2] if len(i) > 2 else y

    def batch_norm(node: Node, i: list[Any]) -> Any:
        import torch.nn.functional as f

        epsilon: Any = node.attributes.get("epsilon", 1e-5)
        return f.batch_norm(i[0], None, None, i[1], i[2], training=True, eps=epsilon)

    def cross_entropy(node: Node, i: list[Any]) -> Any:
        import torch.nn.functional as f

        return f.cross_entropy(i[0], i[1])

    def layer_norm(node: Node, i: list[Any]) -> Any:
        import torch.nn.functional as f

        epsilon: Any = node.attributes.get("epsilon", 1e-5)
        return f.layer_norm(i[0], i[1].shape, i[1], i[2], epsilon)

    def gelu(node: Node, i: list[Any]) -> Any:
        import torch.nn.functional as f

        return f.gelu(i[0], approximate=str(node.attributes.get("approximate", "none")))

    def gather(node: Node, i: list[Any]) -> Any:
        axis: Any = node.attributes.get("axis", 0)
        return i[0][(slice(None),) * axis + (i[1],)]

    def concat(node: Node, i: list[Any]) -> Any:
        import torch

        axis: Any = node.attributes["axis"]
        return torch.cat(i, axis)

    return {
        "LayerNormalization": layer_norm,
        "Gelu": gelu,
        "Gather": gather,
        "Concat": concat,
        "Cast": lambda node, i: i[0].float(),
        "Clip": lambda node, i: i[0].clamp(i[1], i[2]),
        "Expand": lambda node, i: i[0].expand(i[1].tolist()),
        "Mul": lambda node, i: i[0] * i[1],
        "Softmax": lambda node, i: i[0].softmax(node.attributes.get("axis", -1)),
        "Split": lambda node, i: tuple(i[0].chunk(len(node.outputs), node.attributes.get("axis", 0))),
        "Sub": lambda node, i: i[0] - i[1],
        "Tanh": lambda node, i: i[0].tanh(),
        "Transpose": lambda node, i: i[0].permute(node.attributes["perm"]),
        "Unsqueeze": lambda node, i: i[0].reshape(*i[0].shape[:1], 1, 1, *i[0].shape[1:]),
        "Conv": conv,
        "MaxPool": pool,
        "Gemm": gemm,
        "BatchNormalization": batch_norm,
        "SoftmaxCrossEntropyLoss": cross_entropy,
        "LogSoftmax": lambda node, i: i[0].log_softmax(node.attributes["axis"]),
        "NegativeLogLikelihoodLoss": lambda node, i: -i[0].gather(1, i[1][:, None]).mean(),
        "Relu": lambda node, i: i[0].relu(),
        "Add": lambda node, i: i[0] + i[1],
        "MatMul": lambda node, i: i[0] @ i[1],
        "Flatten": lambda node, i: i[0].flatten(1),
        "Reshape": lambda node, i: i[0].reshape(i[1].tolist()),
        "GlobalAveragePool": lambda node, i: i[0].mean((2, 3), keepdim=True),
    }


_TORCH = _functions()
