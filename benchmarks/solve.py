"""How good a schedule, how well proven, and how fast: every cell of the solver's table, one process a cell.

    make bench
    .venv/bin/python -m benchmarks.solve [--only SUBSTRING]... [--limit SECONDS] [--output FILE.md]
    .venv/bin/python -m benchmarks.solve --busy [--only SUBSTRING]... [--limit SECONDS] [--output FILE.md]

A cell is a problem, a device, a RAM budget (a share of the store-all peak, or bytes), a scope and what
must hold. Each runs in a fresh process, so that neither imports nor caches of one help the next; `total`
is from the problem to the simulated plan, imports included. Problem files are looked for in the shared
instances; zoo networks (names with a `zoo:` prefix) and generated ones of 1,000 operators (`deep:`) are
differentiated first, which is not in `total`. `MB` is the most that the process held, that included; `build s` is
all building of models. Both have their limits for ONNX: 2 GB at 1,000 operators, 1 s or 30 % of the total.

With `--busy` each cell is solved as it is, and again on one core that another process spins on, both with a limit that
is long enough: work is counted, so that the second takes longer and costs no more than BUSY times the first.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

    from poetopt.graph.problem import Problem
    from poetopt.search.solution import Options, Progress

ROOT = Path(__file__).resolve().parents[1]
INSTANCES = ROOT.parent / "shared" / "instances"
HEADING = (
    "| group | problem | device | RAM | scope | overhead J | bound J | scope gap | of all plans | wanted | total s "
    "| wanted | build s | MB | verdict |"
)
STARTING_S = 2.0
"""Of the seconds wanted, those that go into imports and into ending: the solve is given the rest as its limit."""
BUSY, BUSY_LIMIT_S = 1.005, 900.0
BUSY_HEADING = (
    "| group | problem | device | RAM | scope asked | J | J busy | times | scope | scope busy | s | s busy | verdict |"
)
SPIN = ("taskset", "-c", "0")
ROUNDED = 5e-5
"""Reference figures are printed with five digits: half a unit of the last one, at worst."""


@dataclass(frozen=True)
class Cell:
    """One row: what is asked and what is wanted of it."""

    group: str
    problem: str
    device: str
    ram: float
    scope: str
    want_gap: float
    want_s: float
    want_overhead_j: float | None = None
    paging: bool = True
    deadline: float | None = None
    formulation: str = "retention"


def cells() -> Iterator[Cell]:
    """The table, in order."""
    shallow = [
        Cell("CNN", network, device, ram, "depth:8", 1e-3, 10)
        for network, budgets in (("resnet18_cifar", (0.6, 0.3, 0.15)), ("vgg16_cifar", (0.6, 0.5)))
        for device in ("m0", "m4", "a72")
        for ram in budgets
    ]
    for device in ("m4", "a72"):
        for ram in (0.6, 0.3, 0.15):
            slow = (device, ram) == ("m4", 0.15)
            shallow.append(Cell("BERT", "bert", device, ram, "depth:8", 1e-2 if slow else 1e-3, 60 if slow else 15))
    yield from shallow
    for cell in shallow:
        if (cell.problem, cell.device, cell.ram) == ("bert", "m4", 0.15):
            yield replace(cell, group="forward", scope="forward", want_gap=2e-2, want_s=180, want_overhead_j=11.73)
        else:
            yield replace(cell, group="forward", scope="forward", want_gap=5e-3, want_s=60)
    yield Cell("full", "resnet18_cifar", "m4", 0.3, "full", 1e-3, 120)
    yield Cell("full", "resnet18_cifar", "a72", 0.3, "full", 3e-2, 120)
    for ram in (0.3, 0.15):
        yield Cell("remat only", "resnet18_cifar", "m4", ram, "depth:8", 1e-3, 15, paging=False)
    for ram, deadline in ((0.3, 1.001), (0.15, 1.005), (0.15, 1.002)):
        yield Cell("deadline", "resnet18_cifar", "m4", ram, "auto", 5e-3, 60, deadline=deadline)
    reference = {
        "m4": {0.6: 0.010084, 0.4: 0.183723, 0.25: 0.61684},
        "a72": {0.6: 0.036066, 0.4: 0.053986, 0.25: 0.067584},
    }
    for device, budgets_j in reference.items():
        for ram, best_j in budgets_j.items():
            yield Cell("exact", "exact_resnet18_cifar", device, ram, "forward", 5e-3, 30, best_j)
    yield Cell("exact", "exact_bert_base", "a72", 0.5, "auto", 1e-3, 30, 0.456448)
    yield Cell("exact", "exact_bert_base", "a72", 0.3, "auto", 1e-3, 30, 0.682530)
    yield Cell("exact", "exact_bert_base", "m4", 0.5, "auto", 1e-3, 30, 0.129318)
    yield Cell("exact", "exact_bert_base", "m4", 0.3, "forward", 3e-2, 120, 2.2131)
    for device, ram in (("m4", 0.3), ("a72", 1_000_000)):
        yield Cell("verbatim", "resnet18_cifar", device, ram, "full", 1.0, 240, formulation="poet")
        yield Cell("verbatim", "resnet18_cifar", device, ram, "depth:8", 1e-3, 10)
    for network in ("resnet18-cifar", "vgg16-cifar", "resnet50", "mobilenetv2", "bert-base", "gpt2-small"):
        for device in ("m4", "a72"):
            for ram in (0.5, 0.3):
                yield Cell("ONNX", f"zoo:{network}", device, ram, "depth:8", 1e-3, 60)
                yield Cell("ONNX", f"zoo:{network}", device, ram, "forward", 3e-2, 180)
    for network in ("resnet", "transformer"):
        for device in ("m4", "a72"):
            yield Cell("deep", f"deep:{network}", device, 0.3, "auto", 1e-2, 60)
            yield Cell("deep", f"deep:{network}", device, 0.15, "auto", 5e-2, 180)


def problem_of(cell: Cell) -> Problem:
    """The cell's problem: differentiated where it is a network (`zoo:`, `deep:`), else from its file."""
    kind, _, network = cell.problem.rpartition(":")
    if not kind:
        from poetopt.frontends.problem_file import load_problem_file

        return load_problem_file(INSTANCES / f"{cell.problem}.json").cost(cell.device)
    import poetopt as po
    from benchmarks.boards import board

    if kind == "deep":
        from benchmarks.deep import build

        model: str | onnx.ModelProto = build(network)
    else:
        model = network
    return po.load(model).differentiate().cost(board(cell.device), runtime="onnxruntime")


