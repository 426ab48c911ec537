"""A model of bytes that learns a text from scratch, then another by LoRA, with torch's losses on the same batches."""

from __future__ import annotations

import inspect
import pydoc_data.topics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional

import poetopt as po
from poetopt.frontends.lora import lora

CLASSES, RANK, LR = 256, 8, 2e-3


class Block(nn.Module):
    """Attention to what came before, and a perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(width, width, bias=False))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        h = self.norm1(x)
        q, k, v = (
            each(h).reshape(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Characters(nn.Module):
    """Scores of the byte that comes next, for each of some."""

    def __init__(self, layers: int, width: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, width)
        self.places = nn.Parameter(torch.randn(tokens, width) / 8)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Paired(nn.Module):
    """A frozen layer with a pair of LoRA's beside it."""

    def __init__(self, base: nn.Linear, a: Any, b: Any) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a, self.b = (nn.Parameter(torch.tensor(value)) for value in (a, b))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.a @ self.b


@dataclass(frozen=True)
class Learning:
    """How often a text is gone through, in batches of so many windows of so many bytes, within a share of the memory.

    seconds
        For finding the plan.
    """

    epochs: int
    batch: int
    tokens: int
    share: str
    seconds: float = 20


@dataclass(frozen=True)
class Learned:
    """Bytes of RAM that ordinary training takes and the plan has, losses of validation before, and after each epoch."""

    store_all: int
    budget: int
    before: float
    ours: list[float]
    theirs: list[float]


def texts(folder: Path, most: int) -> list[tuple[Path, Path]]:
    """Of Python's documentation and of the source of its argument parser: files to learn from, and to validate with."""
    import argparse

    topics = pydoc_data.topics.topics
    found: list[tuple[Path, Path]] = []
    for name, text in (
        ("words", "\n".join(topics[one] for one in sorted(topics))),
        ("code", inspect.getsource(argparse)),
    ):
        data = text.encode()[:most]
        parts = data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]
        paths = folder / f"{name}.txt", folder / f"{name}_held.txt"
        for path, part in zip(paths, parts, strict=True):
            path.write_bytes(part)
        found.append(paths)
    return found


def batches(path: Path, how: Learning, *, rest: bool = False) -> list[tuple[Tensor, Tensor]]:
    """Windows and the bytes behind each of theirs, in their order: whole batches, or all."""
    data = torch.tensor(np.frombuffer(path.read_bytes(), np.uint8).astype(np.int64))
    rows = (len(data) - 1) // how.tokens
    ids, labels = (data[at : at + rows * how.tokens].reshape(rows, how.tokens).split(how.batch) for at in (0, 1))
    return [batch for batch in zip(ids, labels, strict=True) if rest or len(batch[0]) == how.batch]


def loss_of(net: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(net(ids).reshape(-1, CLASSES), labels.reshape(-1))


def validated(net: nn.Module, path: Path, how: Learning) -> float:
    found = batches(path, how, rest=True)
    with torch.no_grad():
        total = sum(float(loss_of(net, ids, labels)) * len(ids) for ids, labels in found)
    return total / sum(len(ids) for ids, _ in found)


def learn(model: po.Model, net: nn.Module, paths: tuple[Path, Path], how: Learning, out: Path | None) -> Learned:
    """Train the file by a plan, and the module, which computes the same, by torch; the first is written to `out`."""
    before = validated(net, paths[1], how)
    step = model.differentiate(loss="cross-entropy", optimizer="adamw")
    report = po.solve(step.cost("a72"), ram=how.share, time_limit=how.seconds)
    told: dict[str, Any] = report.to_dict()
    with po.Trainer(report, lr=LR) as trainer:
        order = {"batch_order": "sequential", "keep": "last"}
        ended = trainer.fit(paths[0], epochs=how.epochs, validate=paths[1], **order)  # type: ignore[arg-type]
        if out is not None:
            trainer.export(out)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], LR)
    theirs = []
    for _ in range(how.epochs):
        for batch in batches(paths[0], how):
            optimizer.zero_grad()
            loss_of(net, *batch).backward()
            optimizer.step()
        theirs.append(validated(net, paths[1], how))
    ours = [float(one["loss"] or 0.0) for one in ended.validations]
    return Learned(told["store_all_peak_bytes"], told["ram_budget_bytes"], before, ours, theirs)


def learned(
    folder: Path, layers: int, width: int, heads: int, first: Learning, second: Learning, most: int = 10**9
) -> tuple[Learned, Learned]:
    """A model from scratch, and adapted to another text, of so many bytes at most."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    words, code = texts(folder, most)
    net = Characters(layers, width, heads, first.tokens)
    example = torch.zeros(first.batch, first.tokens, dtype=torch.int64)
    model = po.torch.export(net, example, folder / "net.onnx", input_names=["ids"], output_names=["scores"])
    whole = learn(model, net, words, first, folder / "trained.onnx")
    with torch.no_grad():
        stored = {one.name: numpy_helper.to_array(one) for one in lora(folder / "trained.onnx", RANK).graph.initializer}
        for name, parameter in net.named_parameters():
            parameter.copy_(torch.tensor(stored[name]))
            parameter.requires_grad_(False)
    made = lora(folder / "trained.onnx", RANK, out=folder / "adapted.onnx")
    stored = {one.name: numpy_helper.to_array(one) for one in made.graph.initializer}
    for k, block in enumerate(net.blocks):
        for name in ("q_proj", "v_proj"):
            a, b = (stored[f"blocks.{k}.{name}.lora_{part}.weight"] for part in "AB")
            setattr(block, name, Paired(getattr(block, name), a, b))
    adapted = po.load(folder / "adapted.onnx", batch=second.batch)
    assert isinstance(adapted, po.Model)
    return whole, learn(adapted, net, code, second, None)
