"""Run a plan in C, and the unscheduled step on the same kernels; compare both with each other and with onnxruntime.

One step is measured for its stack and, in an emulator, operator by operator; many steps run by the emitted example.
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
"""Finds a plan of po_predict for the laid-out plan of a step (`poetopt.search.predicting`)."""


@dataclass(frozen=True, slots=True)
class _ComparedRuns:
    """Run of a plan on a target, and of the step that computes everything once.

    Attributes
    ----------
    figures
        Figures of `DeviceChecks`, without the distance from onnxruntime's.
    """

    program: DeviceProgram
    mine: Ran
    theirs: Ran
    comparison: BitComparison
    figures: Mapping[str, Any]


def _run_and_compare(
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
) -> _ComparedRuns:
    """Compile and run both, on one batch to measure a step, or by the emitted example with hyperparameters `said`.

    Parameters
    ----------
    asked
        Inputs for predictions after the last step, where the program predicts; by default that step's batch.
    """
    find_prediction: Predict = predict or (lambda *_: None)
    target_core, steps = target(on, "--on"), len(batches)
    program = device_program(plan, graph, prediction=find_prediction(plan, graph))
    simulation = simulate(plan, ram_bytes=ram_bytes)
    check_layout(plan, ram_bytes)
    if target_core.bare:
        check_room(program)
        check_present()
    compiler(target_core)  # fail before anything is written
    asked = [next(iter(cut(graph, batches[-1])))] if asked is None else asked
    with scratch_folder("c") as folder:

        def compile_program(device: DeviceProgram, subfolder: str, stack_bytes: int | None = None) -> Built:
            write(device, target_core, Path(folder, subfolder))
            return build(device, target_core, Path(folder, subfolder), measuring=said is None, stack_bytes=stack_bytes)

        told(f"compiling for {on}")
        scheduled = compile_program(program, "scheduled")
        scheduled.check_stack()
        baseline_plan = unscheduled(plan)
        baseline_program = device_program(baseline_plan, graph, prediction=find_prediction(baseline_plan, graph))
        # no device reserves the stack of this program
        baseline = compile_program(baseline_program, "whole", 2 * STACK_BYTES + program.storage.block_bytes)
        told(f"running the schedule on {on}" if said is None else f"{steps:,} steps on {on}, as planned")
        scheduled_run = run(scheduled, *batches, said=said, asked=asked)
        once_words = f"{steps:,} steps on {on}, everything computed once"
        told("running the step that computes everything once" if said is None else once_words)
        baseline_run = run(baseline, *batches, said=said, asked=asked)
    comparison = compare(scheduled_run.results, baseline_run.results, tuple(scheduled_run.results))
    if scheduled_run.again:
        comparison = comparison.joined(compare(scheduled_run.again, baseline_run.results, tuple(scheduled_run.results)))
    arena, sizes = arena_bytes(plan), scheduled.sizes
    figures = {
        "on": on,
        "compiler": scheduled.compiler.name,
        "bit_identical": comparison.identical and scheduled_run.losses.tobytes() == baseline_run.losses.tobytes(),
        "different": comparison.different,
        "budget_bytes": arena if ram_bytes is None else ram_bytes,
        "arena_bytes": arena,
        "measured_peak_bytes": arena,
        "resident_bytes": program.resident.nbytes,
        "linked_ram_bytes": sizes.ram_bytes if sizes else None,
        "stack_bytes": scheduled_run.stack_bytes,
        "stack_bound_bytes": scheduled.stack.nbytes if scheduled.stack else None,
        "stack_reserved_bytes": scheduled.stack_reserved_bytes if scheduled.board else None,
        "code_bytes": sizes.code_bytes if sizes else None,
        "instructions": scheduled_run.instructions,
        "bytes_paged": simulation.bytes_paged,
        "bytes_streamed": simulation.bytes_streamed,
        "predicted": _check_predictions(program, asked, scheduled_run, baseline_run),
    }
    return _ComparedRuns(program, scheduled_run, baseline_run, comparison, figures)


def _check_predictions(
    program: DeviceProgram, asked: Sequence[Batch], scheduled_run: Ran, baseline_run: Ran
) -> Predicted | None:
    """Return the predictions of both programs, compared with onnxruntime's from the final values."""
    plan, graph = program.predicts, program.graph
    if plan is None or not asked:
        return None
    network, values = graph_of(plan.plan), whole(graph.joint)
    values |= {name: scheduled_run.results[name] for name in graph.trained if name in scheduled_run.results}
    values |= {old: scheduled_run.results[new] for old, new in graph.states.items() if new in scheduled_run.results}
    scheduled_outputs, baseline_outputs = (
        {name: np.stack([outputs[name] for outputs in ran.outputs]) for name in network.outputs} if ran.outputs else {}
        for ran in (scheduled_run, baseline_run)
    )
    reference = predicted(network, values, asked)
    return Predicted(
        arena_bytes(plan.plan),
        not baseline_outputs or compare(scheduled_outputs, baseline_outputs, network.outputs).identical,
        distance(scheduled_outputs, reference.exact, network.outputs),
        reference.together,
        scheduled_outputs,
    )


