"""Describes how far apart two steps are, and how far one ulp moves a step: what agreement is measured by.

Kernels that sum in another order round otherwise. How much that may come to depends on the network, so it is measured:
onnxruntime computes the step again from floats that went to one of their neighbours, at random. Those are what forward
and backward read of the batch, of parameters, and of frozen weights. An update begins with the parameter itself: else
an ulp of what it is taken from would count as a part of how far it went. Zeros stay, and, of the batch and of what is
frozen, whole numbers, which masks are made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from poetopt.autodiff.passes.rows import whole
from poetopt.backends.c.execution import TOLERANCE
from poetopt.backends.onnxruntime.reference import NodeByNode, Ordinary
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.graph import Operator, Role, TrainingGraph

if TYPE_CHECKING:
    from poetopt.graph import Array

    Arrays = Mapping[str, Array]

TRIALS = 3
"""Random moves; the one that moves most counts."""
MOVED = "\0moved"
"""What stands behind the name of a parameter that is read an ulp off."""


def distance(mine: Arrays, theirs: Arrays, names: Sequence[str]) -> float:
    """The norm of the difference over that of `theirs`, all tensors together; infinite where one is no number."""
    apart = _norm([_difference(mine[name], theirs[name]) for name in names])
    size = _norm([_norm([theirs[name]]) for name in names])
    if not np.isfinite(apart) or not np.isfinite(size):
        return float("inf")
    return apart / size if size else float(apart > 0)


def moved_by(graph: TrainingGraph, before: Arrays, after: Arrays) -> Arrays:
    """Says how far parameters went, in float64."""
    return {name: after[name].astype(np.float64) - before[name].astype(np.float64) for name in graph.trained}


@dataclass(frozen=True, slots=True)
class UlpSensitivity:
    """Says how far one ulp moves tensors.

    exact
        What they are.
    each
        How far each goes, in the norm: at least by one ulp of what is kept of it, element by element.
    together
        How far all of them go, relative: at least by one ulp of the largest element that is kept.
    """

    exact: Arrays
    each: Mapping[str, float]
    together: float

    def far(self, mine: Arrays) -> tuple[str, ...]:
        """Those of `mine` that are further away than rounding takes them: than both of these, times `TOLERANCE`."""
        allowed = {n: TOLERANCE * max(self.each[n], self.together * _norm([t])) for n, t in self.exact.items()}
        return tuple(n for n, most in allowed.items() if not _difference(mine[n], self.exact[n]) <= most)


def sensitivity(exact: Arrays, near: Sequence[Arrays], kept: Arrays) -> UlpSensitivity:
    """Measures how far `near` ones are from `exact`, with rounding that of `kept`: themselves, or their ends."""
    ulps = {name: np.spacing(np.abs(kept[name])) for name in exact}
    each = {n: max(_norm([ulps[n]]), *(_difference(one[n], exact[n]) for one in near)) for n in exact}
    size = _norm([_norm([array]) for array in exact.values()])
    least = max(float(array.max(initial=0.0)) for array in ulps.values()) / size if size else 0.0
    return UlpSensitivity(exact, each, max(least, *(distance(one, exact, tuple(exact)) for one in near)))


class Steps(Ordinary):
    """Steps of ordinary training, from the values that `graph` has.

    seed
        Where one is given, what forward and backward read is one ulp off, up or down as it draws.
    """

    def __init__(self, graph: TrainingGraph, sessions: Sessions, seed: int | None = None) -> None:
        joint, first = graph.joint, whole(graph.joint)
        self._random = None if seed is None else np.random.default_rng(seed)
        if self._random is not None:
            for name in joint.values:
                if joint.tensors[name].role is Role.CONSTANT and len(joint.tensors[name].shape) > 1:
                    first[name] = _an_ulp_off(first[name], self._random, data=True)
            first |= {name + MOVED: first[name] for name in graph.trained}
        super().__init__(graph, sessions, first, run=None if seed is None else _reading_moved(graph))

    def reads(self, batch: Arrays) -> Arrays:
        """A batch, and parameters by their other names, an ulp off."""
        if self._random is None:
            return batch
        batch = {name: _an_ulp_off(array, self._random, data=True) for name, array in batch.items()}
        self._given |= {n + MOVED: _an_ulp_off(self._given[n], self._random) for n in self.graph.trained}
        return batch

    def step(self, batch: Arrays) -> Arrays:
        """One step: the loss, gradients, and what is carried, by the names that they have in the graph."""
        found = self.take(batch)
        return {**found, **{self.graph.saved[name]: self.held[name].copy() for name in self.graph.joint.rows}}


def _an_ulp_off(array: Array, random: np.random.Generator, *, data: bool = False) -> Array:
    if array.dtype.kind != "f":
        return array
    towards = np.where(random.integers(0, 2, array.shape), np.inf, -np.inf).astype(array.dtype)
    stays = (array == np.rint(array)) if data else (array == 0) | np.isinf(array)
    with np.errstate(over="ignore"):  # of the largest number, which stays
        return np.where(stays, array, np.nextafter(array, towards))


def predicted(network: TrainingGraph, held: Arrays, batches: Sequence[Arrays]) -> UlpSensitivity:
    """The outputs of a network on onnxruntime, node by node, all batches in one, and how far one ulp moves them.

    held
        Its parameters, statistics and constants; of these, what has several axes is moved, as in `Steps`. What it
        doesn't know, such as an optimizer's numbers, doesn't count.
    """
    sessions, tensors = Sessions(network, 1), network.tensors
    held = {name: array for name, array in held.items() if name in tensors}
    weights = [n for n in held if tensors[n].role is not Role.CONSTANT or len(tensors[n].shape) > 1]

    def outputs(seed: int | None) -> Arrays:
        random = None if seed is None else np.random.default_rng(seed)
        moved = {} if random is None else {name: _an_ulp_off(held[name], random) for name in weights}
        values = {**held, **moved}
        run = NodeByNode(network, sessions, values, network.outputs)
        found = []
        for batch in batches:
            fed = {n: batch[n] if random is None else _an_ulp_off(batch[n], random, data=True) for n in network.inputs}
            found.append({name: array.copy() for name, array in run.run(fed).items()})
        return {name: np.stack([one[name] for one in found]) for name in network.outputs}

    exact = outputs(None)
    return sensitivity(exact, [outputs(seed) for seed in range(TRIALS)], exact)


def _reading_moved(graph: TrainingGraph) -> TrainingGraph:
    """`graph` whose operators read parameters by their names with `MOVED`, but for the one that updates each."""

    def renamed(operator: Operator) -> Operator:
        others = {*graph.trained} - {old for old, _ in operator.updates}
        nodes = (
            replace(node, inputs=tuple(name + MOVED if name in others else name for name in node.inputs))
            for node in operator.nodes
        )
        return replace(operator, nodes=tuple(nodes))

    added = {
        name + MOVED: replace(graph.tensors[name], name=name + MOVED) for name in graph.trained if name in graph.tensors
    }
    return replace(
        graph,
        tensors={**graph.tensors, **added},
        operators=tuple(renamed(operator) for operator in graph.operators),
        closing=None if graph.closing is None else _reading_moved(graph.closing),
    )


def _difference(a: Array, b: Array) -> float:
    return _norm([a.astype(np.float64) - b.astype(np.float64)])


def _norm(parts: Sequence[Array | float]) -> float:
    return float(np.sqrt(sum(float(np.sum(np.square(part, dtype=np.float64))) for part in parts)))
