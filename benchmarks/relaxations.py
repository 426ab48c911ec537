"""Root relaxations of ten problems side by side: what each bounds, its columns and rows, and the seconds that it takes.

    .venv/bin/python -m benchmarks.relaxations [--only NAME] [--time-limit 60s] [--output FILE.md]

A cell is the bound as a share of the least overhead that is known, columns x rows of the relaxation that gave it, and
seconds of this process for building and solving it (one thread). `poet` is Algorithm 1 with FREE linearised factor by
factor, `aggregated` the same with one row for all factors of a FREE, by the number of hazards (Checkmate, section 4.7).
`rows` is `retention` as it is written; then come the memory rows and cuts that its points break, family by family,
until a round finds none. All of them have the scope `full`; random steps are of `poetopt.testing.problems`.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyomo.environ as pyo
from pyomo.repn import generate_standard_repn

import poetopt as po
from poetopt.backends.solvers.solver import backend
from poetopt.formulations import formulation
from poetopt.formulations.language import Formulation
from poetopt.graph.problem import Problem
from poetopt.testing.problems import tight

ROUNDS = 60
"""Of one family of rows, at most."""
FAMILIES = (("memory",), ("memory", "rounding"), ("memory", "rounding", "chain_cuts"))
HEADING = (
    "| problem | operators | RAM, bytes | least known | poet | aggregated | rows | + intra-stage | + rounding "
    "| + chain cuts |"
)
Named = tuple[str, Problem, int]


def network(name: str, device: str, share: float) -> Named:
    """A network of the zoo at a share of its store-all peak."""
    problem = po.load(name).differentiate().cost(device, runtime="onnxruntime")
    return f"{name}, {device}, {share:.0%}", problem, int(share * po.store_all_peak_bytes(problem))


def step(forward: int, seed: int) -> Named:
    """A random training step in small."""
    problem, ram_bytes = tight(random.Random(seed), forward=forward)
    return f"random, {forward} layers", problem, ram_bytes


CASES: tuple[Callable[[], Named], ...] = (
    lambda: network("mlp", "m4", 0.8),
    lambda: network("mlp", "a72", 0.8),
    lambda: network("mlp", "m0", 0.75),
    lambda: network("lenet", "m4", 0.97),
    lambda: step(6, 1),
    lambda: step(8, 2),
    lambda: step(10, 3),
    lambda: step(12, 4),
    lambda: network("vgg16-cifar", "m4", 0.75),
    lambda: network("vgg16-cifar", "a72", 0.5),
)


def aggregated(model: Any) -> None:
    """The rows of each FREE become their sum: as many times FREE as there are factors, and all hazards."""
    sums: dict[int, tuple[Any, float]] = {}
    for row in model.memory.freed.values():
        free = generate_standard_repn(row.body).linear_vars[0]
        body, upper = sums.get(id(free), (0.0, 0.0))
        sums[id(free)] = body + row.body, upper + pyo.value(row.upper)
    model.memory.freed.deactivate()
    model.aggregated = pyo.ConstraintList()
    for body, upper in sums.values():
        model.aggregated.add(body <= upper)


def relaxed(
    chosen: Formulation,
    problem: Problem,
    ram_bytes: int,
    time_limit_s: float,
    change: Callable[[Any], None] | None = None,
) -> Iterator[tuple[float | None, int, int, float]]:
    """(bound, columns, rows, seconds): of the rows as they are written, then with each family of late ones."""
    begin = time.process_time()
    model = chosen.build(problem, ram_bytes=ram_bytes, scope="full")
    if change is not None:
        change(model)
    columns = sum(not v.fixed for v in model.component_data_objects(pyo.Var))
    rows = sum(1 for _ in model.component_data_objects(pyo.Constraint, active=True))
    session = backend("highs").open(model, threads=1, scale=max(problem.baseline_energy_j, 1e-9))
    for families in ((), *FAMILIES):
        bound: float | None = None
        for _ in range(ROUNDS):
            found = session.relax(time_limit_s)
            if found.point is None:
                break
            bound = found.objective
            late = [row for row in chosen.separate(model, found.point) if row.block in families] if families else []
            if not late or time.process_time() - begin > time_limit_s:
                break
            session.add(late)
            rows += len(late)
        yield bound, columns, rows, time.process_time() - begin


def line(name: str, problem: Problem, ram_bytes: int, time_limit: str) -> str:
    """A line of the table."""
    limit_s = float(time_limit.removesuffix("s"))
    report = po.solve(problem, ram=f"{ram_bytes}B", scope="full", time_limit=limit_s, gap=1e-6, threads=1)
    least = report.solution.simulation.overhead_j if report.solution.simulation else float("nan")
    poet, retention = formulation("poet"), formulation("retention")
    cells = [
        next(relaxed(poet, problem, ram_bytes, limit_s)),
        next(relaxed(poet, problem, ram_bytes, limit_s, aggregated)),
        *relaxed(retention, problem, ram_bytes, limit_s),
    ]
    shown = [
        f"{'-' if bound is None else f'{bound / least:.1%}'}, {columns:,} x {rows:,}, {seconds:.2f} s"
        for bound, columns, rows, seconds in cells
    ]
    told = f"{least:.6g} J, {report.status}"
    return f"| {' | '.join([name, str(len(problem.operators)), f'{ram_bytes:,}', told, *shown])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="problems whose name contains this")
    parser.add_argument("--time-limit", default="60s", help="of the solve, and of each relaxation")
    parser.add_argument("--output", type=Path, help="write the table here (Markdown)")
    options = parser.parse_args()
    lines = [HEADING, "|---" * HEADING.count("| ") + "|"]
    print("\n".join(lines), flush=True)
    for case in CASES:
        named = case()
        if options.only not in named[0]:
            continue
        lines.append(line(*named, options.time_limit))
        print(lines[-1], flush=True)
        if options.output:
            options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
