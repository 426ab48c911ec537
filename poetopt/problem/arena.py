"""What buffers and runs take of the arena, where each begins at a multiple of the alignment."""

from __future__ import annotations

from poetopt.problem.problem import Problem


def slots(problem: Problem, nbytes: int) -> int:
    """What a buffer of so many bytes takes of the arena."""
    return -(-nbytes // problem.alignment) * problem.alignment


def extra_slots(problem: Problem, operator: int, variant: int = 0) -> int:
    """What a run takes of the arena beside operands and outputs: its workspace, less an input that it takes over."""
    op = problem.operators[operator]
    taken = op.takes[:1] if not variant else ()
    workspace = slots(problem, op.variant(variant).workspace_bytes)
    return workspace - sum(slots(problem, problem.tensors[i].nbytes) for i in taken)


def run_bytes(problem: Problem, operator: int, variant: int = 0) -> int:
    """What operands, outputs and workspace of a run take of the arena, without what it streams."""
    op = problem.operators[operator]
    way = op.variant(variant)
    whole = [*({*op.inputs} - {*way.streamed_in}), *({*op.outputs} - {*way.streamed_out})]
    return sum(slots(problem, problem.tensors[i].nbytes) for i in whole) + extra_slots(problem, operator, variant)
