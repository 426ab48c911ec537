"""Embedding tables on storage, of which a step reads and writes only the rows of its batch.

A batch of n token numbers uses at most n rows of an embedding. The graph gets a table of n rows instead, and its token
input becomes positions in that table; gradient and update follow from that. The executor of the step chooses the rows
for each batch, and moves only these between RAM and storage.

An update by gradient descent changes no other row (weight decay then applies to the rows in use only). Optimizers with
states do: momentum changes a row that recent batches didn't use. Their tables stay in RAM as a whole unless the user
chooses *lazy* tables. A lazy row and its states change only in the steps that use it, as in torch.optim.SparseAdam;
states are then by rows as well.
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
"""Optimizers whose updates don't change rows that a batch doesn't use."""


def by_rows(graph: Graph, multiple: int = 1) -> Graph:
    """Return `graph` with a table of the batch's rows for each trained table that only one Gather reads.

    The table must have more rows than a batch uses. Micro-batches use one table with the rows of the whole batch, from
    the first micro-batch to the updates.

    Parameters
    ----------
    multiple
        Alignment of rows in bytes; tables with other rows are left as they are.
    """
    rows: dict[str, TableRows] = {}
    tensors, values = dict(graph.tensors), dict(graph.values)
    for operator in graph.operators:
        gather = _table_and_ids(graph, operator)
        if gather is None:
            continue
        table, ids = gather
        full_table, ids_tensor = graph.values[table], graph.tensors[ids]
        if full_table[0].nbytes % multiple:
            continue
        if ids in graph.values:
            used, inverse = np.unique(_nonnegative(graph.values[ids], len(full_table)), return_inverse=True)
            rows[table] = TableRows(full_table, fixed=tuple(used.tolist()))
            values[ids] = _read_only(inverse.reshape(ids_tensor.shape).astype(graph.values[ids].dtype))
            count = len(used)
        else:
            rows[table] = TableRows(full_table, ids=ids)
            count = _max_rows(graph, ids)
        tensors[table] = Tensor(
            table, (count, *full_table.shape[1:]), graph.tensors[table].dtype, graph.tensors[table].role
        )
        values[table] = _read_only(np.zeros(tensors[table].shape, full_table.dtype))
    return replace(graph, tensors=tensors, values=values, rows=rows) if rows else graph


def with_states(graph: TrainingGraph, rows: Mapping[str, TableRows]) -> TrainingGraph:
    """Return `graph`, a step of a graph with these `rows`, with the tables' optimizer states by rows as well."""
    update_graph = graph.closing
    if update_graph is not None:
        update_rows = {name: table for name, table in rows.items() if name in update_graph.tensors}
        return replace(graph, rows=rows, closing=with_states(update_graph, update_rows))
    all_rows = dict(rows)
    for operator in graph.operators:
        old = [name for name, _ in operator.updates]
        for table in rows.keys() & set(old):
            for state in set(old) - {table}:
                zeros = np.zeros(rows[table].values.shape, graph.values[state].dtype)
                all_rows[state] = replace(rows[table], values=_read_only(zeros), of=table)
    return replace(graph, rows=all_rows)


def taken(graph: Graph, batch: Mapping[str, Array]) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
    """Return the graph's inputs for `batch`, and the rows of each table that it uses, ascending.

    Parameters
    ----------
    batch
        Arrays by input name, with row numbers of the full table. The result has positions instead.
    """
    read, used = dict(batch), {}
    for table, rows in graph.rows.items():
        if rows.ids:
            ids = batch[rows.ids]
            used[table], inverse = np.unique(_nonnegative(ids, len(rows.values)), return_inverse=True)
            read[rows.ids] = inverse.reshape(ids.shape).astype(ids.dtype)
        else:
            used[table] = np.array(rows.fixed)
    return read, used


def whole(graph: Graph) -> dict[str, Array]:
    """Return the values of `graph`, with all rows of tables by rows."""
    return {**graph.values, **{table: rows.values for table, rows in graph.rows.items()}}


def _table_and_ids(graph: Graph, operator: Operator) -> tuple[str, str] | None:
    """Return table and row numbers of a Gather whose table can be reduced to the batch's rows, else None."""
    if len(operator.nodes) != 1 or operator.nodes[0].op_type != "Gather" or operator.nodes[0].domain:
        return None
    node = operator.nodes[0]
    table, ids = node.inputs
    tensor = graph.tensors[table]
    is_only_reader = len(graph.readers.get(table, ())) == len(graph.readers.get(ids, ())) == 1
    is_trained_table = table in graph.trained and tensor.role is Role.PARAMETER and len(tensor.shape) == 2
    if not (is_only_reader and is_trained_table and node.attributes.get("axis", 0) == 0 and table not in graph.outputs):
        return None
    if ids not in graph.values and ids not in graph.inputs:
        return None
    count = len(np.unique(graph.values[ids])) if ids in graph.values else _max_rows(graph, ids)
    return (table, ids) if count < tensor.shape[0] else None


def _max_rows(graph: Graph, ids: str) -> int:
    """Return the largest number of rows that a batch uses, whose numbers are the input `ids`."""
    return graph.tensors[ids].size * (graph.parts if ids in graph.split else 1)


def _nonnegative(ids: Array, count: int) -> Array:
    """Return row numbers from 0; ONNX counts negative ones from the end."""
    numbers: Array = ids.astype(np.int64)
    return np.mod(numbers, count)


def _read_only(array: Array) -> Array:
    array.flags.writeable = False
    return array
