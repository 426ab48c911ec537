"""Budgets of memory for torch modules, requested and measured: `po.torch.compile` beside torch's own budget.

    python -m benchmarks.torch_budget -o benchmarks/results/torch_budget.md

Each network trains on a CPU, one thread, and gives its own loss. Peaks are of the bytes of all storages alive at once
that a step makes, counted by a dispatch mode apart from the package's. torch's `activation_memory_budget` is swept;
of its settings the table takes the fastest whose measured peak keeps the budget, and where none does the one of least
peak. Times are processor time, the least of several steps, of the kernels as they are (`aot_eager`): the two steps of
a row take turns in one process.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._functorch import config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import poetopt as po
from benchmarks.output import put
from poetopt.util.errors import InfeasibleError, NoScheduleError
from tests.support.torch.networks import Bottleneck, ConvNeXt, Llama, MobileNet, ResNet, Transformer, UNet

SHARES = (0.8, 0.6, 0.4)
TENTHS = tuple(k / 10 for k in range(11))
FEW = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
LOW = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
MOBILE = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
STEPS, ENOUGH_S = 6, 30.0
"""Steps of each that are timed, three at least, fewer where they have taken so many seconds."""

Given = tuple[Any, ...]


def images(batch: int, side: int) -> Given:
    return torch.randn(batch, 3, side, side), torch.arange(batch)


def tokens(batch: int, words: int, length: int) -> Given:
    return torch.randint(0, words, (batch, length)), torch.randint(0, words, (batch, length))


def _gpt(words: int, length: int, width: int, heads: int, layers: int) -> nn.Module:
    return Transformer(words, length, width, heads, layers, causal=True)


def _bert(words: int, length: int, width: int, heads: int, layers: int) -> nn.Module:
    return Transformer(words, length, width, heads, layers, causal=False)


RESNET50 = (256, 512, 1024, 2048), (3, 4, 6, 3), 10, Bottleneck, 64
LLAMA = "llama, 8 layers of 256, b2, 512 tokens"
PARTS = ("rows", "equal", "asked", "resident", "without")
RESIDENT = ("gpt2, 6 layers of 256, b8, 128 tokens",)
LARGE = (
    LLAMA,
    "resnet50, 224x224, b2",
    "convnext-tiny, 224x224, b2",
    "gpt2-small, b4, 256 tokens",
    "bert-base, b8, 128 tokens",
)
NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Given], tuple[float, ...]]] = {
    "resnet18, 224x224, b8": (lambda: ResNet((64, 128, 256, 512)), lambda: images(8, 224), TENTHS),
    "mobilenetv2, 128x128, b8": (lambda: MobileNet(MOBILE, 32, 1280), lambda: images(8, 128), FEW),
    "gpt2, 6 layers of 256, b8, 128 tokens": (
        lambda: _gpt(2000, 128, 256, 4, 6), lambda: tokens(8, 2000, 128), FEW,
    ),
    "bert, 4 layers of 256, b8, 128 tokens": (
        lambda: _bert(2000, 128, 256, 4, 4), lambda: tokens(8, 2000, 128), FEW,
    ),
    "unet, 96x96, b8": (
        lambda: UNet((16, 32, 64, 128)),
        lambda: (torch.randn(8, 3, 96, 96), torch.randint(0, 4, (8, 96, 96))),
        FEW,
    ),
    LLAMA: (lambda: Llama(2000, 256, 8, 4, 688, 8), lambda: tokens(2, 2000, 512), LOW),
    "resnet50, 224x224, b2": (lambda: ResNet(*RESNET50), lambda: images(2, 224), FEW),
    "convnext-tiny, 224x224, b2": (
        lambda: ConvNeXt((96, 192, 384, 768), (3, 3, 9, 3)), lambda: images(2, 224), FEW,
    ),
    "gpt2-small, b4, 256 tokens": (
        lambda: _gpt(50257, 1024, 768, 12, 12), lambda: tokens(4, 50257, 256), FEW,
    ),
    "bert-base, b8, 128 tokens": (
        lambda: _bert(30522, 512, 768, 12, 12), lambda: tokens(8, 30522, 128), FEW,
    ),
}  # fmt: skip


SEEN = (
    ("eager", "", False),
    ("aot_eager", "60%", False),
    ("aot_eager", "60%", True),
    ("inductor", "", False),
    ("inductor", "60%", False),
)
"""Backends, budgets (torch's own choice where there is none) and whether tensors may wait in files, for the memory that
the system sees."""
EXACT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""glibc gives back what is freed, so that resident memory follows what is alive."""


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
        outside = str(function) == "poetopt.page_out.default"
        for value in tree_leaves(found):
            if isinstance(value, torch.Tensor) and not outside:
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


def step(module: nn.Module, call: Any, given: Given) -> float:
    """Processor seconds of a step."""
    module.zero_grad()
    begin = time.process_time()
    call(*given).backward()
    return time.process_time() - begin


def peak_of(module: nn.Module, call: Any, given: Given) -> int:
    """Peak in bytes of a step; one before it compiles."""
    step(module, call, given)
    module.zero_grad()
    gc.collect()
    with Count([*module.parameters(), *module.buffers(), *given]) as count:
        call(*given).backward()
    most: int = count.most
    return most


def seconds(given: Given, *pairs: tuple[nn.Module, Any]) -> list[float]:
    """The least processor seconds of a step of each of several modules, which take turns."""
    took: list[list[float]] = [[] for _ in pairs]
    for turn in range(STEPS):
        for (module, call), found in zip(pairs, took, strict=True):
            found.append(step(module, call, given))
            module.zero_grad()
        if turn >= 2 and sum(map(sum, took)) > ENOUGH_S:
            break
    return [min(found) for found in took]


def gradients(module: nn.Module, call: Any, given: Given) -> list[torch.Tensor]:
    torch.manual_seed(1)
    step(module, call, given)
    found = [p.grad for p in module.parameters() if p.grad is not None]
    module.zero_grad()
    return found


def apart(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """The largest difference of an element, as a share of the largest of its gradient."""
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, wanted, strict=True) if b.any())


