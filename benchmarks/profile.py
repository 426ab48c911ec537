"""How true a profile of this machine is: predicted against measured steps and transfers.

    python -m benchmarks.profile [--model resnet18-cifar] [--ram 40%]

Profiles twice, solves under each profile, and runs the first plan and the store-all plan in arenas of their own, in
turns, nine times. Run it on an idle machine: whatever else runs is measured too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median

import poetopt as po
from poetopt.backends.ort.batch import Batch, random_batch
from poetopt.backends.ort.executor import paged_bytes
from poetopt.backends.ort.measure import alternate
from poetopt.backends.ort.memory import Block
from poetopt.backends.ort.places import Region
from poetopt.backends.ort.program import Program
from poetopt.backends.ort.sessions import Sessions
from poetopt.backends.ort.storage import PageFile
from poetopt.plan.assemble import plan_of
from poetopt.plan.instructions import Action, Plan
from poetopt.plan.layout import arena_bytes, lay_out
from poetopt.plan.simulate import simulate
from poetopt.schedule import Schedule

RUNS = 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18-cifar")
    parser.add_argument("--ram", default="40%")
    parser.add_argument("--time-limit", default="30s")
    options = parser.parse_args()
    model = po.load(options.model)
    if not isinstance(model, po.Model):
        parser.error(f"{options.model} has no network to measure")
    training = model.differentiate()
    begin = time.perf_counter()
    profiles = [training.profile(), training.profile()]
    print(f"profiling: {(time.perf_counter() - begin) / 2:.1f} s")
    problems = [training.cost("a72", profile=profile) for profile in profiles]
    plans = []
    for problem in problems:
        plan = po.solve(problem, ram=options.ram, time_limit=options.time_limit).plan
        assert plan is not None
        plans.append(plan)
    for problem, own, other in zip(problems, plans, reversed(plans), strict=True):
        more = simulate(problem, other.instructions).energy_j / simulate(problem, own.instructions).energy_j - 1
        print(f"the other profile's plan costs {more:+.3%} under this profile")
    plan, store_all = plans[0], lay_out(plan_of(problems[0], Schedule()))
    predicted = [simulate(found).makespan_s for found in (plan, store_all)]
    measured, moved_s = measure([plan, store_all])
    for name, paper, real in zip(("scheduled", "store-all"), predicted, measured, strict=True):
        print(f"{name} step: predicted {paper:.4f} s, measured {real:.4f} s ({real / paper - 1:+.1%})")
    ratios = (predicted[0] / predicted[1], measured[0] / measured[1])
    print(f"ratio: predicted {ratios[0]:.3f}, measured {ratios[1]:.3f} ({ratios[1] / ratios[0] - 1:+.1%})")
    if transfer_s := simulate(plan).transfer_s:
        print(f"transfers: predicted {transfer_s:.5f} s, measured {moved_s:.5f} s ({moved_s / transfer_s - 1:+.1%})")


def measure(plans: Sequence[Plan]) -> tuple[list[float], float]:
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
                stack.enter_context(PageFile(paged_bytes(plan))),
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
        found = alternate(steps, seconds=60.0, least=RUNS, most=RUNS)
        moved = [transfers(programs[0], batch) for _ in range(RUNS)]
    return [found[str(k)] for k in range(len(plans))], median(moved)


def transfers(program: Program, batch: Batch) -> float:
    """Seconds of all transfers of one step."""
    program.load(batch)
    total = 0.0
    for call in program.calls:
        begin = time.perf_counter()
        call.act()
        if program.plan.instructions[call.number].action in (Action.PAGE_IN, Action.PAGE_OUT):
            total += time.perf_counter() - begin
    return total


if __name__ == "__main__":
    main()
