"""Budgets of memory for torch modules, requested and measured: `po.torch.compile` beside torch's own budget.

    python -m benchmarks.torch_budget -o benchmarks/results/torch_budget.md

Each network trains on a CPU, one thread, batch 8, and gives its own loss. Peaks are of the bytes of all storages alive
at once that a step makes, counted by a dispatch mode apart from the package's. torch's `activation_memory_budget` is
swept from 0 to 1; of its settings the table takes the fastest whose measured peak keeps the budget, and where none
does the one of least peak. Times are processor time, the least of several steps, of the kernels as they are
(`aot_eager`) on both sides, in one process.
"""

from __future__ import annotations

import argparse
import gc
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._functorch import config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import poetopt as po
from benchmarks.output import put
from poetopt.util.errors import InfeasibleError, NoScheduleError
from tests.pytorch.networks import MobileNet, ResNet, Transformer, UNet

BATCH = 8
SHARES = (0.8, 0.6, 0.4)
SETTINGS = tuple(k / 10 for k in range(11))
MOBILE = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
STEPS = 4


def images(side: int) -> tuple[Any, ...]:
    return torch.randn(BATCH, 3, side, side), torch.arange(BATCH)


def tokens(words: int, length: int) -> tuple[Any, ...]:
    return torch.randint(0, words, (BATCH, length)), torch.randint(0, words, (BATCH, length))


NETS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "resnet18, 224x224": lambda: (ResNet((64, 128, 256, 512)), images(224)),
    "mobilenetv2, 128x128": lambda: (MobileNet(MOBILE, 32, 1280), images(128)),
    "gpt2, 6 layers of 256, 128 tokens": lambda: (
        Transformer(2000, 128, 256, 4, 6, causal=True), tokens(2000, 128),
    ),
    "bert, 4 layers of 256, 128 tokens": lambda: (
        Transformer(2000, 128, 256, 4, 4, causal=False), tokens(2000, 128),
    ),
    "unet, 96x96": lambda: (
        UNet((16, 32, 64, 128)), (torch.randn(BATCH, 3, 96, 96), torch.randint(0, 4, (BATCH, 96, 96))),
    ),
}  # fmt: skip


class Count(TorchDispatchMode):
    """The most bytes of storages alive at once, of those that are made under it."""

    def __init__(self, given: list[Any]) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.given = {tensor.untyped_storage().data_ptr() for tensor in given}
        self.live = self.most = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for value in tree_leaves(found):
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                key = storage._cdata
                if key not in self.alive and storage.data_ptr() not in self.given:
                    self.alive[key] = storage.nbytes()
                    self.live += self.alive[key]
                    weakref.finalize(storage, self.gone, key)
        self.most = max(self.most, self.live)
        return found

    def gone(self, key: int) -> None:
        self.live -= self.alive.pop(key)


def step(module: Any, call: Any, given: tuple[Any, ...]) -> float:
    """Processor seconds of a step."""
    module.zero_grad()
    begin = time.process_time()
    call(*given).backward()
    return time.process_time() - begin


def measured(module: Any, call: Any, given: tuple[Any, ...]) -> tuple[int, float]:
    """Peak in bytes, and seconds a step; the first step compiles."""
    step(module, call, given)
    module.zero_grad()
    gc.collect()
    with Count([*module.parameters(), *module.buffers(), *given]) as count:
        call(*given).backward()
    return count.most, min(step(module, call, given) for _ in range(STEPS))


def made(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    torch.compiler.reset()
    torch.manual_seed(0)
    return NETS[name]()


def rows_of(name: str, told: Callable[[str], None]) -> tuple[list[str], str, float]:
    """Rows of the table, the line of what the network takes without a budget, and how far times are apart."""
    module, given = made(name)
    eager = measured(module, module, given)
    swept: list[tuple[float, int, float]] = []
    for setting in SETTINGS:
        module, given = made(name)
        with config.patch(activation_memory_budget=setting):
            compiled = torch.compile(module, backend="aot_eager", dynamic=False)
            swept.append((setting, *measured(module, compiled, given)))
        told(f"{name}: torch at {setting}: {swept[-1][1] / 1e6:.1f} MB, {1e3 * swept[-1][2]:.0f} ms")
    module, given = made(name)
    all_bytes = po.torch.plan(module, given).store_all_bytes
    least = min(swept, key=lambda row: row[1])
    rows = []
    for share in SHARES:
        may = share * all_bytes
        fits = [row for row in swept if row[1] <= may]
        setting, peak, seconds = min(fits, key=lambda row: row[2]) if fits else least
        theirs = f"{setting:.1f} | {shown(peak, may)} | {1e3 * seconds:.0f}"
        module, given = made(name)
        try:
            compiled = po.torch.compile(module, memory=f"{100 * share:g}%", time_limit=20)
            peak, seconds = measured(module, compiled, given)
        except (InfeasibleError, NoScheduleError) as error:
            told(str(error))
            least_known = str(error).rpartition("memory=")[2].partition(",")[2].strip() or "unknown"
            kind = "proven" if isinstance(error, InfeasibleError) else "not proven"
            rows.append(f"| {name} | {share:.0%} | {may / 1e6:.1f} | none, {kind}; {least_known} does | | | {theirs} |")
            continue
        (plan,) = module.memory_plans
        told(str(plan))
        chosen = "torch's" if plan.own else f"{plan.recompute_share:.1%}"
        ours = f"{shown(peak, may)} | {chosen} | {1e3 * seconds:.0f}"
        rows.append(f"| {name} | {share:.0%} | {may / 1e6:.1f} | {ours} | {theirs} |")
    without = (
        f"- {name}: {all_bytes / 1e6:.1f} MB where nothing is recomputed; eager {eager[0] / 1e6:.1f} MB, "
        f"{1e3 * eager[1]:.0f} ms"
    )
    return rows, without, spread(swept)


def spread(swept: list[tuple[float, int, float]]) -> float:
    """How much longer than the least the same graphs took, at most: settings of the same peak are the same."""
    times: dict[int, list[float]] = {}
    for setting, peak, seconds in swept:
        if 0 < setting < 1:  # at 0 all is recomputed
            times.setdefault(peak, []).append(seconds)
    return max(max(found) / min(found) - 1 for found in times.values())


def shown(peak: int, may: float) -> str:
    return f"{peak / 1e6:.1f}" + ("" if peak <= may else " (above)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--only", default="", help="networks whose name begins so")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, without, apart = [], [], 0.0
    for name in NETS:
        if name.startswith(options.only):
            found, line, far = rows_of(name, lambda text: print(text, flush=True))
            rows += found
            without.append(line)
            apart = max(apart, far)
    lines = [
        "# Budgets for torch modules, requested and measured",
        "",
        f"`python -m benchmarks.torch_budget`: torch {torch.__version__}, CPU, one thread, batch {BATCH}, `aot_eager`.",
        "Peaks are of live tensors that a step makes (gradients too, parameters and inputs not); times are processor",
        "time of a step. torch's `activation_memory_budget` is swept from 0 to 1 by 0.1: the fastest setting within",
        f"the budget, else the one of least peak. The same graph differs in time by up to {apart:.0%}.",
        "",
        "| network | budget | MB | po: MB | recomputing, modelled | po: ms | torch's setting | torch: MB | torch: ms |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        *rows,
        "",
        *without,
    ]
    put(lines, options.output)


if __name__ == "__main__":
    main()
