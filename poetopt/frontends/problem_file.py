"""Problem files: a training graph with sizes and costs in JSON, without a network behind it."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

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
    """A training graph whose operators write one tensor each, with a table of costs a device.

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
        """The problem under the costs of `device`, a key of the file's own table.

        A name of the catalogue works too where the file has the same device under a shorter key
        (`paper-a72` finds `a72`).

        Raises DeviceError for an unknown key.
        """
        key = device if device in self.costs else device.removeprefix("paper-").replace("-", "")
        if key not in self.costs:
            close = difflib.get_close_matches(device, self.costs, n=3, cutoff=0.0)
            raise DeviceError(
                f"{self.source}: no costs for device '{device}'; the file has {', '.join(self.costs)}"
                + (f" (closest: {close[0]})" if close else "")
            )
        table = self.costs[key]
        written = {consumer for _, consumer in self.edges}
        inputs = [k for k in range(len(self.nodes)) if k not in written]
        computed = [k for k in range(len(self.nodes)) if k in written]
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
            notes=("a problem file: costs are the file's own, and there is no network to execute",),
        )


def load_problem_file(path: str | os.PathLike[str], content: bytes | None = None) -> ProblemFile:
    """Read a problem file.

    content
        What is at `path`, where that has been read.

    Raises ModelError, naming the file and the key or node, for anything that isn't a valid problem:
    unreadable JSON, missing keys, negative or non-finite numbers, edges that don't go forward.
    """
    source = str(path)
    try:
        data = read_bytes(path, PLAN_BYTES) if content is None else content
    except OSError as error:
        raise ModelError(f"{source}: can't be read ({error.strerror})") from error
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{source}: not a JSON problem file ({error})") from error
    if not isinstance(document, dict):
        raise ModelError(f"{source}: a problem file is a JSON object with nodes, edges and costs")
    if document.get("format") == "poetopt-plan":
        raise ModelError(f"{source}: a plan, no model: {_of_plan(source, document.get('model'))}")
    nodes = _nodes(source, document.get("nodes"))
    edges = _edges(source, document.get("edges"), nodes)
    dma = document.get("dma", False)
    if not isinstance(dma, bool):
        raise ModelError(f"{source}: 'dma' must be true or false, not {dma!r}")
    return ProblemFile(
        name=str(document.get("name") or Path(path).stem),
        source=source,
        nodes=nodes,
        edges=edges,
        costs=_costs(source, document.get("costs"), nodes),
        dma=dma,
        content_hash=hashlib.sha256(data).hexdigest(),
    )


def _of_plan(source: str, model: object) -> str:
    """Gives what can be done with a plan file, and which model it is of."""
    reference = model.get("reference") if isinstance(model, dict) else None
    again = f", or solve its model {reference} again" if isinstance(reference, str) and reference else ""
    return f"execute it with `poetopt run {source}`, look at it with `poetopt show {source}`{again}"


def _nodes(source: str, value: object) -> tuple[_Node, ...]:
    if not isinstance(value, list) or not value:
        raise ModelError(f"{source}: 'nodes' must be a non-empty list")
    found = []
    for index, entry in enumerate(value):
        if not isinstance(entry, dict):
            raise ModelError(f"{source}: nodes[{index}] must be an object with name, bytes and backward")
        backward = entry.get("backward", False)
        if not isinstance(backward, bool):
            raise ModelError(f"{source}: nodes[{index}].backward must be true or false, not {backward!r}")
        found.append(
            _Node(
                name=str(entry.get("name", index)),
                nbytes=_size(source, f"nodes[{index}].bytes", entry.get("bytes")),
                backward=backward,
                workspace_bytes=_size(source, f"nodes[{index}].workspace_bytes", entry.get("workspace_bytes", 0)),
            )
        )
    return tuple(found)


def _size(source: str, where: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -math.inf < value < math.inf or value < 0:
        raise ModelError(f"{source}: {where} must be a number of bytes >= 0, not {_short(value)}")
    if value > 2**53 or value != int(value):
        raise ModelError(f"{source}: {where} must be a whole number of bytes below 2^53, not {_short(value)}")
    return int(value)


def _short(value: object) -> str:
    """A value for a message: a number may have thousands of digits."""
    text = "a huge number" if isinstance(value, int) and abs(value) > 10**40 else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _edges(source: str, value: object, nodes: tuple[_Node, ...]) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, list):
        raise ModelError(f"{source}: 'edges' must be a list of [producer, consumer] pairs")
    found = []
    for index, pair in enumerate(value):
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or not all(isinstance(k, int) and not isinstance(k, bool) for k in pair)
        ):
            raise ModelError(f"{source}: edges[{index}] must be a pair of node indices, not {pair!r}")
        producer, consumer = pair
        if not (0 <= producer < len(nodes) and 0 <= consumer < len(nodes)):
            raise ModelError(f"{source}: edges[{index}] = {pair} names a node that doesn't exist (0..{len(nodes) - 1})")
        if producer >= consumer:
            raise ModelError(
                f"{source}: edges[{index}] = {pair} doesn't go forward; nodes must be listed in topological order"
            )
        found.append((producer, consumer))
    if not found:
        raise ModelError(f"{source}: 'edges' is empty: nothing is computed")
    return tuple(dict.fromkeys(found))


def _costs(source: str, value: object, nodes: tuple[_Node, ...]) -> dict[str, dict[str, tuple[float, ...]]]:
    if not isinstance(value, dict) or not value:
        raise ModelError(f"{source}: 'costs' must map at least one device to its lists of costs")
    tables: dict[str, dict[str, tuple[float, ...]]] = {}
    for device, table in value.items():
        if not isinstance(table, dict):
            raise ModelError(f"{source}: costs['{device}'] must be an object with {', '.join(COSTS)}")
        tables[device] = {}
        for key in COSTS:
            column = table.get(key)
            if not isinstance(column, list) or len(column) != len(nodes):
                raise ModelError(f"{source}: costs['{device}'].{key} must be a list with one number a node")
            for index, number in enumerate(column):
                # costs must stay below it: sums of them have to be finite
                if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < 1e300:
                    raise ModelError(
                        f"{source}: costs['{device}'].{key}[{index}] ({nodes[index].name}) must be "
                        f"a finite number >= 0, not {_short(number)}"
                    )
            tables[device][key] = tuple(float(number) for number in column)
    return tables