class Theirs(NamedTuple):
    """torch's step at a setting of its budget."""

    setting: float
    peak: int
    call: Any
    seconds: float = 0.0


def swept(name: str, module: nn.Module, given: Given, settings: tuple[float, ...]) -> list[Theirs]:
    """Each setting with its peak; those of the same peak are the same graphs, timed once."""
    found: list[Theirs] = []
    for setting in settings:

        def whole(*inputs: Any) -> Any:
            return module(*inputs)

        whole.__code__ = whole.__code__.replace(co_name=f"setting_{len(found)}")
        call = torch.compile(whole, backend="aot_eager", dynamic=False)
        with config.patch(activation_memory_budget=setting):
            found.append(Theirs(setting, peak_of(module, call, given), call))
        same = next((one for one in found if one.peak == found[-1].peak and one.seconds), None)
        took = same.seconds if same else min(step(module, call, given) for _ in range(2))
        found[-1] = found[-1]._replace(seconds=took)
        told(f"{name}: torch at {setting}: {found[-1].peak / 1e6:.1f} MB, {1e3 * took:.0f} ms")
    return found


class Ours(NamedTuple):
    """Our step at a budget: what it is called with, its peak and plan; or the reason why there is none."""

    module: nn.Module | None
    peak: int = 0
    recomputing: str = ""
    apart: float = 0.0
    reason: str = ""


