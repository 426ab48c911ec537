"""Summaries of executions and trainings on onnxruntime, for people and for JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.backends.onnxruntime import Execution, TrainingRun
from poetopt.backends.onnxruntime.measure import told
from poetopt.backends.onnxruntime.profiling import machine
from poetopt.backends.onnxruntime.training import Alone
from poetopt.devices.profile import costed_on
from poetopt.graph import TrainingGraph
from poetopt.plan.instructions import Plan
from poetopt.plan.simulate import Simulation, simulate
from poetopt.report.layout import Exact, Row, answer, table
from poetopt.training.loop import Position, Trained
from poetopt.util import notes
from poetopt.util.figures import Figures
from poetopt.util.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from poetopt.backends.c.execution import DeviceTraining
    from poetopt.training.in_c import DeviceFit


def document(graph: TrainingGraph | None, result: Figures, **more: object) -> dict[str, object]:
    """Return the object of `run --json` and `train --json`: the figures, and the important notes."""
    return {**result.to_dict(), **more, "important": notes.document(graph.notes if graph else ())}


def epoch_text(position: Position, epochs: int) -> str:
    """Return the line of an epoch."""
    text = f"epoch {position.epoch} of {epochs}: loss {position.losses[-1]:.6g}"
    if position.validations and position.validations[-1]["epoch"] == position.epoch:
        text += f"; validation {_validation(position.validations[-1])}"
    return text


def trained_text(graph: TrainingGraph, trained: Trained, out: str, checked: int = 0) -> str:
    """Return the summary of `poetopt train`.

    Parameters
    ----------
    checked
        Rows on which the written file gave the accuracy, or the loss, of the validation.
    """
    cost = f"{show_seconds(trained.seconds)} in all, {show_seconds(trained.step_s)} a step"
    result = _result(trained)
    if checked:
        result += f"; {out} gives the same, alone in onnxruntime, on {checked:,} rows"
    fit = f"process {process_words(trained.total_ram_bytes, trained.process_peak_bytes)}"
    rows = answer(fit, cost, after=f"{out} is the trained network; any ONNX runtime runs it", result=result)
    if len(trained.validations) > 1:
        first = trained.validations[0]
        rows.append(("validation", f"{_validation(first)} after epoch {first['epoch']}"))
    if trained.kept != trained.epochs:
        rows.append(("kept", f"epoch {trained.kept}, the best of {trained.epochs}"))
    rows += [] if trained.energy is None else [("energy", str(trained.energy))]
    rows += left_out_rows(trained)
    if trained.resumed_at:
        rows.append(("note", f"resumed after step {trained.resumed_at:,}"))
    rows += [("note", text) for text in trained.changed]
    rows += [("note", f"a damaged checkpoint was passed over: {fault}") for fault in trained.passed_over]
    rows += network_rows(graph.notes)
    steps = f"{count(trained.epochs, 'epoch')}, {count(trained.steps, 'step')} of {trained.batch}"
    return table(f"{graph.source or graph.name}: {steps}, {optimizer_words(trained)}", rows)


def _result(trained: Trained) -> str:
    """Return the losses of the first and the last epoch, and the last validation."""
    if not trained.losses:
        return ""
    text = f"loss {trained.losses[0]:.6g} in the first epoch, {trained.losses[-1]:.6g} in the last"
    if not trained.validations:
        return text
    last = trained.validations[-1]
    return f"{text}; validation {_validation(last)} after epoch {last['epoch']}"


def count(number: int, noun: str) -> str:
    """Return `1 step`, `2,000 steps`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def network_rows(network: Iterable[str]) -> list[Row]:
    """Return the row of the loss, and a row for each other important note on the network."""
    loss, others = notes.loss_of(network)
    return [*([("loss", loss)] if loss else []), *notes.rows(others)]


def _validation(validation: Mapping[str, Any]) -> str:
    parts = [f"loss {validation['loss']:.6g}"]
    parts += [] if validation["accuracy"] is None else [f"accuracy {validation['accuracy']:.2%}"]
    metrics = ((name, value) for name, value in validation.get("metrics", {}).items() if value is not None)
    return ", ".join([*parts, *(f"{name} {value:.4g}" for name, value in metrics)])


