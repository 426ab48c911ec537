"""Language models that are adapted by LoRA, on a Raspberry Pi: what a step takes, steps executed, and what is learned.

python -m benchmarks.language shapes -o benchmarks/results/language.md
python -m benchmarks.language executed -o benchmarks/results/language.md
python -m benchmarks.language adapted -o benchmarks/results/language.md

Each replaces its own section of the file. The last needs torch.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

import poetopt as po
from poetopt import zoo
from poetopt.frontends.lora import lora
from poetopt.frontends.quantizing import quantize
from poetopt.util.errors import InfeasibleError

HEADER = """# Language models adapted by LoRA

`python -m benchmarks.language shapes` (or `executed`, `adapted`) makes a section; integers need `poetopt[quantize]`,
learning needs torch. On an a72 (Raspberry Pi 4)."""
SHAPES = """## Shapes

A network of SmolLM-135M's shape with random weights and a tied table, 128 tokens, LoRA of rank 8 on the queries and
values, batch 1, AdamW on LoRA alone, weights on storage. Storage is all that is frozen. The least total is RAM in all
that a schedule is known for, and its bound what any needs. Overhead is energy above one compute of each operator, found
and bounded in a minute on a machine that others used; moved is what a step reads and writes; seconds are of the
processor."""


@dataclass(frozen=True)
class Llama:
    """The shape of a network of the Llama family, as its authors give it."""

    layers: int
    width: int
    heads: int
    key_heads: int
    inner: int
    words: int
    bias: bool = False


SMOLLM = Llama(30, 576, 9, 3, 1536, 49152)
QWEN = Llama(24, 896, 14, 2, 4864, 151936, bias=True)


class Written:
    """An ONNX graph that is written node by node."""

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[Any] = []
        self.weights: list[TensorProto] = []
        self.random = np.random.default_rng(seed)

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        name = name or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def put(self, name: str, value: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def ints(self, *values: int) -> str:
        name = "ints_" + "_".join(map(str, values))
        if all(one.name != name for one in self.weights):
            self.put(name, np.array(values, np.int64))
        return name

    def normal(self, name: str, *shape: int) -> str:
        scale = 1 / math.sqrt(shape[-1])
        return self.put(name, self.random.standard_normal(shape, np.float32) * np.float32(scale))

    def linear(self, x: str, name: str, inner: int, outer: int, *, bias: bool = False, rank: int = 0) -> str:
        weight = self.op("Transpose", self.normal(f"{name}.weight", outer, inner), perm=[1, 0])
        y = self.op("MatMul", x, weight, name=f"{name}.product")
        if bias:
            y = self.op("Add", y, self.normal(f"{name}.bias", outer))
        if rank:
            a = self.op("Transpose", self.normal(f"{name}.lora_A.weight", rank, inner), perm=[1, 0])
            b = self.op(
                "Transpose", self.put(f"{name}.lora_B.weight", np.zeros((outer, rank), np.float32)), perm=[1, 0]
            )
            y = self.op("Add", y, self.op("MatMul", self.op("MatMul", x, a), b))
        return y


def llama(shape: Llama, tokens: int, rank: int = 8) -> ModelProto:
    """A network of random weights; with `rank`, LoRA of the queries and values."""
    w, width, size = Written(), shape.width, shape.width // shape.heads
    angles = np.outer(np.arange(tokens), 10000.0 ** (-np.arange(0, size, 2) / size)).astype(np.float32)
    angles = np.concatenate([angles, angles], -1)
    cos, sin = w.put("cos", np.cos(angles)), w.put("sin", np.sin(angles))
    mask = w.put("mask", np.triu(np.full((tokens, tokens), -1e9, np.float32), 1))
    scale, epsilon = w.put("scale", np.float32(1 / math.sqrt(size))), w.put("epsilon", np.float32(1e-5))
    two = w.put("two", np.float32(2))
    table = w.normal("model.embed.weight", shape.words, width)
    x = w.op("Gather", table, "input_ids", name="embedding")

    def norm(x: str, name: str) -> str:
        mean = w.op("ReduceMean", w.op("Pow", x, two), w.ints(-1), keepdims=1)
        root = w.op("Sqrt", w.op("Add", mean, epsilon))
        return w.op("Mul", w.op("Div", x, root), w.put(f"{name}.weight", np.ones(width, np.float32)))

    def heads(y: str, count: int) -> str:
        return w.op("Transpose", w.op("Reshape", y, w.ints(1, tokens, count, size)), perm=[0, 2, 1, 3])

    def turned(y: str) -> str:
        first = w.op("Slice", y, w.ints(0), w.ints(size // 2), w.ints(3))
        last = w.op("Slice", y, w.ints(size // 2), w.ints(size), w.ints(3))
        half = w.op("Concat", w.op("Neg", last), first, axis=3)
        return w.op("Add", w.op("Mul", y, cos), w.op("Mul", half, sin))

    def repeated(y: str) -> str:
        times = shape.heads // shape.key_heads
        one = w.op("Reshape", y, w.ints(1, shape.key_heads, 1, tokens, size))
        one = w.op("Expand", one, w.ints(1, shape.key_heads, times, tokens, size))
        return w.op("Reshape", one, w.ints(1, shape.heads, tokens, size))

    for k in range(shape.layers):
        at = f"model.layers.{k}"
        h, part = norm(x, f"{at}.norm1"), size * shape.key_heads
        q = w.linear(h, f"{at}.q_proj", width, width, bias=shape.bias, rank=rank)
        key = w.linear(h, f"{at}.k_proj", width, part, bias=shape.bias)
        value = w.linear(h, f"{at}.v_proj", width, part, bias=shape.bias, rank=rank)
        q, key = turned(heads(q, shape.heads)), repeated(turned(heads(key, shape.key_heads)))
        scores = w.op("MatMul", q, w.op("Transpose", key, perm=[0, 1, 3, 2]))
        scores = w.op("Softmax", w.op("Add", w.op("Mul", scores, scale), mask), axis=-1)
        mixed = w.op("MatMul", scores, repeated(heads(value, shape.key_heads)))
        mixed = w.op("Reshape", w.op("Transpose", mixed, perm=[0, 2, 1, 3]), w.ints(1, tokens, width))
        x = w.op("Add", x, w.linear(mixed, f"{at}.o_proj", width, width))
        h = norm(x, f"{at}.norm2")
        gate = w.linear(h, f"{at}.gate_proj", width, shape.inner)
        gate = w.op("Mul", gate, w.op("Sigmoid", gate))
        up = w.linear(h, f"{at}.up_proj", width, shape.inner)
        x = w.op("Add", x, w.linear(w.op("Mul", gate, up), f"{at}.down_proj", shape.inner, width))
    x = norm(x, "model.norm")
    w.op("MatMul", x, w.op("Transpose", table, perm=[1, 0]), name="logits")
    given = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, tokens])
    made = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, tokens, shape.words])
    graph = helper.make_graph(w.nodes, "llama", [given], [made], w.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


TOKENS = 128
BUDGETS = ("16MB", "64MB", "128MB")
KINDS = ("float32", "int8", "int4")
SECONDS = 60
COLUMNS = (
    "weights", "storage, MB", "of float32", "least total, MB", "bound, MB", "budget", "overhead, J",
    "bound, J", "moved, MB", "s",
)  # fmt: skip
HEADING = f"| {' | '.join(COLUMNS)} |"


def rows(kind: str) -> list[str]:
    """Rows of the table: the least memory with what is stored, then a plan for each budget."""
    model = llama(SMOLLM, TOKENS, rank=0)
    floats = sum(len(one.raw_data) for one in model.graph.initializer)
    model = lora(model if kind == "float32" else quantize(model, kind))
    begun = time.process_time()
    loaded = po.load(model)
    assert isinstance(loaded, po.Model)
    step = loaded.differentiate(loss="cross-entropy", optimizer="adamw")
    del model
    graph = step.graph
    frozen = graph.values.keys() - {*graph.trained, *graph.optimizer_states}
    stored = sum(graph.tensors[one].nbytes for one in frozen)
    problem = step.cost(po.device("a72"), parameters="paged")
    found: dict[str, Any] = {}
    try:
        po.solve(problem, total_ram="1MB")
    except InfeasibleError as error:
        found = error.report or {}
    least, bound = (found[key] + found["resident_bytes"] for key in ("least_ram_bytes", "ram_bound_bytes"))
    first = f"| {kind} | {stored / 1e6:.1f} | {stored / floats:.3f} | {least / 1e6:.2f} | {bound / 1e6:.2f} |"
    made = [f"{first} | | | | {time.process_time() - begun:.0f} |"]
    for budget in BUDGETS:
        begun = time.process_time()
        told: dict[str, Any] = po.solve(problem, total_ram=budget, time_limit=SECONDS).to_dict()
        moved = told["bytes_paged"] + told["bytes_streamed"]
        figures = f"{told['overhead_j']:.1f} | {told['overhead_bound_j']:.1f} | {moved / 1e6:.0f}"
        made.append(f"| {kind} | | | | | {budget} | {figures} | {time.process_time() - begun:.0f} |")
    return made


def shapes() -> list[str]:
    """The section of shapes."""
    lines = [SHAPES, "", HEADING, "|---" * (HEADING.count("|") - 1) + "|"]
    for kind in KINDS:
        lines += rows(kind)
        print(*lines[-1 - len(BUDGETS) :], sep="\n", flush=True)
    return lines


EXECUTED = """## Steps that are executed

