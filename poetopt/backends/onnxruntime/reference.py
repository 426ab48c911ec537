"""Ordinary training of the same graph, with which scheduled steps are compared.

There are two ways, and neither knows of plans, arenas or offsets. One runs node by node in the graph's order; each
node's outputs lie in memory that onnxruntime allocates, until nobody refers to it. The other runs the whole graph as
one session.

Trainings are compared by digests of what each step left, so that both needn't be in memory at once.
"""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.autodiff.passes.rows import taken
from poetopt.backends.onnxruntime.batch import Batch
from poetopt.backends.onnxruntime.measure import Stopwatch
from poetopt.backends.onnxruntime.prepared import Mapped, Prepared
from poetopt.backends.onnxruntime.sessions import (
    Sessions,
    explained,
    first_line,
    is_random,
    onnxruntime,
    ran,
    runtime_errors,
    session_options,
)
from poetopt.backends.step.memory import descend, numpy_dtype, writable_copy
from poetopt.backends.step.parted import cut, mean_loss
from poetopt.backends.step.region import WINDOW, reseeded
from poetopt.graph import VIEW_OPS, Node, TrainingGraph
from poetopt.util.errors import ExecutionError
from poetopt.util.progress import Told, paced, silent

if TYPE_CHECKING:
    from collections.abc import Callable

    from poetopt.graph import Array


Results = Mapping[str, "Array"]


@dataclass(slots=True)
class _NodeStep:
    """One node: how to run it, and which values to drop after it. Without a session it is a view of its first input."""

    node: Node
    session: Any
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    dropped: tuple[str, ...]


class NodeByNode:
    """Training graph that runs one node after another; every value is a separate numpy array.

    Parameters
    ----------
    given
        Parameters and constants, by name; each is looked up when a node reads it.
    kept
        Names of the tensors to return.
    """

    def __init__(
        self, graph: TrainingGraph, sessions: Sessions, given: Mapping[str, Array], kept: Sequence[str]
    ) -> None:
        self.graph = graph
        self.sessions = sessions
        self.given = given
        self.kept = tuple(kept)
        nodes = [node for operator in graph.operators for node in operator.nodes]
        last_use = {name: k for k, node in enumerate(nodes) for name in (*node.inputs, *node.outputs) if name}
        never_dropped = {*given, *kept}
        dropped: dict[int, list[str]] = {}
        for name, k in last_use.items():
            if name not in never_dropped:
                dropped.setdefault(k, []).append(name)
        self._steps = [self._step(node, tuple(dropped.get(k, ()))) for k, node in enumerate(nodes)]

    def _step(self, node: Node, dropped: tuple[str, ...]) -> _NodeStep:
        if node.op_type in VIEW_OPS and not node.domain:
            return _NodeStep(node, None, (("", node.inputs[0]),), (("", node.outputs[0]),), dropped)
        node_session = self.sessions.get(node)
        return _NodeStep(node, node_session.session, node_session.inputs, node_session.outputs, dropped)

    def redraw(self, steps: int = 0) -> None:
        """Let random nodes draw as after `steps` steps (`poetopt.backends.step.region`)."""
        seed_window, n_draws = divmod(steps, WINDOW)
        for step in self._steps:
            if step.session is None or not is_random(step.node):
                continue
            step.session = self.sessions.get(reseeded(step.node, seed_window)).session
            tensors = ((key, self.graph.tensors[name]) for key, name in step.inputs)
            feeds = {key: np.zeros(tensor.shape, numpy_dtype(tensor.dtype)) for key, tensor in tensors}
            for _ in range(n_draws):
                step.session.run([key for key, _ in step.outputs], feeds)

    def run(self, batch: Batch) -> Results:
        """Run one step; return the tensors to keep, by name. Raise `ExecutionError` where a kernel fails."""
        values: ChainMap[str, Array] = ChainMap(dict(batch), self.given)  # type: ignore[arg-type]
        tensors = self.graph.tensors
        for step in self._steps:
            if step.session is None:
                name = step.outputs[0][1]
                values[name] = values[step.inputs[0][1]].reshape(tensors[name].shape)
            else:
                try:
                    node_outputs = ran(
                        step.session,
                        [key for key, _ in step.outputs],
                        {key: values[name] for key, name in step.inputs},
                        {key: tensors[name] for key, name in step.inputs},
                    )
                except runtime_errors() as error:
                    raise ExecutionError(
                        f"node {step.node.name!r} ({step.node.op_type}) failed: {first_line(error)}"
                    ) from error
                for (_, name), value in zip(step.outputs, node_outputs, strict=True):
                    values[name] = value
            for name in step.dropped:
                del values[name]
        return {name: values[name] for name in self.kept}


