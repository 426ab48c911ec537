"""Readable names of the variables, for model files: what is decided, in which stage, about what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from poetopt.formulations.retention.space import RetentionSpace


def labels(model: Any) -> list[tuple[Any, Sequence[str]]]:
    """`recompute.s12.3.conv1`: operator 3, conv1, is run again in stage 12; likewise `keep`, `page_in`, `page_out`."""
    space: RetentionSpace = model.space
    operators, tensors = space.problem.operators, space.problem.tensors
    points = list(zip(space.point_stage.tolist(), space.point_tensor.tolist(), strict=True))
    again = zip(space.recompute_stage.tolist(), space.recompute_operator.tolist(), strict=True)
    found: list[tuple[Any, Sequence[str]]] = [
        (model.recompute.r, [f"recompute.s{t}.{j}.{operators[j].name}" for t, j in again]),
        (model.residency.k, [f"keep.s{t}.{i}.{tensors[i].name}" for t, i in points]),
    ]
    if space.paging:
        paged = [points[e] for e in space.page_point.tolist()]
        found += [
            (model.paging.p, [f"page_in.s{t}.{i}.{tensors[i].name}" for t, i in paged]),
            (model.paging.o, [f"page_out.{i}.{tensors[i].name}" for i in model.paging.o_tensor]),
        ]
    if space.streams:
        ways = zip(space.streams.stage.tolist(), space.streams.operator.tolist(), space.streams.variant, strict=True)
        found.append((model.streaming.y, [f"stream.s{t}.{j}.{v}.{operators[j].name}" for t, j, v in ways]))
        found.append((model.memory.held, [f"held.s{t}.{i}.{tensors[i].name}" for i, t in space.held]))
    if space.paging and space.problem.closing is not None:
        behind = space.problem.closing.operators
        found.append((model.closing.y, [f"closing.{u}.{v}.{behind[u].name}" for u, v in model.closing.ways]))
    if space.transfer_times:
        names = [f"page_out.s{t}.{i}.{tensors[i].name}" for i, t in model.page_out_times.index]
        found.append((model.page_out_times.x, names))
    return found
