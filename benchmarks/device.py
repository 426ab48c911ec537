"""Whole SGD steps in C: RAM planned and linked, stack, code, instructions, distance from onnxruntime, bits.

.venv/bin/python -m benchmarks.device [--only NAME ...] [--output FILE.md]

Batch 1 (where not said otherwise), kernels of the runtime `c`, all weights trained by the step. A step is planned for
the 256 KB of an m4 or the 32 KB of an m0, or, where it takes more, for the least RAM in all that a schedule is known
for, with parameters on storage. It runs on an emulated core that has just that RAM, and the same program in QEMU where
that has such a board, or on this machine where the emulator would take too long. Networks for which a microcontroller
is no place are planned for 60 % of what ordinary training takes on an a72, or all of it. Two networks take 20 steps in
a row.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import poetopt as po
from benchmarks.output import put
from poetopt.backends.c.build import build, write
from poetopt.backends.c.emulator import emulate
from poetopt.backends.c.execution import DeviceExecution, DeviceTraining
from poetopt.backends.c.program import device_program
from poetopt.backends.c.run import first_pages, laid_out
from poetopt.backends.c.targets import target
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.backends.step.places import graph_of
from poetopt.graph.problem import Home, Problem
from poetopt.plan.instructions import Plan
from poetopt.report.inspection import needs
from poetopt.util.errors import InfeasibleError

RAM_BYTES, M0_BYTES = 256_000, 32_000
HEADING = (
    "| network | RAM in all, planned | parameters | least in all: known, bound | runs on | linked + stack "
    "| stack taken | code | instructions | from onnxruntime | 5 x one ulp | same bits | on QEMU | bytes paged |"
)

STEPS_HEADING = (
    "| 20 steps in a row on an emulated Cortex-M4 | first loss | last loss | linked | stack taken | instructions "
    "| parameters' way from onnxruntime | losses | 5 x one ulp | same bits |"
)
TRAINED = ("lenet", "ds-cnn")
"""What takes many steps in the RAM of an m4."""
STEPS, LR = 20, 0.002


@dataclass(frozen=True)
class Case:
    """A network, where its step runs, how many seconds the solver may search, the batch; device and deadline.

    ram_bytes
        In all; None: `share` of ordinary training's, beside the parameters.
    deadline
        By default there is none, and recomputing is cheaper than a card.
    """

    name: str
    on: str = "cortex-m4"
    time_limit: float = 20.0
    batch: int = 1
    device: str = "m4"
    ram_bytes: int | None = RAM_BYTES
    deadline: str | None = None
    share: str = "60%"


CASES = (
    Case("lenet"),
    Case("lenet", "cortex-m0plus", device="m0", ram_bytes=M0_BYTES),
    Case("ds-cnn"),
    Case("ds-cnn", deadline="1.5x"),
    Case("resnet8"),
    Case("autoencoder", batch=8),  # BatchNormalization of one row is its bias, of two a sign
    Case("mobilenetv1-025"),
    Case("bert-tiny"),
    Case("resnet18-cifar", "host"),
    Case("mobilenetv2", "host"),
    Case("resnet50", "host", device="a72", ram_bytes=None),
    Case("vit-b16", "host", device="a72", ram_bytes=None),
    Case("gpt2-small", "host", device="a72", ram_bytes=None, share="100%"),  # the tied table's update takes as much
)


def measure(case: Case) -> str:
    """The row of one network."""
    model = po.load(case.name, batch=case.batch)
    assert isinstance(model, po.Model)
    step = model.differentiate(optimizer="sgd")
    if case.ram_bytes is None:
        plan = solved(case, None)
        return row(case, plan, None, po.execute_on(plan, case.on))
    least, bound = least_of(step.cost(case.device, parameters="paged"))
    try:
        plan = solved(case, case.ram_bytes)
    except InfeasibleError:
        plan = solved(case, least)
    return row(case, plan, (least, bound), po.execute_on(plan, case.on))


def on_qemu(plan: Plan, on: str) -> str:
    """Whether the same program writes the same bytes there as in the emulator that has just the step's RAM."""
    core = target(on, "--on")
    if not core.qemu or not shutil.which("qemu-system-arm"):
        return ""
    graph = graph_of(plan)
    program = device_program(plan, graph)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write(program, core, folder)
        built = build(program, core, folder)
        files = {"batches.bin": laid_out(program.inputs, random_batch(graph, 0)), "pages.bin": first_pages(built)}
        first = emulate(built, files)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        command = ["qemu-system-arm", *core.qemu, "-display", "none", "-monitor", "none", "-serial", "none"]
        command += ["-semihosting-config", "enable=on,target=native", "-kernel", "po.elf"]
        subprocess.run(command, cwd=folder, check=True, timeout=3600)
        same = all((folder / name).read_bytes() == first.files[name] for name in ("results.bin", "losses.bin"))
    return "same bytes" if same else "OTHER BYTES"