class Fused:
    """Training graph as one session, with all that it computes for the given outputs.

    Parameters and constants are inputs of the session, as they are of the sessions of single nodes: they change with
    every
    step of a training, so a runtime can't prepare anything from their values.

    Raise `ExecutionError` where onnxruntime can't load it.
    """

    def __init__(
        self, graph: TrainingGraph, sessions: Sessions, given: Mapping[str, Array], outputs: Sequence[str]
    ) -> None:
        self.graph = graph
        self.outputs = list(outputs)
        self.threads = sessions.threads
        from poetopt.frontends.proto import model_proto, value_info

        fed = {name: array for name, array in given.items() if name in graph.tensors and not sessions.embeds(name)}
        model = model_proto(replace(graph, values={n: v for n, v in graph.values.items() if n not in fed}), outputs)
        read = {name for node in model.graph.node for name in node.input}
        self.given = {name: array for name, array in fed.items() if name in read}
        model.graph.input.extend(value_info(graph.tensors[name]) for name in self.given)
        self._model = model.SerializeToString()
        self._random = any(is_random(node) for operator in graph.operators for node in operator.nodes)
        self._session: Any = self._create()

    def _create(self) -> Any:
        return explained(
            f"onnxruntime can't run {self.graph.name!r} as one session",
            lambda: onnxruntime().InferenceSession(
                self._model, session_options(self.threads), providers=["CPUExecutionProvider"]
            ),
        )

    def redraw(self, steps: int = 0) -> None:
        """Let random nodes draw from the beginning again."""
        if self._random:
            self._session = self._create()

    def run(self, batch: Batch) -> Results:
        """Run one step; return the outputs by name. Raise `ExecutionError` where a kernel fails."""
        feeds = {**self.given, **batch}
        values = explained(
            "the step as one session failed", lambda: ran(self._session, self.outputs, feeds, self.graph.tensors)
        )
        return dict(zip(self.outputs, values, strict=True))


Reference = NodeByNode | Fused


def reference_of(
    kind: type[Reference], graph: TrainingGraph, sessions: Sessions, given: Mapping[str, Array], kept: Sequence[str]
) -> Reference | _MicroBatches:
    """Return ordinary training of a step, by one of the two classes; a split batch runs part by part.

    Parameters
    ----------
    sessions
        Sessions to share between equal nodes.
    """
    if graph.parts == 1:
        return kind(graph, sessions.of(graph), given, kept)
    return _MicroBatches(kind, graph, sessions, given, kept)


class _MicroBatches:
    """Parts of a batch one after another, each with the sums of those before it, and the update phase."""

    def __init__(
        self,
        kind: type[Reference],
        graph: TrainingGraph,
        sessions: Sessions,
        given: Mapping[str, Array],
        kept: Sequence[str],
    ) -> None:
        self.graph, self.kept = graph, tuple(kept)
        self._first = given
        self.values = dict(given)
        self._part = kind(graph, sessions.of(graph), self.values, graph.results)
        self._closing: Reference | None = None
        if (update_graph := graph.closing) is not None:
            self._closing = kind(
                update_graph, sessions.of(update_graph), self.values, tuple(update_graph.carried.values())
            )
        self._between: Callable[[int], object] = lambda part: None

    def each(self, between: Callable[[int], object]) -> None:
        """Call `between` with the number of each part before it runs."""
        self._between = between

    def redraw(self, steps: int = 0) -> None:
        """Advance random nodes as `NodeByNode.redraw` does, by `steps` runs of a part."""
        self._part.redraw(steps)

    def run(self, batch: Batch) -> Results:
        """Run one step from the given values; return the tensors to keep, by name. Raise `ExecutionError`."""
        self._store(self._first)
        losses: list[Array] = []
        results: dict[str, Array] = {}
        for number, part in enumerate(cut(self.graph, batch)):
            self._between(number)
            part_results = self._part.run(part)
            losses.append(part_results[self.graph.loss])
            results.update(part_results)
            self._store({old: part_results[new] for old, new in self.graph.carried.items()})
        if self._closing is not None:
            results.update(self._closing.run({}))
        results[self.graph.loss] = mean_loss(losses)
        return {name: results[name] for name in self.kept}

    def _store(self, values: Mapping[str, Array]) -> None:
        for known in (self.values, *(one.given for one in (self._part, self._closing) if one is not None)):
            if isinstance(known, dict):
                known.update({name: array for name, array in values.items() if name in known})


@dataclass(frozen=True)
class Witness:
    """Record of a step for later comparison.

    Attributes
    ----------
    number
        Number of the step, from 0.
    loss
        Loss as a float.
    digests
        Digest of each value that goes on to the next step, by name.
    before
        Values that the step began with, in a file; None where they are those that the previous witness left, or the
        first ones.
    """

    number: int
    loss: float
    digests: Mapping[str, bytes]
    before: Mapped | None = None


@dataclass(frozen=True)
class Verdict:
    """Comparison of steps with ordinary training; the fields are those of `TrainingRun`. By default of none."""

    reference_losses: tuple[float, ...] = ()
    bit_identical: bool | None = None
    first_difference: int = 0
    different: tuple[str, ...] = ()
    reference_step_s: float | None = None


def digests(values: Mapping[str, Array]) -> Mapping[str, bytes]:
    """Return the digest of each value, by name."""
    return {name: digest(values[name]) for name in values}


