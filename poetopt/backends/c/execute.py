"""Run a plan in C for a step or many, and the unscheduled step on the same kernels; compare both, and with onnxruntime.

One step is measured for its stack and, in an emulator, operator by operator; many go by the emitted example.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from poetopt.autodiff.passes.rows import whole
from poetopt.backends.c.build import Built, build, write
from poetopt.backends.c.emulator import check_present
from poetopt.backends.c.execution import DeviceExecution, DeviceTraining, Predicted
from poetopt.backends.c.generations import check_room
from poetopt.backends.c.linking import STACK_BYTES
from poetopt.backends.c.program import DeviceProgram, device_program
from poetopt.backends.c.run import Ran, run
from poetopt.backends.c.sensitivity import TRIALS, Steps, UlpSensitivity, distance, moved_by, predicted, sensitivity
from poetopt.backends.c.targets import compiler, target
from poetopt.backends.onnxruntime.batch import Batch, batch_of, batches_of
from poetopt.backends.onnxruntime.execution import BitComparison, compare
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.backends.onnxruntime.stepping import hyperparameters_of
from poetopt.backends.step.parted import cut
from poetopt.backends.step.places import graph_of
from poetopt.graph import TrainingGraph
from poetopt.plan.assemble import store_all, store_all_bytes
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, check_layout, lay_out
from poetopt.plan.simulate import simulate
from poetopt.util.errors import OptionError
from poetopt.util.files import scratch_folder
from poetopt.util.progress import Told, silent

if TYPE_CHECKING:
    from poetopt.graph import Array

LOSSES = "losses"
Predict = Callable[[Plan, TrainingGraph], Plan | None]
"""Finds a plan of po_predict for one of a step, which is laid out (`poetopt.search.predicting`)."""


@dataclass(frozen=True, slots=True)
class _Beside:
    """A plan's run on a target beside that of the step that computes everything once.

    figures
        Those of `DeviceChecks`, but for the distance from onnxruntime's.
    """

    program: DeviceProgram
    mine: Ran
    theirs: Ran
    comparison: BitComparison
    figures: Mapping[str, Any]


def _run_beside(
    plan: Plan,
    on: str,
    batches: Sequence[Batch],
    said: Sequence[Mapping[str, Array]] | None,
    *,
    graph: TrainingGraph,
    ram_bytes: int | None,
    predict: Predict | None,
    asked: Sequence[Batch] | None = None,
    told: Told,
) -> _Beside:
    """Compile and run both, on one batch to measure a step, or by the emitted example with what is `said` for each.

    asked
        What is predicted after the last step, where the program has a plan for that; by default that step's batch.
    """
    find: Predict = predict or (lambda *_: None)
    chosen, steps = target(on, "--on"), len(batches)
    program = device_program(plan, graph, prediction=find(plan, graph))
    simulation = simulate(plan, ram_bytes=ram_bytes)
    check_layout(plan, ram_bytes)
    if chosen.bare:
        check_room(program)
        check_present()
    compiler(chosen)  # nothing is written where there is none
    asked = [next(iter(cut(graph, batches[-1])))] if asked is None else asked
    with scratch_folder("c") as folder:

        def built(one: DeviceProgram, place: str, stack_bytes: int | None = None) -> Built:
            write(one, chosen, Path(folder, place))
            return build(one, chosen, Path(folder, place), measuring=said is None, stack_bytes=stack_bytes)

        told(f"compiling for {on}")
        scheduled = built(program, "scheduled")
        scheduled.check_stack()
        whole_step = unscheduled(plan)
        once = device_program(whole_step, graph, prediction=find(whole_step, graph))
        # no device reserves what this one takes of the stack
        plain = built(once, "whole", 2 * STACK_BYTES + program.storage.block_bytes)
        told(f"running the schedule on {on}" if said is None else f"{steps:,} steps on {on}, as planned")
        mine = run(scheduled, *batches, said=said, asked=asked)
        once_words = f"{steps:,} steps on {on}, everything computed once"
        told("running the step that computes everything once" if said is None else once_words)
        theirs = run(plain, *batches, said=said, asked=asked)
    comparison = compare(mine.results, theirs.results, tuple(mine.results))
    if mine.again:
        comparison = comparison.joined(compare(mine.again, theirs.results, tuple(mine.results)))
    arena, sizes = arena_bytes(plan), scheduled.sizes
    figures = {
        "on": on,
        "compiler": scheduled.compiler.name,
        "bit_identical": comparison.identical and mine.losses.tobytes() == theirs.losses.tobytes(),
        "different": comparison.different,
        "budget_bytes": arena if ram_bytes is None else ram_bytes,
        "arena_bytes": arena,
        "measured_peak_bytes": arena,
        "resident_bytes": program.resident.nbytes,
        "linked_ram_bytes": sizes.ram_bytes if sizes else None,
        "stack_bytes": mine.stack_bytes,
        "stack_bound_bytes": scheduled.stack.nbytes if scheduled.stack else None,
        "stack_reserved_bytes": scheduled.stack_reserved_bytes if scheduled.board else None,
        "code_bytes": sizes.code_bytes if sizes else None,
        "instructions": mine.instructions,
        "bytes_paged": simulation.bytes_paged,
        "bytes_streamed": simulation.bytes_streamed,
        "predicted": _predicted(program, asked, mine, theirs),
    }
    return _Beside(program, mine, theirs, comparison, figures)


def _predicted(program: DeviceProgram, asked: Sequence[Batch], mine: Ran, theirs: Ran) -> Predicted | None:
    """The outputs of both for what they were asked, beside onnxruntime's with the values that were left."""
    plan, graph = program.predicts, program.graph
    if plan is None or not asked:
        return None
    network, held = graph_of(plan.plan), whole(graph.joint)
    held |= {name: mine.results[name] for name in graph.trained if name in mine.results}
    held |= {old: mine.results[new] for old, new in graph.states.items() if new in mine.results}
    found, other = (
        {name: np.stack([one[name] for one in ran.outputs]) for name in network.outputs} if ran.outputs else {}
        for ran in (mine, theirs)
    )
    reference = predicted(network, held, asked)
    return Predicted(
        arena_bytes(plan.plan),
        not other or compare(found, other, network.outputs).identical,
        distance(found, reference.exact, network.outputs),
        reference.together,
        found,
    )


