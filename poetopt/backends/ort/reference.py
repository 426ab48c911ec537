"""Ordinary training of the same graph, which the scheduled step is compared with.

Two ways, and neither knows of plans, arenas or offsets: node by node in the graph's order, each node's outputs in
memory that onnxruntime allocates and that goes when nobody holds it; and the whole graph as one session.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.backends.ort.batch import Batch
from poetopt.backends.ort.sessions import (
    Sessions,
    explained,
    first_line,
    is_random,
    onnxruntime,
    runtime_errors,
    session_options,
)
from poetopt.errors import ExecutionError
from poetopt.graph import VIEW_OPS, Node, TrainingGraph
from poetopt.step.drawing import WINDOW, reseeded
from poetopt.step.memory import numpy_dtype
from poetopt.step.parted import cut, mean_loss

if TYPE_CHECKING:
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
        """Let random nodes draw as they do in the step behind so many (`poetopt.step.drawing`)."""
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
                    made = step.session.run(
                        [key for key, _ in step.outputs], {key: values[name] for key, name in step.inputs}
                    )
                except runtime_errors() as error:
                    raise ExecutionError(
                        f"node {step.node.name!r} ({step.node.op_type}) failed: {first_line(error)}"
                    ) from error
                for (_, name), value in zip(step.outputs, made, strict=True):
                    values[name] = np.asarray(value)
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

        fed = {name: array for name, array in given.items() if not sessions.embeds(name)}
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
        made = explained("the step as one session failed", lambda: self._session.run(self.outputs, feeds))
        return {name: np.asarray(value) for name, value in zip(self.outputs, made, strict=True)}


Reference = NodeByNode | Fused
MakeReference = Callable[[TrainingGraph, Mapping[str, "Array"], Sequence[str]], Reference]


def node_by_node(
    sessions: Sessions, graph: TrainingGraph, given: Mapping[str, Array], kept: Sequence[str]
) -> NodeByNode:
    """`graph` one node after another, with `sessions` for those that are alike."""
    return NodeByNode(graph, sessions.of(graph), given, kept)


def as_one_session(sessions: Sessions, graph: TrainingGraph, given: Mapping[str, Array], kept: Sequence[str]) -> Fused:
    """`graph` as one session."""
    return Fused(graph, sessions.of(graph), {n: a for n, a in given.items() if n in graph.tensors}, kept)


def reference_of(
    graph: TrainingGraph, make: MakeReference, given: Mapping[str, Array], kept: Sequence[str]
) -> Reference | InParts:
    """Ordinary training of a step, in one of the two ways; of a batch in parts, part after part.

    make
        Makes what runs a graph.
    """
    return make(graph, given, kept) if graph.parts == 1 else InParts(graph, make, given, kept)


class InParts:
    """The parts of a batch one after another, each with the sums that those before it left, and what follows them."""

    def __init__(
        self, graph: TrainingGraph, make: MakeReference, given: Mapping[str, Array], kept: Sequence[str]
    ) -> None:
        self.graph, self.kept = graph, tuple(kept)
        self._first = given
        self.values = dict(given)
        self._part = make(graph, self.values, graph.results)
        last = graph.closing
        self._closing = None if last is None else make(last, self.values, tuple(last.carried.values()))
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
