"""Ordinary training of the same graph by the same updates, node by node, which scheduled steps are compared with.

It knows of plans no more than `NodeByNode`. What a scheduled step left is known by digests, so that both needn't be in
memory at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from poetopt.backends.ort.batch import Batch
from poetopt.backends.ort.clock import Clock
from poetopt.backends.ort.prepared import Mapped, Prepared
from poetopt.backends.ort.reference import InParts, node_by_node, reference_of
from poetopt.backends.ort.sessions import Sessions
from poetopt.passes.rows import taken
from poetopt.step.descent import Momentum
from poetopt.step.drawing import WINDOW
from poetopt.step.memory import writable_copy
from poetopt.telling import Told, paced, silent

if TYPE_CHECKING:
    from collections.abc import Callable

    from poetopt.graph import Array

VELOCITY = " (velocity)"
"""What is behind a parameter's name where its momentum is no part of the step."""


@dataclass(frozen=True)
class Witness:
    """What a step left.

    number
        Which step, from 0.
    loss
        As a float.
    digests
        Of what it left of each value that goes on, by name.
    before
        The values that it began with, in a file; None where they are those that the witness before it left, or the
        first ones.
    """

    number: int
    loss: float
    digests: Mapping[str, bytes]
    before: Mapped | None = None


@dataclass(frozen=True)
class Verdict:
    """What ordinary training says of so many steps.

    losses, step_s
        Its own.
    first_difference
        The first step (from 1) whose loss or values differ, or 0.
    different
        What differs there, by name: `loss`, and values.
    """

    losses: tuple[float, ...]
    step_s: float
    first_difference: int
    different: tuple[str, ...]


def digests(values: Mapping[str, Array]) -> Mapping[str, bytes]:
    """Of the bytes of each value, by name."""
    return {name: digest(values[name]) for name in values}


def digest(array: Array) -> bytes:
    """SHA-256 of its bytes."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest()


class Ordinary:
    """A training that goes on step by step.

    hyperparameters
        Of the step's own optimizer, or of `Momentum`.
    """

    def __init__(self, made: Prepared, hyperparameters: Mapping[str, float]) -> None:
        graph, first = made.graph.joint, made.first
        self.graph = made.graph
        self.changing = {name: writable_copy(first[name]) for name in (*graph.gradients, *graph.carried)}
        self.tables = {name: self.changing[name] for name in graph.rows}
        self.changing |= {name: np.zeros(graph.tensors[name].shape, self.tables[name].dtype) for name in graph.rows}
        self.said = {name: writable_copy(first[tensor]) for name, tensor in graph.hyperparameters.items()}
        for name, value in hyperparameters.items():
            if name in self.said:
                self.said[name][...] = value
        given = {name: first[name] for name in graph.values if name not in self.changing}
        given |= {tensor: self.said[name] for name, tensor in graph.hyperparameters.items()}
        trained = {name: self.changing[name] for name in graph.gradients}
        self.momentum = Momentum(trained, hyperparameters.get("lr", 0.0), hyperparameters.get("momentum", 0.0))
        sessions = Sessions(made.graph, 1, made.models)
        self.nodes = reference_of(
            made.graph, partial(node_by_node, sessions), {**given, **self.changing}, graph.results
        )
        self.number = 0
        if isinstance(self.nodes, InParts):
            self.nodes.each(self._drawing)

    @property
    def values(self) -> Mapping[str, Array]:
        """All that goes on to the next step, by name; of tables, all rows."""
        lasting = {n: array for n, array in self.changing.items() if n not in self.graph.sums.values()}
        return {**lasting, **self.tables, **{n + VELOCITY: v for n, v in self.momentum.velocity.items()}}

    def load(self, values: Mapping[str, Array], steps: int) -> None:
        """Go on from these values, behind so many steps."""
        for name, array in self.values.items():
            np.copyto(array, values[name])
        self.nodes.redraw(steps * self.graph.parts)

    def _drawing(self, part: int) -> None:
        """Let random nodes begin a new window, where they have drawn for one."""
        runs = self.number * self.graph.parts + part
        if runs and runs % WINDOW == 0:
            self.nodes.redraw(runs)

    def step(
        self, number: int, batch: Batch, call: Callable[[Callable[[], Mapping[str, Array]]], Mapping[str, Array]]
    ) -> float:
        """Take the step `number`, from 0, by `call` around the nodes' run; gives its loss."""
        read, used = taken(self.graph.joint, batch)
        for name, rows in used.items():
            self.changing[name].fill(0)
            self.changing[name][: len(rows)] = self.tables[name][rows]
        if "step" in self.said:
            self.said["step"][...] = number + 1
        self.number = number
        if self.graph.parts == 1:
            self._drawing(0)
        found = call(partial(self.nodes.run, read))
        self.momentum.step({name: found[made] for name, made in self.graph.gradients.items()})
        for old, new in self.graph.joint.carried.items():
            if old not in self.graph.sums.values():
                np.copyto(self.changing[old], found[new])
        for name, rows in used.items():
            self.tables[name][rows] = self.changing[name][: len(rows)]
        return float(found[self.graph.loss].reshape(-1)[0])


def verify(
    made: Prepared | Path,
    batches: Callable[[Prepared], Callable[[int], Batch]],
    hyperparameters: Mapping[str, float],
    witnesses: Sequence[Witness],
    told: Told = silent,
) -> Verdict:
    """Take the steps of `witnesses` again, in ordinary training, and compare.

    made
        The step, or the folder that has it.
    batches
        Gives what gives the batch of each step, from 0.
    """
    made = Prepared.load(made) if isinstance(made, Path) else made
    training, get, pace = Ordinary(made, hyperparameters), batches(made), paced(told)
    losses: list[float] = []
    times: list[float] = []
    first, different = 0, tuple[str, ...]()
    with Clock() as clock:

        def timed(run: Callable[[], Mapping[str, Array]]) -> Mapping[str, Array]:
            found, seconds = clock.call(run)
            times.append(seconds)
            return found

        for witness in witnesses:
            if witness.before is not None:
                training.load(witness.before, witness.number)
            losses.append(training.step(witness.number, get(witness.number), timed))
            pace(f"step {witness.number + 1:,} in ordinary training, loss {losses[-1]:.6g}")
            if first:
                continue
            found = digests(training.values)
            wrong = [name for name, value in witness.digests.items() if found[name] != value]
            if np.float64(losses[-1]).tobytes() != np.float64(witness.loss).tobytes():
                wrong.insert(0, "loss")
            if wrong:
                first, different = witness.number + 1, tuple(wrong)
    return Verdict(tuple(losses), median(times), first, different)
