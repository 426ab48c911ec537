"""Every kernel of the runtime `c` on random calls, with the sanitizers and poisoned memory: against onnxruntime, or
those that run chunk by chunk, by random ways to stream them, against the plain ones: bits and transfers.

.venv/bin/python -m benchmarks.kernels [--streamed] [--only OP] [--count N] [--output FILE.md]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.output import put
from poetopt.graph import TOGETHER, Operator
from poetopt.ops.runtimes.c import windows
from poetopt.ops.runtimes.c.kernel import UPDATE, Kernel
from poetopt.ops.runtimes.c.steps import kernels
from poetopt.ops.runtimes.c.variants import StreamWays
from poetopt.testing.contract import ContractError
from poetopt.util.errors import PoetError
from tests.support.contract.kernel import Case, KernelCheck, check_kernel
from tests.support.draws import cases_of
from tests.support.streamed_kernels import Trial, check_streamed, small_blocks, trial

CALLS, SHAPES, WAYS = 300, 60, 3
CHUNK, OPERATORS = 50, 12
"""Calls, and streamed operators, in one program: a compiler's time grows faster than a function's length."""
BLOCK_BYTES = 32
"""Of a storage with small blocks, so that small shapes take many transfers."""
HEADING = "| kernel | calls | and on an input | largest deviation | sanitizers |"
STREAMED = "| kernel | shapes | ways to stream | chosen of | most transfers | fails |"


def checked(kernel: Kernel, count: int) -> KernelCheck:
    """`check_kernel` on `count` calls, in several programs."""
    parts = []
    for seed, first in enumerate(range(0, count, CHUNK)):
        parts.append(check_kernel(kernel, cases_of(kernel, min(CHUNK, count - first), seed), optimize="-O0"))
    return KernelCheck(
        parts[0].op,
        sum(part.cases for part in parts),
        sum(part.in_place for part in parts),
        max(part.deviation for part in parts),
        all(part.sanitized for part in parts),
    )


@dataclass
class Tally:
    """What a kernel's shapes showed."""

    shapes: int = 0
    ways: int = 0
    of: int = 0
    transfers: int = 0
    wrong: str = ""


def operator_of(kernel: Kernel, case: Case) -> Operator:
    """The operator that a call is, with what it updates."""
    node = case.node
    inputs = tuple(dict.fromkeys(name for name in node.inputs if name))
    outputs = tuple(name for name in node.outputs if name)
    updates: tuple[tuple[str, str], ...] = ()
    if kernel.op_type.endswith(UPDATE):
        states = node.inputs[3 if TOGETHER in kernel.op_type else 2 :]
        updates = tuple(zip((node.inputs[kernel.in_place[0]], *states), outputs, strict=False))
    return Operator(kernel.op_type, kernel.op_type, (node,), inputs, outputs, updates=updates)


def trials(kernel: Kernel, count: int, ways: int, tally: Tally) -> Iterator[Trial]:
    """Random shapes of a kernel that can be streamed, each by some of its ways."""
    draw = random.Random(kernel.op_type)
    for case in cases_of(kernel, 4 * count):
        operator = operator_of(kernel, case)
        names, block = (*operator.inputs, *operator.outputs), windows.BLOCK_BYTES
        made = StreamWays(operator, case.tensors, movable=names, values=case.values, block=block)
        found = list(made.candidates())
        if not found:
            continue
        chosen = [made.variant(way) for way in draw.sample(found, min(ways, len(found)))]
        tally.shapes += 1
        tally.of += len(found)
        tally.ways += len(chosen)
        tally.transfers = max(tally.transfers, *(sum(n for _, n in (*v.reads, *v.writes)) for v in chosen))
        yield trial(operator, case.tensors, case.values, case.given, chosen)
        if tally.shapes == count:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streamed", action="store_true", help="chunk by chunk, against the plain kernels")
    parser.add_argument("--only", help="the op of one kernel")
    parser.add_argument("--count", type=int, help="calls of each kernel, or shapes")
    parser.add_argument("--output", type=Path, help="a Markdown file to write")
    asked = parser.parse_args()
    put(
        streamed(asked.only, asked.count or SHAPES) if asked.streamed else plain(asked.only, asked.count or CALLS),
        asked.output,
    )


def plain(only: str | None, count: int) -> list[str]:
    """The lines of the table against onnxruntime."""
    rows = []
    for kernel in kernels().values():
        if only in (None, kernel.op_type):
            try:
                found = checked(kernel, count)
            except PoetError as error:
                rows.append(f"| {kernel.domain or 'ONNX'} {kernel.op_type} | {error} | | | |")
                continue
            watched = "yes" if found.sanitized else "none"
            rows.append(f"| {found.op} | {found.cases} | {found.in_place} | {found.deviation:.1e} | {watched} |")
            print(rows[-1], flush=True)
    said = (
        "Random calls of each kernel of the runtime `c` against onnxruntime's node, or the nodes that its op stands",
        "for: all bytes of outputs and scratch poisoned in two ways, buffers of exactly their size, inputs compared",
        "afterwards, and again with outputs on inputs wherever they may lie there. Deviations are relative to the",
        "largest element of an output. `python -m benchmarks.kernels --output benchmarks/results/kernels.md`.",
    )
    return [*said, "", HEADING, "|---|---|---|---|---|", *rows]


@small_blocks(BLOCK_BYTES)
def streamed(only: str | None, count: int) -> list[str]:
    """The lines of the table against the plain kernels."""
    rows, total = [], Tally()
    for kernel in kernels().values():
        if only not in (None, kernel.op_type):
            continue
        tally = Tally()
        waiting = list(trials(kernel, count, WAYS, tally))
        for first in range(0, len(waiting), OPERATORS):
            try:
                check_streamed(waiting[first : first + OPERATORS], "-O0", sanitize=False)
            except ContractError as error:
                tally.wrong = str(error).splitlines()[0]
                print(error, flush=True)
        if tally.shapes:
            name = f"{kernel.domain}.{kernel.op_type}".lstrip(".")
            shown = f"{tally.shapes} | {tally.ways} | {tally.of:,} | {tally.transfers:,} | {tally.wrong or 'none'}"
            rows.append(f"| {name} | {shown} |")
            print(rows[-1], flush=True)
            total.shapes, total.ways = total.shapes + tally.shapes, total.ways + tally.ways
            total.of = total.of + tally.of
    rows.append(f"| all | {total.shapes:,} | {total.ways:,} | {total.of:,} | | |")
    said = (
        "Random calls of each kernel of the runtime `c` that can run chunk by chunk, by ways drawn from all that",
        "there are (loops, what of it is streamed, sizes of chunks). Each runs in C beside the plain kernel, on a",
        f"storage with blocks of {BLOCK_BYTES} B that counts: results are the plain one's bits, bytes and transfers",
        "those of the closed form; each byte that is read was written, each is written once; RAM is the way's, to",
        "the byte, and poisoned.",
        "`python -m benchmarks.kernels --streamed --output benchmarks/results/kernels_streamed.md`.",
    )
    return [*said, "", STREAMED, "|---|---|---|---|---|---|", *rows]


if __name__ == "__main__":
    main()