FAR = 0.15
"""Relative deviation of a measured step from the predicted one that asks for a new profile."""


def predicted(plan: Plan) -> Simulation | None:
    """Return the simulation of a plan whose seconds all come from this machine's profile; None for others."""
    simulation = simulate(plan)
    return simulation if costed_on(plan.problem, machine(), storage=simulation.bytes_paged > 0) else None


def execution_document(plan: Plan, execution: Execution) -> dict[str, object]:
    """Return the object of `run --json`."""
    costed = predicted(plan)
    return document(
        plan.problem.graph,
        execution,
        zero_gradients=zero_gradients(execution),
        predicted_step_s=None if costed is None else costed.makespan_s,
        predicted_transfer_s=None if costed is None else costed.transfer_s,
    )


def zero_gradients(execution: Execution) -> int:
    """Return the number of gradients that are 0 everywhere."""
    return sum(name.endswith(".grad") and not np.any(array) for name, array in execution.results.items())


def execution_rows(plan: Plan, execution: Execution) -> tuple[str, list[Row]]:
    """Return the title and the rows of the summary of `poetopt run`."""
    rows = answer(_fit(execution), _cost(execution), _sameness(execution))
    if moved := moved_words(execution.bytes_paged, execution.bytes_streamed):
        rows.append(("paged", f"{moved} to and from a file in {show_seconds(execution.transfer_s)} of a step"))
    costed = predicted(plan)
    if costed is not None:
        rows.append(("predicted", predicted_words(costed.makespan_s, execution.step_s)))
    rows += network_rows(said(plan))
    rows += _wait_rows(execution.waited_share)
    if zero := zero_gradients(execution):
        rows.append(("note", f"{zero} of {execution.gradients} gradients are exactly 0 on this batch"))
    if execution.loss is not None and not math.isfinite(execution.loss):
        rows.append(("note", f"the loss is no number: {_culprits(execution)}"))
    graph = plan.problem.graph
    if graph is not None and graph.loss != "loss" and not graph.forward_only:
        rows.append(("note", f"'loss' is called {graph.loss!r} here: the model has a tensor of that name"))
    rows.append(Exact(("memory", _memory(execution))))
    if costed is not None and moved:
        rows.append(Exact(("paged", f"{show_seconds(costed.transfer_s)} of transfers by the profile")))
    return f"{plan.problem.called}: {len(plan.instructions):,} instructions executed on onnxruntime", rows


def moved_words(paged: int, streamed: int) -> str:
    """Return the traffic with storage in a step, in words; empty if there is none."""
    parts = [f"{show_bytes(paged)}{' in whole tensors' if streamed else ''}"] if paged else []
    parts += [f"{show_bytes(streamed)} in chunks inside operators"] if streamed else []
    return " and ".join(parts)


def process_words(total_bytes: int, peak_bytes: int | None) -> str:
    """Return the peak of the process that takes the steps, in words: planned bytes, and the others."""
    if peak_bytes is None:
        return f"{show_bytes(total_bytes)} planned; the system doesn't say what the process took"
    beside = show_bytes(max(0, peak_bytes - total_bytes))
    return f"{show_bytes(peak_bytes)}: {show_bytes(total_bytes)} planned, {beside} Python and onnxruntime"


def alone_text(plan: Plan, alone: Alone, after: str = "") -> str:
    """Return the summary of `poetopt run --check none`; `after` is the next command."""
    loss, figures = alone.figures["loss"], alone.figures
    fit = f"arena {show_bytes(figures['arena_bytes'], 4)}; process {_process(alone)}"
    cost = f"{show_seconds(figures['alone_step_s'])} a step here"
    proof = "nothing was compared with ordinary training, as --check none asks"
    rows = answer(fit, cost, proof, after)
    rows += [] if loss is None else [("loss", f"{loss:.6g}")]
    rows += network_rows(said(plan))
    rows.append(Exact(("memory", f"arena {figures['arena_bytes']:,} B")))
    rows += alone_rows(alone)[1:]
    return table(f"{plan.problem.called}: the schedule alone, on onnxruntime", rows)


