"""Tables by the rows of a batch: an embedding that is read from storage needn't be in RAM as a whole.

A batch of n token numbers uses n rows of an embedding at most. The graph gets a table of n rows in its place, and reads
the places of the batch's rows in it; gradient and update follow from that. Which rows these are is said batch by batch
by whoever executes the step, and only those go between RAM and storage.

The update by gradient descent leaves all other rows as they are (a weight decay is of the rows in use alone). Of
optimizers with a state that is not so: momentum moves a row that no batch of late has used. Their tables stay whole,
unless the user wants them *lazy*: then a row and its states change in the steps alone that use it, as in
torch.optim.SparseAdam, and states are by rows as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from poetopt.graph import Graph, Operator, Role, TableRows, Tensor, TrainingGraph

if TYPE_CHECKING:
    from poetopt.graph import Array

OPTIMIZERS = ("none", "sgd")
"""Those whose updates leave the rows alone that a batch doesn't use."""


def by_rows(graph: Graph, multiple: int = 1) -> Graph:
    """`graph` with the rows of a batch for each trained table of more rows that one Gather alone reads, or itself.

    multiple
        Tables whose rows aren't a multiple of so many bytes stay whole.

    Of a batch in parts, the rows are those of all parts: they are the same ones from the first to the updates.
    """
    found: dict[str, TableRows] = {}
    tensors, values = dict(graph.tensors), dict(graph.values)
    for operator in graph.operators:
        chosen = _chosen(graph, operator)
        if chosen is None:
            continue
        table, ids = chosen
        whole, places = graph.values[table], graph.tensors[ids]
        if whole[0].nbytes % multiple:
            continue
        if ids in graph.values:
            used, inverse = np.unique(_positive(graph.values[ids], len(whole)), return_inverse=True)
            found[table] = TableRows(whole, fixed=tuple(used.tolist()))
            values[ids] = _frozen(inverse.reshape(places.shape).astype(graph.values[ids].dtype))
            count = len(used)
        else:
            found[table] = TableRows(whole, ids=ids)
            count = _most(graph, ids)
        tensors[table] = Tensor(table, (count, *whole.shape[1:]), graph.tensors[table].dtype, graph.tensors[table].role)
        values[table] = _frozen(np.zeros(tensors[table].shape, whole.dtype))
    return replace(graph, tensors=tensors, values=values, rows=found) if found else graph


def with_states(graph: TrainingGraph, rows: Mapping[str, TableRows]) -> TrainingGraph:
    """`graph`, which was made of one with `rows`, where the states of these tables are by rows, too."""
    last = graph.closing
    if last is not None:
        here = {name: table for name, table in rows.items() if name in last.tensors}
        return replace(graph, rows=rows, closing=with_states(last, here))
    found = dict(rows)
    for operator in graph.operators:
        old = [name for name, _ in operator.updates]
        for table in rows.keys() & set(old):
            for state in set(old) - {table}:
                zeros = np.zeros(rows[table].values.shape, graph.values[state].dtype)
                found[state] = replace(rows[table], values=_frozen(zeros), of=table)
    return replace(graph, rows=found)


def taken(graph: Graph, batch: Mapping[str, Array]) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
    """`batch` as the graph reads it, and for each table the rows that it uses, ascending.

    batch
        Arrays by the names of the graph's inputs, with the numbers of rows where it has their places.
    """
    read, used = dict(batch), {}
    for table, rows in graph.rows.items():
        if rows.ids:
            ids = batch[rows.ids]
            used[table], inverse = np.unique(_positive(ids, len(rows.values)), return_inverse=True)
            read[rows.ids] = inverse.reshape(ids.shape).astype(ids.dtype)
        else:
            used[table] = np.array(rows.fixed)
    return read, used


def whole(graph: Graph) -> dict[str, Array]:
    """The values of `graph`; of tables by rows, all rows."""
    return {**graph.values, **{table: rows.values for table, rows in graph.rows.items()}}


def _chosen(graph: Graph, operator: Operator) -> tuple[str, str] | None:
    """The table and the row numbers of an operator that is one Gather of whole rows; None for others."""
    if len(operator.nodes) != 1 or operator.nodes[0].op_type != "Gather" or operator.nodes[0].domain:
        return None
    node = operator.nodes[0]
    table, ids = node.inputs
    tensor = graph.tensors[table]
    alone = len(graph.readers.get(table, ())) == len(graph.readers.get(ids, ())) == 1
    trained = table in graph.trained and tensor.role is Role.PARAMETER and len(tensor.shape) == 2
    if not (alone and trained and node.attributes.get("axis", 0) == 0 and table not in graph.outputs):
        return None
    if ids not in graph.values and ids not in graph.inputs:
        return None
    count = len(np.unique(graph.values[ids])) if ids in graph.values else _most(graph, ids)
    return (table, ids) if count < tensor.shape[0] else None


def _most(graph: Graph, ids: str) -> int:
    """Says how many rows a batch may use whose numbers the input `ids` has."""
    return graph.tensors[ids].size * (graph.parts if ids in graph.split else 1)


def _positive(ids: Array, count: int) -> Array:
    """Row numbers from 0; ONNX counts negative ones from the end."""
    numbers: Array = ids.astype(np.int64)
    return np.mod(numbers, count)


def _frozen(array: Array) -> Array:
    array.flags.writeable = False
    return array
