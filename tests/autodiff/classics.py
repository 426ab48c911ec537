"""ResNet-50, VGG-16 and MobileNetV2 as torch modules: all their layers, few of their channels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as f
from torch import Tensor, nn


class Normalized(nn.Module):
    """A convolution without bias, BatchNormalization with statistics of its own, and perhaps an activation."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, group: int = 1, act: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=group, bias=False)
        self.norm, self.act = nn.BatchNorm2d(outputs), act
        self.norm.running_mean, self.norm.running_var = 0.2 * torch.randn(outputs), 0.5 + torch.rand(outputs)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.normal_(self.norm.bias, 0.0, 0.2)

    def forward(self, x: Tensor) -> Any:
        y = self.norm(self.conv(x))
        return y if self.act is None else self.act(y)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1, and a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.a = Normalized(inputs, width, 1, act=nn.ReLU())
        self.b = Normalized(width, width, 3, stride, act=nn.ReLU())
        self.c = Normalized(width, 4 * width, 1)
        self.shortcut = Normalized(inputs, 4 * width, 1, stride) if stride > 1 or inputs != 4 * width else nn.Identity()

    def forward(self, x: Tensor) -> Any:
        return f.relu(self.c(self.b(self.a(x))) * 0.5 + self.shortcut(x))


class ResNet50(nn.Module):
    """Sixteen bottlenecks behind a 7x7 stem."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.stem = Normalized(3, width, 7, 2, act=nn.ReLU())
        blocks, inputs = [], width
        for stage, count in enumerate((3, 4, 6, 3)):
            for block in range(count):
                blocks.append(Bottleneck(inputs, width << stage, 2 if stage and not block else 1))
                inputs = 4 * (width << stage)
        self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(inputs, 5)

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.blocks(f.max_pool2d(self.stem(x), 3, 2, 1)).mean((2, 3)))


class VGG16(nn.Module):
    """Thirteen convolutions, three linear layers."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for outputs, count in ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)):
            for _ in range(count):
                layers += [nn.Conv2d(inputs, outputs * width, 3, padding=1), nn.ReLU(inplace=True)]
                inputs = outputs * width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5)
        )
        for layer in self.features:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight)

    def forward(self, x: Tensor) -> Any:
        return self.classifier(torch.flatten(self.features(x), 1))


class Inverted(nn.Module):
    """Wider, depthwise, narrower."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.wide = Normalized(inputs, wide, 1, act=nn.ReLU6()) if expansion > 1 else nn.Identity()
        self.depth = Normalized(wide, wide, 3, stride, wide, nn.ReLU6())
        self.narrow = Normalized(wide, outputs, 1)
        self.added = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Any:
        y = self.narrow(self.depth(self.wide(x)))
        return x + y if self.added else y


class MobileNetV2(nn.Module):
    """Seventeen inverted residuals, a quarter as wide."""

    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = [Normalized(3, 8, 3, 2, act=nn.ReLU6())]
        inputs = 8
        for expansion, outputs, count, first in (
            (1, 4, 1, 1), (6, 6, 2, 2), (6, 8, 3, 2), (6, 16, 4, 2), (6, 24, 3, 1), (6, 40, 3, 2), (6, 80, 1, 1)
        ):  # fmt: skip
            for block in range(count):
                blocks.append(Inverted(inputs, outputs, 1 if block else first, expansion))
                inputs = outputs
        self.blocks, self.last = nn.Sequential(*blocks), Normalized(inputs, 96, 1, act=nn.ReLU6())
        self.fc = nn.Linear(96, 5)

    def forward(self, x: Tensor) -> Any:
        return self.fc(f.dropout(self.last(self.blocks(x)).mean((2, 3)), 0.2, self.training))


def classics() -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Each with a batch, seeded."""
    for number, (name, make, side) in enumerate(
        [("resnet50", ResNet50, 33), ("vgg16", VGG16, 32), ("mobilenetv2", MobileNetV2, 32)]
    ):
        torch.manual_seed(number)
        yield name, make(), torch.randn(4, 3, side, side)  # fewer images leave a normalization too few to go by
