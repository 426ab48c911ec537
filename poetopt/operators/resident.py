"""The resident region of a training step: parameters, their gradients, constants, statistics, the loss.

A tensor of the region is never paged or recomputed. A storage is resident as soon as one of the tensors that share it
is: the gradient of a weight that is reshaped last is written straight into the region.
"""

from __future__ import annotations

from collections.abc import Mapping

from poetopt.graph import Role, TrainingGraph, residence
from poetopt.problem import Home

PARTS: Mapping[Role, str] = {
    Role.PARAMETER: "parameters",
    Role.PARAMETER_GRADIENT: "gradients",
    Role.GRADIENT_SUM: "gradients",
    Role.CONSTANT: "constants",
    Role.STATE: "states",
    Role.LOSS: "loss",
    Role.OPTIMIZER_STATE: "optimizer",
    Role.HYPERPARAMETER: "optimizer",
}
"""What the resident region consists of, by the role of the tensors."""


def resident_storages(graph: TrainingGraph) -> Mapping[str, Role]:
    """The storages (root tensors) of the resident region, each with the role that makes it resident.

    In the order of `graph.tensors`. What only lives inside an operator is not here, whatever its role.
    """
    found: dict[str, Role] = {}
    for name, tensor in graph.tensors.items():
        given = residence(tensor.role).home is not Home.NOWHERE
        if tensor.resident and (given or name in graph.producers):
            root = graph.tensors[graph.root(name)]
            # a constant whose view is somebody's gradient stays a constant
            found.setdefault(root.name, root.role if root.resident else tensor.role)
    return found


def resident_breakdown(graph: TrainingGraph, storages: Mapping[str, Role] | None = None) -> Mapping[str, int]:
    """Bytes of the resident region by what they are: the values of `PARTS`, each storage counted once.

    storages
        Those of the region, where some of `resident_storages` lie elsewhere.

    `optimizer` is only there where the step has one.
    """
    sums = {part: 0 for part in PARTS.values() if part != "optimizer" or graph.optimizer != "none"}
    for root, role in (resident_storages(graph) if storages is None else storages).items():
        sums[PARTS[role]] += graph.tensors[root].nbytes
    return sums
