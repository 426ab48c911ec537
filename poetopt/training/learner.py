"""A step by a plan with what follows it, as one thing that learns, is saved and goes on."""

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
    """Steps by `plan`, each with its update.

    hyperparameters
        By name, all but the step's number.
    base_bytes
        What the process had resident before the step was made.
    step
        What runs the plan.

    Arguments and errors are those of `poetopt.Trainer`.
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
        made = plan if isinstance(plan, Prepared) else Prepared.of(plan, graph_of(plan))
        graph = made.graph
        check_hyperparameters(graph, hyperparameters)
        self.workdir, self.told, self.base_bytes, self._closed = workdir, told, resident_bytes(), False
        self.step = ScheduledStep(made, ram_bytes=ram_bytes, workdir=workdir, threads=threads, told=told)
        self.plan, self.graph = self.step.plan, self.step.graph
        own = {name: value for name, value in self.step.hyperparameters.items() if name != STEP}
        self.hyperparameters: dict[str, float] = {**(own or DESCENT), **hyperparameters}
        self._asked = frozenset(hyperparameters)
        self.optimizer = graph.optimizer if own else "sgd"

    @cached_property
    def evaluator(self) -> Evaluator:
        """The forward pass, with the values as they are."""
        from poetopt.training.evaluate import Evaluator

        return Evaluator(self.graph, self.step.sessions, self.step.given())

    @property
    def total_ram_bytes(self) -> int:
        """Gives what the plan takes: arena, kernels, resident region."""
        return taken_bytes(self.plan, self.step.simulation.peak_bytes) + self.plan.problem.beside_bytes

    def check_open(self, lr: float | None = None) -> None:
        """Raise OptionError where no step can follow: after `close`, or at rates that make no sense."""
        if self._closed:
            raise OptionError("this Trainer is closed, and its values are gone; make another")
        said = {} if lr is None or lr == 0 else {"lr": lr}  # schedules may end at 0
        check_hyperparameters(self.graph, {**self.hyperparameters, **said})

    def take(self, batch: Mapping[str, object], lr: float | None = None) -> float:
        """One step; the loss before it."""
        rate = self.hyperparameters["lr"] if lr is None else lr
        if self.graph.optimizer != "none":
            return self.step.run(batch, {**self.hyperparameters, "lr": rate})
        loss = self.step.run(batch)
        descend(self.step.parameters, self.step.gradients, rate)
        return loss

    def evaluate(
        self, data: DataSet | Source, between: Callable[[], object] | None = None, metrics: Asked = ()
    ) -> Evaluation:
        """Loss and accuracy on `data`, in the memory that the step has between steps.

        between
            Called before each batch.
        metrics
            As for `poetopt.Trainer.evaluate`.
        """
        from poetopt.training.evaluate import evaluate

        self.step.rest()
        found = evaluate(self.evaluator, data, paced(self.told), between, metrics)
        if (give_back := measure.give_back()) is not None:
            give_back()
        return found

    def save(self, folder: Path, extra: Mapping[str, object]) -> Path:
        """Write a checkpoint with `extra` in it. Raises ExecutionError where a value is no finite number any more."""
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
        return checkpoint.save(folder, meta, _Finite(self.step.values()))

    def check(self, found: checkpoint.Checkpoint) -> None:
        """Raise PlanError for a checkpoint of another network, other weights at the start, or another optimizer."""
        shown, meta = str(found.path), found.meta
        network, optimizer = meta.get("network"), meta.get("optimizer")
        if meta.get("structure") != self.graph.structure_hash:
            raise PlanError(
                f"{shown}: it is of another network ({network}): operators, shapes or types are not those of "
                f"{self.graph.name!r}; give the plan that it was made with, or another folder"
            )
        if self.graph.content_hash and meta.get("content", self.graph.content_hash) != self.graph.content_hash:
            raise PlanError(
                f"{shown}: it is of a network with other weights at the start than {self.graph.source or network} has; "
                "give the model that it began with, or another folder"
            )
        if optimizer != self.optimizer:
            raise PlanError(
                f"{shown}: it was made with the optimizer {optimizer}, and this is {self.optimizer}; give the plan and "
                "the options that it was made with, or another folder"
            )
        if (rule := meta.get("rule") or self._rule) != self._rule:
            raise PlanError(
                f"{shown}: labels and rates were taken by {rule}, and this plan takes them by {self._rule}; give the "
                "plan that it was made with, or another folder"
            )

    @property
    def _rule(self) -> str:
        """The rule of labels, and factors of rates, in a checkpoint's words."""
        return json.dumps({**asdict(self.graph.label_rule), "rates": dict(self.graph.rates)})

    def load(self, found: checkpoint.Checkpoint) -> tuple[str, ...]:
        """Go on from a checkpoint, with its hyperparameters where no others were asked for; those others, in words.

        Raises as `check`, and PlanError for other states; then nothing has changed.
        """
        self.check(found)
        shown, meta = str(found.path), found.meta
        shapes = dict(found.shapes())
        for name, array in self.step.values().items():
            if shapes.pop(name, None) != (array.shape, array.dtype):
                raise PlanError(
                    f"{shown}: it has no {name!r} of type {array.dtype} and shape {list(array.shape)}, which this "
                    "training has; give the options that it was made with, or another folder"
                )
        if shapes:
            raise PlanError(f"{shown}: it has {next(iter(shapes))!r}, which this training hasn't; give its options")
        self.load_states(found)
        changed = []
        for name, value in meta["hyperparameters"].items():
            mine = self.hyperparameters.get(name, value)
            if name in self._asked and mine != value:
                option = name.replace("_", "-")
                changed.append(f"--{option} {mine:g}, as asked for; the checkpoint was made with {value:g}")
            elif mine != value:
                check_hyperparameters(self.graph, {name: value})
                self.hyperparameters[name] = value
        return tuple(changed)

    def load_states(self, found: checkpoint.Checkpoint) -> None:
        """Go back to a checkpoint of this very training."""
        for name, array in found.states():
            self.step.load({name: array})
        self.step.load({}, taken=found.meta["taken"])

    def close(self) -> None:
        """Give up the storage."""
        self._closed = True
        self.step.close()


class _Finite(Mapping[str, "Array"]):
    """Values, asked lazily; what isn't finite is not saved over what is."""

    def __init__(self, values: Mapping[str, Array]) -> None:
        self._values = values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, name: str) -> Array:
        found = self._values[name]
        flat = found.reshape(-1)
        parts = (flat[k : k + SLICE] for k in range(0, flat.size if found.dtype.kind == "f" else 0, SLICE))
        if not all(np.isfinite(part).all() for part in parts):
            raise ExecutionError(
                f"{name!r} holds NaN or infinity: the training has diverged, and isn't saved over what was before; "
                "take a smaller --lr, or look at the data"
            )
        return found
