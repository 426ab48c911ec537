"""Evaluating data: whole batches, and the last rows filled up where that makes no difference."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from poetopt.errors import ModelError
from poetopt.graph import TrainingGraph
from poetopt.step.parted import cut
from poetopt.telling import Told, silent
from poetopt.training.data import DataSet, open_data
from poetopt.training.data.arrays import fault
from poetopt.training.source import Data, Source, batch_size, source_of

if TYPE_CHECKING:
    from poetopt.training.evaluate import Evaluation, Evaluator


def validation_of(data: Data, graph: TrainingGraph, workdir: Path | None = None) -> DataSet | Source:
    """What is evaluated, opened. Raises ModelError."""
    if isinstance(data, (str, os.PathLike, Mapping)):
        return open_data(data, graph, workdir)
    return source_of(data, graph.whole, "sequential", 0, workdir)


def evaluate(
    evaluator: Evaluator,
    data: DataSet | Source,
    told: Told = silent,
    between: Callable[[], object] | None = None,
) -> Evaluation:
    """Loss and accuracy on all of `data`; where the loss is the model's own, on its whole batches.

    between
        Called before each batch.

    Raises ModelError for values that can't be evaluated, ExecutionError where a kernel fails.
    """
    graph = evaluator.graph
    sums, size = evaluator.begin(), batch_size(graph)
    if hasattr(data, "epoch"):
        for k, batch in enumerate(data.epoch(0)):
            told(f"validating: batch {k + 1:,}")
            if between is not None:
                between()
            for part in cut(graph, batch):
                evaluator.add(sums, evaluator.checked(part), size)
        return sums.result()
    for start in range(0, data.rows, size):
        told(f"validating: row {start:,} of {data.rows:,}")
        if between is not None:
            between()
        count = min(size, data.rows - start)
        if count < size and not evaluator.pads:
            break
        rows = np.minimum(np.arange(start, start + size), data.rows - 1)
        batch = data.take(rows)
        for name, array in batch.items():
            if what := fault(graph, name, array):
                raise ModelError(f"{data.where(start)} and those behind it: {what}")
        evaluator.add(sums, evaluator.checked(batch), count)
    if not sums.rows:
        raise ModelError(f"{data.shown}: it fills no batch of {size} rows; give more")
    return sums.result()