One step by `poetopt run`, bit for bit that of ordinary training; random weights, AdamW on LoRA alone, weights on
storage. Planned is RAM in all, and process what the one that takes the step had at most, Python and onnxruntime
included; ordinary is RAM of a step that keeps all. Qwen's shape has LoRA on queries and values, GPT-2's on queries,
keys and values. MeSP (arXiv 2602.13069) takes 136 MB for Qwen's step, MobileFineTuner (2512.08211) 1.0 GB for
GPT-2's, both by their authors' count. Seconds are this machine's, which others used."""
FIGURES = (
    "network", "batch x tokens", "weights", "planned, MB", "process, MB", "ordinary, MB", "overhead, J", "bound, J",
    "moved, MB", "s a step", "ordinary, s",
)  # fmt: skip
RUNS: tuple[tuple[str, str, str, str, str, Callable[[], ModelProto]], ...] = (
    ("GPT-2 small", "4 x 128", "float32", "150MB", "*c_attn", lambda: zoo.build("gpt2-small", 4)),
    ("Qwen2.5-0.5B", "1 x 256", "int4", "136MB", "*q_proj,*v_proj", lambda: quantize(llama(QWEN, 256, rank=0), "int4")),
)


def executed() -> list[str]:
    """The section of executed steps."""
    lines = [EXECUTED, "", f"| {' | '.join(FIGURES)} |", "|---" * len(FIGURES) + "|"]
    for name, size, kind, budget, targets, make in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            net, plan, out = (Path(folder) / file for file in ("net.onnx", "plan.json", "run.json"))
            lora(make(), targets=targets, out=net)
            options = ["--device", "a72", "--parameters", "paged", "--optimizer", "adamw", "--loss", "cross-entropy"]
            poetopt(
                "solve", net, *options, "--total-ram", budget, "--time-limit", f"{SECONDS}s", "-o", plan, "--json", out
            )
            told = json.loads(out.read_text())
            poetopt("run", plan, "--json", out)
            done = json.loads(out.read_text())
        assert done["bit_identical"], name
        moved = done["bytes_paged"] + done["bytes_streamed"]
        sizes = (done["total_ram_bytes"], done["process_peak_bytes"], told["store_all_peak_bytes"])
        figures = [f"{one / 1e6:.0f}" for one in sizes]
        figures += [f"{told['overhead_j']:.1f}", f"{told['overhead_bound_j']:.1f}", f"{moved / 1e6:.0f}"]
        figures += [f"{done['step_s']:.1f}", f"{done['store_all_step_s']:.1f}"]
        lines.append(f"| {name} | {size} | {kind} | {' | '.join(figures)} |")
        print(lines[-1], flush=True)
    return lines