def ours(module: nn.Module, given: Given, memory: str, wanted: list[torch.Tensor]) -> Ours:
    twin = copy.deepcopy(module)
    try:
        compiled = po.torch.compile(twin, memory=memory, time_limit=15)
        far = apart(gradients(twin, compiled, given), wanted)
    except (InfeasibleError, NoScheduleError) as error:
        told(str(error))
        known = str(error).rpartition("memory=")[2] or "unknown"
        kind = "proven" if isinstance(error, InfeasibleError) else "not proven"
        return Ours(None, reason=f"none, {kind}; {known} does")
    (plan,) = twin.memory_plans
    told(str(plan))
    return Ours(twin, peak_of(twin, twin, given), "torch's" if plan.own else f"{plan.recompute_share:.1%}", far)


def rows_of(name: str) -> dict[str, list[str]]:
    """Rows of the tables."""
    module_of, given_of, settings = NETS[name]
    torch.compiler.reset()
    torch.manual_seed(0)
    module, given = module_of(), given_of()
    wanted = gradients(module, module, given)
    eager = peak_of(module, module, given)
    (eager_s,) = seconds(given, (module, module))
    theirs = swept(name, module, given, settings)
    all_bytes = po.torch.plan(copy.deepcopy(module), given, measure=False).store_all_bytes
    least, worst = min(theirs, key=lambda one: one.peak), 0.0
    rows, equal, beside = [], [], dict[int, Theirs]()
    for share in SHARES:
        may = share * all_bytes
        fits = [one for one in theirs if one.peak <= may]
        chosen = min(fits, key=lambda one: one.seconds) if fits else least
        beside[chosen.peak] = chosen
        own = ours(module, given, f"{100 * share:g}%", wanted)
        worst, start = max(worst, own.apart), f"| {name} | {share:.0%} | {may / 1e6:.1f} | "
        end = f" | {chosen.setting} | {shown(chosen.peak, may)} | "
        if own.module is None:
            rows.append(f"{start}{own.reason} | | {end}{1e3 * chosen.seconds:.0f} |")
            continue
        mine_s, theirs_s = seconds(given, (own.module, own.module), (module, chosen.call))
        rows.append(
            f"{start}{shown(own.peak, may)} | {own.recomputing} | {1e3 * mine_s:.0f}{end}{1e3 * theirs_s:.0f} |"
        )
    for peak, chosen in sorted(beside.items(), reverse=True) if name not in LARGE else ():
        own = ours(module, given, f"{100 * peak / all_bytes:.4f}%", wanted)
        start = f"| {name} | {chosen.setting} | {peak / 1e6:.1f} | "
        if own.module is None:
            equal.append(f"{start}{own.reason} | | {1e3 * chosen.seconds:.0f} |")
            continue
        worst = max(worst, own.apart)
        mine_s, theirs_s = seconds(given, (own.module, own.module), (module, chosen.call))
        equal.append(f"{start}{own.peak / 1e6:.1f} | {1e3 * mine_s:.0f} | {1e3 * theirs_s:.0f} |")
    without = (
        f"- {name}: {all_bytes / 1e6:.1f} MB where nothing is recomputed; eager {eager / 1e6:.1f} MB, "
        f"{1e3 * eager_s:.0f} ms; gradients within {worst:.1g} of eager's"
    )
    asked = []
    for one in theirs if name == LLAMA else ():
        own = ours(module, given, f"{100 * one.setting:g}%", wanted)
        mine = own.reason if own.module is None else f"{own.peak / all_bytes:.1%}"
        asked.append(f"| {one.setting:.0%} | {one.peak / all_bytes:.1%} | {mine} |")
    return {"rows": rows, "equal": equal, "without": [without], "asked": asked}


def resident_row(name: str, backend: str, memory: str, offload: bool) -> str:
    """A row of the resident memory that a step adds at its peak, in this process."""
    torch.manual_seed(0)
    module_of, given_of, _ = NETS[name]
    module, given = module_of(), given_of()
    call: Any = module
    if memory:
        call = po.torch.compile(module, memory=memory, time_limit=15, backend=backend, offload=offload)
    elif backend != "eager":
        call = torch.compile(module, backend=backend)
    for _ in range(2):
        step(module, call, given)
    module.zero_grad()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _status("VmRSS")
    took = min(step(module, call, given) for _ in range(3))
    planned = f"{module.memory_plans[0].planned_bytes / 1e6:.1f}" if memory else ""
    kind = f"{backend}{', in files too' if offload else ''}"
    most = (_status("VmHWM") - before) / 1e6
    return f"| {name} | {kind} | {memory or 'none'} | {planned} | {most:.1f} | {1e3 * took:.0f} |"


