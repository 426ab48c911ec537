"""The paper's experiments on our graphs: rows of methods at budgets, into CSV files.

    python -m benchmarks.paper.measure [--only fig3 fig4 fig5 table3 batch dtr in-dtr-time rounding]
                                       [--constants paper grounded]
                                       [--model NAME ...] [--device NAME ...] [--limit 20]

Writes `benchmarks/results/paper/EXPERIMENT-CONSTANTS.csv`, a cell at a time: the rows of cells that are not measured
stay as they are. `benchmarks.paper.draw` makes tables and figures of them.
The constants are those that the paper used (`paper-a72` and so on), or the grounded ones of the catalogue (`a72`).
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import poetopt as po
from poetopt.comparison.baselines.acceptance import Settings
from poetopt.comparison.baselines.poet import solve
from poetopt.comparison.compare import compare
from poetopt.comparison.rows import COLUMNS, ComparisonRow, in_bytes, parse_budgets, row_of_solution
from poetopt.graph.problem import Problem
from poetopt.util.files import replacing

RESULTS = Path(__file__).resolve().parents[1] / "results" / "paper"
DEVICES = ("m0", "m4", "a72", "tx2")
FIG3 = ("checkpoint-all", "chen-sqrtn", "chen-greedy", "revolve", "checkmate", "dtr", "poet")
ABLATIONS = ("poet-paging-only", "poet-remat-only", "poet")
WHERE = (
    "constants",
    "model",
    "batch",
    "device",
    "deadline",
    "store_all_peak_bytes",
    "baseline_energy_j",
    "baseline_time_s",
)
LESS_MEMORY, LESS_TIME = 285_873 / 311_808, 82.36 / 94.79
"""Table 3 of the paper: POET's peak and runtime over POFO's."""
CLAIMS = {
    "poet-less-memory": (LESS_MEMORY, 1.0),
    "poet-less-time": (1.0, LESS_TIME),
    "poet-both": (LESS_MEMORY, LESS_TIME),
}
"""What rows call POET, asked for these factors of the peak and the makespan of a POFO plan."""


@dataclass(frozen=True)
class Cell:
    """Methods on one problem at several budgets; `deadline` in passes, 0 for none."""

    model: str
    device: str
    ram: str
    methods: tuple[str, ...]
    batch: int = 1
    deadline: float = 0.0


def cells(experiment: str) -> Iterator[Cell]:
    """What an experiment consists of."""
    if experiment == "fig3":
        # At batch 1 no schedule of VGG16 has less than 67 %: the gradient of one convolution needs as much.
        for model, ram in (
            ("resnet18-cifar", "30%,45%,60%,80%"),
            ("vgg16-cifar", "70%,80%,90%"),
            ("bert-base", "40%,70%"),
        ):
            for device in DEVICES:
                yield Cell(model, device, ram, FIG3)
    elif experiment == "dtr":
        # Where DTR still finds plans, and they are dearest.
        yield Cell("resnet18-cifar", "tx2", "38%,40%,42%,44%", ("dtr", "poet"))
    elif experiment == "in-dtr-time":
        # DTR's plan at 42 % takes 1.25203 passes with the grounded constants.
        yield Cell("resnet18-cifar", "tx2", "42%", ("dtr", "poet"), deadline=1.2521)
    elif experiment == "rounding":
        yield Cell("resnet18-cifar", "a72", "30%..90%/7", ("checkmate", "checkmate-lp-rounding"), batch=8)
    elif experiment == "fig4":
        for deadline in (1.0, 1.01, 1.03, 1.1, 1.3):
            for device in ("tx2", "m4"):
                yield Cell("vgg16-cifar", device, "70%,85%", ABLATIONS, deadline=deadline)
    elif experiment == "fig5":
        methods = ("capuchin", "capuchin-paging-first", "poet")
        yield Cell("resnet18-cifar", "a72", "30%..90%/5", methods)
    elif experiment == "table3":
        yield Cell("resnet18-cifar", "tx2", "30%..90%/4", ("pofo", "poet"))
    elif experiment == "batch":
        for batch in (1, 4, 16, 64):
            yield Cell("resnet18-cifar", "a72", "40%", ("dtr", "checkmate", "poet"), batch=batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    experiments = ("table3", "fig5", "fig4", "batch", "dtr", "in-dtr-time", "rounding", "fig3")
    parser.add_argument("--only", nargs="+", choices=experiments, default=experiments)
    parser.add_argument("--constants", nargs="+", choices=("paper", "grounded"), default=("paper", "grounded"))
    parser.add_argument("--model", nargs="+", help="these networks alone")
    parser.add_argument("--device", nargs="+", choices=DEVICES, help="these devices alone")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds of one solve")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    settings = Settings(time_limit_s=options.limit, gap=1e-2, threads=1)
    options.output.mkdir(parents=True, exist_ok=True)
    for experiment in options.only:
        for constants in options.constants:
            path = options.output / f"{experiment}-{constants}.csv"
            for cell in cells(experiment):
                if cell.model not in (options.model or [cell.model]):
                    continue
                if cell.device not in (options.device or [cell.device]):
                    continue
                begin = time.monotonic()
                write(path, list(cells(experiment)), cell, list(measure(cell, constants, settings)))
                seconds = time.monotonic() - begin
                print(f"{experiment} {constants} {cell}: {seconds:.0f} s", file=sys.stderr, flush=True)


def write(path: Path, order: list[Cell], cell: Cell, measured: list[dict[str, object]]) -> None:
    """Put a cell's rows in the place of those that the file has of it, cells in their order."""
    by_cell: dict[tuple[str, ...], list[Mapping[str, object]]] = {}
    if path.exists():
        with open(path, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                by_cell.setdefault(place(row), []).append(row)
    by_cell[tuple(map(str, cell_where(cell)))] = list(measured)
    with replacing(path) as beside, open(beside, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, (*WHERE, *COLUMNS), lineterminator="\n")
        writer.writeheader()
        for other in order:
            writer.writerows(by_cell.get(tuple(map(str, cell_where(other))), []))


def cell_where(cell: Cell) -> tuple[object, ...]:
    """What tells a cell from the others of its file, as its rows have it: WHERE from `model` to `deadline`."""
    return (cell.model, cell.batch, cell.device, cell.deadline or "")


def place(row: Mapping[str, object]) -> tuple[str, ...]:
    """The same of a row."""
    return tuple(str(row[name]) for name in WHERE[1:5])


def measure(cell: Cell, constants: str, settings: Settings) -> Iterator[dict[str, object]]:
    """The rows of a cell."""
    device = f"paper-{cell.device}" if constants == "paper" else cell.device
    problem = po.load(cell.model, batch=cell.batch).differentiate().cost(device, runtime="onnxruntime")
    if cell.deadline:
        # A hair more than the factor: a makespan is a sum of floats.
        settings = replace(settings, deadline_s=cell.deadline * problem.baseline_time_s * (1 + 1e-9))
    peak = po.store_all_peak_bytes(problem)
    where = dict(
        zip(
            WHERE,
            (constants, *cell_where(cell), peak, problem.baseline_energy_j, problem.baseline_time_s),
            strict=True,
        )
    )
    found = compare(problem, in_bytes(parse_budgets(cell.ram), peak), cell.methods, settings)
    for row in found.rows:
        yield {**where, **row.to_dict()}
        if row.method == "pofo" and row.peak_bytes is not None and row.makespan_s is not None:
            for name in CLAIMS:
                yield {**where, **claimed(problem, row, name, settings).to_dict()}


def claimed(problem: Problem, pofo: ComparisonRow, name: str, settings: Settings) -> ComparisonRow:
    """POET with the memory and the time that Table 3 claims, measured at a plan of POFO."""
    assert pofo.peak_bytes is not None
    assert pofo.makespan_s is not None
    memory, time_ = CLAIMS[name]
    ram_bytes = int(memory * pofo.peak_bytes)
    asked = replace(settings, deadline_s=time_ * pofo.makespan_s)
    row = row_of_solution(name, ram_bytes, solve(problem, ram_bytes, asked))
    return replace(row, ram_budget_bytes=pofo.ram_budget_bytes)


if __name__ == "__main__":
    main()
