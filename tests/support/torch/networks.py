"""Small networks of the usual kinds, written out, each of which gives its own loss; the benchmark has larger ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        self.aside = (
            nn.Identity()
            if before == width and stride == 1
            else nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + self.aside(x))


class Bottleneck(nn.Module):
    """ResNet-50's block."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        inner = width // 4
        self.layers = nn.Sequential(
            *(nn.Conv2d(before, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()),
            *(nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()),
            *(nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width)),
        )
        self.aside = (
            nn.Identity()
            if before == width and stride == 1
            else nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layers(x) + self.aside(x))


class ResNet(nn.Module):
    """ResNet-18 where four widths are given; ResNet-50 with Bottleneck, its widths, a stem of 64 and its blocks."""

    def __init__(
        self,
        widths: tuple[int, ...],
        blocks: tuple[int, ...] = (2, 2, 2, 2),
        classes: int = 10,
        block_of: type[nn.Module] = Residual,
        first: int | None = None,
    ) -> None:
        super().__init__()
        before = first or widths[0]
        stem = [nn.Conv2d(3, before, 7, 2, 3, bias=False), nn.BatchNorm2d(before), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        body = []
        for level, width in enumerate(widths):
            for block in range(blocks[level]):
                body.append(block_of(before, width, 2 if level and not block else 1))
                before = width
        self.features = nn.Sequential(*stem, *body)
        self.head = nn.Linear(before, classes)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.features(x).mean((2, 3))), labels)


class Inverted(nn.Module):
    """MobileNetV2's block."""

    def __init__(self, before: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = before * expansion
        self.joined = stride == 1 and before == width
        self.layers = nn.Sequential(
            *([] if expansion == 1 else [nn.Conv2d(before, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6()]),
            nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        return x + y if self.joined else y


class MobileNet(nn.Module):
    """MobileNetV2, of rows (expansion, width, blocks, stride)."""

    def __init__(self, rows: tuple[tuple[int, int, int, int], ...], first: int, last: int, classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, first, 3, 2, 1, bias=False), nn.BatchNorm2d(first), nn.ReLU6()]
        before = first
        for expansion, width, blocks, stride in rows:
            for block in range(blocks):
                layers.append(Inverted(before, width, 1 if block else stride, expansion))
                before = width
        layers += [nn.Conv2d(before, last, 1, bias=False), nn.BatchNorm2d(last), nn.ReLU6()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, classes))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.features(x).mean((2, 3))), labels)