def options_of(cell: Cell, problem: Problem, limit_s: float) -> Options:
    """What is asked of the cell's solve; a `limit_s` of 0 is the cell's own."""
    from poetopt.plan.assemble import store_all_bytes
    from poetopt.search.solution import DeadlineModel, Options

    return Options(
        ram_bytes=int(cell.ram * store_all_bytes(problem)) if cell.ram <= 1 else int(cell.ram),
        deadline_s=None if cell.deadline is None else cell.deadline * problem.baseline_time_s,
        deadline_model=DeadlineModel.PAPER,
        formulation=cell.formulation,
        scope=cell.scope,
        paging=cell.paging,
        gap=_asked_gap(cell),
        time_limit_s=limit_s or cell.want_s - STARTING_S,
    )


def measure(cell: Cell, limit_s: float, without: Sequence[str] = ()) -> dict[str, object]:
    """Solve one cell in this process, `without` some mechanisms (see `benchmarks.ablation`)."""
    begin = time.perf_counter()
    from benchmarks.ablation import MECHANISMS

    for name in without:
        MECHANISMS[name]()
    from poetopt.search.diagnosis.solve import solve

    problem = problem_of(cell)
    if ":" in cell.problem:
        begin = time.perf_counter()
    improvements: list[tuple[float, float]] = []

    def listen(progress: Progress) -> None:
        if progress.overhead_j is not None and (not improvements or progress.overhead_j < improvements[-1][1]):
            improvements.append((time.perf_counter() - begin, progress.overhead_j))

    solution = solve(
        problem,
        options_of(cell, problem, limit_s),
        listen,
    )
    total_s = time.perf_counter() - begin
    simulation = solution.simulation
    return {
        "operators": len(problem.operators),
        "status": solution.status.value,
        "scope": solution.scope,
        "overhead_j": None if simulation is None else simulation.overhead_j,
        "bound_j": solution.scope_bound_j,
        "overhead_gap": solution.overhead_gap,
        "scope_gap": solution.scope_gap,
        "build_s": solution.build_s,
        "total_s": total_s,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
        "reason": solution.reason,
        "improvements": improvements,
        "timing": dict(solution.timing),
    }


