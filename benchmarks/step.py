"""A whole training step against torch's, and node by node in the arena against one session; one thread each.

    .venv/bin/python -m benchmarks.step [--only NAME] [--runs N] [--output FILE.md]

Three steps of the same network on the same batch, forward, loss and backward, run in turns in one process: torch;
the training graph as one onnxruntime session; the store-all plan, node by node in one arena. Medians. `torch` is
the network as torch writes it (see `benchmarks/torch_networks.py`). Losses are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import poetopt as po
from benchmarks.torch_networks import NETWORKS
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.backends.onnxruntime.measure import alternate
from poetopt.backends.onnxruntime.reference import Fused
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.backends.step.memory import Block
from poetopt.backends.step.program import Program
from poetopt.backends.step.region import Region, slots
from poetopt.backends.step.storage import PageFile
from poetopt.plan.assemble import plan_of
from poetopt.plan.layout import arena_bytes, lay_out
from poetopt.plan.schedule import Schedule

ROOT = Path(__file__).resolve().parents[1]
HEADING = "| network | batch | nodes | torch ms | session | wanted | arena | arena of session | wanted | verdict |"


@dataclass(frozen=True)
class Case:
    """A network, its batch, and the most that a step may take, as a multiple of torch's."""

    name: str
    batch: int
    want: float


CASES = (
    Case("resnet18-cifar", 8, 1.25),
    Case("resnet18-cifar", 32, 1.25),
    Case("vgg16-cifar", 8, 1.25),
    Case("vgg16-cifar", 32, 1.25),
    Case("bert-tiny", 2, 1.25),
    Case("bert-tiny", 8, 1.25),
    Case("mobilenetv2", 2, 2.0),
    Case("mobilenetv2", 8, 2.0),
)
WANT_ARENA = 1.1
"""The most that a step in the arena may take, as a multiple of one session's."""


def measure(case: Case, runs: int) -> str:
    """The row of one case, measured in this process."""
    torch.set_num_threads(1)
    model = po.load(case.name, batch=case.batch)
    assert isinstance(model, po.Model)
    training = model.differentiate()
    graph = training.graph
    batch = random_batch(graph)
    weights = {name: torch.from_numpy(np.array(value)) for name, value in graph.values.items()}
    for name in graph.trained:
        weights[name].requires_grad_(True)
    inputs = [torch.from_numpy(np.array(batch[name])) for name in graph.inputs]

    def by_torch() -> object:
        for name in graph.trained:
            weights[name].grad = None
        loss: Any = torch.nn.functional.cross_entropy(NETWORKS[case.name](weights, inputs[:-1]), inputs[-1])
        loss.backward()
        return loss

    plan = lay_out(plan_of(training.cost("a72"), Schedule()))
    with ExitStack() as stack:
        pages = stack.enter_context(PageFile(slots(plan)))
        sessions, region = Sessions(graph), Region.of(graph)
        program = Program(plan, graph, Block(arena_bytes(plan)), region, sessions, pages)
        fused = Fused(graph, sessions, region.given, (graph.loss, *graph.gradients.values(), *graph.states.values()))
        program.run_checked(batch)
        check(case, float(by_torch().detach()), float(program.result(graph.loss)))  # type: ignore[attr-defined]

        def in_arena() -> Callable[[], object]:
            program.load(batch)
            return program.run

        found = alternate(
            {"torch": lambda: by_torch, "fused": lambda: lambda: fused.run(batch), "arena": in_arena},
            seconds=600.0, least=runs, most=runs,
        )  # fmt: skip
    nodes = sum(len(operator.nodes) for operator in graph.operators)
    ratio, arena = found["fused"] / found["torch"], found["arena"] / found["fused"]
    missing = [what for what, bad in (("session", ratio > case.want), ("arena", arena > WANT_ARENA)) if bad]
    cells = (
        case.name, str(case.batch), str(nodes), f"{1e3 * found['torch']:.1f}", f"{ratio:.2f}x", f"{case.want:g}x",
        f"{found['arena'] / found['torch']:.2f}x", f"{arena:.2f}x", f"{WANT_ARENA:g}x", ", ".join(missing) or "ok",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def check(case: Case, theirs: float, ours: float) -> None:
    """Refuse to time two steps that don't compute the same."""
    if not np.isclose(theirs, ours, rtol=1e-4):
        raise SystemExit(f"{case.name}: torch's loss is {theirs}, ours {ours}: these are not the same network")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose `name batch` contains this")
    parser.add_argument("--runs", type=int, default=9, help="of each step")
    parser.add_argument("--output", type=Path, help="write the table here (Markdown)")
    parser.add_argument("--note", default="", help="a line above the table")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        print(measure(CASES[options.case], options.runs))
        return
    lines = [HEADING, "|---" * HEADING.count("| ") + "|"]
    print("\n".join(lines), flush=True)
    for number, case in enumerate(CASES):
        if options.only not in f"{case.name} {case.batch}":
            continue
        command = [sys.executable, "-m", "benchmarks.step", "--case", str(number), "--runs", str(options.runs)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True)
        lines.append(done.stdout.strip())
        print(lines[-1], flush=True)
        if options.output:
            head = f"{options.note}\n\n" if options.note else ""
            options.output.write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