class Depthwise(nn.Module):
    """ConvNeXt's block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """ConvNeXt, without stochastic depth."""

    def __init__(self, widths: tuple[int, ...], blocks: tuple[int, ...], classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, width, count in zip((3, *widths), widths, blocks, strict=False):
            if layers:
                layers += [nn.GroupNorm(1, before), nn.Conv2d(before, width, 2, 2)]
            else:
                layers += [nn.Conv2d(before, width, 4, 4), nn.GroupNorm(1, width)]
            layers += [Depthwise(width) for _ in range(count)]
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], classes))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.features(x).mean((2, 3))), labels)


class Layer(nn.Module):
    """A layer of GPT-2 (norms first, causal) or BERT (norms last)."""

    def __init__(self, width: int, heads: int, causal: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attended(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return F.dropout(self.out(y.transpose(1, 2).reshape(x.shape)), self.dropout, self.training)

    def fed(self, x: Tensor) -> Tensor:
        return F.dropout(self.down(F.gelu(self.up(x))), self.dropout, self.training)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.norms
        if self.causal:
            x = x + self.attended(first(x))
            return x + self.fed(second(x))
        x = first(x + self.attended(x))
        return second(x + self.fed(x))


class Transformer(nn.Module):
    """GPT-2 with tied embeddings, or BERT's masked language model."""

    def __init__(
        self, words: int, length: int, width: int, heads: int, layers: int, *, causal: bool, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList([Layer(width, heads, causal, dropout) for _ in range(layers)])
        self.norm, self.dropout = nn.LayerNorm(width), dropout

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = F.dropout(self.words(tokens) + self.places(places), self.dropout, self.training)
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class LlamaLayer(nn.Module):
    """RMSNorm, attention with rotary places and fewer heads of keys and values, and SwiGLU."""

    def __init__(self, width: int, heads: int, groups: int, inner: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norms = nn.ModuleList([nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)])
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * groups * self.size, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = self.norms
        y, (batch, length, width) = first(x), x.shape
        q = self.q(y).view(batch, length, self.heads, -1).transpose(1, 2)
        k, v = self.kv(y).view(batch, length, 2 * self.groups, -1).transpose(1, 2).chunk(2, dim=1)
        q, k = (t * cos + torch.cat([-t[..., self.size // 2 :], t[..., : self.size // 2]], -1) * sin for t in (q, k))
        k, v = (t.repeat_interleave(self.heads // self.groups, dim=1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        y = second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Llama's kind: no bias, no Dropout, a head of its own."""

    def __init__(self, words: int, width: int, heads: int, groups: int, inner: int, layers: int) -> None:
        super().__init__()
        self.words, self.size = nn.Embedding(words, width), width // heads
        self.layers = nn.ModuleList([LlamaLayer(width, heads, groups, inner) for _ in range(layers)])
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        turns = 10000.0 ** -(torch.arange(0, self.size, 2, device=tokens.device) / self.size)
        angles = torch.outer(torch.arange(tokens.shape[1], device=tokens.device).float(), turns).repeat(1, 2)
        cos, sin, x = angles.cos(), angles.sin(), self.words(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def _twice(before: int, width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (before, width):
        layers += [nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """A U-Net that labels each pixel."""

    def __init__(self, widths: tuple[int, ...], classes: int = 4) -> None:
        super().__init__()
        self.down = nn.ModuleList([_twice(a, b) for a, b in zip((3, *widths), widths, strict=False)])
        pairs = list(zip(widths[::-1], widths[-2::-1], strict=False))
        self.lift = nn.ModuleList([nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs])
        self.up = nn.ModuleList([_twice(2 * b, b) for _, b in pairs])
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        passed: list[Tensor] = []
        for k, level in enumerate(self.down):
            x = level(F.max_pool2d(x, 2) if k else x)
            passed.append(x)
        for lift, level, skip in zip(self.lift, self.up, passed[-2::-1], strict=True):
            x = level(torch.cat([skip, lift(x)], 1))
        return F.cross_entropy(self.head(x), labels)


class Branches(nn.Module):
    """Branches on a value, which can't be in one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 64), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x))
        if y.sum() > 0:
            y = y * 2
        return torch.tanh(self.second(torch.tanh(y))).sum()


class Counting(nn.Module):
    """Reads a buffer and an input, and changes both."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(6)])
        self.level: Tensor
        self.register_buffer("level", torch.zeros(16))

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x) * torch.cos(self.level) + seen.sum())
        self.level.add_(x.detach().mean(0))
        seen.mul_(0.5)
        return (x * torch.sin(self.level)).sum()


class Losses(nn.Module):
    """Ends in losses that torch's CPU kernels give in storage of as many elements as they read."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(24, 24) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for layer in self.layers:
            y = torch.tanh(layer(torch.tanh(y)))
        total = F.mse_loss(y, x) + F.smooth_l1_loss(y, x, reduction="sum") + F.soft_margin_loss(y, x.sign())
        return total + F.binary_cross_entropy(y.sigmoid(), x.sigmoid())


def made(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """A network by its name, and a batch: small enough for a test."""
    torch.manual_seed(0)
    images, tokens = torch.randn(4, 3, 48, 48), torch.randint(0, 50, (4, 32))
    if name == "resnet":
        return ResNet((8, 16)), (images, torch.arange(4))
    if name == "mobilenet":
        return MobileNet(((1, 8, 1, 1), (4, 12, 2, 2)), 8, 32), (images, torch.arange(4))
    if name == "unet":
        return UNet((4, 8)), (images, torch.randint(0, 4, (4, 48, 48)))
    return Transformer(50, 32, 32, 2, 2, causal=name == "gpt"), (tokens, tokens)
