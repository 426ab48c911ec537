"""What the newer exporter computes with weights, as torch functions of a module's parameters, to go back through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from poetopt.graph import TrainingGraph
from tests.autodiff.classics import Normalized
from tests.autodiff.exported import Mixed, Recurrent, SqueezeExcite

GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2)}
"""torch's gates in ONNX's order."""


def folded(module: nn.Module) -> Iterator[Tensor]:
    """Weights of the file that are no parameter of the module."""
    for part in module.modules():
        if isinstance(part, Normalized):
            yield from _convolution(part.conv, part.norm)
        elif isinstance(part, SqueezeExcite):
            yield from _convolution(part.expand, part.norm1)
            yield from _convolution(part.depth, part.norm2)
        elif isinstance(part, Mixed):
            yield from (part.group.weight[:, None, None], part.group.bias[:, None, None])
            yield part.slope.weight[None, :, None, None]
        elif isinstance(part, Recurrent):
            yield from _recurrent(part.layers)


def _convolution(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> Iterator[Tensor]:
    assert norm.running_var is not None
    assert norm.running_mean is not None
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    yield conv.weight * scale[:, None, None, None]
    bias = conv.bias if conv.bias is not None else 0.0
    yield (bias - norm.running_mean) * scale + norm.bias


def _recurrent(layers: Any) -> Iterator[Tensor]:
    order = GATES[layers.mode]
    ends = ("", "_reverse") if layers.bidirectional else ("",)

    def gates(name: str) -> Tensor:
        return torch.cat([getattr(layers, name).chunk(len(order))[gate] for gate in order])

    for layer in range(layers.num_layers):
        for kind in ("weight_ih", "weight_hh"):
            yield torch.stack([gates(f"{kind}_l{layer}{end}") for end in ends])
        yield torch.stack(
            [torch.cat([gates(f"{kind}_l{layer}{end}") for kind in ("bias_ih", "bias_hh")]) for end in ends]
        )


def pulled_back(
    module: nn.Module, graph: TrainingGraph, found: Mapping[str, np.ndarray[Any, Any]], stored: Mapping[str, str]
) -> dict[str, np.ndarray[Any, Any]]:
    """Gradients of the module's parameters, from those of the file's weights `found`.

    stored
        Parameters that lie transposed in the file, and under which name.
    """
    own = dict(module.named_parameters())
    made: list[tuple[str, Tensor]] = [(name, parameter) for name, parameter in own.items() if name not in stored]
    made += [(name, own[key].T) for key, name in stored.items()] + [("", tensor) for tensor in folded(module)]
    outputs, given = [], []
    for weight in graph.trained:
        value = graph.values[weight]
        fits = [t for _, t in made if t.shape == value.shape and np.allclose(t.detach().numpy(), value, atol=1e-5)]
        assert fits, f"{weight} is nothing that is known of the module"
        outputs.append(fits[0])
        given.append(torch.from_numpy(np.array(found[graph.gradients[weight]])))
    back = torch.autograd.grad(outputs, list(own.values()), given, allow_unused=True)
    return {key: g.numpy() for key, g in zip(own, back, strict=True) if g is not None}
