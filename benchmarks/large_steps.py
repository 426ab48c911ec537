"""Whole SGD steps of large networks in the RAM of a microcontroller: planned, emitted as C, run, compared.

    .venv/bin/python -m benchmarks.large_steps [--only SUBSTRING]... [--output FILE.md]

Batch 1, every weight updated, parameters on storage. Seconds and joules are the cost model's; instructions are those
that the emulated core executed. An emulated step takes minutes to hours, so a file that is there keeps the rows of
cases that aren't asked for.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cells import row_of
from benchmarks.output import put

HEADING = (
    "| step | RAM in all, B | runs on | overhead, J | gap | kind | streamed runs / page-ins / recomputes | bytes in "
    "chunks, whole | modelled h | modelled J | solved in s | code, B | stack, B | instructions | from onnxruntime "
    "| 5 x one ulp | same bits | ran for s |"
)
RAM_BYTES = 256_000


@dataclass(frozen=True)
class Case:
    """A network, how long its sequences are (0: it has none), where its step runs, and the solver's seconds and gap.

    on
        "" for what is planned and simulated alone.
    """

    network: str
    tokens: int
    on: str
    limit_s: float = 100.0
    gap: float = 3e-2

    @property
    def shown(self) -> str:
        """What the row is called."""
        return f"{self.network}, {self.tokens} tokens" if self.tokens else self.network


CASES = (
    Case("resnet18-cifar", 0, "cortex-m4"),
    Case("bert-base", 8, "cortex-m4"),
    Case("bert-base", 16, "cortex-m4"),
    Case("bert-base", 128, "", 180.0),
)


def measure(case: Case) -> dict[str, Any]:
    """Plan and run a step in this process."""
    import poetopt as po

    shapes = {"input_ids": f"1x{case.tokens}"} if case.tokens else {}
    begin = time.perf_counter()
    report = po.solve(
        case.network,
        batch=1,
        shapes=shapes,
        device="m4",
        optimizer="sgd",
        total_ram=RAM_BYTES,
        time_limit=case.limit_s,
        gap=case.gap,
    )
    planned = time.perf_counter()
    assert report.plan is not None, report
    found = {**report.to_dict(), "solved_in_s": planned - begin}
    if case.on:
        found |= po.execute_on(report.plan, case.on).to_dict()
        found["ran_for_s"] = time.perf_counter() - planned
    return found


def line(case: Case, row: Mapping[str, Any]) -> str:
    """The table's row."""

    def number(key: str, form: str = ",d") -> str:
        value = row.get(key)
        return format(value, form) if isinstance(value, int | float) else "-"

    found = (
        case.shown,
        number("total_ram_bytes"),
        case.on or "planned alone",
        number("overhead_j", ".4g"),
        number("overhead_gap", ".2%"),
        f"{row['status']}, {row['scope']}",
        f"{number('streamed_runs')} / {number('page_ins')} / {number('recomputes')}",
        f"{number('bytes_streamed')}, {number('bytes_paged')}",
        f"{row['makespan_s'] / 3600:.3g}",
        number("energy_j", ".4g"),
        number("solved_in_s", ".0f"),
        number("code_bytes"),
        number("stack_bytes") if case.on else "-",
        number("instructions"),
        number("distance", ".1e"),
        f"{5 * row['sensitivity']:.1e}" if case.on else "-",
        "-" if not case.on else "yes" if row["bit_identical"] else "NO",
        number("ran_for_s", ".0f"),
    )
    return f"| {' | '.join(found)} |"


def measured(case: Case) -> str:
    """The row of a case, from a process of its own."""
    return row_of("benchmarks.large_steps", line, case, case.shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="cases whose name contains this; may be repeated")
    parser.add_argument("--output", type=Path, help="a Markdown file to write")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.cell:
        print(json.dumps(measure(Case(**json.loads(asked.cell)))))
        return
    there = asked.output.read_text(encoding="utf-8").splitlines() if asked.output and asked.output.exists() else []
    kept = {entry.split(" | ")[0].removeprefix("| "): entry for entry in there if entry.startswith("| ")}
    for case in CASES:
        if not asked.only or any(wanted in case.shown for wanted in asked.only):
            kept[case.shown] = measured(case)
            print(kept[case.shown], flush=True)
    said = (
        f"Whole SGD steps in C of batch 1, every weight updated, planned for {RAM_BYTES:,} B of an m4 in all,",
        "parameters on storage. Overhead is energy above one plain compute of each operator; hours and joules are",
        "the cost model's, of a whole step with its transfers. Distances are of how far all parameters move,",
        "relative, in the norm. *Same bits*: scheduled and unscheduled on the same kernels. Seconds are of two",
        "cores that other work shared.",
        "`python -m benchmarks.large_steps --output benchmarks/results/large_steps.md`.",
    )
    rows = [kept[case.shown] for case in CASES if case.shown in kept]
    put([*said, "", HEADING, f"|{'---|' * (HEADING.count('|') - 1)}", *rows], asked.output)


if __name__ == "__main__":
    main()
