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


class ResNet(nn.Module):
    """ResNet-18 where four widths are given."""

    def __init__(self, widths: tuple[int, ...], blocks: int = 2, classes: int = 10) -> None:
        super().__init__()
        stem = [
            nn.Conv2d(3, widths[0], 7, 2, 3, bias=False),
            nn.BatchNorm2d(widths[0]),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        ]
        body, before = [], widths[0]
        for level, width in enumerate(widths):
            for block in range(blocks):
                body.append(Residual(before, width, 2 if level and not block else 1))
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