def _away(went: Mapping[str, Array], reference: UlpSensitivity) -> Mapping[str, Any]:
    """Figures of `DeviceChecks` on the distance from onnxruntime's."""
    apart = distance(went, reference.exact, tuple(reference.exact))
    return {"distance": apart, "sensitivity": reference.together, "far": reference.far(went)}


def execute_on(
    plan: Plan,
    on: str,
    *,
    graph: TrainingGraph | None = None,
    ram_bytes: int | None = None,
    data: Mapping[str, object] | str | os.PathLike[str] | None = None,
    seed: int = 0,
    predict: Predict | None = None,
    told: Told = silent,
) -> DeviceExecution:
    """Emit `plan`, compile it, run it on one batch, and check what it computes.

    on
        `host`, or a core that is emulated: `cortex-m4`, ...
    ram_bytes
        The budget for the arena; by default what the plan takes.
    data
        A batch, as for `execute`; by default a random one, drawn with `seed`.
    predict
        What finds the plan of po_predict.

    Raises `PlanError` for a plan that isn't for the runtime c or breaks its budget, `UnsupportedOpError` where a kernel
    is missing, `BackendUnavailableError` where compiler or emulator are, `ExecutionError` where the step fails.
    """
    chosen = graph_of(plan, graph)
    batch = batch_of(chosen.whole, data, seed)
    both = _run_beside(plan, on, [batch], None, graph=chosen, ram_bytes=ram_bytes, predict=predict, told=told)
    told("the same step on onnxruntime, and how far one ulp moves it")
    mine, counts = both.mine, both.mine.counts
    return DeviceExecution(
        **both.figures,
        **_away(moved(chosen, mine.results), measured_reference(chosen, batch)),
        gradients=len(chosen.gradients or chosen.trained),
        statistics=len(chosen.states),
        max_abs_diff=both.comparison.max_abs_diff,
        kernel_workspace_bytes=0,
        store_all_peak_bytes=store_all_bytes(plan.problem),
        step_s=mine.step_s,
        store_all_step_s=both.theirs.step_s,
        fused_step_s=None,
        outputs=len(chosen.targets) if chosen.forward_only else 0,
        loss=None if chosen.forward_only else float(mine.results[chosen.loss].reshape(-1)[0]),
        by_operator={} if counts is None else _instructions_by_operator(both.program, counts),
        results=mine.results,
        batch=batch,
    )


def unscheduled(plan: Plan) -> Plan:
    """The plan that computes everything once, plain."""
    return lay_out(store_all(replace(plan.problem, closing_ram_bytes=None)))


def moved(graph: TrainingGraph, results: Mapping[str, Array]) -> Mapping[str, Array]:
    """Gives what a step makes of a batch: gradients, how far updates move parameters, or outputs without a loss."""
    if graph.forward_only:
        return {name: results[name] for name in graph.targets}
    if graph.gradients:
        return {name: results[f"{name}.grad"] for name in graph.gradients}
    return moved_by(graph, whole(graph), results)


