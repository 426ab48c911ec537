"""Algorithm 1 of the POET paper (ICML 2022), line by line as a model of HiGHS: nothing of poetopt is in it.

Nodes and timesteps are 1..n as printed; node i writes one tensor, and may run, be kept or move in any timestep. U is
that of Checkmate (Jain et al. 2020): equations 2 and 3, FREE linearised by its number of hazards as in their section
4.7. Readings where the page leaves a choice:

- S_{1,i} = 0 is of both memories, and 1e holds at t = 1 too: else a tensor could be paged in that nobody computed.
- M_{t,i} in or out costs what it costs in the timestep in which it is 1, the last one included.
- R, S are those of Checkmate, "frontier-advancing": R_{t,i} = 0 for i > t, S_{t,i} = 0 for i >= t (`ahead` lifts it).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import highspy


@dataclass(frozen=True)
class PaperGraph:
    """Node i (from 0 here) reads `reads[i]` and writes one tensor of `nbytes[i]`; joules and seconds of each."""

    reads: Sequence[Sequence[int]]
    nbytes: Sequence[int]
    compute_j: Sequence[float]
    compute_s: Sequence[float]
    in_j: Sequence[float]
    out_j: Sequence[float]


def algorithm_1(graph: PaperGraph, ram: int, deadline_s: float | None = None, *, ahead: bool = False) -> float:
    """The least joules of a step, infinite where there is no schedule.

    ahead
        Whether nodes may run before their own timestep.
    """
    n = len(graph.reads)
    V = range(1, n + 1)
    edges = [(i + 1, j + 1) for j, read in enumerate(graph.reads) for i in read]
    users = {i: [j for k, j in edges if k == i] for i in V}
    m = dict(zip(V, graph.nbytes, strict=True))
    h = highspy.Highs()  # type: ignore[no-untyped-call]
    h.silent()
    R, S_ram, S_aux, M_in, M_out = ({(t, i): h.addBinary() for t in V for i in V} for _ in range(5))

    h.addConstrs(R[t, i] + S_ram[t, i] >= R[t, j] for t in V for i, j in edges)  # 1b
    for i in V:
        for t in V[1:]:
            h.addConstr(R[t - 1, i] + S_ram[t - 1, i] + M_in[t - 1, i] >= S_ram[t, i])  # 1c
            h.addConstr(S_aux[t - 1, i] + M_out[t - 1, i] >= S_aux[t, i])  # 1d
        for t in V:
            h.addConstr(S_aux[t, i] >= M_in[t, i])  # 1e
            h.addConstr(S_ram[t, i] >= M_out[t, i])  # 1f
        h.addConstr(S_ram[1, i] + S_aux[1, i] == 0)
        h.addConstr(R[i, i] == 1)
    if not ahead:
        h.addConstrs(R[t, i] == 0 for t in V for i in V if i > t)
        h.addConstrs(S_ram[t, i] == 0 for t in V for i in V if i >= t)
    for t in V:
        _memory(h, R, S_ram, t, n, m, users, graph.reads, ram)
    if deadline_s is not None:
        h.addConstr(sum(graph.compute_s[i - 1] * R[t, i] for t in V for i in V) <= deadline_s)  # eq. 3
    h.setOptionValue("mip_rel_gap", 0.0)
    h.minimize(
        sum(
            graph.compute_j[i - 1] * R[t, i] + graph.in_j[i - 1] * M_in[t, i] + graph.out_j[i - 1] * M_out[t, i]
            for t in V
            for i in V
        )
    )
    status = h.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return math.inf
    assert status == highspy.HighsModelStatus.kOptimal
    return float(h.getInfo().objective_function_value)


def _memory(h, R, S, t, n, m, users, reads, ram) -> None:  # type: ignore[no-untyped-def]
    """U_{t,k} <= ram for each k: what is kept into timestep t, and what its nodes write and free in turn."""
    used = sum(m[i] * S[t, i] for i in range(1, n + 1))
    freed = 0
    for k in range(1, n + 1):
        used = used - freed + m[k] * R[t, k]
        h.addConstr(used <= ram)
        freed = 0
        for i in sorted({k, *(r + 1 for r in reads[k - 1])}):
            later = [R[t, j] for j in users[i] if j > k]
            hazards = 1 - R[t, k] + sum(later, start=0)
            most = 1 + len(later)
            if t < n:
                hazards = hazards + S[t + 1, i]
                most += 1
            free = h.addBinary()
            h.addConstr(1 - free <= hazards)
            h.addConstr(most * (1 - free) >= hazards)
            freed = freed + m[i] * free
