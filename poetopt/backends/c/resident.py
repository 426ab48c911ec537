"""Where each storage lies on a device that no schedule moves: in the resident region, or in mapped flash."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from poetopt.devices.homes import in_flash
from poetopt.graph import DTYPE_BYTES, TrainingGraph
from poetopt.operators.resident import resident_storages
from poetopt.problem import Problem
from poetopt.runtimes.c.kernel import WORD_BYTES
from poetopt.step.parted import scheduled_names


@dataclass(frozen=True, slots=True)
class Span:
    """Storages next to each other whose values are given: where they start, and which they are, in order."""

    offset: int
    nbytes: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resident:
    """The resident region, or what is in flash.

    offsets
        Where each storage starts, by name. The widest elements come first, so that each is aligned for its own.
    nbytes
        Size of it all: the sum of the storages' sizes, and what kernels keep.
    given
        What has a value before the step (parameters, constants), in as few spans as there are.
    kept
        Where the words start that kernels keep from step to step.
    """

    offsets: Mapping[str, int]
    nbytes: int
    given: tuple[Span, ...]
    kept: int = 0


def lay_out_resident(graph: TrainingGraph, problem: Problem, kept_bytes: int = 0) -> tuple[Resident, Resident]:
    """The resident region of a step, and what of it `problem` has in mapped flash.

    graph
        All of the step: of a batch in parts, `TrainingGraph.joint`.
    kept_bytes
        What kernels keep from step to step, in the region as well.
    """
    scheduled = scheduled_names(problem)
    flash = in_flash(graph, problem.flash_bytes)
    ram = [name for name in resident_storages(graph) if name not in scheduled and name not in flash]
    return _side_by_side(graph, ram, kept_bytes), _side_by_side(graph, flash, 0)


def _side_by_side(graph: TrainingGraph, names: Iterable[str], kept_bytes: int) -> Resident:
    """Without a byte between: by width of the elements, then what is given, then in the order of `names`.

    The words of kernels come behind all elements that are as wide or wider.
    """
    first = graph.values.keys() - {*graph.sums.values()}  # sums begin with zeros, whatever there is
    roots = sorted(names, key=lambda name: (-DTYPE_BYTES[graph.tensors[name].dtype], name not in first))
    offsets: dict[str, int] = {}
    spans: list[Span] = []
    end = 0
    kept = -1
    for name in roots:
        nbytes = graph.tensors[name].nbytes
        if kept < 0 and DTYPE_BYTES[graph.tensors[name].dtype] < WORD_BYTES:
            kept = end
            end += kept_bytes
        offsets[name] = end
        if name in first:
            last = spans[-1] if spans else None
            if last is not None and last.offset + last.nbytes == end:
                spans[-1] = Span(last.offset, last.nbytes + nbytes, (*last.names, name))
            else:
                spans.append(Span(end, nbytes, (name,)))
        end += nbytes
    if kept < 0:
        kept = end
        end += kept_bytes
    return Resident(offsets, end, tuple(spans), kept)