def digest(array: Array) -> bytes:
    """Return the SHA-256 of an array's bytes."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest()


class Ordinary:
    """Training that goes on step by step, node by node.

    Parameters
    ----------
    first
        Values before the first step.
    lr
        Learning rate of plain descent after a step that ends with gradients; None where nothing follows it.
    run
        Graph whose nodes run, where it isn't `graph`.

    Attributes
    ----------
    held
        All that steps read besides their batches, by name, as the last one left it; of tables, all rows.
    number
        Number of steps taken.
    """

    def __init__(
        self,
        graph: TrainingGraph,
        sessions: Sessions,
        first: Mapping[str, Array],
        lr: float | None = None,
        run: TrainingGraph | None = None,
    ) -> None:
        joint = graph.joint
        self.graph, self.lr, self.number = graph, lr, 0
        changing = {*joint.lasting, *graph.hyperparameters.values()}
        self.held = {name: writable_copy(array) if name in changing else array for name, array in first.items()}
        rows = {name: np.zeros(joint.tensors[name].shape, self.held[name].dtype) for name in joint.rows}
        self._given = {**self.held, **rows}
        self.nodes = reference_of(NodeByNode, run or graph, sessions, self._given, joint.results)
        if isinstance(self.nodes, _MicroBatches):
            self.nodes.each(self._redraw_at_window)

    @property
    def values(self) -> Mapping[str, Array]:
        """All values that go on to the next step, by name; of tables, all rows."""
        return {name: self.held[name] for name in self.graph.saved}

    def say(self, hyperparameters: Mapping[str, Any]) -> None:
        """Set the optimizer's hyperparameters of these names from the next step on."""
        for name, value in hyperparameters.items():
            if name in self.graph.hyperparameters:
                self.held[self.graph.hyperparameters[name]][...] = value

    def load(self, values: Mapping[str, Array], steps: int) -> None:
        """Go on from these values, after `steps` steps."""
        for name, array in self.values.items():
            np.copyto(array, values[name])
        self.number = steps
        self.nodes.redraw(steps * self.graph.parts)

    def _redraw_at_window(self, part: int) -> None:
        """Give random nodes a new seed, where a new window begins."""
        runs = self.number * self.graph.parts + part
        if runs and runs % WINDOW == 0:
            self.nodes.redraw(runs)

    def reads(self, batch: Batch) -> Batch:
        """Return a batch as the nodes read it, once everything else is in place."""
        return batch

    def take(self, batch: Batch, call: Callable[[Callable[[], Results]], Results] = lambda run: run()) -> Results:
        """Take a step by `call` around the nodes' run; return its results by name, of tables the rows in use."""
        graph_batch, used_rows = taken(self.graph.joint, batch)
        for name, rows in used_rows.items():
            self._given[name].fill(0)
            self._given[name][: len(rows)] = self.held[name][rows]
        self.say({"step": self.number + 1})
        if self.graph.parts == 1:
            self._redraw_at_window(0)
        results = call(partial(self.nodes.run, self.reads(graph_batch)))
        if self.lr is not None:
            gradients = {name: results[new_name] for name, new_name in self.graph.gradients.items()}
            descend({name: self._given[name] for name in gradients}, gradients, self.lr)
        for old, new in self.graph.saved.items():
            if new != old:
                np.copyto(self._given[old], results[new])
        for name, rows in used_rows.items():
            self.held[name][rows] = self._given[name][: len(rows)]
        self.number += 1
        return results


def verify(
    prepared: Prepared | Path,
    batches: Callable[[Prepared], Callable[[int], Batch]],
    hyperparameters: Mapping[str, float],
    witnesses: Sequence[Witness],
    told: Told = silent,
) -> Verdict:
    """Take the steps of `witnesses` again, in ordinary training, and compare.

    Parameters
    ----------
    made
        Step, or the folder that has it.
    batches
        Returns a function that returns the batch of each step, from 0.
    """
    prepared = Prepared.load(prepared) if isinstance(prepared, Path) else prepared
    sessions, batch_of_step, pace = Sessions(prepared.graph, 1, prepared.models), batches(prepared), paced(told)
    training = Ordinary(prepared.graph, sessions, prepared.first, hyperparameters.get("lr", 0.0))
    training.say(hyperparameters)
    losses: list[float] = []
    times: list[float] = []
    first_difference, different = 0, tuple[str, ...]()
    with Stopwatch() as clock:

        def timed(run: Callable[[], Results]) -> Results:
            values, seconds = clock.call(run)
            times.append(seconds)
            return values

        for witness in witnesses:
            if witness.before is not None:
                training.load(witness.before, witness.number)
            losses.append(training.take(batch_of_step(witness.number), timed)[prepared.graph.loss].item())
            pace(f"step {witness.number + 1:,} in ordinary training, loss {losses[-1]:.6g}")
            if first_difference:
                continue
            values = digests(training.values)
            differing = [name for name, value in witness.digests.items() if values[name] != value]
            if np.float64(losses[-1]).tobytes() != np.float64(witness.loss).tobytes():
                differing.insert(0, "loss")
            if differing:
                first_difference, different = witness.number + 1, tuple(differing)
    return Verdict(tuple(losses), not different, first_difference, different, median(times))
