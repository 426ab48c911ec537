"""Torch modules exported, planned, trained and written by the command line: what is said beside what the file gives.

    python -m benchmarks.trained_files [--only NAME,...] [--output FILE.md]

Each network is trained for some epochs on data that can be learned. *Said* is the kept epoch of `train --validate`,
*file* the written file in plain onnxruntime, 1 and 32 rows at a time, *torch* the module after `po.torch.load`, in
evaluation mode. Rows on which a class differs are counted. It needs torch, and torchvision for one network.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn
from torch.nn import functional

import poetopt as po
from benchmarks.output import put

BATCH, ROWS, HELD_OUT = 16, 192, 96


@dataclass(frozen=True)
class Case:
    """A module, an example's arrays, and what its rows are learned from.

    target
        Of the arrays: labels of classes, or values.
    loss
        As `solve --loss` has it.
    """

    name: str
    make: Callable[[], Any]
    arrays: Callable[[np.random.Generator, int], tuple[Any, ...]]
    target: Callable[[tuple[Any, ...]], Any]
    loss: str = "cross-entropy"
    epochs: int = 6


def floats(*shape: int) -> Callable[[np.random.Generator, int], tuple[Any, ...]]:
    return lambda rng, rows: (rng.standard_normal((rows, *shape), np.float32),)


def tokens(length: int, words: int) -> Callable[[np.random.Generator, int], tuple[Any, ...]]:
    return lambda rng, rows: (rng.integers(0, words, (rows, length)),)


def by_means(arrays: tuple[Any, ...], classes: int = 4) -> Any:
    """Which of four quarters of the numbers has the largest mean."""
    flat = arrays[0].reshape(len(arrays[0]), -1)
    parts = np.array_split(flat, classes, axis=1)
    return np.stack([part.mean(axis=1) for part in parts], axis=1).argmax(axis=1)


def conv_block(before: int, after: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())


class Keywords(nn.Module):  # type: ignore[misc]
    """Convolutions over time with BatchNormalization and Dropout, as for keywords."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((20, 24), (24, 24), (24, 32)):
            layers += [nn.Conv1d(before, after, 5, padding=2), nn.BatchNorm1d(after), nn.ReLU(), nn.MaxPool1d(2)]
        self.body, self.drop, self.head = nn.Sequential(*layers), nn.Dropout(0.3), nn.Linear(32, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.drop(self.body(x).mean(-1)))


class Words(nn.Module):  # type: ignore[misc]
    """A transformer's encoder over tokens, with all of its dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 32)
        self.place = nn.Parameter(torch.randn(1, 16, 32) * 0.1)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 4)

    def forward(self, ids: Any) -> Any:
        return self.head(self.body(self.table(ids) + self.place).mean(1))


class UNet(nn.Module):  # type: ignore[misc]
    """Two levels; its output is dice and binary cross-entropy of a mask that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = conv_block(1, 8), conv_block(8, 16), conv_block(24, 8)
        self.up, self.out = nn.Upsample(scale_factor=2), nn.Conv2d(8, 1, 1)

    def logits(self, x: Any) -> Any:
        wide = self.first(x)
        return self.out(self.third(torch.cat([wide, self.up(self.second(functional.max_pool2d(wide, 2)))], 1)))

    def forward(self, x: Any, mask: Any) -> Any:
        scores = self.logits(x)
        shares = scores.sigmoid()
        dice = 1 - (2 * (shares * mask).sum() + 1) / (shares.sum() + mask.sum() + 1)
        return dice + functional.binary_cross_entropy_with_logits(scores, mask)


class DropPath(nn.Module):  # type: ignore[misc]
    """Residual blocks that a sample leaves out now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = conv_block(3, 16, 2), nn.Linear(16, 4)
        self.blocks = nn.ModuleList(conv_block(16, 16) for _ in range(3))

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            y = block(x)
            if self.training:
                y = y * y.new_empty((y.shape[0], 1, 1, 1)).bernoulli_(0.8).div_(0.8)
            x = x + y
        return self.head(x.mean((2, 3)))


class Recurrent(nn.Module):  # type: ignore[misc]
    """A recurrent layer over numbers."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.body, self.drop, self.head = kind(8, 24, batch_first=True), nn.Dropout(0.2), nn.Linear(24, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.drop(self.body(x)[0][:, -1]))


