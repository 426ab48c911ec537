"""Problem files: a training graph with sizes and costs in JSON, without a network."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any

from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.util.errors import DeviceError, ModelError
from poetopt.util.files import PLAN_BYTES, read_bytes

PAGING = tuple(field.name for field in fields(Transfers))
COSTS = ("compute_s", "compute_j", *PAGING)


@dataclass(frozen=True)
class _Node:
    name: str
    nbytes: int
    backward: bool
    workspace_bytes: int


@dataclass(frozen=True)
class ProblemFile:
    """A training graph whose operators write one tensor each, with a table of costs per device.

    Nodes without producers are graph inputs: in RAM at the start, pageable, not recomputable.
    """

    name: str
    source: str
    nodes: tuple[_Node, ...]
    edges: tuple[tuple[int, int], ...]
    costs: Mapping[str, Mapping[str, tuple[float, ...]]]
    dma: bool
    content_hash: str

    def cost(self, device: str) -> Problem:
        """Return the problem with the costs of `device`, a key of the file's table.

        A name of the catalogue works too if the file has the device under a shorter key (`paper-a72` finds `a72`).
        Raise DeviceError for an unknown key.
        """
        key = device if device in self.costs else device.removeprefix("paper-").replace("-", "")
        if key not in self.costs:
            close = difflib.get_close_matches(device, self.costs, n=3, cutoff=0.0)
            raise DeviceError(
                f"{self.source}: no costs for device '{device}'. The file has {', '.join(self.costs)}"
                + (f" (closest: {close[0]})" if close else "")
            )
        table = self.costs[key]
        consumers = {consumer for _, consumer in self.edges}
        inputs = [k for k in range(len(self.nodes)) if k not in consumers]
        computed = [k for k in range(len(self.nodes)) if k in consumers]
        tensor_of = {node: index for index, node in enumerate(inputs + computed)}
        operator_of = {node: index for index, node in enumerate(computed)}
        tensors = tuple(
            ProblemTensor(
                name=self.nodes[k].name,
                nbytes=self.nodes[k].nbytes,
                producer=operator_of.get(k, -1),
                transfers=Transfers(**{key: table[key][k] for key in PAGING}),
            )
            for k in inputs + computed
        )
        reads: dict[int, list[int]] = {k: [] for k in computed}
        for producer, consumer in self.edges:
            reads[consumer].append(tensor_of[producer])
        operators = tuple(
            ProblemOperator(
                name=self.nodes[k].name,
                inputs=tuple(sorted(set(reads[k]))),
                outputs=(tensor_of[k],),
                time_s=table["compute_s"][k],
                energy_j=table["compute_j"][k],
                workspace_bytes=self.nodes[k].workspace_bytes,
                backward=self.nodes[k].backward,
                kind="backward" if self.nodes[k].backward else "forward",
            )
            for k in computed
        )
        return Problem(
            name=self.name,
            device=device,
            operators=operators,
            tensors=tensors,
            paging=True,
            dma=self.dma,
            model_ref=self.source,
            model_hash=self.content_hash,
            notes=("a problem file: costs are those of the file, and there is no network to execute",),
        )


def load_problem_file(path: str | os.PathLike[str], content: bytes | None = None) -> ProblemFile:
    """Read a problem file.

    Parameters
    ----------
    content
        Content of the file, if it has been read.

    Raises
    ------
    ModelError
        For an invalid problem: unreadable JSON, missing keys, negative or non-finite numbers, edges that don't go
        forward. The message has the file and the key or node.
    """
    source = str(path)
    try:
        data = read_bytes(path, PLAN_BYTES) if content is None else content
    except OSError as error:
        raise ModelError(f"{source}: can't be read ({error.strerror}). Check the path") from error
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{source}: not a JSON problem file ({error})") from error
    if not isinstance(document, dict):
        raise ModelError(f"{source}: a problem file is a JSON object with nodes, edges and costs")
    if document.get("format") == "poetopt-plan":
        raise ModelError(f"{source}: a plan, not a model. {_advice_for_plan(source, document.get('model'))}")
    from pydantic import ValidationError

    try:
        problem = _schema().model_validate(document)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        location = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"])
        raise ModelError(f"{source}: {location.lstrip('.')}: {fault['msg']}") from error
    count = len(problem.nodes)
    edges = tuple(dict.fromkeys((producer, consumer) for producer, consumer in problem.edges))
    for index, (producer, consumer) in enumerate(problem.edges):
        if not producer < consumer < count:
            raise ModelError(
                f"{source}: edges[{index}] = {[producer, consumer]} doesn't go forward among {count} nodes. List them "
                "in topological order"
            )
    if not problem.costs:
        raise ModelError(f"{source}: costs: must have at least one device")
    costs = {device: {key: tuple(getattr(table, key)) for key in COSTS} for device, table in problem.costs.items()}
    for device, table in costs.items():
        if wrong_keys := [key for key, column in table.items() if len(column) != count]:
            raise ModelError(f"{source}: costs.{device}.{wrong_keys[0]}: must be a list with one number per node")
    return ProblemFile(
        name=str(document.get("name") or Path(path).stem),
        source=source,
        nodes=tuple(
            _Node(str(index if n.name is None else n.name), int(n.bytes), n.backward, int(n.workspace_bytes))
            for index, n in enumerate(problem.nodes)
        ),
        edges=edges,
        costs=costs,
        dma=problem.dma,
        content_hash=hashlib.sha256(data).hexdigest(),
    )


def _advice_for_plan(source: str, model: object) -> str:
    """Return what to do with a plan file, and its model."""
    reference = model.get("reference") if isinstance(model, dict) else None
    solve_again = f", or solve its model {reference} again" if isinstance(reference, str) and reference else ""
    return f"Execute it with `poetopt run {source}`, look at it with `poetopt show {source}`{solve_again}"


@cache
def _schema() -> Any:
    """Return the pydantic model of the JSON object; pydantic is imported only when a file is read."""
    from pydantic import Field, StrictBool, conlist, create_model

    model: Any = create_model
    # sums of costs must be finite, and JSON readers agree on integers up to 2^53
    cost: Any = Annotated[float, Field(strict=True, ge=0, lt=1e300, allow_inf_nan=False)]
    size: Any = Annotated[float, Field(strict=True, ge=0, le=2**53, multiple_of=1, allow_inf_nan=False)]
    index: Any = Annotated[int, Field(strict=True, ge=0)]
    node = model("node", name=(Any, None), bytes=(size, ...), workspace_bytes=(size, 0.0), backward=(StrictBool, False))
    table = model("table", **{key: (conlist(cost), ...) for key in COSTS})
    return model(
        "problem",
        nodes=(conlist(node, min_length=1), ...),
        edges=(conlist(conlist(index, min_length=2, max_length=2), min_length=1), ...),
        costs=(GenericAlias(dict, (str, table)), ...),
        dma=(StrictBool, False),
    )
