"""Every kernel that runs chunk by chunk, by random ways to stream it, against the plain one: bits and transfers.

.venv/bin/python -m benchmarks.kernels_streamed [--only OP]... [--count N] [--ways N] [--sanitize] [--output FILE.md]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.output import put
from poetopt.graph import TOGETHER, Operator
from poetopt.ops.runtimes.c.kernel import UPDATE, Kernel
from poetopt.ops.runtimes.c.steps import kernels
from poetopt.ops.runtimes.c.variants import StreamWays
from poetopt.testing.contract import ContractError
from poetopt.testing.kernel import Case
from tests.draws import cases_of
from tests.streamed_kernels import Trial, check_streamed, small_blocks, trial

COUNT, WAYS = 60, 3
CHUNK = 12
"""Operators in one program: a compiler's time grows faster than a file's length."""
BLOCK_BYTES = 32
"""Of a storage with small blocks, so that small shapes take many transfers."""
HEADING = "| kernel | shapes | ways to stream | chosen of | most transfers | fails |"


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
        made = StreamWays(operator, case.tensors, movable=(*operator.inputs, *operator.outputs), values=case.values)
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


@small_blocks(BLOCK_BYTES)
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="the op of one kernel; may be repeated")
    parser.add_argument("--count", type=int, default=COUNT, help="shapes of each kernel")
    parser.add_argument("--ways", type=int, default=WAYS, help="ways to stream each shape")
    parser.add_argument("--sanitize", action="store_true", help="with the compiler's sanitizers")
    parser.add_argument("--output", type=Path, help="a Markdown file to write")
    asked = parser.parse_args()
    rows, total = [], Tally()
    for kernel in kernels().values():
        if asked.only and kernel.op_type not in asked.only:
            continue
        tally = Tally()
        waiting = list(trials(kernel, asked.count, asked.ways, tally))
        for first in range(0, len(waiting), CHUNK):
            try:
                check_streamed(waiting[first : first + CHUNK], "-O0", sanitize=asked.sanitize)
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
        "`python -m benchmarks.kernels_streamed --output benchmarks/results/kernels_streamed.md`.",
    )
    put([*said, "", HEADING, "|---|---|---|---|---|---|", *rows], asked.output)


if __name__ == "__main__":
    main()
