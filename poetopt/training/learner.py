"""A step by a plan with what follows it, as one thing that learns, is saved and goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from poetopt.backends.ort import allocator
from poetopt.backends.ort.prepared import Prepared
from poetopt.backends.ort.stepping import STEP, ScheduledStep
from poetopt.errors import ExecutionError, OptionError, PlanError
from poetopt.optimizers import CLIP
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import taken_bytes
from poetopt.plan.simulate import simulate
from poetopt.process import resident_bytes
from poetopt.step.belongs import graph_of
from poetopt.step.descent import SLICE
from poetopt.telling import Told, paced, silent
from poetopt.training import checkpoint
from poetopt.training.hyperparameters import DESCENT, check_hyperparameters, check_inside
from poetopt.training.update import Optimizer, Update, check_update
from poetopt.version import __version__

if TYPE_CHECKING:
    from poetopt.graph import Array
    from poetopt.training.data import DataSet
    from poetopt.training.evaluate import Evaluation, Evaluator
    from poetopt.training.source import Source


class Learner:
    """Steps by `plan`, each with its update.

    hyperparameters
        By name, all but the step's number.
    base_bytes
        What the process had resident before the step was made.
    step
        What runs the plan.
    update
        What follows a step that ends with gradients; None where the step updates.

    Arguments and errors are those of `poetopt.Trainer`.
    """

    def __init__(
        self,
        plan: Plan | Prepared,
        hyperparameters: Mapping[str, float],
        *,
        ram_bytes: int | None = None,
        optimizer: Optimizer | None = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
        workdir: Path | None = None,
        threads: int = 1,
        told: Told = silent,
    ) -> None:
        made = plan if isinstance(plan, Prepared) else Prepared.of(plan, graph_of(plan))
        graph = made.graph
        check_update(accumulate, clip_norm)
        if clip_norm is not None and CLIP in graph.hyperparameters:
            hyperparameters, clip_norm = {**hyperparameters, CLIP: clip_norm}, None
        check_hyperparameters(graph, hyperparameters)
        if graph.optimizer != "none":
            check_inside(graph, optimizer, accumulate, clip_norm)
        self.workdir, self.told, self.base_bytes, self._closed = workdir, told, resident_bytes(), False
        self.step = ScheduledStep(made, ram_bytes=ram_bytes, workdir=workdir, threads=threads, told=told)
        self.plan, self.graph = self.step.plan, self.step.graph
        own = {name: value for name, value in self.step.hyperparameters.items() if name != STEP}
        self.hyperparameters: dict[str, float] = {**(own or DESCENT), **hyperparameters}
        self._asked = frozenset(hyperparameters)
        self.update: Update | None = None
        if graph.optimizer == "none":
            said = self.hyperparameters
            self.update = Update(
                self.step.parameters, lr=said["lr"], momentum=said["momentum"], weight_decay=said["weight_decay"],
                optimizer=optimizer, accumulate=accumulate, clip_norm=clip_norm,
            )  # fmt: skip

    @cached_property
    def evaluator(self) -> Evaluator:
        """The forward pass, with the values as they are."""
        from poetopt.training.evaluate import Evaluator

        return Evaluator(self.graph, self.step.sessions, self.step.given())

    @property
    def optimizer(self) -> str:
        """Its name."""
        if self.update is None:
            return self.graph.optimizer
        if self.update.optimizer is not None:
            return type(self.update.optimizer).__name__
        return "momentum" if self.hyperparameters["momentum"] else "sgd"

    @property
    def accumulate(self) -> int:
        """Of how many steps gradients are summed."""
        return 1 if self.update is None else self.update.accumulate

    @property
    def clip_norm(self) -> float | None:
        """The largest norm of all gradients after the step; None where nothing clips there."""
        return None if self.update is None else self.update.clip_norm

    @property
    def total_ram_bytes(self) -> int:
        """What the plan takes: arena, kernels, resident region."""
        return taken_bytes(self.plan, simulate(self.plan).peak_bytes) + self.plan.problem.beside_bytes

    def check_open(self, lr: float | None = None) -> None:
        """Raise OptionError where no step can follow: after `close`, or at rates that make no sense."""
        if self._closed:
            raise OptionError("this Trainer is closed, and its values are gone; make another")
        said = {} if lr is None or lr == 0 else {"lr": lr}  # schedules may end at 0
        check_hyperparameters(self.graph, {**self.hyperparameters, **said})

    def take(self, batch: Mapping[str, object], lr: float | None = None) -> float:
        """One step; the loss before it."""
        rate = self.hyperparameters["lr"] if lr is None else lr
        if self.update is None:
            return self.step.run(batch, {**self.hyperparameters, "lr": rate})
        loss = self.step.run(batch)
        self.update.learn(self.step.gradients, rate)
        return loss

    def evaluate(self, data: DataSet | Source, between: Callable[[], object] | None = None) -> Evaluation:
        """Loss and accuracy on `data`, in the memory that the step has between steps.

        between
            Called before each batch.
        """
        from poetopt.training.validate import evaluate

        self.step.rest()
        found = evaluate(self.evaluator, data, paced(self.told), between)
        if (give_back := allocator.give_back()) is not None:
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
            "taken": self.step.taken,
            "summed": self.update.summed if self.update is not None else 0,
            "hyperparameters": self.hyperparameters,
            **extra,
        }
        return checkpoint.save(folder, meta, _Finite(self._states()))

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

    def load(self, found: checkpoint.Checkpoint) -> tuple[str, ...]:
        """Go on from a checkpoint, with its hyperparameters where no others were asked for; those others, in words.

        Raises as `check`, and PlanError for other states; then nothing has changed.
        """
        self.check(found)
        shown, meta = str(found.path), found.meta
        shapes = dict(found.shapes())
        for name, array in self._states().items():
            if shapes.pop(name, None) != (array.shape, array.dtype):
                raise PlanError(
                    f"{shown}: it has no {name!r} of type {array.dtype} and shape {list(array.shape)}, which this "
                    "training has; give the options that it was made with, or another folder"
                )
        if shapes:
            raise PlanError(f"{shown}: it has {next(iter(shapes))!r}, which this training hasn't; give its options")
        taken, summed = meta["taken"], meta["summed"]
        outside = self._outside()
        for name, array in found.states():
            if name in outside:
                np.copyto(outside[name], array)
            else:
                self.step.load({name: array})
        self.step.load({}, taken=taken)
        if self.update is not None:
            self.update.summed = summed
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

    def _outside(self) -> Mapping[str, Array]:
        """What is remembered outside of the plan."""
        return {} if self.update is None else self.update.states

    def _states(self) -> Mapping[str, Array]:
        return _Both(self.step.values(), self._outside())

    def close(self) -> None:
        """Give up the storage."""
        self._closed = True
        self.step.close()


class _Both(Mapping[str, "Array"]):
    """Two mappings as one, asked lazily."""

    def __init__(self, first: Mapping[str, Array], second: Mapping[str, Array]) -> None:
        self._first, self._second = first, second

    def __getitem__(self, name: str) -> Array:
        return self._second[name] if name in self._second else self._first[name]

    def __iter__(self) -> Iterator[str]:
        yield from (*self._first, *self._second)

    def __len__(self) -> int:
        return len(self._first) + len(self._second)


class _Finite(_Both):
    """The same, but what isn't finite is not saved over what is."""

    def __init__(self, states: Mapping[str, Array]) -> None:
        super().__init__(states, {})

    def __getitem__(self, name: str) -> Array:
        found = super().__getitem__(name)
        flat = found.reshape(-1)
        parts = (flat[k : k + SLICE] for k in range(0, flat.size if found.dtype.kind == "f" else 0, SLICE))
        if not all(np.isfinite(part).all() for part in parts):
            raise ExecutionError(
                f"{name!r} holds NaN or infinity: the training has diverged, and isn't saved over what was before; "
                "take a smaller --lr, or look at the data"
            )
        return found
