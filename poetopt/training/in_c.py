"""Epochs in C: the batches and rates of a training on onnxruntime, as one program's steps."""

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
    """Holds what epochs in C showed.

    steps
        Of all epochs, beside onnxruntime's.
    epochs, batch, left_out
        Epochs, rows of a step, and rows of each epoch that filled no batch.
    lr_schedule, batch_order, seed
        As they were.
    validation
        What the program's own predictions of other rows show, after the last step; None where there were none.
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
        """The mean loss of each epoch."""
        return self._means(self.steps.losses)

    @property
    def reference_epoch_losses(self) -> tuple[float, ...]:
        """The same of onnxruntime's steps."""
        return self._means(self.steps.reference_losses)

    def _means(self, losses: tuple[float, ...]) -> tuple[float, ...]:
        each = len(losses) // self.epochs
        return tuple(sum(losses[k : k + each]) / each for k in range(0, len(losses), each))

    def to_dict(self) -> dict[str, object]:
        """The object of `train --on --json`: plain values only; a number that JSON has no word for is null."""
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
    """Train in C for `epochs` by the emitted example, and compare losses and parameters with onnxruntime's.

    data, epochs, hyperparameters, lr_schedule, batch_order, seed
        As for `poetopt.Trainer` and its `fit`; all batches of all epochs are in memory at once.
    validate
        Rows that the program predicts after the last step, all at once in memory as well.
    on, ram_bytes, predict
        As for `execute_on`.

    Raises OptionError for numbers that make no sense, or a step without an optimizer; ModelError for data that don't
    fit; else what `execute_on` does.
    """
    graph, rates, given = graph_of(plan), parse_schedule(lr_schedule), dict(hyperparameters or {})
    check_trainable(graph)
    check_hyperparameters(graph, given)
    if epochs < 1:
        raise OptionError(f"--epochs {epochs}: must be at least 1")
    source = source_of(data, graph.whole, batch_order, seed)
    source.check(told)
    taken = [list(source.epoch(epoch)) for epoch in range(epochs)]
    if len({len(batches) for batches in taken}) > 1:
        raise OptionError("the data gives epochs of different lengths; give each as many batches")
    first = numbers(graph, 0, given)
    lr, steps = float(first["lr"]), epochs * len(taken[0])
    said = [
        numbers(graph, step, {**given, "lr": rates.rate(lr, step, step // len(taken[0]), steps)})
        for step in range(steps)
    ]
    rows = None if validate is None else _validated(validate, graph)
    ended = train_batches_on(
        plan,
        on,
        [batch for batches in taken for batch in batches],
        said,
        graph=graph,
        ram_bytes=ram_bytes,
        predict=predict,
        asked=None if rows is None else [batch for _, batch in in_batches(rows, batch_size(graph))],
        told=told,
    )
    return DeviceFit(
        steps=replace(ended, hyperparameters={**ended.hyperparameters, "lr": lr}),
        epochs=epochs,
        batch=batch_size(graph.whole),
        left_out=source.left_out,
        lr_schedule=lr_schedule,
        batch_order=batch_order,
        seed=seed,
        validation=None if rows is None else _evaluated(graph, ended, rows),
    )


def _validated(data: Data, graph: TrainingGraph) -> DataSet:
    """The rows to predict. Raises OptionError where they are no rows, or where the loss tells of none."""
    found = validation_of(data, graph)
    if hasattr(found, "epoch"):
        raise OptionError("validate: give arrays, a file or a folder; what is drawn anew can't be predicted row by row")
    return found


def _evaluated(graph: TrainingGraph, ended: DeviceTraining, rows: DataSet) -> Evaluation | None:
    if ended.predicted is None:
        raise ExecutionError(
            "--validate: the program has no po_predict (`poetopt emit` says why); leave it out, and evaluate what -o "
            "writes"
        )
    outputs = ended.predicted.outputs
    name = told_by(graph, {name: array.ndim - 1 for name, array in outputs.items()})
    predictions = iter(outputs[name] if name else ())
    return judge(graph, name, rows, batch_size(graph), lambda _: next(predictions)) if name else None


def learned(graph: TrainingGraph, ended: DeviceTraining) -> Mapping[str, Array]:
    """Gives what the network's file gets: the parameters after the last step, and running statistics."""
    return {**{name: ended.values[name] for name in graph.trained if name in ended.values}, **ended.statistics}
