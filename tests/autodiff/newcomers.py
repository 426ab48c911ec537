"""Networks of later years, small: ConvNeXt, a mobile one with squeeze and excitation, T5, a speech encoder, Swin."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as f
from torch import Tensor, nn


class ConvNeXt(nn.Module):
    """Patches, a 7x7 depthwise convolution, channels last, a scale for each layer."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem, self.depth = nn.Conv2d(3, width, 4, 4), nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.wide, self.narrow = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )
        self.scale, self.classify = nn.Parameter(torch.rand(width)), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        x = x + (self.scale * self.narrow(f.gelu(self.wide(y)))).permute(0, 3, 1, 2)
        return self.classify(x.mean((2, 3)))


class Mobile(nn.Module):
    """HardSwish, HardSigmoid, channels weighed by their means, normalized in training."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width)
        self.depth, self.norm2 = nn.Conv2d(width, width, 5, 2, 2, groups=width, bias=False), nn.BatchNorm2d(width)
        self.squeeze, self.excite = nn.Conv2d(width, 4, 1), nn.Conv2d(4, width, 1)
        self.classify = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Any:
        x = f.hardswish(self.norm2(self.depth(f.hardswish(self.norm1(self.first(x))))))
        x = x * f.hardsigmoid(self.excite(torch.tanh(self.squeeze(f.adaptive_avg_pool2d(x, 1)))))
        return self.classify(f.adaptive_avg_pool2d(x, 1).flatten(1))


class T5(nn.Module):
    """Attention with a learnt bias for each bucket of distances, RMS normalization, gated GELU."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.embed, self.bias = heads, nn.Embedding(40, width), nn.Embedding(8, heads)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.rise, self.fall = nn.Linear(width, 32), nn.Linear(width, 32), nn.Linear(32, width)
        self.norm, self.head = nn.Parameter(torch.rand(width) + 0.5), nn.Linear(width, 40, bias=False)

    def forward(self, ids: Tensor) -> Any:
        x = self.embed(ids)
        batch, tokens, width = x.shape
        places = torch.arange(tokens)
        apart = places[None] - places[:, None]
        bias = self.bias((apart > 0).long() * 4 + apart.abs().clamp(max=3)).permute(2, 0, 1)[None]
        q, k, v = (
            p(self._normed(x)).view(batch, tokens, self.heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        mixed = (q @ k.transpose(3, 2) + bias).softmax(-1) @ v
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, tokens, width))
        y = self._normed(x)
        return self.head(x + self.fall(f.gelu(self.gate(y), approximate="tanh") * self.rise(y)))

    def _normed(self, x: Tensor) -> Tensor:
        return self.norm * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Speech(nn.Module):
    """Two convolutions along time, positions that aren't trained, attention, the largest of all steps."""

    places: Tensor

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(8, width, 3, padding=1), nn.Conv1d(width, width, 3, 2, 1)
        self.register_buffer("places", torch.randn(10, width))
        self.norm, self.project, self.classify = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Any:
        x = f.gelu(self.second(f.gelu(self.first(x)))).permute(0, 2, 1) + self.places
        q, k, v = self.project(self.norm(x)).chunk(3, -1)
        x = x + (q @ k.transpose(1, 2) / 4).softmax(-1) @ v
        return self.classify(x.max(1).values)


class Swin(nn.Module):
    """Windows of a rolled plane, cosine attention with a table of biases and a mask, patches merged."""

    apart: Tensor
    mask: Tensor

    def __init__(self, width: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.heads, self.patches, self.norm = heads, nn.Conv2d(3, width, 2, 2), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table, self.merge = nn.Parameter(0.1 * torch.randn(49, heads)), nn.Linear(4 * width, 5, bias=False)
        at = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        apart = at[:, :, None] - at[:, None] + 3
        self.register_buffer("apart", (7 * apart[0] + apart[1]).flatten())
        part = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
        part = (3 * part[:, None] + part).view(2, 4, 2, 4).transpose(1, 2).reshape(4, 1, 16)
        self.register_buffer("mask", (part != part.transpose(1, 2)).float() * -100)

    def forward(self, x: Tensor) -> Any:
        x = self.patches(x).permute(0, 2, 3, 1)
        batch, _, _, width = x.shape
        y = torch.roll(self.norm(x), (-2, -2), (1, 2))
        y = y.view(batch, 2, 4, 2, 4, width).transpose(2, 3).reshape(-1, 16, width)
        q, k, v = self.qkv(y).reshape(-1, 16, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        weights = 5 * f.normalize(q, dim=-1) @ f.normalize(k, dim=-1).transpose(-2, -1)
        weights = weights + self.table[self.apart].view(16, 16, -1).permute(2, 0, 1)
        weights = (weights.view(batch, 4, self.heads, 16, 16) + self.mask[None, :, None]).flatten(0, 1).softmax(-1)
        y = self.out((weights @ v).transpose(1, 2).reshape(-1, 16, width))
        y = y.view(batch, 2, 2, 4, 4, width).transpose(2, 3).reshape(x.shape)
        x = x + torch.roll(y, (2, 2), (1, 2))
        return self.merge(torch.cat([x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], -1).mean((1, 2)))


def newcomers() -> dict[str, tuple[nn.Module, Tensor]]:
    """Each network with a batch, seeded."""
    torch.manual_seed(3)
    return {
        "convnext": (ConvNeXt(), torch.randn(2, 3, 32, 32)),
        "mobile": (Mobile(), torch.randn(4, 3, 24, 24)),
        "t5": (T5(), torch.randint(0, 40, (2, 9))),
        "speech": (Speech(), torch.randn(2, 8, 20)),
        "swin": (Swin(), torch.randn(2, 3, 16, 16)),
    }
