"""Train in C for many steps, scheduled and not, and compare both, and with onnxruntime's steps."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from poetopt.autodiff.passes.rows import whole
from poetopt.backends.c.build import build, write
from poetopt.backends.c.emulator import check_present
from poetopt.backends.c.execute import unscheduled
from poetopt.backends.c.execution import DeviceTraining
from poetopt.backends.c.program import device_program
from poetopt.backends.c.run import run_steps
from poetopt.backends.c.sensitivity import TRIALS, Sensitivity, Steps, distance, moved_by, sensitivity
from poetopt.backends.c.targets import compiler, target
from poetopt.backends.onnxruntime.batch import Batch, batches_of
from poetopt.backends.onnxruntime.execution import compare
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.backends.onnxruntime.training import check_options, momentum_of
from poetopt.backends.step.places import graph_of
from poetopt.graph import TrainingGraph
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, check_layout
from poetopt.plan.simulate import simulate
from poetopt.util.errors import OptionError
from poetopt.util.progress import Told, silent
from poetopt.util.scratch import scratch_folder

if TYPE_CHECKING:
    from poetopt.graph import Array

LOSSES = "losses"


@dataclass(frozen=True, slots=True)
class Way:
    """Where steps went.

    losses
        Of each.
    moved
        By how much each parameter, from the first step to the last; in float64.
    """

    losses: Array
    moved: Mapping[str, Array]


def train_on(
    plan: Plan,
    on: str,
    steps: int,
    lr: float,
    *,
    momentum: float | None = None,
    graph: TrainingGraph | None = None,
    ram_bytes: int | None = None,
    data: Mapping[str, object] | str | os.PathLike[str] | None = None,
    seed: int = 0,
    told: Told = silent,
) -> DeviceTraining:
    """Take `steps` steps with `plan` in C by the emitted example, and compare losses and parameters.

    on, ram_bytes
        As for `execute_on`.
    lr, momentum, data, seed
        As for `train` on onnxruntime.

    Raises `OptionError` for a step without an optimizer, or numbers that make no sense; else what `execute_on` does.
    """
    target(on, "--on")
    chosen = graph_of(plan, graph)
    momentum = momentum_of(chosen, momentum)
    check_options(steps, lr, momentum)
    check_trainable(chosen)
    data_sets = batches_of(chosen.whole, data, seed)
    batches = [data_sets.get(step) for step in range(steps)]
    said = [numbers(chosen, step, {"lr": lr, "momentum": momentum}) for step in range(steps)]
    return train_batches_on(plan, on, batches, said, graph=chosen, ram_bytes=ram_bytes, told=told)


def check_trainable(graph: TrainingGraph) -> None:
    """Raise OptionError where the step of `graph` has no optimizer."""
    if graph.optimizer == "none":
        raise OptionError(
            "--on: the plan's step ends with gradients, and nothing on the device updates parameters by them; "
            "solve with --optimizer sgd"
        )


def train_batches_on(
    plan: Plan,
    on: str,
    batches: Sequence[Batch],
    said: Sequence[Mapping[str, Array]],
    *,
    graph: TrainingGraph,
    ram_bytes: int | None = None,
    told: Told = silent,
) -> DeviceTraining:
    """The same with a step on each of `batches`, at least one, with the hyperparameters that `said` has for it.

    graph
        One that `check_trainable` has passed.
    """
    chosen_target, chosen, steps = target(on, "--on"), graph, len(batches)
    program = device_program(plan, chosen)
    simulation = simulate(plan, ram_bytes=ram_bytes)
    check_layout(plan, ram_bytes)
    if chosen_target.bare:
        check_present()
    compiler(chosen_target)  # nothing is written where there is none
    with scratch_folder("c") as folder:
        once = device_program(unscheduled(plan), chosen)
        ran = []
        for name, one in (("scheduled", program), ("whole", once)):
            told(f"{steps:,} steps on {on}, {'as planned' if one is program else 'everything computed once'}")
            write(one, chosen_target, Path(folder, name))
            built = build(one, chosen_target, Path(folder, name), measuring=False)
            ran.append((built, run_steps(built, batches, said)))
    (scheduled, mine), (_, theirs) = ran
    told("the same steps on onnxruntime, and how far one ulp moves them")
    here = Way(mine.losses, moved_by(chosen, whole(chosen), mine.results))
    exact, near = reference_ways(chosen, batches, said)
    reference = allowed(exact, near, mine.results)
    differing = [k for k in range(steps) if mine.losses[k].tobytes() != theirs.losses[k].tobytes()]
    different = compare(mine.results, theirs.results, tuple(mine.results)).different
    arena = arena_bytes(plan)
    return DeviceTraining(
        on=on,
        compiler=scheduled.compiler.name,
        steps=steps,
        optimizer=chosen.optimizer,
        hyperparameters={name: value.item() for name, value in said[0].items() if name != "step"},
        losses=tuple(map(float, mine.losses)),
        reference_losses=tuple(map(float, exact.losses)),
        bit_identical=not differing and not different,
        different=different,
        first_difference=differing[0] + 1 if differing else 0,
        distance=apart(here, exact),
        sensitivity=reference.together,
        far=reference.far(here.moved),
        loss_distance=_losses_apart(here, exact),
        budget_bytes=arena if ram_bytes is None else ram_bytes,
        arena_bytes=arena,
        resident_bytes=program.resident.nbytes,
        measured_peak_bytes=arena,
        linked_ram_bytes=scheduled.sizes.ram_bytes if scheduled.sizes else None,
        code_bytes=scheduled.sizes.code_bytes if scheduled.sizes else None,
        stack_bytes=mine.stack_bytes,
        instructions=mine.instructions,
        bytes_paged=simulation.bytes_paged,
        bytes_streamed=simulation.bytes_streamed,
        values={row.name: mine.results[row.name] for row in program.parameters},
        statistics={old: mine.results[new] for old, new in chosen.states.items()},
    )


def numbers(graph: TrainingGraph, step: int, given: Mapping[str, float]) -> Mapping[str, Array]:
    """The hyperparameters of a step, from 0, by what the optimizer calls them: `given`, else the step's own."""
    values = graph.joint.values
    found = {name: values[tensor].copy() for name, tensor in graph.hyperparameters.items()}
    for name, value in {**given, "step": step + 1}.items():
        if name in found:
            found[name][...] = value
    return found


