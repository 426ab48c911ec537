"""Where memory is short: the stages at which windows of chain cuts are worth beginning.

Of two windows that a point breaks alike, the one to cut is the one that the final relaxation will rest on: it begins
where keeping a tensor is dearest. A single point doesn't tell, as one whose recomputes cost nothing yet keeps little;
so stages are weighed by how often memory was full there so far, or a scope inside had a cut that binds, times what is
there in ordinary training.
"""

from __future__ import annotations

import numpy as np

from poetopt.formulations.retention.memory import stage_bytes
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.rows import Floats

FULL = 1e-4
"""Memory is full but for this share of it."""


class Pressure:
    """What a model's points have shown of it. N stages.

    by_stage
        (N,) how short memory is between each stage and the next; 0 where it never was full.
    """

    def __init__(self, space: RetentionSpace) -> None:
        self._space = space
        self._kept_bytes = _store_all_bytes(space)
        self.by_stage: Floats = np.zeros(len(self._kept_bytes))

    def begun(self, stage: int) -> None:
        """Learn from a cut that another scope's bound rests on, whose window begins there."""
        self.by_stage[stage] += self._kept_bytes[stage]

    def note(self, kept: Floats, streamed: Floats | None = None) -> None:
        """Learn from a point: `kept` (n_points,) are its values of k, `streamed` (n_streams,) those of y."""
        here = stage_bytes(self._space, kept, streamed) >= (1 - FULL) * self._space.room_bytes
        self.by_stage += (here | np.append(here[1:], False)) * self._kept_bytes


def _store_all_bytes(space: RetentionSpace) -> Floats:
    """(N,) bytes that are there in each stage of ordinary training."""
    problem = space.problem
    steps = np.zeros(len(problem.operators) + 1)
    for nbytes, tensor, readers in zip(space.tensor_bytes, problem.tensors, problem.readers, strict=True):
        first = tensor.first_stage
        steps[first] += nbytes
        steps[max((first, *readers)) + 1] -= nbytes
    return np.asarray(np.cumsum(steps)[:-1])
