"""Steps in less RAM than their largest operator takes: least energy where operators may stream operands chunk by chunk.

    .venv/bin/python -m benchmarks.streamed [--only SUBSTRING]... [--least] [--output FILE.md]

Each cell runs in a fresh process, as a user would: `po.solve(network, batch=1, device=..., total_ram=...)`. Overhead is
energy above one plain compute of each operator; seconds include imports and reading the model. `--least` measures, for
each network, the least RAM for all of the step that is known, and what no step undercuts (`poetopt inspect`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.whole_memory import ROOT, Cell, measure

HEADING = (
    "| network | device | optimizer | total RAM, B | taken, B | overhead, J | bound, J | gap | wanted J | status, kind "
    "| streamed runs / page-ins / recomputes | bytes moved in chunks, beside | s a step | solved in s |"
)
LEAST = (
    "| network | operators | least total RAM known, B | none in less than, B | plain operators alone, B | wanted, B |"
)
TINY = ("ds-cnn", "resnet8", "autoencoder", "mobilenetv1-025")
WANTED = {"lenet": 24_000, **dict.fromkeys(TINY, 64_000), "bert-tiny": 128_000}
WANTED |= {"mobilenetv2-035": 141_000, "resnet18-cifar": 256_000, "mobilenetv2": 256_000}


def cells() -> Iterator[Cell]:
    """The table, in order."""
    for total, want_j in ((256_000, (0.0426, 0.2436, 0.4828)), (64_000, (0.3282, 0.5554, 0.8154))):
        for optimizer, joules in zip(("sgd", "momentum", "adam"), want_j, strict=True):
            yield Cell("lenet", "m4", "c", optimizer, total, 30, 1e-3, joules)
    yield Cell("lenet", "m4", "c", "sgd", 24_000, 30, 1e-3)
    for network in TINY:
        for total in (256_000, 64_000):
            yield Cell(network, "m4", "c", "sgd", total, 120, 1e-2)
        yield Cell(network, "m0", "c", "sgd", 32_000, 120, 1e-2)
    for total, joules in ((1_200_000, 69.26), (2_400_000, 65.0), (4_800_000, 58.5)):
        yield Cell("resnet18-cifar", "m4", "c", "sgd", total, 120, 1e-2, joules)
    for network in ("resnet18-cifar", "bert-tiny", "mobilenetv2-035"):
        yield Cell(network, "m4", "c", "sgd", 256_000, 120, 3e-2)


def least(network: str) -> str:
    """A row of the second table."""
    import poetopt as po
    from poetopt.report.needs import needs

    problem = po.load(network, batch=1).differentiate(optimizer="sgd").cost("m4", parameters="paged")
    found, beside = needs(problem), problem.beside_bytes
    plain = max(map(problem.working_set_bytes, range(len(problem.operators)))) + problem.reserve_bytes
    known = "-" if found.least_ram_bytes is None else f"{found.least_ram_bytes + beside:,}"
    bound = f"{found.ram_bound_bytes + beside:,}"
    return f"| {network} | {len(problem.operators)} | {known} | {bound} | {plain + beside:,} | {WANTED[network]:,} |"


def line(cell: Cell, row: dict[str, Any]) -> str:
    """A row of the first table."""

    def number(key: str, form: str) -> str:
        value = row.get(key)
        return format(value, form) if isinstance(value, int | float) else "-"

    kind = f"{row.get('status')}, {row.get('scope')}" if row.get("overhead_j") is not None else str(row.get("reason"))
    found = (
        cell.network,
        cell.device,
        cell.optimizer,
        f"{row['asked_total']:,}",
        number("total_ram_bytes", ",d"),
        number("overhead_j", ".6g"),
        number("overhead_bound_j", ".6g"),
        number("overhead_gap", ".3%"),
        "-" if cell.want_j is None else f"{cell.want_j:g}",
        kind,
        f"{row.get('streamed_runs')} / {row.get('page_ins')} / {row.get('recomputes')}",
        f"{number('bytes_streamed', ',d')}, {number('bytes_paged', ',d')}",
        number("makespan_s", ".3g"),
        f"{row['seconds']:.1f}",
    )
    return f"| {' | '.join(found)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="cells whose text contains this; may be repeated")
    parser.add_argument("--least", action="store_true", help="the table of least RAM alone")
    parser.add_argument("--output", type=Path, help="write the table here (Markdown)")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        print(json.dumps(measure(Cell(**json.loads(arguments.cell)))))
        return
    heading = LEAST if arguments.least else HEADING
    lines = [heading, "|---" * (heading.count("|") - 1) + "|"]
    print("\n".join(lines), flush=True)
    for row in _least_rows(arguments.only) if arguments.least else _rows(arguments.only):
        lines.append(row)
        print(row, flush=True)
        if arguments.output:
            arguments.output.write_text("\n".join(lines) + "\n")


def _least_rows(only: list[str] | None) -> Iterator[str]:
    return (least(network) for network in WANTED if not only or network in only)


def _rows(only: list[str] | None) -> Iterator[str]:
    for cell in cells():
        name = " ".join(map(str, asdict(cell).values()))
        if only and not any(wanted in name for wanted in only):
            continue
        command = [sys.executable, "-m", "benchmarks.streamed", "--cell", json.dumps(asdict(cell))]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        if done.returncode:
            yield f"| {name} | {(done.stderr.strip().splitlines() or ['ended'])[-1]} |"
        else:
            yield line(cell, json.loads(done.stdout.strip().splitlines()[-1]))


if __name__ == "__main__":
    main()
