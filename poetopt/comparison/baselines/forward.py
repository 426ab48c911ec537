"""The forward graph, as the heuristics for chains see it."""

from __future__ import annotations

from poetopt.graph.problem import Problem


def forward_operators(problem: Problem) -> tuple[int, ...]:
    """The forward operators, in order."""
    return tuple(index for index, operator in enumerate(problem.operators) if not operator.backward)


def articulation_points(problem: Problem) -> tuple[int, ...]:
    """The forward operators without which the undirected forward graph falls apart, in order.

    Operators are its vertices, and an edge joins the writer and a reader of a tensor. Depth-first
    search with low points (Hopcroft & Tarjan 1973), without recursion: a vertex other than a root separates the
    subtree of a child that reaches nothing above it; a root does if it has several children.
    """
    vertices = forward_operators(problem)
    neighbours: dict[int, set[int]] = {vertex: set() for vertex in vertices}
    for tensor, readers in zip(problem.tensors, problem.readers, strict=True):
        for reader in readers:
            if tensor.producer in neighbours and reader in neighbours:
                neighbours[tensor.producer].add(reader)
                neighbours[reader].add(tensor.producer)
    found: set[int] = set()
    entered: dict[int, int] = {}
    low: dict[int, int] = {}
    for root in vertices:
        if root in entered:
            continue
        entered[root] = low[root] = len(entered)
        children = 0
        path = [(root, -1, iter(sorted(neighbours[root])))]
        while path:
            vertex, parent, ahead = path[-1]
            child = next(ahead, None)
            if child is None:
                path.pop()
                if path:
                    low[parent] = min(low[parent], low[vertex])
                    if parent != root and low[vertex] >= entered[parent]:
                        found.add(parent)
            elif child not in entered:
                entered[child] = low[child] = len(entered)
                children += vertex == root
                path.append((child, vertex, iter(sorted(neighbours[child]))))
            elif child != parent:
                low[vertex] = min(low[vertex], entered[child])
        if children > 1:
            found.add(root)
    return tuple(sorted(found))
