"""One step of training after another by a plan, and nothing beside it.

Parameters, optimizer states and running statistics are updated in place, wherever the plan has them: in the resident
region, in the arena, on storage.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from poetopt.backends.onnxruntime.batch import check_batch
from poetopt.backends.onnxruntime.prepared import Prepared
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.backends.step.memory import MappedBlock
from poetopt.backends.step.parted import Parted, all_slots, program_of, scheduled_names
from poetopt.backends.step.places import check_belongs, check_trains, graph_of
from poetopt.backends.step.program import Program
from poetopt.backends.step.region import WINDOW, Carried, ResidentRegion
from poetopt.backends.step.storage import PageFile
from poetopt.graph import TrainingGraph
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, check_layout
from poetopt.plan.simulate import simulate
from poetopt.util.errors import ModelError, OptionError
from poetopt.util.files import Closing
from poetopt.util.numbers import read_float32
from poetopt.util.progress import Told, paced, silent
from poetopt.util.text import closest

if TYPE_CHECKING:
    from poetopt.graph import Array

STEP = "step"
"""The hyperparameter that counts steps, from 1."""


DESCENT = {"lr": 1e-3}
"""Hyperparameters of the plain descent behind a step that ends with gradients, and their defaults."""


def check_hyperparameters(graph: TrainingGraph, given: Mapping[str, float]) -> None:
    """Raise OptionError for a hyperparameter that the optimizer has not, or a number that makes no sense."""
    from poetopt.autodiff.optimizers import CLIP

    check_trains(graph)
    known = graph.hyperparameters if graph.optimizer != "none" else DESCENT
    for name, value in given.items():
        if not isinstance(value, int | float | np.number):
            raise OptionError(f"--{name.replace('_', '-')} {value!r}: must be a number")
        option = f"--{name.replace('_', '-')} {value:g}"
        if name not in known or name == STEP:
            has = ", ".join(n for n in known if n != STEP)
            whose = "none (plain descent)" if graph.optimizer == "none" else graph.optimizer
            remedy = "--optimizer and --clip-norm" if name == CLIP else "another --optimizer"
            raise OptionError(f"{option}: the plan's optimizer is {whose}, which has {has}; solve with {remedy}")
        least, below = _RANGES.get(name, (0.0, math.inf))
        try:
            value = float(np.float32(read_float32(value)))  # as the step has it
        except ValueError as error:
            raise OptionError(f"{option}: {error}") from None
        example = {**{"lr": "0.01", "eps": "1e-8"}, CLIP: "1.0"}.get(name, "")
        if not (least <= value < below) or (example and value == 0):
            sense = f"more than 0, as in {example}" if example else "0 or more"
            sense = "at least 0 and less than 1, as in 0.9" if name in _RANGES else sense
            raise OptionError(f"{option}: must be {sense}")


_RANGES = {"momentum": (0.0, 1.0), "beta1": (0.0, 1.0), "beta2": (0.0, 1.0)}


def hyperparameters_of(graph: TrainingGraph, lr: float, momentum: float | None) -> Mapping[str, float]:
    """Those of steps at one rate, by name; the optimizer's own momentum by default. Raises OptionError."""
    own = momentum is not None and (momentum != 0 or "momentum" in graph.hyperparameters)
    given = {"lr": lr, **({"momentum": momentum} if momentum is not None and own else {})}
    check_hyperparameters(graph, given)
    return given