def _asked_gap(cell: Cell) -> float:
    """What is searched to: what is wanted where that is a lot, and less elsewhere."""
    if cell.scope != "forward":
        return min(cell.want_gap, 1e-3)
    return cell.want_gap if cell.group == "ONNX" else cell.want_gap / 2


def verdict(cell: Cell, row: dict[str, object]) -> str:
    """`ok`, or what falls short."""
    if row.get("error"):
        return str(row["error"])
    gap, overhead, total = row["scope_gap"], row["overhead_j"], row["total_s"]
    if row["status"] == "infeasible":
        return "ok: infeasible, proven" if cell.group == "deadline" else "infeasible"
    missing = []
    if not isinstance(gap, float) or gap > cell.want_gap * (1 + 1e-9):
        missing.append("gap")
    wanted_j = cell.want_overhead_j
    if wanted_j is not None and not (isinstance(overhead, float) and overhead <= wanted_j * (1 + ROUNDED)):
        missing.append("overhead")
    if not isinstance(total, float) or total > cell.want_s:
        missing.append("time")
    build, peak_mb = row["build_s"], row["peak_mb"]
    if cell.group in ("ONNX", "deep") and isinstance(build, float) and isinstance(total, float):
        if build > max(1.0, 0.3 * total):
            missing.append("build")
        if cell.group == "deep" and isinstance(peak_mb, float) and peak_mb > 2000:
            missing.append("MB")
    return ", ".join(missing) or "ok"


def line(cell: Cell, row: dict[str, object]) -> str:
    """The table's row."""
    ram = f"{cell.ram:.0%}" if cell.ram <= 1 else f"{cell.ram:,.0f} B"
    if not cell.paging:
        ram += ", no paging"
    if cell.deadline is not None:
        ram += f", {cell.deadline}x"
    if cell.formulation != "retention":
        ram += f", {cell.formulation}"

    def number(key: str, form: str) -> str:
        value = row.get(key)
        return format(value, form) if isinstance(value, int | float) else "-"

    found = (
        cell.group,
        cell.problem,
        cell.device,
        ram,
        str(row.get("scope", cell.scope)),
        number("overhead_j", ".6g"),
        number("bound_j", ".6g"),
        number("scope_gap", ".3%"),
        number("overhead_gap", ".3%"),
        f"{cell.want_gap:.1%}",
        number("total_s", ".1f"),
        f"{cell.want_s:.0f}",
        number("build_s", ".1f"),
        number("peak_mb", ".0f"),
        verdict(cell, row),
    )
    return f"| {' | '.join(found)} |"


def times_faster(rows: Sequence[tuple[Cell, dict[str, Any]]]) -> Iterator[str]:
    """How much sooner `retention` has a schedule that is better than all that Algorithm 1 as it stands finds."""
    for theirs, slow in rows:
        for ours, quick in rows:
            one, other = ((c.group, c.problem, c.device, c.ram) for c in (ours, theirs))
            if one != other or theirs.formulation == ours.formulation or theirs.formulation != "poet":
                continue
            best_j = slow.get("overhead_j")
            better_s = next((s for s, j in quick["improvements"] if best_j is None or j < best_j), None)
            if better_s is not None:
                found = "nothing" if best_j is None else f"{best_j:.6g} J"
                yield (
                    f"{ours.problem} {ours.device}: Algorithm 1 has {found} after {slow['total_s']:.1f} s; `retention` "
                    f"has a better one after {better_s:.2f} s ({slow['total_s'] / better_s:.0f} times faster), and "
                    f"{quick['overhead_j']:.6g} J, {quick['status']}, after {quick['total_s']:.2f} s "
                    f"({slow['total_s'] / quick['total_s']:.0f} times)"
                )