def measured_reference(graph: TrainingGraph, batch: Batch) -> UlpSensitivity:
    """Gives what the step makes of a batch on onnxruntime, node by node, and how far one ulp moves that."""
    exact, near = reference_ways(graph, [batch], [{}])
    ends = exact.ends if graph.updaters and not graph.gradients else exact.moved
    return sensitivity(exact.moved, [way.moved for way in near], ends)


def _instructions_by_operator(program: DeviceProgram, counts: NDArray[np.uint64]) -> Mapping[str, int]:
    """Instructions of each operator, those of library functions that it calls among them."""
    return {name: int(row[0]) for name, row in zip(program.operator_names, counts, strict=False) if row[0]}


@dataclass(frozen=True, slots=True)
class Way:
    """Losses of steps, and where they led.

    losses
        Of each.
    moved
        What `moved` has of the last one: of parameters, how far they went since before the first, in float64.
    ends
        Parameters, or gradients, after the last one.
    """

    losses: Array
    moved: Mapping[str, Array]
    ends: Mapping[str, Array]


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
    predict: Predict | None = None,
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
    given = hyperparameters_of(chosen, lr, momentum)
    if steps < 1:
        raise OptionError(f"--steps {steps}: must be at least 1")
    check_trainable(chosen)
    data_sets = batches_of(chosen.whole, data, seed)
    batches = [data_sets.get(step) for step in range(steps)]
    said = [numbers(chosen, step, given) for step in range(steps)]
    return train_batches_on(plan, on, batches, said, graph=chosen, ram_bytes=ram_bytes, predict=predict, told=told)


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
    predict: Predict | None = None,
    asked: Sequence[Batch] | None = None,
    told: Told = silent,
) -> DeviceTraining:
    """The same with a step on each of `batches`, at least one, with the hyperparameters that `said` has for it.

    graph
        One that `check_trainable` has passed.
    asked
        What is predicted after the last step, where the program has a plan for that; by default that step's batch.
    """
    both = _run_beside(
        plan, on, batches, said, graph=graph, ram_bytes=ram_bytes, predict=predict, asked=asked, told=told
    )
    mine, theirs = both.mine, both.theirs
    told("the same steps on onnxruntime, and how far one ulp moves them")
    differing = [k for k in range(len(batches)) if mine.losses[k].tobytes() != theirs.losses[k].tobytes()]
    exact, near = reference_ways(graph, batches, said)
    return DeviceTraining(
        **both.figures,
        **_away(moved(graph, mine.results), allowed(exact, near, mine.results)),
        steps=len(batches),
        optimizer=graph.optimizer,
        hyperparameters={name: value.item() for name, value in said[0].items() if name != "step"},
        losses=tuple(map(float, mine.losses)),
        reference_losses=tuple(map(float, exact.losses)),
        first_difference=differing[0] + 1 if differing else 0,
        loss_distance=_losses_apart(mine.losses, exact.losses),
        values={row.name: mine.results[row.name] for row in both.program.parameters},
        statistics={old: mine.results[new] for old, new in graph.states.items()},
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
    """Take the steps on onnxruntime, node by node: as they are, and with what they read an ulp off."""
    sessions = Sessions(graph, 1)
    shown = {made: f"{name}.grad" for name, made in graph.gradients.items()}
    shown |= {name: name for name in graph.targets if graph.forward_only}
    shown |= {new: name for name, new in graph.joint.carried.items() if name in graph.trained}

    def way(seed: int | None) -> Way:
        steps, losses = Steps(graph, sessions, seed), []
        for batch, hyperparameters in zip(batches, said, strict=True):
            steps.say(hyperparameters)
            found = steps.step(batch)
            losses.append(found[graph.targets[0]].reshape(-1)[0])
        ends = {shown[name]: array for name, array in found.items() if name in shown}
        return Way(np.array(losses), moved(graph, ends), ends)

    return way(None), [way(seed) for seed in range(TRIALS)]


def allowed(exact: Way, near: Sequence[Way], values: Mapping[str, Array]) -> UlpSensitivity:
    """Measure how far one ulp takes parameters, whose last `values` these are, and losses where these go further."""
    found = sensitivity(exact.moved, [way.moved for way in near], {name: values[name] for name in exact.moved})
    return replace(found, together=max(found.together, *(_losses_apart(way.losses, exact.losses) for way in near)))


def _losses_apart(mine: Array, theirs: Array) -> float:
    return distance({LOSSES: mine}, {LOSSES: theirs}, (LOSSES,))
