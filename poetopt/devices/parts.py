"""A batch in parts as one problem: what a step costs is all parts' runs, and the updates that follow them."""

from __future__ import annotations

from dataclasses import fields, replace

from poetopt.devices.homes import homes
from poetopt.devices.model import Device
from poetopt.graph import TrainingGraph
from poetopt.graph.problem import CLOSING, Problem, ProblemOperator, ProblemTensor, Transfers


def of_all_parts(
    part: Problem, closing: Problem | None, graph: TrainingGraph, device: Device, parameters: str
) -> Problem:
    """The step whose parts are alike: `part` is of one run, `closing` of what follows the last.

    part, closing
        Of `graph` and of `graph.closing` on the device, with such `parameters`.
    """
    step = replace(
        part,
        operators=tuple(_times(operator, graph.parts) for operator in part.operators),
        tensors=tuple(_moved_times(tensor, graph.parts) for tensor in part.tensors),
        wake_j=graph.parts * part.wake_j,
        parts=graph.parts,
    )
    if closing is None or graph.closing is None:
        return step
    reserve = max(part.reserve_bytes, closing.reserve_bytes)
    there = homes(graph, device, parameters).ram
    again = [name for name in homes(graph.closing, device, parameters).ram if name in there]
    return replace(
        step,
        reserve_bytes=reserve,
        resident_bytes=part.resident_bytes
        + closing.resident_bytes
        - sum(graph.closing.tensors[name].nbytes for name in again),
        flash_bytes=part.flash_bytes + closing.flash_bytes,
        closing=replace(closing, reserve_bytes=reserve, graph=None, **CLOSING),
    )


def _times(operator: ProblemOperator, parts: int) -> ProblemOperator:
    return replace(
        operator,
        time_s=parts * operator.time_s,
        energy_j=parts * operator.energy_j,
        variants=tuple(
            replace(way, time_s=parts * way.time_s, energy_j=parts * way.energy_j) for way in operator.variants
        ),
    )


def _moved_times(tensor: ProblemTensor, parts: int) -> ProblemTensor:
    figures = {field.name: parts * getattr(tensor.transfers, field.name) for field in fields(Transfers)}
    return tensor.moved_for(**figures)