def busy(cell: Cell, limit_s: float) -> str:
    """The row of a cell that is solved twice: as it is, and on one core beside a process that never waits."""
    command = [sys.executable, "-m", "benchmarks.solve", "--cell", json.dumps(asdict(cell)), "--limit", str(limit_s)]
    rows = [json.loads(subprocess.check_output(command, text=True, cwd=ROOT))]
    with subprocess.Popen([*SPIN, sys.executable, "-c", "while True: pass"]) as spinning:
        try:
            rows.append(json.loads(subprocess.check_output([*SPIN, *command], text=True, cwd=ROOT)))
        finally:
            spinning.kill()
    idle, slow = rows
    times = slow["overhead_j"] / idle["overhead_j"] if idle["overhead_j"] else 1.0
    found = (
        *(cell.group, cell.problem, cell.device, f"{cell.ram:.0%}", cell.scope),
        *(f"{row['overhead_j']:.6g}" for row in rows),
        f"{times:.5f}",
        *(row["scope"] for row in rows),
        *(f"{row['total_s']:.0f}" for row in rows),
        "ok" if times <= BUSY else "overhead",
    )
    return f"| {' | '.join(found)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="cells whose text contains this; may be repeated")
    parser.add_argument("--limit", type=float, default=0.0, help="time limit of each solve in seconds")
    parser.add_argument("--output", type=Path, help="write the table here (Markdown)")
    parser.add_argument("--without", action="append", default=[], help="leave out a mechanism (benchmarks/ablation.py)")
    parser.add_argument("--scope", help="solve every cell in this scope instead: auto, for the default")
    parser.add_argument("--busy", action="store_true", help="solve each cell twice, idle and beside a busy process")
    parser.add_argument("--json", type=Path, help="append every row here, a line each")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        print(json.dumps(measure(Cell(**json.loads(arguments.cell)), arguments.limit, arguments.without)))
        return
    heading = BUSY_HEADING if arguments.busy else HEADING
    lines = [heading, "|---" * heading.count("| ") + "|"]
    print("\n".join(lines), flush=True)
    rows: list[tuple[Cell, dict[str, Any]]] = []
    for cell in cells():
        name = f"{cell.group} {cell.problem} {cell.device} {cell.ram} {cell.scope} {cell.formulation}"
        if arguments.only and not any(wanted in name for wanted in arguments.only):
            continue
        cell = replace(cell, scope=arguments.scope or cell.scope)
        if arguments.busy:
            lines.append(busy(cell, arguments.limit or BUSY_LIMIT_S))
            print(lines[-1], flush=True)
            if arguments.output:
                arguments.output.write_text("\n".join(lines) + "\n")
            continue
        command = [sys.executable, "-m", "benchmarks.solve", "--cell", json.dumps(asdict(cell))]
        command += ["--limit", str(arguments.limit), *(f"--without={one}" for one in arguments.without)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        row = json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr.strip().splitlines()[-1]}
        if arguments.json:
            told = {"name": name, "without": arguments.without, "cell": asdict(cell), **row}
            with arguments.json.open("a") as file:
                file.write(json.dumps({**told, "verdict": verdict(cell, row)}) + "\n")
        if "error" not in row:
            rows.append((cell, row))
        lines.append(line(cell, row))
        print(lines[-1], flush=True)
        if arguments.output:
            arguments.output.write_text("\n".join(lines) + "\n")
    for text in times_faster(rows):
        print(text, flush=True)


if __name__ == "__main__":
    main()
