"""Training for epochs in C: all steps of a training as one program, compared with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from poetopt.backends.c.execute import Predict, check_trainable, numbers, train_batches_on
from poetopt.backends.c.execution import DeviceTraining
from poetopt.backends.onnxruntime.stepping import check_hyperparameters
from poetopt.backends.step.places import graph_of
from poetopt.plan.instructions import Plan
from poetopt.training.data import DataSet
from poetopt.training.evaluate import Evaluation, in_batches, judge, told_by, validation_of
from poetopt.training.source import Data, batch_size, parse_schedule, source_of
from poetopt.util.errors import ExecutionError, OptionError
from poetopt.util.figures import Figures, plain
from poetopt.util.progress import Told, silent

if TYPE_CHECKING:
    from poetopt.graph import Array, TrainingGraph

    Batch = Mapping[str, Array]


@dataclass(frozen=True, kw_only=True)
class DeviceFit(Figures):
    """Result of a training in C.

    Attributes
    ----------
    steps
        All steps, with onnxruntime's for comparison.
    epochs, batch, left_out
        Epochs, rows of a step, and rows of each epoch that filled no batch.
    lr_schedule, batch_order, seed
        The options of the training.
    validation
        Evaluation of the program's predictions after the last step; None without validation data.
    """

    steps: DeviceTraining
    epochs: int
    batch: int
    left_out: int
    lr_schedule: str
    batch_order: str
    seed: int
    validation: Evaluation | None = None
    omitted = ("steps",)
    derived = ("epoch_losses", "reference_epoch_losses")

    @property
    def epoch_losses(self) -> tuple[float, ...]:
        """Mean loss of each epoch."""
        return self._means(self.steps.losses)

    @property
    def reference_epoch_losses(self) -> tuple[float, ...]:
        """Mean loss of each epoch on onnxruntime."""
        return self._means(self.steps.reference_losses)

    def _means(self, losses: tuple[float, ...]) -> tuple[float, ...]:
        steps_per_epoch = len(losses) // self.epochs
        return tuple(
            sum(losses[k : k + steps_per_epoch]) / steps_per_epoch for k in range(0, len(losses), steps_per_epoch)
        )

    def to_dict(self) -> dict[str, object]:
        """Return the object of `train --on --json`: plain values only; NaN and infinity become null."""
        return {**self.steps.to_dict(), **super().to_dict(), "loss": plain(self.epoch_losses[-1])}


def fit_on(
    plan: Plan,
    on: str,
    data: Data,
    *,
    epochs: int = 1,
    hyperparameters: Mapping[str, float] | None = None,
    lr_schedule: str = "constant",
    batch_order: str = "shuffle",
    seed: int = 0,
    validate: Data | None = None,
    predict: Predict | None = None,
    ram_bytes: int | None = None,
    told: Told = silent,
) -> DeviceFit:
    """Train in C for `epochs` with the emitted example; compare losses and parameters with onnxruntime's.

    Parameters
    ----------
    data, epochs, hyperparameters, lr_schedule, batch_order, seed
        As for `poetopt.Trainer` and its `fit`; all batches of all epochs are in memory at once.
    validate
        Rows that the program predicts after the last step, all in memory at once.
    on, ram_bytes, predict
        As for `execute_on`.

    Raises
    ------
    OptionError
        For invalid numbers, or a step without an optimizer.
    ModelError
        For data that don't fit; other errors are those of `execute_on`.
    """
    graph, rates, overrides = graph_of(plan), parse_schedule(lr_schedule), dict(hyperparameters or {})
    check_trainable(graph)
    check_hyperparameters(graph, overrides)
    if epochs < 1:
        raise OptionError(f"--epochs {epochs}: must be at least 1")
    source = source_of(data, graph.whole, batch_order, seed)
    source.check(told)
    epoch_batches = [list(source.epoch(epoch)) for epoch in range(epochs)]
    if len({len(batches) for batches in epoch_batches}) > 1:
        raise OptionError("the epochs of the data differ in length. Give each the same number of batches.")
    initial = numbers(graph, 0, overrides)
    lr, steps = float(initial["lr"]), epochs * len(epoch_batches[0])
    step_numbers = [
        numbers(graph, step, {**overrides, "lr": rates.rate(lr, step, step // len(epoch_batches[0]), steps)})
        for step in range(steps)
    ]
    rows = None if validate is None else _open_rows(validate, graph)
    training = train_batches_on(
        plan,
        on,
        [batch for batches in epoch_batches for batch in batches],
        step_numbers,
        graph=graph,
        ram_bytes=ram_bytes,
        predict=predict,
        asked=None if rows is None else [batch for _, batch in in_batches(rows, batch_size(graph))],
        told=told,
    )
    return DeviceFit(
        steps=replace(training, hyperparameters={**training.hyperparameters, "lr": lr}),
        epochs=epochs,
        batch=batch_size(graph.whole),
        left_out=source.left_out,
        lr_schedule=lr_schedule,
        batch_order=batch_order,
        seed=seed,
        validation=None if rows is None else _evaluate_predictions(graph, training, rows),
    )


def _open_rows(data: Data, graph: TrainingGraph) -> DataSet:
    """Return the rows to predict. Raises OptionError for data without rows."""
    opened = validation_of(data, graph)
    if hasattr(opened, "epoch"):
        raise OptionError(
            "validate: batches from an iterable can't be predicted row by row. Give arrays, a file or a folder."
        )
    return opened


def _evaluate_predictions(graph: TrainingGraph, training: DeviceTraining, rows: DataSet) -> Evaluation | None:
    if training.predicted is None:
        raise ExecutionError(
            "--validate: the program has no po_predict (`poetopt emit` prints the reason). Leave the option out, and "
            "evaluate the network that -o writes."
        )
    outputs = training.predicted.outputs
    name = told_by(graph, {name: array.ndim - 1 for name, array in outputs.items()})
    predictions = iter(outputs[name] if name else ())
    return judge(graph, name, rows, batch_size(graph), lambda _: next(predictions)) if name else None


def learned(graph: TrainingGraph, training: DeviceTraining) -> Mapping[str, Array]:
    """Return the values that the network's file gets: trained parameters and running statistics."""
    return {**{name: training.values[name] for name in graph.trained if name in training.values}, **training.statistics}
