"""What a step consists of, in order and as data: nodes to run and tensors to move, each with its places.

A place is an offset in the arena or a storage of the resident region, so that a step is the same wherever the two lie.
A view inside an operator is no part: its bytes are where they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from poetopt.graph import Node, Operator
from poetopt.operators.nodes import is_inner_view
from poetopt.plan.instructions import Action, Plan
from poetopt.problem import ProblemTensor
from poetopt.step.places import Moment, Place, Places, moments
from poetopt.step.slices import RunSlice, SlicePart, slice_parts


@dataclass(frozen=True, slots=True)
class RunNode:
    """Run one node of an operator; `places` has every tensor that the node names."""

    node: Node
    operator: Operator
    places: Mapping[str, Place]


@dataclass(frozen=True, slots=True)
class Transfer:
    """Move a tensor between the arena, where it lies at `offset`, and storage: `action` is a page-out or a page-in."""

    action: Action
    tensor: ProblemTensor
    offset: int


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Return what kernels have freed to the system: the next kernel could take new pages beside that."""


Part = RunNode | Transfer | GiveBack | SlicePart


@dataclass(frozen=True, slots=True)
class Instructed:
    """What one instruction of a plan comes to.

    number
        Its index in the plan.
    parts
        What is done, in order; nothing for a FREE.
    given_up
        Offset and bytes of what nobody reads afterwards.
    """

    number: int
    parts: tuple[Part, ...]
    given_up: tuple[tuple[int, int], ...]


def instructed(plan: Plan, places: Places) -> Iterator[Instructed]:
    """The step of a laid-out plan, instruction by instruction.

    Before a node whose kernel could bring what kernels took since memory was given back over the plan's reserve, by
    the runtime's own figures, there is a `GiveBack`.
    """
    problem = plan.problem
    room = problem.reserve_bytes - places.runtime.reserve_bytes(0)
    taken = 0
    for moment in moments(plan):
        action, target = moment.instruction.action, moment.instruction.target
        if action is not Action.COMPUTE:
            tensor = problem.tensors[target]
            if action is Action.FREE:  # of nothing where an output has taken it over
                freed = ((moment.at[target], tensor.nbytes),) if target in moment.at else ()
                yield Instructed(moment.number, (), freed)
            else:
                yield Instructed(moment.number, (Transfer(action, tensor, moment.at[target]),), ())
            continue
        operator = places.operators[problem.operators[target].name]
        parts: list[Part] = []
        sliced = bool(moment.instruction.variant or problem.operators[target].takes)
        for kernel, part in _run(operator, moment, places, sliced=sliced):
            if taken and taken + kernel > room:
                parts.append(GiveBack())
                taken = 0
            taken += kernel
            if part is not None:
                parts.append(part)
        workspaces = tuple((buffer.offset, buffer.nbytes) for buffer in moment.made if buffer.workspace)
        yield Instructed(moment.number, tuple(parts), workspaces)


def _run(operator: Operator, moment: Moment, places: Places, *, sliced: bool) -> Iterator[tuple[int, Part | None]]:
    """What a COMPUTE comes to, each with what its kernel allocates."""
    if sliced:
        for part in slice_parts(operator, moment, places):
            yield part.kernel_bytes if isinstance(part, RunSlice) else 0, part
        return
    inner = places.inner(operator)
    for node, kernel in zip(operator.nodes, inner.kernel_bytes, strict=True):
        if is_inner_view(node, inner.storage):
            yield kernel, None
        else:
            names = dict.fromkeys(name for name in (*node.inputs, *node.outputs) if name)
            yield kernel, RunNode(node, operator, {name: places.of(name, operator, moment) for name in names})
