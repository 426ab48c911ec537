"""Pretrained in PyTorch, fine-tuned by a plan inside a RAM budget, and back: on two real data sets.

    pip install 'poetopt[torch]' scikit-learn
    python docs/examples/pretrained.py [digits|wine] [EPOCHS]

Both data sets come with scikit-learn; nothing is downloaded. Each network is pretrained on some of the classes alone:
on the handwritten digits 0 to 4, and on the first two of three cultivars of wine. The device then meets all of them:
accuracy on samples that neither training saw begins near the share of the known classes, and rises. The activations of
fine-tuning fit 60 % of what they ordinarily take, and 90 % for the perceptron of the wines.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import datasets
from torch import nn

import poetopt as po

Array = NDArray[Any]
BATCH = 16


@dataclass(frozen=True)
class Task:
    """A data set, the classes of it that the network is pretrained on, and the budget of fine-tuning."""

    inputs: Array
    labels: Array
    known: tuple[int, ...]
    net: nn.Module
    budget: str

    def split(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Four fifths to train with and one to test with, in a fixed random order."""
        order = np.random.default_rng(0).permutation(len(self.labels))
        parts = np.split(order, [len(order) * 4 // 5])
        train, test = ({"x": self.inputs[part], "labels": self.labels[part]} for part in parts)
        return train, test


def digits() -> Task:
    """1,797 handwritten digits of 8 x 8 pixels (UCI, Alpaydin and Kaynak), and a CNN of four layers."""
    found = datasets.load_digits()
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 16), (16, 16), (16, 16)):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    net = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Dropout(0.1), nn.Flatten(), nn.Linear(256, 10))
    images = (found.images[:, None] / 16).astype(np.float32)
    return Task(images, found.target.astype(np.int64), (0, 1, 2, 3, 4), net, "60%")


def wine() -> Task:
    """178 wines of three cultivars, 13 chemical measurements each (UCI, Forina), and a perceptron."""
    found = datasets.load_wine()
    measurements = (found.data - found.data.mean(0)) / found.data.std(0)
    widths = ((13, 64), (64, 64), (64, 64), (64, 64))
    layers = [layer for before, after in widths for layer in (nn.Linear(before, after), nn.Tanh())]
    net = nn.Sequential(*layers, nn.Linear(64, 3))
    return Task(measurements.astype(np.float32), found.target.astype(np.int64), (0, 1), net, "90%")


def pretrain(task: Task, train: dict[str, Array], epochs: int = 10) -> None:
    """Train the network in torch, on the classes that it is to know."""
    known = np.isin(train["labels"], task.known)
    x, y = torch.from_numpy(train["x"][known]), torch.from_numpy(train["labels"][known])
    optimizer = torch.optim.Adam(task.net.parameters(), 1e-3)
    task.net.train()
    for _ in range(epochs):
        for part in torch.randperm(len(y)).split(BATCH)[:-1]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(task.net(x[part]), y[part]).backward()
            optimizer.step()


def accuracy(net: nn.Module, test: dict[str, Array]) -> float:
    """In torch, in evaluation mode."""
    net.eval()
    with torch.no_grad():
        guessed = net(torch.from_numpy(test["x"])).argmax(1).numpy()
    return float((guessed == test["labels"]).mean())


def main(name: str = "digits", epochs: int = 8) -> tuple[float, float]:
    """Pretrain, fine-tune, print what happened; torch's accuracy before and after."""
    torch.manual_seed(0)
    task = {"digits": digits, "wine": wine}[name]()
    train, test = task.split()
    pretrain(task, train)
    before = accuracy(task.net, test)
    print(f"{name}: pretrained on the classes {task.known}, {before:.1%} of {len(test['labels'])} test samples right")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        model = po.torch.export(task.net.train(), torch.from_numpy(train["x"][:BATCH]), path, input_names=["x"])
        step = model.differentiate(loss="cross-entropy", optimizer="adam")
        report = po.solve(step.cost("a72"), ram=task.budget, time_limit="20s")
        print(report)
        with po.Trainer(report, lr=1e-3) as trainer:
            ended = trainer.fit(train, epochs=epochs, validate=test)
            po.torch.load(task.net, trainer)
    for epoch, found in enumerate(ended.validations, 1):
        print(f"epoch {epoch}: loss {ended.losses[epoch - 1]:.4f}, test accuracy {found['accuracy']:.1%}")
    after = accuracy(task.net, test)
    print(f"in torch again: {after:.1%} right; a step takes {ended.total_ram_bytes:,} B with parameters and optimizer")
    return before, after


if __name__ == "__main__":
    main(*(kind(argument) for kind, argument in zip((str, int), sys.argv[1:], strict=False)))
