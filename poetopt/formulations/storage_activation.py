r"""Block `storage_activation`: energy of powering the storage on, once for each run of transfers without a pause.

Gap c is the time between stage c's own operator and the last operator before it that takes any time. Let $w_c$ be the
number of runs that begin in gap c. Without DMA a run lies in one gap, and for every page-in

$$ \sum_{c \in (a, q]} w_c \ge p_{i,q}, \qquad \sum_{c \in (g(i), q]} w_c \ge 2\, p_{i,q}, \qquad E = W \sum_c w_c $$

where $p_{i,q}$ is the page-in of i in stage q (`decisions`) and a the last real use of i before it. The page-in comes
after a, and the page-out after the operator g(i) that writes i. A tensor that goes out and comes back in one run was
never away. (If some operator takes no time it may have been, so the 2 is then a 1.) With DMA a run may continue during
operators. Let $b_c$ say that the channel was busy all through the operator before gap c:

$$ \sum_{c \in (a, q]} (w_c + b_c) \ge p_{i,q}, \qquad \sum_c w_c \ge p_{i,q}, \qquad \sum_c \Psi_c b_c \le X. $$

| symbol  | attribute | unit | meaning                                                     |
|---------|-----------|------|-------------------------------------------------------------|
| $w_c$   | `w`       | -    | runs of transfers that begin in gap c                       |
| $b_c$   | `b`       | -    | a run continues during the operator before gap c (DMA)      |
| W       | -         | J    | energy of waking the storage (`Problem.wake_j`)             |

The rows are necessary whenever tensors are written, as they assume only that a page-out comes after g(i). They leave
out the RAM of transfers that wait for others, and recomputes that split a gap; the simulator charges for both. Neither
w nor b needs integrality: without DMA the rows are intervals.

Source: section 5.5 of the paper, in which the energy of powering the storage on dominates.
"""

from __future__ import annotations

import bisect
import itertools

import numpy as np
import pyomo.core as pyo

from poetopt.formulations.block import Block, PyomoBlock, PyomoRow, Space, equation
from poetopt.formulations.decisions import page_ins
from poetopt.formulations.rows import Terms, linear, terms
from poetopt.graph.problem import Problem


def _build(block: PyomoBlock) -> None:
    model = block.model()
    problem: Problem = model.space.problem
    seconds = [operator.time_s for operator in problem.operators]
    gap_of = list(itertools.accumulate((int(s > 0) for s in seconds), initial=0))
    count = gap_of[-1] + 1
    before_s = [0.0] * count
    for stage, duration in enumerate(seconds):
        if duration > 0:
            before_s[gap_of[stage + 1]] = duration
    back = page_ins(model)
    block.w = pyo.Var(pyo.RangeSet(0, count - 1), bounds=(0, 2))  # no row requires more
    block.b = pyo.Var(pyo.RangeSet(0, count - 1), bounds=(0, 1))
    w, b = list(block.w.values()), list(block.b.values())
    for c in range(count):
        if not problem.dma or not c:
            b[c].fix(0)
    twice = 2.0 if all(s > 0 for s in seconds) and not problem.dma else 1.0

    def arrival(i: int, stage: int) -> PyomoRow:
        gaps = range(gap_of[_last_real_use(problem, i, stage) + 1], gap_of[stage] + 1)
        return sum(w[c] + b[c] if problem.dma else w[c] for c in gaps) >= p[i, stage]

    def both(i: int, stage: int) -> PyomoRow:
        if problem.tensors[i].stored:
            return pyo.Constraint.Skip  # its page-out, if any, comes after its update
        first = 0 if problem.dma else gap_of[problem.tensors[i].producer + 1]
        return sum(w[c] for c in range(first, gap_of[stage] + 1)) >= twice * p[i, stage]

    p = {(one.target, one.stage): one.variable for one in back}
    block.moved = pyo.Set(initialize=list(p), dimen=2, doc="(i, q): tensor i may be paged in for stage q")
    block.arrival = equation(block.moved, arrival, "the storage wakes between the last use and the page-in")
    block.both = equation(block.moved, both, "the storage wakes for the page-out as well as for the page-in")
    if problem.dma:
        moving = model.paging.transfer_s
        busy = linear([Terms(b, before_s), Terms(moving.variables, [-s for s in moving.coefficients])])
        block.busy = pyo.Constraint(
            rule=lambda _: (None, busy, 0), doc="the channel is busy no longer than it transfers"
        )
    block.energy_j = terms(block.w, np.full(count, problem.wake_j))


def _last_real_use(problem: Problem, i: int, stage: int) -> int:
    """Return the last stage before `stage` whose own operator reads tensor i, or else that of its producer."""
    readers = problem.readers[i]
    place = bisect.bisect_left(readers, stage)
    return readers[place - 1] if place else problem.tensors[i].producer


def _needed(space: Space) -> bool:
    # a run of transfers may begin with a streamed compute, whose power-ons only the simulator counts
    return space.paging and space.problem.wake_j > 0 and not getattr(space, "streams", ())


storage_activation = Block("storage_activation", _build, requires=("paging",), when=_needed)
