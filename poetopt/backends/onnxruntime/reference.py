"""Ordinary training of the same graph, which the scheduled step is compared with.

Two ways, and neither knows of plans, arenas or offsets: node by node in the graph's order, each node's outputs in
memory that onnxruntime allocates and that goes when nobody holds it; and the whole graph as one session.

Ordinary training of the same graph by the same updates, node by node, which scheduled steps are compared with.

It knows of plans no more than `NodeByNode`. What a scheduled step left is known by digests, so that both needn't be in
memory at once.
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
class _Step:
    """One node: how to run it, and which values go after it. Without a session it is a view of its first input."""

    node: Node
    session: Any
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    dropped: tuple[str, ...]


class NodeByNode:
    """The training graph run one node after another; every value is a numpy array of its own.

    given
        Parameters and constants, by name; each is asked for when a node reads it.
    kept
        The tensors to return.
    """

    def __init__(
        self, graph: TrainingGraph, sessions: Sessions, given: Mapping[str, Array], kept: Sequence[str]
    ) -> None:
        self.graph = graph
        self.sessions = sessions
        self.given = given
        self.kept = tuple(kept)
        nodes = [node for operator in graph.operators for node in operator.nodes]
        last = {name: k for k, node in enumerate(nodes) for name in (*node.inputs, *node.outputs) if name}
        staying = {*given, *kept}
        dropped: dict[int, list[str]] = {}
        for name, k in last.items():
            if name not in staying:
                dropped.setdefault(k, []).append(name)
        self._steps = [self._step(node, tuple(dropped.get(k, ()))) for k, node in enumerate(nodes)]

    def _step(self, node: Node, dropped: tuple[str, ...]) -> _Step:
        if node.op_type in VIEW_OPS and not node.domain:
            return _Step(node, None, (("", node.inputs[0]),), (("", node.outputs[0]),), dropped)
        made = self.sessions.get(node)
        return _Step(node, made.session, made.inputs, made.outputs, dropped)

    def redraw(self, steps: int = 0) -> None:
        """Let random nodes draw as they do in the step behind so many (`poetopt.backends.step.region`)."""
        window, drawn = divmod(steps, WINDOW)
        for step in self._steps:
            if step.session is None or not is_random(step.node):
                continue
            step.session = self.sessions.get(reseeded(step.node, window)).session
            tensors = ((key, self.graph.tensors[name]) for key, name in step.inputs)
            feeds = {key: np.zeros(tensor.shape, numpy_dtype(tensor.dtype)) for key, tensor in tensors}
            for _ in range(drawn):
                step.session.run([key for key, _ in step.outputs], feeds)

    def run(self, batch: Batch) -> Results:
        """One step; the tensors to keep, by name. Raises `ExecutionError` where a kernel fails."""
        values: ChainMap[str, Array] = ChainMap(dict(batch), self.given)  # type: ignore[arg-type]
        tensors = self.graph.tensors
        for step in self._steps:
            if step.session is None:
                name = step.outputs[0][1]
                values[name] = values[step.inputs[0][1]].reshape(tensors[name].shape)
            else:
                try:
                    made = ran(
                        step.session,
                        [key for key, _ in step.outputs],
                        {key: values[name] for key, name in step.inputs},
                        {key: tensors[name] for key, name in step.inputs},
                    )
                except runtime_errors() as error:
                    raise ExecutionError(
                        f"node {step.node.name!r} ({step.node.op_type}) failed: {first_line(error)}"
                    ) from error
                for (_, name), value in zip(step.outputs, made, strict=True):
                    values[name] = value
            for name in step.dropped:
                del values[name]
        return {name: values[name] for name in self.kept}


class Fused:
    """The training graph as one session, with what it computes for the given outputs.

    Parameters and constants are inputs of the session, as they are of the sessions of single nodes: they change with
    every step of a training, so a runtime can't prepare anything from their values.

    Raises `ExecutionError` where onnxruntime can't load it.
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
        """One step; the outputs by name. Raises `ExecutionError` where a kernel fails."""
        feeds = {**self.given, **batch}
        made = explained(
            "the step as one session failed", lambda: ran(self._session, self.outputs, feeds, self.graph.tensors)
        )
        return dict(zip(self.outputs, made, strict=True))


Reference = NodeByNode | Fused


def reference_of(
    kind: type[Reference], graph: TrainingGraph, sessions: Sessions, given: Mapping[str, Array], kept: Sequence[str]
) -> Reference | _InParts:
    """Ordinary training of a step, in one of the two ways; of a batch in parts, part after part.

    sessions
        For nodes that are alike.
    """
    if graph.parts == 1:
        return kind(graph, sessions.of(graph), given, kept)
    return _InParts(kind, graph, sessions, given, kept)