def _process(alone: Alone) -> str:
    return process_words(alone.figures["total_ram_bytes"], alone.figures["process_peak_bytes"])


def alone_rows(alone: Alone) -> list[Row]:
    """Return the rows on the process that took the step in the summary of `poetopt run`."""
    base = alone.figures["process_base_bytes"]
    rows: list[Row] = [("process", _process(alone))]
    return rows if base is None else [*rows, Exact(("process", process_base_words(base)))]


def process_base_words(base_bytes: int) -> str:
    """Return the resident bytes of the process before the step was prepared, in words."""
    return f"{show_bytes(base_bytes)} before the kernels were prepared"


def _culprits(execution: Execution) -> str:
    """Return the arrays of the batch that hold NaN or infinity, or other places to look."""
    bad = [name for name, a in execution.batch.items() if a.dtype.kind == "f" and not np.isfinite(a).all()]
    if not bad:
        return "look at the data and the model's parameters"
    return f"the data's {', '.join(map(repr, bad))} {'holds' if len(bad) == 1 else 'hold'} NaN or infinity"


def predicted_words(predicted_s: float, step_s: float) -> str:
    """Return the seconds of a step by the profile beside the measured ones, in words."""
    ratio = step_s / predicted_s
    text = f"{show_seconds(predicted_s)} a step by this machine's profile; measured / predicted = {ratio:.2f}"
    if abs(ratio - 1) > FAR:
        text += f", more than {FAR:.0%} off: profile this model again, then solve again"
    return text


