"""Every kernel of the runtime `c` against onnxruntime on random calls, with the sanitizers and poisoned memory.

.venv/bin/python -m benchmarks.kernels [--only OP] [--count N] [--output FILE.md]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.output import put
from poetopt.ops.runtimes.c.kernel import Kernel
from poetopt.ops.runtimes.c.steps import kernels
from poetopt.testing.kernel import KernelCheck, check_kernel
from poetopt.util.errors import PoetError
from tests.draws import cases_of

COUNT = 300
CHUNK = 50
"""Calls in one program: a compiler's time grows faster than a function's length."""
HEADING = "| kernel | calls | and on an input | largest deviation | sanitizers |"


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="the op of one kernel")
    parser.add_argument("--count", type=int, default=COUNT, help="calls of each kernel")
    parser.add_argument("--output", type=Path, help="a Markdown file to write")
    asked = parser.parse_args()
    rows = []
    for kernel in kernels().values():
        if asked.only in (None, kernel.op_type):
            try:
                found = checked(kernel, asked.count)
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
    put([*said, "", HEADING, "|---|---|---|---|---|", *rows], asked.output)


if __name__ == "__main__":
    main()