class _InParts:
    """The parts of a batch one after another, each with the sums that those before it left, and what follows them."""

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
        if (last := graph.closing) is not None:
            self._closing = kind(last, sessions.of(last), self.values, tuple(last.carried.values()))
        self._between: Callable[[int], object] = lambda part: None

    def each(self, between: Callable[[int], object]) -> None:
        """Call `between` with the number of each part before it runs."""
        self._between = between

    def redraw(self, steps: int = 0) -> None:
        """See `NodeByNode.redraw`; counts runs of a part."""
        self._part.redraw(steps)

    def run(self, batch: Batch) -> Results:
        """One step from the given values; the tensors to keep, by name. Raises `ExecutionError`."""
        self._go_on(self._first)
        losses: list[Array] = []
        made: dict[str, Array] = {}
        for number, part in enumerate(cut(self.graph, batch)):
            self._between(number)
            found = self._part.run(part)
            losses.append(found[self.graph.loss])
            made.update(found)
            self._go_on({old: found[new] for old, new in self.graph.carried.items()})
        if self._closing is not None:
            made.update(self._closing.run({}))
        made[self.graph.loss] = mean_loss(losses)
        return {name: made[name] for name in self.kept}

    def _go_on(self, values: Mapping[str, Array]) -> None:
        for given in (self.values, *(one.given for one in (self._part, self._closing) if one is not None)):
            if isinstance(given, dict):
                given.update({name: array for name, array in values.items() if name in given})


@dataclass(frozen=True)
class Witness:
    """Holds what a step left.

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
    """Holds what ordinary training says of so many steps, as `TrainingRun` has it; by default of none."""

    reference_losses: tuple[float, ...] = ()
    bit_identical: bool | None = None
    first_difference: int = 0
    different: tuple[str, ...] = ()
    reference_step_s: float | None = None


def digests(values: Mapping[str, Array]) -> Mapping[str, bytes]:
    """Of the bytes of each value, by name."""
    return {name: digest(values[name]) for name in values}


def digest(array: Array) -> bytes:
    """SHA-256 of its bytes."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest()


class Ordinary:
    """A training that goes on step by step, node by node.

    held
        All that steps read beside their batches, by name, as the last one left it; of tables, all rows.
    number
        How many steps led there.

    first
        What `held` is before the first step.
    lr
        Of the plain descent behind a step that ends with gradients; None where nothing follows it.
    run
        The graph whose nodes are run, where it is another one.
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
        if isinstance(self.nodes, _InParts):
            self.nodes.each(self._drawing)

    @property
    def values(self) -> Mapping[str, Array]:
        """All that goes on to the next step, by name; of tables, all rows."""
        return {name: self.held[name] for name in self.graph.saved}

    def say(self, hyperparameters: Mapping[str, Any]) -> None:
        """Let the optimizer's hyperparameters of these names be these numbers from the next step on."""
        for name, value in hyperparameters.items():
            if name in self.graph.hyperparameters:
                self.held[self.graph.hyperparameters[name]][...] = value

    def load(self, values: Mapping[str, Array], steps: int) -> None:
        """Go on from these values, behind so many steps."""
        for name, array in self.values.items():
            np.copyto(array, values[name])
        self.number = steps
        self.nodes.redraw(steps * self.graph.parts)

    def _drawing(self, part: int) -> None:
        """Let random nodes begin a new window, where they have drawn for one."""
        runs = self.number * self.graph.parts + part
        if runs and runs % WINDOW == 0:
            self.nodes.redraw(runs)

    def reads(self, batch: Batch) -> Batch:
        """A batch as the nodes read it, once everything else is in place."""
        return batch

    def take(self, batch: Batch, call: Callable[[Callable[[], Results]], Results] = lambda run: run()) -> Results:
        """Take a step by `call` around the nodes' run; its results by name, of tables the rows in use."""
        read, used = taken(self.graph.joint, batch)
        for name, rows in used.items():
            self._given[name].fill(0)
            self._given[name][: len(rows)] = self.held[name][rows]
        self.say({"step": self.number + 1})
        if self.graph.parts == 1:
            self._drawing(0)
        found = call(partial(self.nodes.run, self.reads(read)))
        if self.lr is not None:
            gradients = {name: found[made] for name, made in self.graph.gradients.items()}
            descend({name: self._given[name] for name in gradients}, gradients, self.lr)
        for old, new in self.graph.saved.items():
            if new != old:
                np.copyto(self._given[old], found[new])
        for name, rows in used.items():
            self.held[name][rows] = self._given[name][: len(rows)]
        self.number += 1
        return found


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
    sessions, get, pace = Sessions(made.graph, 1, made.models), batches(made), paced(told)
    training = Ordinary(made.graph, sessions, made.first, hyperparameters.get("lr", 0.0))
    training.say(hyperparameters)
    losses: list[float] = []
    times: list[float] = []
    first, different = 0, tuple[str, ...]()
    with Stopwatch() as clock:

        def timed(run: Callable[[], Results]) -> Results:
            found, seconds = clock.call(run)
            times.append(seconds)
            return found

        for witness in witnesses:
            if witness.before is not None:
                training.load(witness.before, witness.number)
            losses.append(training.take(get(witness.number), timed)[made.graph.loss].item())
            pace(f"step {witness.number + 1:,} in ordinary training, loss {losses[-1]:.6g}")
            if first:
                continue
            found = digests(training.values)
            wrong = [name for name, value in witness.digests.items() if found[name] != value]
            if np.float64(losses[-1]).tobytes() != np.float64(witness.loss).tobytes():
                wrong.insert(0, "loss")
            if wrong:
                first, different = witness.number + 1, tuple(wrong)
    return Verdict(tuple(losses), not different, first, different, median(times))