class ScheduledStep(Closing):
    """Training by `plan`, step by step; a context manager.

    plan
        A plan with offsets, of a problem that was made of a training graph; or a step that is prepared.
    graph
        That graph; by default the one in the plan's problem. Its values are those before the first step; what changes
        is copied.
    ram_bytes
        The budget for arena and kernels; by default what the plan takes.
    outputs
        Tensors of the forward pass to hand out after each step (`outputs`), such as the network's outputs; each has a
        copy beside the arena.
    workdir, threads, told
        As for `execute`.

    taken
        How many steps were taken. It is what the optimizer and random nodes count by.
    names
        What changes from step to step: parameters, optimizer states, running statistics.
    outputs
        What was asked for, in the last step. Views, until the next one.
    sessions
        Those of its nodes.
    simulation
        Of the plan.

    Raises `PlanError` for a plan that can't be executed or breaks the budget on paper, `ExecutionError` where a kernel
    or the storage fails.
    """

    def __init__(
        self,
        plan: Plan | Prepared,
        *,
        graph: TrainingGraph | None = None,
        ram_bytes: int | None = None,
        outputs: Collection[str] = (),
        workdir: str | os.PathLike[str] | None = None,
        threads: int = 1,
        told: Told = silent,
    ) -> None:
        if threads < 1:
            raise OptionError(f"--threads {threads}: must be at least 1")
        made = plan if isinstance(plan, Prepared) else Prepared.of(plan, graph_of(plan, graph))
        self.plan, self.graph = made.plan, made.graph
        problem = self.plan.problem
        check_belongs(self.graph, problem, Sessions.runtime, problem.name)
        self.simulation = simulate(self.plan, ram_bytes=ram_bytes)
        check_layout(self.plan, None if ram_bytes is None else ram_bytes - problem.reserve_bytes)
        self.joint = self.graph.joint
        self.names = tuple(self.graph.saved)
        self.taken = 0
        with ExitStack() as stack:
            sizes = all_slots(self.plan, self.graph)
            pages = stack.enter_context(PageFile(sizes, None if workdir is None else Path(workdir)))
            region = ResidentRegion.of(self.joint, scheduled_names(problem), made.first)
            self._given = region.given
            self.sessions, arena = Sessions(self.graph, threads, made.models), MappedBlock(arena_bytes(self.plan))
            self.program = program_of(
                self.plan, self.graph, arena, region, self.sessions.of, pages, paced(told), watched=outputs
            )  # fmt: skip
            self.outputs: Mapping[str, Array] = self.program.watched.copies
            closing = self.program.closing if isinstance(self.program, Parted) else None
            self._carried = [one.carried for one in (self.program, closing) if one is not None]
            for name in dict.fromkeys(name for carried in self._carried for name in carried.first):
                self._put(name, made.first[name])
            self._stack = stack.pop_all()

    def run(self, batch: Mapping[str, object], hyperparameters: Mapping[str, float] | None = None) -> float:
        """Take one step; gives its loss.

        batch
            Arrays by the names of the graph's inputs (see `check_batch`).
        hyperparameters
            By name (`lr`, ...), for this step and those that follow. `step` is counted where it isn't given.

        Raises ModelError for a batch that doesn't fit, OptionError for a hyperparameter that the step has not,
        ExecutionError where a kernel or the storage fails.
        """
        checked = check_batch(self.graph.whole, batch)
        self._say(hyperparameters or {})
        if isinstance(self.program, Program):
            self._drawing(0)
        else:
            self.program.each(self._drawing)
        self.program.load(self.program.carried.take(checked), anew=False)
        self.program.run()
        for old, new in self.graph.beside.items():
            np.copyto(self._given[old], self.program.result(new))
        self.taken += 1
        return float(self.program.result(self.graph.loss).reshape(-1)[0])

    def _drawing(self, part: int) -> None:
        """Let random nodes begin a new window, where they have drawn for one."""
        runs = self.taken * self.graph.parts + part
        if runs and runs % WINDOW == 0:
            self._runs.redraw(runs)

    @property
    def _runs(self) -> Program:
        """Gives what runs for each part, or once a step."""
        return self.program if isinstance(self.program, Program) else self.program.part

    @property
    def gradients(self) -> Mapping[str, Array]:
        """By parameter, of the last step, where it has no optimizer. Views, until the next one."""
        return {name: self.program.result(made) for name, made in self.graph.gradients.items()}

    @property
    def parameters(self) -> Mapping[str, Array]:
        """Those that have gradients, to be updated in place."""
        return {name: self._given[name] for name in self.graph.gradients}

    def results(self) -> Mapping[str, Array]:
        """Gives what the last step gave, by the names of `Execution.results`: loss, gradients or updated values."""
        return {shown: self.program.result(name) for shown, name in self.joint.shown_results.items()}

    def digests(self) -> Mapping[str, bytes]:
        """SHA-256 of `results`; what is on storage is read piece by piece."""
        return {shown: self.program.digest(name) for shown, name in self.joint.shown_results.items()}

    @property
    def hyperparameters(self) -> Mapping[str, float]:
        """Those of the last step, or of the first one, by name."""
        return {name: self._given[tensor].item() for name, tensor in self.graph.hyperparameters.items()}

    def values(self) -> Mapping[str, Array]:
        """Gives what changes from step to step, by `names`, as it is when it is asked for.

        In RAM it is a read-only view, until the next step; on storage it is read into a copy, one by one. Of tables of
        which a step has rows, all rows. Together with `taken` they are all that the next step depends on.
        """
        return _StepValues(self, self.names)

    def given(self) -> Mapping[str, Array]:
        """All that a step reads beside its batch, constants too, fetched as in `values`."""
        scheduled = (name for carried in self._carried for name in carried.first)
        return _StepValues(self, tuple(dict.fromkeys((*self._given, *scheduled))))

    def load(self, values: Mapping[str, Array], taken: int | None = None) -> None:
        """Go on from these values; what is not in them stays as it is.

        taken
            How many steps led to them; by default `taken` stays.

        Raises ModelError for a name that doesn't change from step to step, or an array of another shape or type.
        """
        for name in values:
            if name not in self.names:
                raise ModelError(
                    f"the step of {self.graph.name!r} has no parameter, optimizer state or running statistic "
                    f"{name!r}{closest(name, self.names)}"
                )
        if taken is not None and taken != self.taken:
            self.taken = taken
            self.program.redraw(taken)
        for name in values:
            self._put(name, values[name])

    def rest(self) -> None:
        """Let the system have the arena's memory until the next step, unless something in it has to last."""
        if not any(carried.in_ram for carried in self._carried):
            self.program.arena.give_back()

    def close(self) -> None:
        """Give up the storage."""
        self._stack.close()

    def _say(self, hyperparameters: Mapping[str, float]) -> None:
        said = self.graph.hyperparameters
        for name, value in ({STEP: self.taken + 1} | dict(hyperparameters)).items():
            if name in said:
                self._given[said[name]][...] = value
            elif name != STEP:
                has = f"it has {', '.join(said)}" if said else "the plan has no optimizer: its step ends with gradients"
                raise OptionError(f"hyperparameter {name!r}: the step has none of that name; {has}")

    def _holder(self, name: str) -> Carried | None:
        """Gives what has the scheduled tensor `name`; None for what is resident."""
        return next((carried for carried in self._carried if name in carried.first), None)

    def _value(self, name: str) -> Array:
        carried = self._holder(name)
        if carried is not None and name in self.joint.rows:
            return carried.table(name)
        found = carried.value(name) if carried is not None else self._given[name]
        shown = found.view()
        shown.flags.writeable = False
        return shown

    def _put(self, name: str, array: Array) -> None:
        carried, rows = self._holder(name), self.joint.rows
        like = self._given.get(name) if carried is None else carried.first[name]
        like = rows[name].values if name in rows else like
        assert like is not None
        if array.shape != like.shape or array.dtype != like.dtype:
            raise ModelError(
                f"{name!r} is {array.dtype} of shape {list(array.shape)}; the step of {self.graph.name!r} has it as "
                f"{like.dtype} of shape {list(like.shape)}"
            )
        if carried is not None:
            carried.put(name, array)
        else:
            np.copyto(self._given[name], array)


class _StepValues(Mapping[str, "Array"]):
    """See `ScheduledStep.values`."""

    def __init__(self, step: ScheduledStep, names: tuple[str, ...]) -> None:
        self._step = step
        self._names = dict.fromkeys(names)

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        return self._step._value(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