def least_of(problem: Problem) -> tuple[int, int]:
    """The least RAM in all that a schedule is known for, and what none can do with less than."""
    found = needs(problem)
    assert found.least_ram_bytes is not None
    return found.least_ram_bytes + problem.beside_bytes, found.ram_bound_bytes + problem.beside_bytes


@cache
def solved(case: Case, total_ram: int | None) -> Plan:
    """A plan for so much RAM in all; None: as `Case` says. Raises InfeasibleError where that is too little."""
    report = po.solve(
        case.name,
        batch=case.batch,
        device=case.device,
        runtime="c",
        optimizer="sgd",
        ram=case.share if total_ram is None else None,
        total_ram=total_ram,
        time_limit=case.time_limit,
        deadline=case.deadline,
    )
    assert report.plan is not None, report
    return report.plan


def row(case: Case, plan: Plan, least: tuple[int, int] | None, ran: DeviceExecution) -> str:
    """What is said of it."""
    stack = plan.problem.stack_bytes
    linked = "?" if ran.linked_ram_bytes is None else f"{ran.linked_ram_bytes:,} + {stack:,}"
    paged = any(tensor.carried and tensor.home is Home.STORAGE for tensor in plan.problem.tensors)
    cells = (
        _shown(case),
        f"{ran.planned_ram_bytes + stack:,}",
        "paged" if paged else "resident",
        "" if least is None else f"{least[0]:,}, {least[1]:,}",
        ran.on,
        linked,
        f"{ran.stack_bytes:,}",
        "?" if ran.code_bytes is None else f"{ran.code_bytes:,}",
        "" if ran.instructions is None else f"{ran.instructions:,}",
        f"{ran.distance:.1e}",
        f"{5 * ran.sensitivity:.1e}",
        "yes" if ran.bit_identical else f"{len(ran.different)} DIFFER",
        on_qemu(plan, case.on),
        f"{ran.bytes_paged:,}",
    )
    return f"| {' | '.join(cells)} |"


def _shown(case: Case) -> str:
    batch = "" if case.batch == 1 else f", batch {case.batch}"
    return f"{case.name}{batch}{f', deadline {case.deadline}' if case.deadline else ''}"


def trained_row(case: Case, ran: DeviceTraining) -> str:
    """What is said of many steps."""
    cells = (
        f"{case.name}: {ran.steps} steps of {ran.optimizer}, lr {ran.hyperparameters['lr']:g}",
        f"{ran.losses[0]:.6g}",
        f"{ran.losses[-1]:.6g}",
        f"{ran.linked_ram_bytes:,}",
        f"{ran.stack_bytes:,}",
        f"{ran.instructions:,}",
        f"{ran.distance:.1e}",
        f"{ran.loss_distance:.1e}",
        f"{5 * ran.sensitivity:.1e}",
        "yes" if ran.bit_identical else f"{len(ran.different)} DIFFER",
    )
    return f"| {' | '.join(cells)} |"


def table(heading: str, rows: Sequence[str]) -> list[str]:
    """A table in Markdown."""
    return ["", heading, f"|{'---|' * heading.count(' | ')}---|", *rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", help="some of the networks")
    parser.add_argument("--output", type=Path, help="a Markdown file to write")
    asked = parser.parse_args()
    rows, trained = [], []
    for case in CASES:
        wanted = asked.only is None or case.name in asked.only
        if wanted:
            rows.append(measure(case))
            print(rows[-1], flush=True)
        if wanted and case.name in TRAINED and case.device == "m4" and case.deadline is None:
            trained.append(trained_row(case, po.train_on(solved(case, RAM_BYTES), case.on, STEPS, LR)))
            print(trained[-1], flush=True)
    said = (
        "Whole SGD steps in C of batch 1, all weights trained, kernels of the runtime `c`: planned for the 256,000 B",
        "of an m4, for the 32,000 B of an m0 where it runs on a Cortex-M0+, or, where a step takes more, for the least",
        "RAM in all that a schedule is known for, with parameters on storage; the last three are planned for an a72,",
        "and 60 % of what ordinary training takes beside parameters (gpt2-small: all of it, which its tied table's",
        "update takes, whatever is recomputed). Bytes. The linker gives a step its arena and",
        "resident region, and what the device sets aside for the stack; code (gcc -O2) is without weights, for this",
        "machine where it runs on the host. Distances are of how far all parameters move, relative, in the norm.",
        "*Same bits*: scheduled and unscheduled on the same kernels; *on QEMU*: what the same program writes there,",
        "beside the emulator that has just the step's RAM. Steps in a row are by the same plans.",
        "`python -m benchmarks.device --output benchmarks/results/device.md`.",
    )
    put([*said, *table(HEADING, rows), *table(STEPS_HEADING, trained)], asked.output)


if __name__ == "__main__":
    main()
