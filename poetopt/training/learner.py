"""Training step: one step of a plan with its update, that is repeated, saved and resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from poetopt.backends.onnxruntime import measure
from poetopt.backends.onnxruntime.prepared import Prepared
from poetopt.backends.onnxruntime.stepping import DESCENT, STEP, ScheduledStep, check_hyperparameters
from poetopt.backends.step.memory import SLICE, descend
from poetopt.backends.step.places import graph_of
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import taken_bytes
from poetopt.training import checkpoint
from poetopt.util import __version__
from poetopt.util.errors import ExecutionError, OptionError, PlanError
from poetopt.util.process import resident_bytes
from poetopt.util.progress import Told, paced, silent

if TYPE_CHECKING:
    from poetopt.graph import Array
    from poetopt.training.data import DataSet
    from poetopt.training.evaluate import Evaluation, Evaluator
    from poetopt.training.metrics import Asked
    from poetopt.training.source import Source


class Learner:
    """Training by `plan`, one step and its update at a time.

    Arguments and errors are those of `poetopt.Trainer`.

    Attributes
    ----------
    hyperparameters
        By name, without the step's number.
    base_bytes
        Resident bytes of the process before the step was prepared.
    step
        Executor of the plan.
    """

    def __init__(
        self,
        plan: Plan | Prepared,
        hyperparameters: Mapping[str, float],
        *,
        ram_bytes: int | None = None,
        workdir: Path | None = None,
        threads: int = 1,
        told: Told = silent,
    ) -> None:
        prepared = plan if isinstance(plan, Prepared) else Prepared.of(plan, graph_of(plan))
        graph = prepared.graph
        check_hyperparameters(graph, hyperparameters)
        self.workdir, self.told, self.base_bytes, self._closed = workdir, told, resident_bytes(), False
        self.step = ScheduledStep(prepared, ram_bytes=ram_bytes, workdir=workdir, threads=threads, told=told)
        self.plan, self.graph = self.step.plan, self.step.graph
        defaults = {name: value for name, value in self.step.hyperparameters.items() if name != STEP}
        self.hyperparameters: dict[str, float] = {**(defaults or DESCENT), **hyperparameters}
        self._asked = frozenset(hyperparameters)
        self.optimizer = graph.optimizer if defaults else "sgd"

    @cached_property
    def evaluator(self) -> Evaluator:
        """Forward pass with the current values."""
        from poetopt.training.evaluate import Evaluator

        return Evaluator(self.graph, self.step.sessions, self.step.given())

    @property
    def total_ram_bytes(self) -> int:
        """Bytes that the plan needs: arena, kernels, resident region."""
        return taken_bytes(self.plan, self.step.simulation.peak_bytes) + self.plan.problem.beside_bytes

    def check_open(self, lr: float | None = None) -> None:
        """Raise OptionError if no step can follow: after `close`, or with invalid rates."""
        if self._closed:
            raise OptionError("this Trainer is closed, and its values are gone. Create another.")
        scheduled = {} if lr is None or lr == 0 else {"lr": lr}  # a schedule may end at 0
        check_hyperparameters(self.graph, {**self.hyperparameters, **scheduled})

    def take(self, batch: Mapping[str, object], lr: float | None = None) -> float:
        """Run one step; return the loss before it."""
        rate = self.hyperparameters["lr"] if lr is None else lr
        if self.graph.optimizer != "none":
            return self.step.run(batch, {**self.hyperparameters, "lr": rate})
        loss = self.step.run(batch)
        descend(self.step.parameters, self.step.gradients, rate)
        return loss

    def evaluate(
        self, data: DataSet | Source, between: Callable[[], object] | None = None, metrics: Asked = ()
    ) -> Evaluation:
        """Return loss and accuracy on `data`, within the memory that the step has between steps.

        Parameters
        ----------
        between
            Called before each batch.
        metrics
            As for `poetopt.Trainer.evaluate`.
        """
        from poetopt.training.evaluate import evaluate

        self.step.rest()
        evaluation = evaluate(self.evaluator, data, paced(self.told), between, metrics)
        if (give_back := measure.give_back()) is not None:
            give_back()
        return evaluation

    def save(self, folder: Path, extra: Mapping[str, object]) -> Path:
        """Write a checkpoint with `extra` in its metadata. Raises ExecutionError if a value isn't finite."""
        meta = {
            "poetopt": __version__,
            "network": self.graph.name,
            "structure": self.graph.structure_hash,
            "content": self.graph.content_hash,
            "optimizer": self.optimizer,
            "rule": self._rule,
            "taken": self.step.taken,
            "hyperparameters": self.hyperparameters,
            **extra,
        }
        return checkpoint.save(folder, meta, _FiniteValues(self.step.values()))

    def check(self, newest: checkpoint.Checkpoint) -> None:
        """Raise PlanError for a checkpoint of another network, other initial weights or another optimizer."""
        shown, meta = str(newest.path), newest.meta
        network, optimizer = meta.get("network"), meta.get("optimizer")
        if meta.get("structure") != self.graph.structure_hash:
            raise PlanError(
                f"{shown}: it belongs to another network ({network}): operators, shapes or types differ from those of "
                f"{self.graph.name!r}. Give the plan that it was made with, or another folder."
            )
        if self.graph.content_hash and meta.get("content", self.graph.content_hash) != self.graph.content_hash:
            raise PlanError(
                f"{shown}: its training began with other weights than those of {self.graph.source or network}. "
                "Give the model that it began with, or another folder."
            )
        if optimizer != self.optimizer:
            raise PlanError(
                f"{shown}: it was made with the optimizer {optimizer}, and this training uses {self.optimizer}. "
                "Give the plan and the options that it was made with, or another folder."
            )
        if (rule := meta.get("rule") or self._rule) != self._rule:
            raise PlanError(
                f"{shown}: its rule of labels and rates is {rule}, and this plan's is {self._rule}. "
                "Give the plan that it was made with, or another folder."
            )

    @property
    def _rule(self) -> str:
        """Label rule and rate factors, as text for checkpoints."""
        return json.dumps({**asdict(self.graph.label_rule), "rates": dict(self.graph.rates)})

    def load(self, newest: checkpoint.Checkpoint) -> tuple[str, ...]:
        """Resume from a checkpoint; keep explicitly requested hyperparameters, and return those in words.

        Raises like `check`, and PlanError for other states; then nothing has changed.
        """
        self.check(newest)
        shown, meta = str(newest.path), newest.meta
        shapes = dict(newest.shapes())
        for name, array in self.step.values().items():
            if shapes.pop(name, None) != (array.shape, array.dtype):
                raise PlanError(
                    f"{shown}: it lacks {name!r} of type {array.dtype} and shape {list(array.shape)}. "
                    "Give the options that it was made with, or another folder."
                )
        if shapes:
            raise PlanError(
                f"{shown}: it has {next(iter(shapes))!r}, which this training doesn't have. "
                "Give the options that it was made with."
            )
        self.load_states(newest)
        changed = []
        for name, value in meta["hyperparameters"].items():
            current = self.hyperparameters.get(name, value)
            if name in self._asked and current != value:
                option = name.replace("_", "-")
                changed.append(f"--{option} {current:g} is used; the checkpoint was made with {value:g}")
            elif current != value:
                check_hyperparameters(self.graph, {name: value})
                self.hyperparameters[name] = value
        return tuple(changed)

    def load_states(self, newest: checkpoint.Checkpoint) -> None:
        """Restore the states of a checkpoint of this very training."""
        for name, array in newest.states():
            self.step.load({name: array})
        self.step.load({}, taken=newest.meta["taken"])

    def close(self) -> None:
        """Release the storage."""
        self._closed = True
        self.step.close()


class _FiniteValues(Mapping[str, "Array"]):
    """Values that are fetched and checked one at a time, so that no checkpoint holds NaN or infinity."""

    def __init__(self, values: Mapping[str, Array]) -> None:
        self._values = values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, name: str) -> Array:
        value = self._values[name]
        flat = value.reshape(-1)
        parts = (flat[k : k + SLICE] for k in range(0, flat.size if value.dtype.kind == "f" else 0, SLICE))
        if not all(np.isfinite(part).all() for part in parts):
            raise ExecutionError(
                f"{name!r} holds NaN or infinity: the training has diverged. Earlier checkpoints stay as they are. "
                "Use a smaller --lr, or check the data."
            )
        return value