class Squeezed(nn.Module):  # type: ignore[misc]
    """A mobile block with squeeze and excitation, Hardswish, and Dropout in place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.wide = conv_block(3, 16, 2), nn.Conv2d(16, 48, 1, bias=False)
        self.norm, self.deep = nn.BatchNorm2d(48), nn.Conv2d(48, 48, 3, padding=1, groups=48)
        self.down, self.up, self.narrow = nn.Conv2d(48, 12, 1), nn.Conv2d(12, 48, 1), nn.Conv2d(48, 16, 1)
        self.head = nn.Sequential(nn.Linear(16, 32), nn.Hardswish(), nn.Dropout(0.2, inplace=True), nn.Linear(32, 4))

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        y = self.deep(functional.hardswish(self.norm(self.wide(x))))
        share = functional.hardsigmoid(self.up(functional.relu(self.down(y.mean((2, 3), keepdim=True)))))
        return self.head((x + self.narrow(y * share)).mean((2, 3)))


class Patches(nn.Module):  # type: ignore[misc]
    """A vision transformer of one layer, with dropout of attention and of the mask by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.own = nn.Conv2d(3, 32, 4, 4), nn.Linear(32, 96)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, x: Any) -> Any:
        x = self.cut(x).flatten(2).transpose(1, 2)
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.own(self.norm(x)).chunk(3, -1))
        rate = 0.1 if self.training else 0.0
        x = x + functional.scaled_dot_product_attention(q, k, v, dropout_p=rate).transpose(1, 2).flatten(2)
        if self.training:
            x = x * (torch.rand_like(x) < 0.9) / 0.9
        return self.head(x.mean(1))


def mobilenet() -> Any:
    from torchvision.models import mobilenet_v3_small  # type: ignore[import-not-found]

    net = mobilenet_v3_small()
    net.classifier[3] = nn.Linear(1024, 4)
    return net


def dense(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*layers)


def mask_of(arrays: tuple[Any, ...]) -> Any:
    return (arrays[0] > 0.5).astype(np.float32)


CASES = (
    Case("keywords (Conv1d, BatchNorm1d)", Keywords, floats(20, 40), by_means),
    Case("mobilenet_v3_small (torchvision)", mobilenet, floats(3, 32, 32), by_means, epochs=2),
    Case("words (TransformerEncoder)", Words, tokens(16, 50), lambda a: a[0][:, 0] // 13, epochs=12),
    Case("unet (dice + bce inside)", UNet, floats(1, 16, 16), mask_of, loss="none"),
    Case(
        "perceptron, from CSV",
        dense(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4)),
        floats(12),
        by_means,
        epochs=8,
    ),
    Case("drop path", DropPath, floats(3, 16, 16), by_means),
    Case("gru", lambda: Recurrent(nn.GRU), floats(12, 8), by_means),
    Case("lstm", lambda: Recurrent(nn.LSTM), floats(12, 8), by_means),
    Case("squeeze and excitation", Squeezed, floats(3, 16, 16), by_means),
    Case("patches (attention by hand)", Patches, floats(3, 16, 16), by_means),
    Case(
        "autoencoder",
        dense(nn.Linear(24, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 24)),
        floats(24),
        lambda a: a[0],
        loss="mse",
    ),
    Case(
        "several labels",
        dense(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 5)),
        floats(16),
        lambda a: (a[0][:, :5] > 0).astype(np.float32),
        loss="bce",
    ),
    Case(
        "pixels' classes",
        dense(conv_block(2, 12), nn.Dropout2d(0.2), nn.Conv2d(12, 3, 1)),
        floats(2, 12, 12),
        lambda a: (a[0][:, 0] > 0).astype(np.int64) + (a[0][:, 1] > 0),
    ),
    Case(
        "groups and weight norm",
        dense(
            nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 16, 3)),
            nn.GroupNorm(4, 16),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 4),
        ),
        floats(3, 12, 12),
        by_means,
    ),
    Case(
        "three dimensions",
        dense(
            nn.Conv3d(1, 8, 3, padding=1),
            nn.BatchNorm3d(8),
            nn.ReLU(),
            nn.Dropout3d(0.1),
            nn.AvgPool3d(2),
            nn.Flatten(),
            nn.Linear(64, 4),
        ),
        floats(1, 4, 4, 4),
        by_means,
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    rows = ["| network | said | file, 1 row | file, 32 rows | torch | rows that differ |", "|---|---|---|---|---|---|"]
    for case in CASES:
        if any(part in case.name for part in asked.only.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measured(case, Path(folder)))
            print(rows[-1], flush=True)
    command = (
        "Made by `python -m benchmarks.trained_files` with torch 2.13: 15 modules, each exported by `po.torch.export`"
    )
    put([f"{command}, planned, trained and written by the command line.", "", *rows], asked.output)


def ran(*arguments: object) -> None:
    """Run a command line. Raises RuntimeError where it fails."""
    program = [sys.executable, "-m", "poetopt", *(str(one) for one in arguments)]
    ended = subprocess.run(program, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{arguments[0]}: code {ended.returncode}: {ended.stderr[-400:]}")


def measured(case: Case, folder: Path) -> str:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    module = case.make().train()
    train, test = case.arrays(rng, ROWS), case.arrays(rng, HELD_OUT)
    inside = case.loss == "none"
    names = [f"x{k}" for k in range(len(train))] + (["mask"] if inside else [])
    wanted = "mask" if inside else "labels" if case.loss == "cross-entropy" else "target"
    sets = {
        which: {**dict(zip(names, arrays, strict=False)), wanted: case.target(arrays)}
        for which, arrays in (("train", train), ("test", test))
    }
    example = tuple(torch.from_numpy(sets["train"][name][:BATCH]) for name in names)
    outputs = ["loss"] if inside else ["scores"]
    model, plan, out = folder / "net.onnx", folder / "plan.json", folder / "trained.onnx"
    with contextlib.redirect_stderr(io.StringIO()):
        po.torch.export(module, example, model, input_names=names, output_names=outputs)
    paths = [written(folder / which, arrays, "CSV" in case.name) for which, arrays in sets.items()]
    optimizer = ("--optimizer", "adam", "--time-limit", "10s")
    ran("solve", model, "--device", "a72", "--ram", "100%", "--loss", case.loss, *optimizer, "-o", plan)
    options = ("--epochs", case.epochs, "--lr", 0.01, "--json", folder / "told.json")
    ran("train", plan, "--data", paths[0], "--validate", paths[1], *options, "-o", out)
    told = json.loads((folder / "told.json").read_text())
    kept = next(one for one in told["validations"] if one["epoch"] == told["kept"])
    po.torch.load(module, out)
    module.eval()
    given = [sets["test"][name] for name in names]
    size = BATCH if inside else 32
    with torch.no_grad():
        parts = [module(*(torch.from_numpy(x[k : k + size]) for x in given)) for k in range(0, HELD_OUT, size)]
    torchs = (torch.stack(parts) if inside else torch.cat(parts)).numpy()
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])

    def alone(size: int) -> Any:
        found = [
            session.run(None, {name: x[k : k + size] for name, x in zip(names, given, strict=True)})[0]
            for k in range(0, HELD_OUT, size)
        ]
        return np.stack(found) if inside else np.concatenate(found)

    return shown(case, kept, sets["test"][wanted], torchs, alone)