def _distance_figures(moves: Mapping[str, Array], reference: UlpSensitivity) -> Mapping[str, Any]:
    """Return figures of `DeviceChecks` on the distance from onnxruntime's."""
    relative_distance = distance(moves, reference.exact, tuple(reference.exact))
    return {"distance": relative_distance, "sensitivity": reference.together, "far": reference.far(moves)}


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
    """Emit `plan`, compile it, run it on one batch, and check its results.

    Parameters
    ----------
    on
        `host`, or an emulated core: `cortex-m4`, ...
    ram_bytes
        Budget for the arena; by default what the plan needs.
    data
        Batch, as for `execute`; by default a random one, drawn with `seed`.
    predict
        Finds the plan of po_predict.

    Raises
    ------
    PlanError
        The plan isn't for the runtime c, or exceeds its budget.
    UnsupportedOpError
        A kernel is missing.
    BackendUnavailableError
        Compiler or emulator is missing.
    ExecutionError
        The step fails.
    """
    step_graph = graph_of(plan, graph)
    batch = batch_of(step_graph.whole, data, seed)
    runs = _run_and_compare(plan, on, [batch], None, graph=step_graph, ram_bytes=ram_bytes, predict=predict, told=told)
    told("the same step on onnxruntime, and how far one ulp moves it")
    scheduled, counts = runs.mine, runs.mine.counts
    return DeviceExecution(
        **runs.figures,
        **_distance_figures(moved(step_graph, scheduled.results), measured_reference(step_graph, batch)),
        gradients=len(step_graph.gradients or step_graph.trained),
        statistics=len(step_graph.states),
        max_abs_diff=runs.comparison.max_abs_diff,
        kernel_workspace_bytes=0,
        store_all_peak_bytes=store_all_bytes(plan.problem),
        step_s=scheduled.step_s,
        store_all_step_s=runs.theirs.step_s,
        fused_step_s=None,
        outputs=len(step_graph.targets) if step_graph.forward_only else 0,
        loss=None if step_graph.forward_only else float(scheduled.results[step_graph.loss].reshape(-1)[0]),
        by_operator={} if counts is None else _instructions_by_operator(runs.program, counts),
        results=scheduled.results,
        batch=batch,
    )


def unscheduled(plan: Plan) -> Plan:
    """Return the plan that computes everything once."""
    return lay_out(store_all(replace(plan.problem, closing_ram_bytes=None)))


def moved(graph: TrainingGraph, results: Mapping[str, Array]) -> Mapping[str, Array]:
    """Return a step's effect on a batch: gradients, updates of parameters, or outputs of a network without loss."""
    if graph.forward_only:
        return {name: results[name] for name in graph.targets}
    if graph.gradients:
        return {name: results[f"{name}.grad"] for name in graph.gradients}
    return moved_by(graph, whole(graph), results)


def measured_reference(graph: TrainingGraph, batch: Batch) -> UlpSensitivity:
    """Return that effect on onnxruntime, node by node, and how far one ulp moves it."""
    exact, near = reference_ways(graph, [batch], [{}])
    ends = exact.ends if graph.updaters and not graph.gradients else exact.moved
    return sensitivity(exact.moved, [run.moved for run in near], ends)


def _instructions_by_operator(program: DeviceProgram, counts: NDArray[np.uint64]) -> Mapping[str, int]:
    """Return the instructions of each operator, including library functions that it calls."""
    return {name: int(row[0]) for name, row in zip(program.operator_names, counts, strict=False) if row[0]}


