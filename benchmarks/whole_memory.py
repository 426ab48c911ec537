"""All of training in the RAM: least energy of a step whose parameters, states and gradients are in the budget.

    .venv/bin/python -m benchmarks.whole_memory [--table whole|streamed|least] [--only SUBSTRING]... [--output FILE.md]

Each cell runs in a fresh process, as a user would: `po.solve(network, batch=1, device=..., total_ram=...)`. `half` is
half of what ordinary training takes: parameters, their gradients, optimizer states and the store-all peak. `streamed`
has steps in less RAM than their largest operator takes; `least` measures, for each network, the least RAM for all of
the step that is known, and what no step undercuts (`poetopt inspect`). Overhead is energy above one compute of each
operator; seconds include imports and reading the model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.boards import board

ROOT = Path(__file__).resolve().parents[1]
HEADINGS = {
    "whole": "| network | device | runtime | optimizer | total RAM, B | taken, B | overhead, J | bound, J | gap "
    "| wanted J | status, kind | page-ins / recomputes | written, B | s |",
    "streamed": "| network | device | optimizer | total RAM, B | taken, B | overhead, J | bound, J | gap | wanted J "
    "| status, kind | streamed runs / page-ins / recomputes | bytes moved in chunks, beside | s a step | solved in s |",
    "least": "| network | operators | least total RAM known, B | none in less than, B | plain operators alone, B "
    "| wanted, B |",
}
TINY = ("ds-cnn", "resnet8", "autoencoder", "mobilenetv1-025")
WANTED = {"lenet": 24_000, **dict.fromkeys(TINY, 64_000), "bert-tiny": 128_000}
WANTED |= {"mobilenetv2-035": 141_000, "resnet18-cifar": 256_000, "mobilenetv2": 256_000}


@dataclass(frozen=True)
class Cell:
    """One row: what is asked, and the overhead that is wanted of it, where one is."""

    network: str
    device: str
    runtime: str
    optimizer: str
    total: int
    limit_s: float
    gap: float
    want_j: float | None = None


def whole() -> Iterator[Cell]:
    """The first table, in order. A total of 0 is half of what ordinary training takes."""
    for total, want_j in ((300_000, 0.0084), (201_028, 0.2419)):
        yield Cell("lenet", "m4", "c", "sgd", total, 30, 1e-6, want_j)
    for optimizer, want_j in (("momentum", 0.2436), ("adam", 0.4828)):
        yield Cell("lenet", "m4", "c", optimizer, 256_000, 30, 1e-3, want_j)
    for total, want_j in ((9_607_340, 43.12), (11_528_808, 38.1)):
        yield Cell("resnet18-cifar", "m4", "c", "sgd", total, 60, 1e-3, want_j)
    for network in ("mobilenetv2", "resnet50", "bert-base", "gpt2-small"):
        for optimizer in ("sgd", "adam"):
            yield Cell(network, "a72", "onnxruntime", optimizer, 0, 180, 3e-2)


def streamed() -> Iterator[Cell]:
    """The second table, in order."""
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


def measure(cell: Cell) -> dict[str, Any]:
    """Solve one cell in this process."""
    begin = time.perf_counter()
    import poetopt as po

    total = cell.total or _half(cell)
    begin = begin if cell.total else time.perf_counter()
    try:
        report = po.solve(
            cell.network,
            batch=1,
            device=board(cell.device),
            runtime=cell.runtime,
            optimizer=cell.optimizer,
            total_ram=total,
            parameters="paged",
            time_limit=cell.limit_s,
            gap=cell.gap,
        )
        found = report.to_dict()
    except (po.util.errors.InfeasibleError, po.util.errors.NoScheduleError) as error:
        found = dict(error.report or {})
    found["asked_total"], found["seconds"] = total, time.perf_counter() - begin
    return found


def _half(cell: Cell) -> int:
    """Half of what ordinary training takes, in bytes."""
    import poetopt as po
    from poetopt.graph import Role

    plain = po.load(cell.network, batch=1).differentiate().cost(board(cell.device), runtime=cell.runtime)
    graph = plain.graph
    assert graph is not None
    of_parameters = sum(t.nbytes for t in graph.tensors.values() if t.role is Role.PARAMETER)
    states = {"adam": 2, "adamw": 2, "momentum": 1}.get(cell.optimizer, 0)
    return (plain.resident_bytes + states * of_parameters + po.store_all_peak_bytes(plain)) // 2


def row(cell: Cell, table: str) -> str:
    """A row of the first two tables, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.whole_memory", "--cell", json.dumps(asdict(cell))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    asked = " ".join(map(str, asdict(cell).values()))
    if done.returncode:
        return f"| {asked} | {(done.stderr.strip().splitlines() or ['ended'])[-1]} |"
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])

    def number(key: str, form: str) -> str:
        value = found.get(key)
        return format(value, form) if isinstance(value, int | float) else "-"

    proven = f"{found.get('status')}, {found.get('scope')}"
    figures = [cell.network, cell.device, cell.optimizer, f"{found['asked_total']:,}"]
    figures += [number("total_ram_bytes", ",d"), number("overhead_j", ".6g"), number("overhead_bound_j", ".6g")]
    figures += [number("overhead_gap", ".3%"), "-" if cell.want_j is None else f"{cell.want_j:g}"]
    figures.append(proven if found.get("overhead_j") is not None else str(found.get("reason")))
    moves = f"{found.get('page_ins')} / {found.get('recomputes')}"
    if table == "whole":
        figures[2:2] = [cell.runtime]
        figures[4] += "" if cell.total else " (half)"
        figures += [moves, number("bytes_written", ",d")]
    else:
        figures += [f"{found.get('streamed_runs')} / {moves}"]
        figures += [f"{number('bytes_streamed', ',d')}, {number('bytes_paged', ',d')}", number("makespan_s", ".3g")]
    return f"| {' | '.join(figures)} | {found['seconds']:.1f} |"


def least(network: str) -> str:
    """A row of the third table."""
    import poetopt as po
    from poetopt.report.inspection import needs

    problem = po.load(network, batch=1).differentiate(optimizer="sgd").cost("m4", parameters="paged")
    found, beside = needs(problem), problem.beside_bytes
    plain = max(map(problem.working_set_bytes, range(len(problem.operators)))) + problem.reserve_bytes
    known = "-" if found.least_ram_bytes is None else f"{found.least_ram_bytes + beside:,}"
    bound = f"{found.ram_bound_bytes + beside:,}"
    return f"| {network} | {len(problem.operators)} | {known} | {bound} | {plain + beside:,} | {WANTED[network]:,} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=HEADINGS, default="whole")
    parser.add_argument("--only", action="append", help="cells whose text contains this; may be repeated")
    parser.add_argument("--output", type=Path, help="write the table here (Markdown)")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.cell:
        print(json.dumps(measure(Cell(**json.loads(asked.cell)))))
        return
    if asked.table == "least":
        rows = (least(name) for name in WANTED if not asked.only or name in asked.only)
    else:
        cells = whole() if asked.table == "whole" else streamed()
        names = ((cell, " ".join(map(str, asdict(cell).values()))) for cell in cells)
        rows = (row(cell, asked.table) for cell, name in names if not asked.only or any(w in name for w in asked.only))
    heading = HEADINGS[asked.table]
    lines = [heading, "|---" * (heading.count("|") - 1) + "|"]
    print("\n".join(lines), flush=True)
    for found in rows:
        lines.append(found)
        print(found, flush=True)
        if asked.output:
            asked.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