def written(path: Path, arrays: dict[str, Any], table: bool) -> Path:
    """The arrays in a file: a table where that is asked for."""
    if not table:
        np.savez(path.with_suffix(".npz"), **arrays)
        return path.with_suffix(".npz")
    x, labels = arrays["x0"], arrays["labels"]
    lines = [",".join([*(f"c{k}" for k in range(x.shape[1])), "labels"])]
    lines += [",".join([*(repr(float(v)) for v in row), str(label)]) for row, label in zip(x, labels, strict=True)]
    path.with_suffix(".csv").write_text("\n".join(lines) + "\n")
    return path.with_suffix(".csv")


def shown(case: Case, kept: dict[str, Any], wanted: Any, torchs: Any, alone: Callable[[int], Any]) -> str:
    """One line of the table."""
    one, many = (alone(1), alone(32)) if case.loss != "none" else (alone(BATCH), alone(BATCH))
    if case.loss in ("none", "mse"):
        found = (one, many, torchs)
        losses = [float(y.mean()) if case.loss == "none" else float(((y - wanted) ** 2).mean()) for y in found]
        cells = [f"{kept['loss']:.6f}", *(f"{value:.6f}" for value in losses)]
        return f"| {case.name} | {' | '.join(cells)} | loss |"
    if case.loss == "bce":
        classes = [(y > 0) for y in (one, many, torchs)]
        right = [float((found == (wanted > 0.5)).mean()) for found in classes]
    else:
        classes = [y.argmax(axis=1) for y in (one, many, torchs)]
        right = [float((found == wanted).mean()) for found in classes]
    apart = sum(int((classes[0] != found).sum()) for found in classes[1:])
    cells = [f"{kept['accuracy']:.2%}", *(f"{share:.2%}" for share in right)]
    return f"| {case.name} | {' | '.join(cells)} | {apart} of {classes[0].size} |"


if __name__ == "__main__":
    main()
