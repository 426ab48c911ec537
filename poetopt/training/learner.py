"""A step by a plan with what follows it, as one thing that learns, is saved and goes on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from poetopt.autodiff.optimizers import CLIP
from poetopt.backends.onnxruntime import measure
from poetopt.backends.onnxruntime.prepared import Prepared
from poetopt.backends.onnxruntime.stepping import STEP, ScheduledStep
from poetopt.backends.step.descent import SLICE, Momentum
from poetopt.backends.step.places import graph_of
from poetopt.graph import TrainingGraph
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import taken_bytes
from poetopt.plan.simulate import simulate
from poetopt.training import checkpoint
from poetopt.util.errors import ExecutionError, OptionError, PlanError
from poetopt.util.memory import resident_bytes
from poetopt.util.progress import Told, paced, silent
from poetopt.util.units import show_bytes
from poetopt.util.version import __version__

if TYPE_CHECKING:
    from poetopt.graph import Array
    from poetopt.training.data import DataSet
    from poetopt.training.evaluate import Evaluation, Evaluator
    from poetopt.training.source import Source


DESCENT = {"lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0}
"""Hyperparameters of what follows a step that ends with gradients, and their defaults."""


def check_hyperparameters(graph: TrainingGraph, given: Mapping[str, float]) -> None:
    """Raise OptionError for a hyperparameter that the optimizer has not, or a number that makes no sense."""
    known = graph.hyperparameters if graph.optimizer != "none" else DESCENT
    for name, value in given.items():
        if not isinstance(value, int | float | np.number):
            raise OptionError(f"--{name.replace('_', '-')} {value!r}: must be a number")
        option = f"--{name.replace('_', '-')} {value:g}"
        if name not in known or name == STEP:
            has = ", ".join(n for n in known if n != STEP)
            whose = "descent" if graph.optimizer == "none" else graph.optimizer
            remedy = "--clip-norm" if name == CLIP else "another --optimizer"
            raise OptionError(f"{option}: the plan's optimizer is {whose}, which has {has}; solve with {remedy}")
        least, below = _RANGES.get(name, (0.0, math.inf))
        if not (least <= value < below) or (name in ("lr", "eps", CLIP) and value == 0):
            raise OptionError(f"{option}: {_SENSE.get(name, 'must be 0 or more')}")


_RANGES = {"momentum": (0.0, 1.0), "beta1": (0.0, 1.0), "beta2": (0.0, 1.0)}
_SENSE = {
    "lr": "must be more than 0, as in 0.01",
    "eps": "must be more than 0, as in 1e-8",
    CLIP: "must be more than 0, as in 1.0",
    **dict.fromkeys(_RANGES, "must be at least 0 and less than 1, as in 0.9"),
}


def check_inside(
    graph: TrainingGraph, optimizer: Callable[..., Any] | None, accumulate: int, clip_norm: float | None
) -> None:
    """Raise OptionError for what needs a step's gradients, where it updates the parameters itself."""
    asked = {
        "an optimizer of one's own": optimizer is not None,
        f"--accumulate {accumulate}": accumulate > 1,
        f"--clip-norm {clip_norm or 0:g}": clip_norm is not None,
    }
    for what, wanted in asked.items():
        if wanted:
            size = sum(graph.tensors[name].nbytes for name in graph.trained)
            inside = f"solve with --optimizer {graph.optimizer} --with clip-norm, so that the step clips, or "
            raise OptionError(
                f"{what}: the plan's step updates each parameter by {graph.optimizer} itself, and leaves no gradients; "
                f"{inside if clip_norm is not None else ''}solve without --optimizer, so that they stay "
                f"({show_bytes(size)})"
            )


BUFFER = ".momentum_buffer"


class Optimizer(Protocol):
    """An optimizer of one's own."""

    def __call__(self, parameters: Mapping[str, Array], gradients: Mapping[str, Array]) -> object:
        """Update the parameters in place."""


@runtime_checkable
class Stateful(Protocol):
    """One that remembers arrays, which then are part of checkpoints: `states`, by name, to be written in place."""

    states: Mapping[str, Array]


class Update:
    """Gradients of several steps, clipped, and handed on.

    optimizer
        One of one's own; None for descent with momentum and weight decay.
    accumulate
        Of how many steps the gradients are summed (and divided by as many) before each update.
    clip_norm
        The largest norm of all gradients together, or None.

    Raises OptionError for numbers that make no sense.
    """

    def __init__(
        self,
        parameters: Mapping[str, Array],
        *,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        optimizer: Optimizer | None = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
    ) -> None:
        check_update(accumulate, clip_norm)
        self.parameters, self.optimizer = parameters, optimizer
        self.accumulate, self.clip_norm = accumulate, clip_norm
        self.descent = Momentum(parameters, lr, momentum, weight_decay)
        self._sums: Mapping[str, Any] = (
            {name: np.zeros(p.shape, p.dtype) for name, p in parameters.items()} if accumulate > 1 else {}
        )
        self.summed = 0

    @property
    def states(self) -> Mapping[str, Array]:
        """What it remembers, by name."""
        found = {f"{name}{BUFFER}": v for name, v in self.descent.velocity.items()}
        found |= {f"{name}.accumulated": total for name, total in self._sums.items()}
        if isinstance(self.optimizer, Stateful):
            found |= {f"optimizer.{name}": array for name, array in self.optimizer.states.items()}
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of that, beside the plan."""
        return sum(array.nbytes for array in self.states.values())

    def learn(self, gradients: Mapping[str, Array], lr: float) -> None:
        """Take the gradients of a step, which may be written over."""
        if self.accumulate > 1:
            for name, total in self._sums.items():
                total += gradients[name]
            self.summed += 1
            if self.summed < self.accumulate:
                return
            for total in self._sums.values():
                total /= total.dtype.type(self.accumulate)
            gradients = self._sums
        if self.clip_norm is not None:
            gradients = _clipped(gradients, self.clip_norm)
        if self.optimizer is None:
            self.descent.lr = lr
            self.descent.step(gradients)
        else:
            self.optimizer(self.parameters, gradients)
        for total in self._sums.values():
            total.fill(0)
        self.summed = 0


def check_update(accumulate: int, clip_norm: float | None) -> None:
    """Raise OptionError for numbers that make no sense."""
    if accumulate < 1:
        raise OptionError(f"--accumulate {accumulate}: must be at least 1")
    if clip_norm is not None and not 0 < clip_norm < math.inf:
        raise OptionError(f"--clip-norm {clip_norm:g}: must be more than 0, as in 1.0")


def _clipped(gradients: Mapping[str, Array], most: float) -> Mapping[str, Array]:
    """Gradients scaled in place so that the norm of all of them is `most` at most."""
    total = math.sqrt(sum(_squares(gradient) for gradient in gradients.values()))
    if total > most:
        for gradient in gradients.values():
            array: Any = gradient
            array *= array.dtype.type(most / total)
    return gradients


def _squares(gradient: Array) -> float:
    """The sum of squares in float64, without a copy of the whole."""
    flat: Any = gradient.reshape(-1)
    return float(sum(float(np.square(flat[k : k + 65536], dtype=np.float64).sum()) for k in range(0, flat.size, 65536)))


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
        from poetopt.training.evaluate import evaluate

        self.step.rest()
        found = evaluate(self.evaluator, data, paced(self.told), between)
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