def poetopt(*arguments: object) -> None:
    """Run a command, in a process of its own."""
    subprocess.run([sys.executable, "-m", "poetopt", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


ADAPTED = """## What is learned

A model of bytes (2 layers, width 64, windows of 64, batches of 16) learns from scratch 150,000 bytes of Python's
documentation, and is then adapted by LoRA of rank 8 on queries and values to the source of its argument parser, both by
AdamW. Loss is that of validation, on a tenth of the text. Torch trains the same modules on the same batches.

| | memory, of ordinary | epochs | loss before | after | torch's | apart |
|---|---|---|---|---|---|---|"""


def adapted() -> list[str]:
    """The section of what is learned."""
    from benchmarks.characters import Learning, learned

    hows = Learning(4, 16, 64, "60%"), Learning(4, 16, 64, "40%")
    lines = [ADAPTED]
    with tempfile.TemporaryDirectory() as folder:
        found = learned(Path(folder), 2, 64, 4, *hows, most=150_000)
    for what, how, one in zip(("from scratch", "adapted"), hows, found, strict=True):
        memory = f"{one.budget:,} of {one.store_all:,} B ({one.budget / one.store_all:.0%})"
        figures = f"{one.before:.4f} | {one.ours[-1]:.4f} | {one.theirs[-1]:.4f}"
        apart = max(abs(a / b - 1) for a, b in zip(one.ours, one.theirs, strict=True))
        lines.append(f"| {what} | {memory} | {how.epochs} | {figures} | {apart:.1e} |")
    return lines


SECTIONS: dict[str, Callable[[], list[str]]] = {"shapes": shapes, "executed": executed, "adapted": adapted}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", choices=SECTIONS)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    made = "\n".join(SECTIONS[asked.section]())
    if asked.output is None:
        print(made)
        return
    before = asked.output.read_text(encoding="utf-8").strip().split("\n\n## ") if asked.output.exists() else []
    kept = {text.partition("\n")[0]: f"## {text}" for text in before[1:]}
    kept[made.partition("\n")[0].removeprefix("## ")] = made
    asked.output.write_text("\n\n".join([HEADER, *kept.values()]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
