"""How true a profile of this machine is: predicted against measured steps and transfers.

    python -m benchmarks.profile [--model resnet18-cifar] [--ram 40%] [--output FILE.md]

Profiles twice, solves under each profile, and runs the first plan and the store-all plan in arenas of their own, in
turns, nine times. Waiting for a processor that others have is not counted, and told.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import poetopt as po
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.backends.onnxruntime.executor import transfer_seconds
from poetopt.backends.onnxruntime.measure import Clock, alternate, told
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.backends.step.memory import Block
from poetopt.backends.step.program import Program
from poetopt.backends.step.region import Region, slots
from poetopt.backends.step.storage import PageFile
from poetopt.plan.assemble import plan_of
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, lay_out
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate

RUNS = 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18-cifar")
    parser.add_argument("--ram", default="40%")
    parser.add_argument("--time-limit", default="30s")
    parser.add_argument("--output", type=Path, help="write the table here (Markdown)")
    parser.add_argument("--note", default="", help="a line above the table")
    options = parser.parse_args()
    model = po.load(options.model)
    if not isinstance(model, po.Model):
        parser.error(f"{options.model} has no network to measure")
    training = model.differentiate()
    begin = time.perf_counter()
    profiles = [training.profile(), training.profile()]
    rows = [row("profiling", "", f"{(time.perf_counter() - begin) / 2:.1f} s", "", "")]
    problems = [training.cost("a72", profile=profile) for profile in profiles]
    plans = []
    for problem in problems:
        plan = po.solve(problem, ram=options.ram, time_limit=options.time_limit).plan
        assert plan is not None
        plans.append(plan)
    for problem, own, other in zip(problems, plans, reversed(plans), strict=True):
        more = simulate(problem, other.instructions).energy_j / simulate(problem, own.instructions).energy_j - 1
        rows.append(row("the other profile's plan under this profile", "", "", f"{more:+.3%}", "2 %"))
    plan, store_all = plans[0], lay_out(plan_of(problems[0], Schedule()))
    predicted = [simulate(found).makespan_s for found in (plan, store_all)]
    with Clock() as clock:
        measured, moved_s = measure([plan, store_all], clock)
    for name, paper, real in zip(("scheduled", "store-all"), predicted, measured, strict=True):
        rows.append(compared(f"{name} step", paper, real, " s", "15 %"))
    rows.append(compared("scheduled / store-all", predicted[0] / predicted[1], measured[0] / measured[1], "", "10 %"))
    if transfer_s := simulate(plan).transfer_s:
        rows.append(compared("transfers", transfer_s, moved_s, " s", "20 %"))
    for what, word in (("profiles", profiles[0].about["load"]), ("steps", told(clock.share) or "free")):
        rows.append(row(f"processors, meanwhile ({what})", "", word, "", ""))
    head = row("of " + options.model + " at " + options.ram, "predicted", "measured", "off by", "wanted, at most")
    table = "\n".join([head, "|---" * 5 + "|", *rows])
    print(table)
    if options.output:
        options.output.write_text(f"{options.note}\n\n{table}\n" if options.note else f"{table}\n")


def row(*cells: str) -> str:
    """A row of the table."""
    return f"| {' | '.join(cells)} |"


def compared(name: str, predicted: float, measured: float, unit: str, wanted: str) -> str:
    """The row of something that was predicted."""
    figures = (f"{predicted:.4f}{unit}", f"{measured:.4f}{unit}", f"{measured / predicted - 1:+.1%}")
    return row(name, *figures, wanted)


def measure(plans: Sequence[Plan], clock: Clock) -> tuple[list[float], float]:
    """Median seconds of a step of each plan, and of the first one's transfers."""
    graph = plans[0].problem.graph
    assert graph is not None
    batch = random_batch(graph)
    with ExitStack() as stack:
        programs = [
            Program(
                plan,
                graph,
                Block(arena_bytes(plan)),
                Region.of(graph),
                Sessions(graph),
                stack.enter_context(PageFile(slots(plan))),
            )
            for plan in plans
        ]

        def prepared(program: Program) -> Callable[[], Callable[[], object]]:
            def prepare() -> Callable[[], object]:
                program.load(batch)
                return program.run

            return prepare

        for program in programs:
            program.run_checked(batch)
        steps = {str(k): prepared(program) for k, program in enumerate(programs)}
        found = alternate(steps, seconds=60.0, least=RUNS, most=RUNS, clock=clock)
        moved_s = transfer_seconds(programs[0], batch, clock)
    return [found[str(k)] for k in range(len(plans))], moved_s


if __name__ == "__main__":
    main()