def _status(key: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return 1024 * int(line.split()[1])


def resident_rows(name: str) -> list[str]:
    """`resident_row` of each of `SEEN`, in a process of its own."""
    found = []
    for case in SEEN:
        command = [sys.executable, "-m", "benchmarks.torch_budget", "--resident", name, json.dumps(case)]
        ended = subprocess.run(command, env=os.environ | EXACT, stdout=subprocess.PIPE, text=True, check=True)
        found.append(ended.stdout.strip().splitlines()[-1])
        told(found[-1])
    return found


def shown(peak: int, may: float) -> str:
    return f"{peak / 1e6:.1f}" + ("" if peak <= may else " (above)")


def told(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--only", default="", help="networks whose name begins so")
    parser.add_argument(
        "--rows", type=Path, help="a file of rows: what it has isn't measured again, what is new is added"
    )
    parser.add_argument("--resident", nargs=2, help="print a row of a network's resident memory, of one of SEEN")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.resident:
        told(resident_row(options.resident[0], *json.loads(options.resident[1])))
        return
    known: dict[str, dict[str, list[str]]] = {}
    if options.rows and options.rows.exists():
        known = json.loads(options.rows.read_text())
    for name in NETS:
        if name.startswith(options.only):
            known[name] = known.get(name) or rows_of(name)
            if name in RESIDENT and "resident" not in known[name]:
                known[name]["resident"] = resident_rows(name)
            if options.rows:
                options.rows.write_text(json.dumps(known))
            found = [known[one] for one in NETS if one in known]
            put(page({part: [row for rows in found for row in rows.get(part, ())] for part in PARTS}), options.output)


LLAMA_HEAD = (
    "A network of Llama's kind as in pytorch's issue 197838, share of the peak without recomputing that was asked for",
    "(torch's is of what is saved), and measured:",
    "",
    "| asked | torch | po |",
    "|---:|---:|---:|",
)


RESIDENT_HEAD = (
    "What the system sees: resident memory that a step adds at its peak, glibc told to give back what is freed. With",
    "`inductor`, which fuses and reorders what was planned, the plan's peak is an estimate:",
    "",
    "| network | backend | budget | planned: MB | resident: MB | ms |",
    "|---|---|---:|---:|---:|---:|",
)


def page(found: dict[str, list[str]]) -> list[str]:
    return [
        "# Budgets for torch modules, requested and measured",
        "",
        f"`python -m benchmarks.torch_budget`: torch {torch.__version__}, CPU, one thread, `aot_eager`. Peaks are of",
        "live tensors that a step makes (gradients too, parameters and inputs not). Times are processor time of a",
        "step, the least of three to six; the two of a row took turns. torch's `activation_memory_budget` is swept:",
        "the fastest setting within the budget, else the one of least peak. Batches (b) are what time allows.",
        "",
        "| network | budget | MB | po: MB | recomputing | po: ms | torch's setting | torch: MB | torch: ms |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        *found["rows"],
        "",
        "At torch's own peaks: the budget is what a setting of torch's measured.",
        "",
        "| network | torch's setting | torch: MB | po: MB | po: ms | torch: ms |",
        "|---|---:|---:|---:|---:|---:|",
        *found["equal"],
        "",
        *(LLAMA_HEAD if found["asked"] else ()),
        *found["asked"],
        *([""] if found["asked"] else ()),
        *(RESIDENT_HEAD if found["resident"] else ()),
        *found["resident"],
        *([""] if found["resident"] else ()),
        *found["without"],
    ]


if __name__ == "__main__":
    main()
