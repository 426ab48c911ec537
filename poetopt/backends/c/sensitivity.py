"""Distance between two steps, and how far one ulp moves a step: the measure of agreement.

Kernels that sum in another order round differently. How much that can change depends on the network, so it is measured:
onnxruntime computes the step again from floats that were moved to one of their neighbours, at random. Those are the
floats that forward and backward read: of the batch, of parameters, and of frozen weights. An update begins with the
exact parameter: otherwise an ulp of the parameter would count as a part of its change. Zeros stay, and, in the batch
and in frozen weights, integers, of which masks consist.
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
"""Number of random moves; the largest effect counts."""
MOVED = "\0moved"
"""Suffix of the name of a parameter that is read an ulp off."""


def distance(tensors: Arrays, reference: Arrays, names: Sequence[str]) -> float:
    """Return the norm of the difference over that of `theirs`, all tensors together; infinite where one is NaN."""
    difference = _norm([_difference(tensors[name], reference[name]) for name in names])
    reference_norm = _norm([_norm([reference[name]]) for name in names])
    if not np.isfinite(difference) or not np.isfinite(reference_norm):
        return float("inf")
    return difference / reference_norm if reference_norm else float(difference > 0)


def moved_by(graph: TrainingGraph, before: Arrays, after: Arrays) -> Arrays:
    """Return the change of parameters, in float64."""
    return {name: after[name].astype(np.float64) - before[name].astype(np.float64) for name in graph.trained}


@dataclass(frozen=True, slots=True)
class UlpSensitivity:
    """How far one ulp moves tensors.

    Attributes
    ----------
    exact
        Exact tensors.
    each
        Distance that each moves, in the norm: at least by one ulp of its kept values, element by element.
    together
        Relative distance that all of them move: at least by one ulp of the largest kept element.
    """

    exact: Arrays
    each: Mapping[str, float]
    together: float

    def far(self, tensors: Arrays) -> tuple[str, ...]:
        """Return the names of tensors in `mine` that are further away than `TOLERANCE` times both of these."""
        allowed = {n: TOLERANCE * max(self.each[n], self.together * _norm([t])) for n, t in self.exact.items()}
        return tuple(n for n, limit in allowed.items() if not _difference(tensors[n], self.exact[n]) <= limit)


def sensitivity(exact: Arrays, near: Sequence[Arrays], kept: Arrays) -> UlpSensitivity:
    """Measure the distance of `near` from `exact`, with the rounding of `kept`: these tensors, or their ends."""
    ulps = {name: np.spacing(np.abs(kept[name])) for name in exact}
    each = {n: max(_norm([ulps[n]]), *(_difference(moved[n], exact[n]) for moved in near)) for n in exact}
    exact_norm = _norm([_norm([array]) for array in exact.values()])
    min_relative = max(float(array.max(initial=0.0)) for array in ulps.values()) / exact_norm if exact_norm else 0.0
    return UlpSensitivity(exact, each, max(min_relative, *(distance(moved, exact, tuple(exact)) for moved in near)))


class Steps(Ordinary):
    """Steps of ordinary training, from the values of `graph`.

    Parameters
    ----------
    seed
        With a seed, floats that forward and backward read are one ulp off, randomly up or down.
    """

    def __init__(self, graph: TrainingGraph, sessions: Sessions, seed: int | None = None) -> None:
        joint, first = graph.joint, whole(graph.joint)
        self._random = None if seed is None else np.random.default_rng(seed)
        if self._random is not None:
            for name in joint.values:
                if joint.tensors[name].role is Role.CONSTANT and len(joint.tensors[name].shape) > 1:
                    first[name] = _move_an_ulp(first[name], self._random, data=True)
            first |= {name + MOVED: first[name] for name in graph.trained}
        super().__init__(graph, sessions, first, run=None if seed is None else _reading_moved(graph))

    def reads(self, batch: Arrays) -> Arrays:
        """Return a batch, and parameters under their other names, an ulp off."""
        if self._random is None:
            return batch
        batch = {name: _move_an_ulp(array, self._random, data=True) for name, array in batch.items()}
        self._given |= {n + MOVED: _move_an_ulp(self._given[n], self._random) for n in self.graph.trained}
        return batch

    def step(self, batch: Arrays) -> Arrays:
        """Take one step; return the loss, gradients and carried values, by the graph's names."""
        results = self.take(batch)
        return {**results, **{self.graph.saved[name]: self.held[name].copy() for name in self.graph.joint.rows}}


def _move_an_ulp(array: Array, random: np.random.Generator, *, data: bool = False) -> Array:
    if array.dtype.kind != "f":
        return array
    direction = np.where(random.integers(0, 2, array.shape), np.inf, -np.inf).astype(array.dtype)
    is_fixed = (array == np.rint(array)) if data else (array == 0) | np.isinf(array)
    with np.errstate(over="ignore"):  # the largest number overflows, and stays
        return np.where(is_fixed, array, np.nextafter(array, direction))


def predicted(network: TrainingGraph, held: Arrays, batches: Sequence[Arrays]) -> UlpSensitivity:
    """Return the outputs of a network on onnxruntime, all batches stacked, and how far one ulp moves them.

    Parameters
    ----------
    held
        Its parameters, statistics and constants; those with several axes are moved, as in `Steps`. Other values, such
        as
        an optimizer's hyperparameters, are ignored.
    """
    sessions, tensors = Sessions(network, 1), network.tensors
    held = {name: array for name, array in held.items() if name in tensors}
    weights = [n for n in held if tensors[n].role is not Role.CONSTANT or len(tensors[n].shape) > 1]

    def outputs(seed: int | None) -> Arrays:
        random = None if seed is None else np.random.default_rng(seed)
        moved = {} if random is None else {name: _move_an_ulp(held[name], random) for name in weights}
        values = {**held, **moved}
        run = NodeByNode(network, sessions, values, network.outputs)
        results = []
        for batch in batches:
            inputs = {
                n: batch[n] if random is None else _move_an_ulp(batch[n], random, data=True) for n in network.inputs
            }
            results.append({name: array.copy() for name, array in run.run(inputs).items()})
        return {name: np.stack([one[name] for one in results]) for name in network.outputs}

    exact = outputs(None)
    return sensitivity(exact, [outputs(seed) for seed in range(TRIALS)], exact)


def _reading_moved(graph: TrainingGraph) -> TrainingGraph:
    """Return `graph` with operators that read parameters under their names with `MOVED`, except in updates."""

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