def reference_ways(
    graph: TrainingGraph, batches: Sequence[Batch], said: Sequence[Mapping[str, Array]]
) -> tuple[Way, Sequence[Way]]:
    """Where the steps go on onnxruntime, node by node, and where if what they read is an ulp off."""
    sessions, first = Sessions(graph, 1), whole(graph.joint)

    def way(seed: int | None) -> Way:
        steps, losses = Steps(graph, sessions, seed), []
        for batch, hyperparameters in zip(batches, said, strict=True):
            steps.held.update({graph.hyperparameters[name]: value for name, value in hyperparameters.items()})
            losses.append(steps.take(batch)[graph.loss].reshape(-1)[0])
        return Way(np.array(losses), moved_by(graph, first, steps.held))

    return way(None), [way(seed) for seed in range(TRIALS)]


def allowed(exact: Way, near: Sequence[Way], values: Mapping[str, Array]) -> Sensitivity:
    """How far one ulp takes the parameters, whose last `values` these are, and the losses, if these go further."""
    found = sensitivity(exact.moved, [way.moved for way in near], {name: values[name] for name in exact.moved})
    return replace(found, together=max(found.together, *(_losses_apart(way, exact) for way in near)))


def apart(a: Way, b: Way) -> float:
    """How far apart the parameters' ways are, relative to that of `b`, in the norm."""
    return distance(a.moved, b.moved, tuple(b.moved))


def _losses_apart(a: Way, b: Way) -> float:
    return distance({LOSSES: a.losses}, {LOSSES: b.losses}, (LOSSES,))
