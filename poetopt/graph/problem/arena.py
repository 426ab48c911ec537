"""What buffers and runs take of the arena, where each begins at a multiple of the alignment."""

from __future__ import annotations

from poetopt.graph.problem.problem import Problem


def slots(problem: Problem, nbytes: int) -> int:
    """What a buffer of so many bytes takes of the arena."""
    return -(-nbytes // problem.alignment) * problem.alignment


def extra_slots(problem: Problem, operator: int) -> int:
    """What a plain run takes of the arena beside operands and outputs: its workspace, less an input it takes over."""
    op = problem.operators[operator]
    return slots(problem, op.workspace_bytes) - sum(slots(problem, problem.tensors[i].nbytes) for i in op.takes[:1])


def run_bytes(problem: Problem, operator: int, variant: int = 0) -> int:
    """What operands, outputs and workspace of a run take of the arena, without what it streams."""
    op = problem.operators[operator]
    sizes = [*(problem.tensors[i].nbytes for i in op.held(variant)), op.variant(variant).workspace_bytes]
    return sum(slots(problem, nbytes) for nbytes in sizes)
