"""Profile of an emulated core: instructions of each operator of a step, and their modelled seconds."""

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
"""Key of taken branches."""


@dataclass(frozen=True, slots=True)
class Modelled:
    """Modelled cost of an operator on an emulated core.

    Attributes
    ----------
    instructions
        Number of instructions, including library functions that it calls.
    classes
        Number of instructions of each class of `tracing.CLASSES`, and of taken branches under `TAKEN`.
    cycles
        Low, middle and high.
    """

    instructions: int
    classes: Mapping[str, int]
    cycles: tuple[float, float, float]

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        cycles = dict(zip(LEVELS, self.cycles, strict=True))
        return {"instructions": self.instructions, "classes": dict(self.classes), "cycles": cycles}


def joined(ones: Iterable[Modelled]) -> Modelled:
    """Return the cost of several operators together; at least one."""
    costs = list(ones)
    low, middle, high = (sum(cost.cycles[k] for cost in costs) for k in range(len(LEVELS)))
    classes = {kind: sum(cost.classes[kind] for cost in costs) for kind in costs[0].classes}
    return Modelled(sum(cost.instructions for cost in costs), classes, (low, middle, high))


@dataclass(frozen=True, slots=True)
class EmulatedProfile:
    """Profile, and the costs behind it.

    Attributes
    ----------
    operators
        Costs by name, in the order of the step.
    """

    profile: Profile
    clock_hz: float
    operators: Mapping[str, Modelled]

    def to_dict(self) -> dict[str, object]:
        """Return the additional keys of `profile --on --json`."""
        return {
            "clock_hz": self.clock_hz,
            "step": joined(self.operators.values()).to_dict(),
            "by_operator": {name: cost.to_dict() for name, cost in self.operators.items()},
        }


def profile_on(
    problem: Problem, on: str, *, clock_hz: float | None = None, seed: int = 0, told: Told = silent
) -> EmulatedProfile:
    """Run the step of `problem` once on an emulated core, everything computed once, and model its seconds.

    Parameters
    ----------
    problem
        Problem made from a training graph, for the runtime c.
    on
        `cortex-m4`, `cortex-m7` or `cortex-m0plus`.
    clock_hz
        By default that of the catalogue's m4, stm32f767 or m0.

    Raises
    ------
    OptionError
        The core is unknown.
    UnsupportedOpError
        An operator has no kernel.
    BackendUnavailableError
        Compiler or emulator is missing.
    ExecutionError
        The step fails.
    """
    target_core = target(on, "--on")
    timings = core(on)
    clock_hz = timings.clock_hz if clock_hz is None else clock_hz
    check_present()
    graph = problem.graph
    assert graph is not None
    c_compiler = compiler(target_core)
    program = device_program(lay_out(store_all(problem)), graph)
    with scratch_folder("c") as scratch:
        folder = Path(scratch)
        told(f"compiling the step for {on}")
        write(program, target_core, folder)
        built = build(program, target_core, folder)
        built.check_stack()
        told(f"running the step on {on}, whose instructions are counted")
        counts = run(built, random_batch(graph.whole, seed), weigh=partial(weigh, on)).counts
    assert counts is not None
    counts = counts // np.uint64(graph.parts)  # counts of one part of a split batch
    operators: dict[str, Modelled] = {}
    for operator, row in zip(problem.operators, counts, strict=False):
        n_taken = int(row[-1])
        levels = row[1 + len(CLASSES) : -1]
        cycles = [
            int(quarters) / UNIT + n_taken * taken_cycles
            for quarters, taken_cycles in zip(levels, timings.taken, strict=True)
        ]
        classes = {name: int(count) for name, count in zip(CLASSES, row[1:], strict=False)}
        operators[operator.name] = Modelled(int(row[0]), {**classes, TAKEN: n_taken}, (cycles[0], cycles[1], cycles[2]))
    keys = signatures(graph)
    by_signature: dict[str, list[Modelled]] = {}
    for name, modelled in operators.items():
        by_signature.setdefault(keys[name], []).append(modelled)
    low, _, high = (cycles / clock_hz for cycles in joined(operators.values()).cycles)
    about = {
        "machine": f"{MODELLED}{on} at {clock_hz / 1e6:g} MHz",
        "compiler": c_compiler.name,
        "time": "instructions counted in an emulator x cycles of a model that never waits for memory: a step takes "
        f"{show_seconds(low)} to {show_seconds(high)}; not measured on a board",
    }
    profile = Profile(about=about, operators={key: _entry(ones, clock_hz) for key, ones in by_signature.items()})
    return EmulatedProfile(profile, clock_hz, operators)


def _entry(costs: list[Modelled], clock_hz: float) -> OperatorProfile:
    """Return the profile of operators of one signature: the mean; half the distance from low to high is the spread."""
    low, middle, high = (sum(cost.cycles[k] for cost in costs) / len(costs) / clock_hz for k in range(len(LEVELS)))
    return OperatorProfile(time_s=middle, spread_s=(high - low) / 2, runs=len(costs))