@dataclass(frozen=True, slots=True)
class ReferenceRun:
    """Losses of steps, and their effect.

    Attributes
    ----------
    losses
        Loss of each step.
    moved
        Effect of the last step as `moved` returns it; of parameters, their change since the first one, in float64.
    ends
        Parameters, or gradients, after the last step.
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

    Parameters
    ----------
    on, ram_bytes
        As for `execute_on`.
    lr, momentum, data, seed
        As for `train` on onnxruntime.

    Raises
    ------
    OptionError
        The step has no optimizer, or a number is out of its range. Other errors are those of `execute_on`.
    """
    target(on, "--on")
    step_graph = graph_of(plan, graph)
    hyperparameters = hyperparameters_of(step_graph, lr, momentum)
    if steps < 1:
        raise OptionError(f"--steps {steps}: must be at least 1")
    check_trainable(step_graph)
    data_sets = batches_of(step_graph.whole, data, seed)
    batches = [data_sets.get(step) for step in range(steps)]
    said = [numbers(step_graph, step, hyperparameters) for step in range(steps)]
    return train_batches_on(plan, on, batches, said, graph=step_graph, ram_bytes=ram_bytes, predict=predict, told=told)


def check_trainable(graph: TrainingGraph) -> None:
    """Raise `OptionError` where the step of `graph` has no optimizer."""
    if graph.optimizer == "none":
        raise OptionError(
            "--on: the plan's step ends with gradients, and the device doesn't update parameters by them; "
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
    """Take a step on each of `batches`, at least one, with the hyperparameters `said`; compare as `train_on` does.

    Parameters
    ----------
    graph
        Graph that passed `check_trainable`.
    asked
        Inputs for predictions after the last step, where the program predicts; by default that step's batch.
    """
    runs = _run_and_compare(
        plan, on, batches, said, graph=graph, ram_bytes=ram_bytes, predict=predict, asked=asked, told=told
    )
    scheduled, baseline = runs.mine, runs.theirs
    told("the same steps on onnxruntime, and how far one ulp moves them")
    differing = [k for k in range(len(batches)) if scheduled.losses[k].tobytes() != baseline.losses[k].tobytes()]
    exact, near = reference_ways(graph, batches, said)
    return DeviceTraining(
        **runs.figures,
        **_distance_figures(moved(graph, scheduled.results), allowed(exact, near, scheduled.results)),
        steps=len(batches),
        optimizer=graph.optimizer,
        hyperparameters={name: value.item() for name, value in said[0].items() if name != "step"},
        losses=tuple(map(float, scheduled.losses)),
        reference_losses=tuple(map(float, exact.losses)),
        first_difference=differing[0] + 1 if differing else 0,
        loss_distance=_losses_apart(scheduled.losses, exact.losses),
        values={row.name: scheduled.results[row.name] for row in runs.program.parameters},
        statistics={old: scheduled.results[new] for old, new in graph.states.items()},
    )


def numbers(graph: TrainingGraph, step: int, given: Mapping[str, float]) -> Mapping[str, Array]:
    """Return the hyperparameters of step `step`, from 0, by the optimizer's names: `given`, else the step's own."""
    values = graph.joint.values
    arrays = {name: values[tensor].copy() for name, tensor in graph.hyperparameters.items()}
    for name, value in {**given, "step": step + 1}.items():
        if name in arrays:
            arrays[name][...] = value
    return arrays


def reference_ways(
    graph: TrainingGraph, batches: Sequence[Batch], said: Sequence[Mapping[str, Array]]
) -> tuple[ReferenceRun, Sequence[ReferenceRun]]:
    """Take the steps on onnxruntime, node by node: exactly, and with what they read an ulp off."""
    sessions = Sessions(graph, 1)
    shown = {new_name: f"{name}.grad" for name, new_name in graph.gradients.items()}
    shown |= {name: name for name in graph.targets if graph.forward_only}
    shown |= {new: name for name, new in graph.joint.carried.items() if name in graph.trained}

    def run_steps(seed: int | None) -> ReferenceRun:
        steps, losses = Steps(graph, sessions, seed), []
        for batch, hyperparameters in zip(batches, said, strict=True):
            steps.say(hyperparameters)
            results = steps.step(batch)
            losses.append(results[graph.targets[0]].reshape(-1)[0])
        ends = {shown[name]: array for name, array in results.items() if name in shown}
        return ReferenceRun(np.array(losses), moved(graph, ends), ends)

    return run_steps(None), [run_steps(seed) for seed in range(TRIALS)]


def allowed(exact: ReferenceRun, near: Sequence[ReferenceRun], values: Mapping[str, Array]) -> UlpSensitivity:
    """Measure how far one ulp moves parameters, whose last values are `values`, and losses where these move further."""
    measured = sensitivity(exact.moved, [run.moved for run in near], {name: values[name] for name in exact.moved})
    return replace(
        measured, together=max(measured.together, *(_losses_apart(run.losses, exact.losses) for run in near))
    )


def _losses_apart(losses: Array, reference: Array) -> float:
    return distance({LOSSES: losses}, {LOSSES: reference}, (LOSSES,))
