"""Training by a plan, step by step, without any comparison.

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
"""Hyperparameter that counts steps, from 1."""


DESCENT = {"lr": 1e-3}
"""Hyperparameters of plain descent after a step that ends with gradients, with their defaults."""


def check_hyperparameters(graph: TrainingGraph, given: Mapping[str, float]) -> None:
    """Raise `OptionError` for a hyperparameter that the optimizer lacks, or a number out of its range."""
    from poetopt.autodiff.optimizers import CLIP

    check_trains(graph)
    known = graph.hyperparameters if graph.optimizer != "none" else DESCENT
    for name, value in given.items():
        if not isinstance(value, int | float | np.number):
            raise OptionError(f"--{name.replace('_', '-')} {value!r}: must be a number")
        option = f"--{name.replace('_', '-')} {value:g}"
        if name not in known or name == STEP:
            names = ", ".join(n for n in known if n != STEP)
            optimizer = "none (plain descent)" if graph.optimizer == "none" else graph.optimizer
            remedy = "--optimizer and --clip-norm" if name == CLIP else "another --optimizer"
            raise OptionError(f"{option}: the plan's optimizer is {optimizer}, which has {names}; solve with {remedy}")
        least, upper = _RANGES.get(name, (0.0, math.inf))
        try:
            value = float(np.float32(read_float32(value)))  # as the step has it
        except ValueError as error:
            raise OptionError(f"{option}: {error}") from None
        example = {**{"lr": "0.01", "eps": "1e-8"}, CLIP: "1.0"}.get(name, "")
        if not (least <= value < upper) or (example and value == 0):
            range_text = f"more than 0, as in {example}" if example else "0 or more"
            range_text = "at least 0 and less than 1, as in 0.9" if name in _RANGES else range_text
            raise OptionError(f"{option}: must be {range_text}")


_RANGES = {"momentum": (0.0, 1.0), "beta1": (0.0, 1.0), "beta2": (0.0, 1.0)}


def hyperparameters_of(graph: TrainingGraph, lr: float, momentum: float | None) -> Mapping[str, float]:
    """Return the hyperparameters of steps at one rate, by name. Raise `OptionError` for a bad value.

    Without `momentum`, the optimizer keeps its own.
    """
    has_momentum = momentum is not None and (momentum != 0 or "momentum" in graph.hyperparameters)
    hyperparameters = {"lr": lr, **({"momentum": momentum} if momentum is not None and has_momentum else {})}
    check_hyperparameters(graph, hyperparameters)
    return hyperparameters


class ScheduledStep(Closing):
    """Training by `plan`, step by step; a context manager.

    Parameters
    ----------
    plan
        Plan with offsets, of a problem that was made from a training graph; or a prepared step.
    graph
        That graph; by default the one in the plan's problem. Its values are those before the first step; values that
        change are copied.
    ram_bytes
        Budget for arena and kernels; by default what the plan needs.
    outputs
        Names of tensors of the forward pass to copy in each step, such as the network's outputs. Each copy lies outside
        the arena.
    workdir, threads, told
        As for `execute`.

    Attributes
    ----------
    taken
        Number of steps taken, by which the optimizer and random nodes count.
    names
        Names of values that change from step to step: parameters, optimizer states, running statistics.
    outputs
        Those tensors in the last step. Views, until the next one.
    sessions
        Sessions of its nodes.
    simulation
        Simulation of the plan.

    Raises
    ------
    PlanError
        The plan can't be executed, or exceeds the budget by its own figures.
    ExecutionError
        A kernel or the storage fails.
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
        prepared = plan if isinstance(plan, Prepared) else Prepared.of(plan, graph_of(plan, graph))
        self.plan, self.graph = prepared.plan, prepared.graph
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
            region = ResidentRegion.of(self.joint, scheduled_names(problem), prepared.first)
            self._given = region.given
            self.sessions, arena = Sessions(self.graph, threads, prepared.models), MappedBlock(arena_bytes(self.plan))
            self.program = program_of(
                self.plan, self.graph, arena, region, self.sessions.of, pages, paced(told), watched=outputs
            )  # fmt: skip
            self.outputs: Mapping[str, Array] = self.program.watched.copies
            closing = self.program.closing if isinstance(self.program, Parted) else None
            self._carried = [program.carried for program in (self.program, closing) if program is not None]
            for name in dict.fromkeys(name for tensors in self._carried for name in tensors.first):
                self._set_value(name, prepared.first[name])
            self._stack = stack.pop_all()

    def run(self, batch: Mapping[str, object], hyperparameters: Mapping[str, float] | None = None) -> float:
        """Take one step and return its loss.

        Parameters
        ----------
        batch
            Arrays by the graph's input names (see `check_batch`).
        hyperparameters
            By name (`lr`, ...), for this step and later ones. `step` is counted where it isn't given.

        Raises
        ------
        ModelError
            The batch doesn't fit.
        OptionError
            The step lacks a hyperparameter.
        ExecutionError
            A kernel or the storage fails.
        """
        checked = check_batch(self.graph.whole, batch)
        self._set_hyperparameters(hyperparameters or {})
        if isinstance(self.program, Program):
            self._redraw_at_window(0)
        else:
            self.program.each(self._redraw_at_window)
        self.program.load(self.program.carried.take(checked), anew=False)
        self.program.run()
        for old, new in self.graph.beside.items():
            np.copyto(self._given[old], self.program.result(new))
        self.taken += 1
        return float(self.program.result(self.graph.loss).reshape(-1)[0])

    def _redraw_at_window(self, part: int) -> None:
        """Give random nodes a new seed, where a new window begins."""
        runs = self.taken * self.graph.parts + part
        if runs and runs % WINDOW == 0:
            self._part_program.redraw(runs)

    @property
    def _part_program(self) -> Program:
        """Program that runs once for each part, or once a step."""
        return self.program if isinstance(self.program, Program) else self.program.part

    @property
    def gradients(self) -> Mapping[str, Array]:
        """Gradients of the last step by parameter, where the step has no optimizer. Views, until the next one."""
        return {name: self.program.result(gradient) for name, gradient in self.graph.gradients.items()}

    @property
    def parameters(self) -> Mapping[str, Array]:
        """Parameters with gradients, to be updated in place."""
        return {name: self._given[name] for name in self.graph.gradients}

    def results(self) -> Mapping[str, Array]:
        """Return results of the last step, by the names of `Execution.results`: loss, gradients or updated values."""
        return {shown: self.program.result(name) for shown, name in self.joint.shown_results.items()}

    def digests(self) -> Mapping[str, bytes]:
        """Return the SHA-256 of each of `results`; results on storage are read piece by piece."""
        return {shown: self.program.digest(name) for shown, name in self.joint.shown_results.items()}

    @property
    def hyperparameters(self) -> Mapping[str, float]:
        """Hyperparameters of the last step, or of the first one, by name."""
        return {name: self._given[tensor].item() for name, tensor in self.graph.hyperparameters.items()}

    def values(self) -> Mapping[str, Array]:
        """Return the current values that change from step to step, by `names`, each read on access.

        A value in RAM is a read-only view, until the next step; a value on storage is read into a copy, one by one.
        Tables by
        rows have all rows. Together with `taken` they are all that the next step depends on.
        """
        return _StepValues(self, self.names)

    def given(self) -> Mapping[str, Array]:
        """Return all that a step reads besides its batch, constants too, each read on access as in `values`."""
        scheduled = (name for carried in self._carried for name in carried.first)
        return _StepValues(self, tuple(dict.fromkeys((*self._given, *scheduled))))

    def load(self, values: Mapping[str, Array], taken: int | None = None) -> None:
        """Go on from these values; values that are not in them stay.

        Parameters
        ----------
        taken
            Number of steps that led to them; by default `taken` stays.

        Raises
        ------
        ModelError
            A name doesn't change from step to step, or an array has another shape or type.
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
            self._set_value(name, values[name])

    def rest(self) -> None:
        """Release the arena's memory until the next step, unless something in it has to last."""
        if not any(carried.in_ram for carried in self._carried):
            self.program.arena.give_back()

    def close(self) -> None:
        """Close the storage."""
        self._stack.close()

    def _set_hyperparameters(self, hyperparameters: Mapping[str, float]) -> None:
        tensors = self.graph.hyperparameters
        for name, value in ({STEP: self.taken + 1} | dict(hyperparameters)).items():
            if name in tensors:
                self._given[tensors[name]][...] = value
            elif name != STEP:
                available = (
                    f"it has {', '.join(tensors)}"
                    if tensors
                    else "the plan has no optimizer: its step ends with gradients"
                )
                raise OptionError(f"hyperparameter {name!r}: the step has none of that name; {available}")

    def _carrier(self, name: str) -> Carried | None:
        """Return the carrier of the scheduled tensor `name`; None for a resident one."""
        return next((carried for carried in self._carried if name in carried.first), None)

    def _read_value(self, name: str) -> Array:
        carried = self._carrier(name)
        if carried is not None and name in self.joint.rows:
            return carried.table(name)
        array = carried.value(name) if carried is not None else self._given[name]
        read_only = array.view()
        read_only.flags.writeable = False
        return read_only

    def _set_value(self, name: str, array: Array) -> None:
        carried, rows = self._carrier(name), self.joint.rows
        current = self._given.get(name) if carried is None else carried.first[name]
        current = rows[name].values if name in rows else current
        assert current is not None
        if array.shape != current.shape or array.dtype != current.dtype:
            raise ModelError(
                f"{name!r} is {array.dtype} of shape {list(array.shape)}; the step of {self.graph.name!r} has it as "
                f"{current.dtype} of shape {list(current.shape)}"
            )
        if carried is not None:
            carried.put(name, array)
        else:
            np.copyto(self._given[name], array)


class _StepValues(Mapping[str, "Array"]):
    """Mapping of `ScheduledStep.values`."""

    def __init__(self, step: ScheduledStep, names: tuple[str, ...]) -> None:
        self._step = step
        self._names = dict.fromkeys(names)

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        return self._step._read_value(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
