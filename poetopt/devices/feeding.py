"""Which inputs of a step begin on storage: those that alone would take more RAM than any operator."""

from __future__ import annotations

from dataclasses import replace

from poetopt.graph import TrainingGraph
from poetopt.graph.problem import Home, Problem


def fed_from_storage(problem: Problem, graph: TrainingGraph) -> Problem:
    """`problem`, whose largest inputs begin on storage until what begins in RAM takes no more than an operator has to.

    Whoever feeds the step writes a batch there, and reading it needs no page-out. What says which rows of a table are
    read stays in RAM.
    """
    least = max(map(problem.least_working_set_bytes, range(len(problem.operators))), default=0)
    ids = {graph.root(rows.ids) for rows in graph.rows.values() if rows.ids}
    start = problem.start_bytes
    inputs = [i for i, t in enumerate(problem.tensors) if not t.computed and t.home is Home.RAM and t.name not in ids]
    tensors = list(problem.tensors)
    notes: list[str] = []
    for i in sorted(inputs, key=lambda i: (-tensors[i].nbytes, i)):
        if start <= least:
            break
        start -= tensors[i].nbytes
        tensors[i] = replace(tensors[i], home=Home.STORAGE, carried=True, of_batch=True)
        notes.append(
            f"the input {tensors[i].name!r} of {tensors[i].nbytes:,} B begins on storage, where each step's batch is "
            "to be written: in RAM it would take more than any operator"
        )
    return replace(problem, tensors=tuple(tensors), notes=(*problem.notes, *notes)) if notes else problem