def training_text(plan: Plan, run: TrainingRun, after: str = "") -> str:
    """Return the summary of `poetopt run --steps`; `after` is the next command."""
    first, last = run.losses[0], run.losses[-1]
    mean = fmean(run.losses[-max(1, run.steps // 10) :])
    fit = f"process {process_words(run.total_ram_bytes, run.process_peak_bytes)}"
    rows = answer(fit, _training_time(run), _training_sameness(run), after)
    rows.append(("losses", f"{first:.6g} in the first step, {last:.6g} in the last; mean of the last tenth {mean:.6g}"))
    if run.diverged_step:
        rows.append(("note", diverged_words(run)))
    rows += [] if run.energy is None else [("energy", str(run.energy))]
    rows += network_rows(said(plan))
    rows += _wait_rows(run.waited_share)
    if run.losses_name != "losses":
        rows.append(("note", f"'losses' is called {run.losses_name!r} here: a parameter has that name"))
    rows.append(Exact(("memory", _training_memory(run))))
    if run.process_base_bytes is not None:
        rows.append(Exact(("process", process_base_words(run.process_base_bytes))))
    optimizer = f"lr {run.lr:g}" if run.optimizer == "none" else optimizer_words(run)
    return table(f"{plan.problem.called}: {count(run.steps, 'step')} of training, {optimizer}", rows)


def optimizer_words(trained: Trained | TrainingRun | DeviceTraining) -> str:
    """Return the optimizer of the step and its hyperparameters, in words."""
    return ", ".join([trained.optimizer, *(f"{name} {value:g}" for name, value in trained.hyperparameters.items())])


def left_out_rows(trained: Trained | DeviceFit) -> list[tuple[str, str]]:
    """Return a note on the rows of an epoch that fill no batch, if there are any."""
    text = f"the last {trained.left_out} rows of each epoch fill no batch of {trained.batch}, and were left out"
    return [("note", text)] if trained.left_out else []


def diverged_words(run: TrainingRun) -> str:
    """Return the message on a loss that is no number."""
    last = run.last_finite_loss
    if last is None:
        return (
            "the loss is no number from the first step on: nothing was learned, however equal the bits are; look for "
            "values in the data or the parameters that are none"
        )
    return (
        f"the loss diverged: it is no number from step {run.diverged_step} on, the last before was {last:.6g}; "
        f"nothing useful was learned, however equal the bits are. Take a smaller --lr than {run.lr:g}, or look at "
        "the data"
    )


def said(plan: Plan) -> tuple[str, ...]:
    """Return the notes of the frontend and the loss on the network."""
    return plan.problem.graph.notes if plan.problem.graph else ()


def _training_time(run: TrainingRun) -> str:
    text = f"{show_seconds(run.step_s)} a step here"
    if run.reference_step_s is not None:
        text += f"; without the schedule, node by node, {show_seconds(run.reference_step_s)}"
    return text


def _training_sameness(run: TrainingRun) -> str:
    if run.bit_identical is None:
        return "nothing was compared; --check 1 compares every step with ordinary training"
    if run.bit_identical:
        losses = "every loss" if run.checked == run.steps else f"the losses of {run.checked} steps"
        return (
            f"{losses}, and all {len(run.names)} parameters and statistics after each of them, bit for bit those of "
            "training without the schedule"
        )
    return run.message


def _training_memory(run: TrainingRun) -> str:
    text = f"arena {run.arena_bytes:,} B"
    if run.measured_peak_bytes is not None and run.kernel_workspace_bytes is not None:
        text += f" + kernels {run.kernel_workspace_bytes:,} B = peak {run.measured_peak_bytes:,} B"
    text += f"; budget {run.budget_bytes:,} B"
    # the states of an optimizer inside the step are part of the arena
    return text + (f"; {run.optimizer} {run.optimizer_bytes:,} B" if run.optimizer_bytes else "")


def _sameness(execution: Execution) -> str:
    if execution.loss is None:
        return f"{execution.outputs} outputs: " + (
            "bit for bit those of the network computed without the schedule"
            if execution.bit_identical
            else f"{len(execution.different)} differ, by up to {execution.max_abs_diff:.3g}"
        )
    results = f"{execution.gradients} gradients"
    if execution.updated:
        results = f"{execution.updated} updated parameters and states"
    compared = f"{results}, the loss ({execution.loss:.6g})"
    if execution.statistics:
        compared += f" and {execution.statistics} statistics"
    if execution.bit_identical:
        return f"{compared}: bit for bit those of ordinary training"
    return (
        f"{compared}: {len(execution.different)} differ from ordinary training, by up to {execution.max_abs_diff:.3g}"
    )


def _fit(execution: Execution) -> str:
    """Return the measured peak of the schedule beside its budget and store-all's peak."""
    arena, kernels = execution.arena_bytes, execution.kernel_workspace_bytes
    text = f"arena {show_bytes(arena, 4)}"
    if execution.measured_peak_bytes is not None and kernels is not None:
        text = f"peak {show_bytes(execution.measured_peak_bytes, 4)} ({text} + kernels {show_bytes(kernels)})"
    budget, store_all = show_bytes(execution.budget_bytes, 4), show_bytes(execution.store_all_peak_bytes, 4)
    return f"{text} of {budget}; store-all {store_all}"


def _memory(execution: Execution) -> str:
    """Return all byte counts of a step: arena, kernels, what the allocator held, budget, store-all."""
    text = f"arena {execution.arena_bytes:,} B"
    if execution.measured_peak_bytes is not None and execution.kernel_workspace_bytes is not None:
        text += f" + kernels {execution.kernel_workspace_bytes:,} B = peak {execution.measured_peak_bytes:,} B"
    if execution.high_water_bytes is not None:
        text += f", {execution.high_water_bytes:,} B with what the allocator holds"
    return f"{text}; budget {execution.budget_bytes:,} B; store-all {execution.store_all_peak_bytes:,} B"


def _cost(execution: Execution) -> str:
    text = f"{show_seconds(execution.step_s)} a step here; store-all {show_seconds(execution.store_all_step_s)}"
    if execution.fused_step_s is not None:
        text += f", as one onnxruntime session {show_seconds(execution.fused_step_s)}"
    return text


def _wait_rows(waited_share: float) -> list[Row]:
    """Return a note where other programs had the processors for part of the measured time."""
    return [("note", f"the measured time: {text}")] if (text := told(waited_share)) else []
