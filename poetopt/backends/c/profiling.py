"""A profile of an emulated core: instructions of each operator of a step, and the seconds that they would take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from poetopt.backends.c.build import build, write
from poetopt.backends.c.emulator import check_present
from poetopt.backends.c.program import device_program
from poetopt.backends.c.run import run
from poetopt.backends.c.targets import compiler, target
from poetopt.backends.c.tracing import CLASSES, LEVELS, UNIT, core, weigh
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.devices.profile import MODELLED, OperatorProfile, Profile
from poetopt.graph.problem import Problem
from poetopt.ops.nodes import signatures
from poetopt.plan.assemble import store_all
from poetopt.plan.layout import lay_out
from poetopt.util.files import scratch_folder
from poetopt.util.progress import Told, silent
from poetopt.util.units import show_seconds

TAKEN = "taken"
"""What branches that were taken are counted under."""


@dataclass(frozen=True, slots=True)
class Modelled:
    """Holds what an operator takes on an emulated core.

    instructions
        How many, those of library functions that it calls among them.
    classes
        How many of each class of `timing.CLASSES`; branches that were taken under `TAKEN`.
    cycles
        Low, middle and high.
    """

    instructions: int
    classes: Mapping[str, int]
    cycles: tuple[float, float, float]

    def to_dict(self) -> dict[str, object]:
        """As plain values."""
        cycles = dict(zip(LEVELS, self.cycles, strict=True))
        return {"instructions": self.instructions, "classes": dict(self.classes), "cycles": cycles}


def joined(ones: Iterable[Modelled]) -> Modelled:
    """Gives what several operators take together; at least one."""
    found = list(ones)
    low, middle, high = (sum(one.cycles[k] for one in found) for k in range(len(LEVELS)))
    classes = {kind: sum(one.classes[kind] for one in found) for kind in found[0].classes}
    return Modelled(sum(one.instructions for one in found), classes, (low, middle, high))


@dataclass(frozen=True, slots=True)
class EmulatedProfile:
    """A profile, and what it is made of.

    operators
        By name, in the order of the step.
    """

    profile: Profile
    clock_hz: float
    operators: Mapping[str, Modelled]

    def to_dict(self) -> dict[str, object]:
        """Gives what `profile --on --json` has beside the rest."""
        return {
            "clock_hz": self.clock_hz,
            "step": joined(self.operators.values()).to_dict(),
            "by_operator": {name: one.to_dict() for name, one in self.operators.items()},
        }


def profile_on(
    problem: Problem, on: str, *, clock_hz: float | None = None, seed: int = 0, told: Told = silent
) -> EmulatedProfile:
    """Run the step of `problem` once on an emulated core, everything computed once, and model its seconds.

    problem
        Made of a training graph, for the runtime c.
    on
        `cortex-m4`, `cortex-m7` or `cortex-m0plus`.
    clock_hz
        By default that of the catalogue's m4, stm32f767 or m0.

    Raises `OptionError` for another core, `UnsupportedOpError` where an operator has no kernel,
    `BackendUnavailableError` without compiler or emulator, `ExecutionError` where the step fails.
    """
    chosen = target(on, "--on")
    timings = core(on)
    clock_hz = timings.clock_hz if clock_hz is None else clock_hz
    check_present()
    graph = problem.graph
    assert graph is not None
    found = compiler(chosen)
    program = device_program(lay_out(store_all(problem)), graph)
    with scratch_folder("c") as place:
        folder = Path(place)
        told(f"compiling the step for {on}")
        write(program, chosen, folder)
        built = build(program, chosen, folder)
        built.check_stack()
        told(f"running the step on {on}, whose instructions are counted")
        counts = run(built, random_batch(graph.whole, seed), weigh=partial(weigh, on)).counts
    assert counts is not None
    counts = counts // np.uint64(graph.parts)  # of a batch in parts, what one of them takes
    operators: dict[str, Modelled] = {}
    for operator, row in zip(problem.operators, counts, strict=False):
        taken = int(row[-1])
        levels = row[1 + len(CLASSES) : -1]
        cycles = [int(quarters) / UNIT + taken * more for quarters, more in zip(levels, timings.taken, strict=True)]
        classes = {name: int(count) for name, count in zip(CLASSES, row[1:], strict=False)}
        operators[operator.name] = Modelled(int(row[0]), {**classes, TAKEN: taken}, (cycles[0], cycles[1], cycles[2]))
    keys = signatures(graph)
    seconds: dict[str, list[Modelled]] = {}
    for name, one in operators.items():
        seconds.setdefault(keys[name], []).append(one)
    low, _, high = (cycles / clock_hz for cycles in joined(operators.values()).cycles)
    about = {
        "machine": f"{MODELLED}{on} at {clock_hz / 1e6:g} MHz",
        "compiler": found.name,
        "time": "instructions counted in an emulator x cycles of a model that never waits for memory: a step takes "
        f"{show_seconds(low)} to {show_seconds(high)}; not measured on a board",
    }
    profile = Profile(about=about, operators={key: _entry(ones, clock_hz) for key, ones in seconds.items()})
    return EmulatedProfile(profile, clock_hz, operators)


def _entry(ones: list[Modelled], clock_hz: float) -> OperatorProfile:
    """Operators of one signature: their mean; half of the way from low to high is the spread."""
    low, middle, high = (sum(one.cycles[k] for one in ones) / len(ones) / clock_hz for k in range(len(LEVELS)))
    return OperatorProfile(time_s=middle, spread_s=(high - low) / 2, runs=len(ones))
