"""When transfers can be under way, and what is kept meanwhile: what every separation of `transfer_overlap` needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.rows import Floats, Ints
from poetopt.util.sparse import coo_matrix, csr_matrix


@dataclass(frozen=True)
class Windows:
    """When each transfer can be under way, and what is kept meanwhile. N stages, P page-ins, Q page-outs.

    own_s
        (N,) seconds of each stage's own operator.
    kept, fixed
        (N, points) bytes in the stage row for each kept interval, and (N,) bytes that are there anyway.
    in_tensor, in_after, in_before, out_tensor, out_after, out_before
        Tensors, and the stages strictly between which each lies: (P,) and (Q,).
    """

    own_s: Floats
    kept: csr_matrix
    fixed: Floats
    in_tensor: Ints
    in_after: Ints
    in_before: Ints
    out_tensor: Ints
    out_after: Ints
    out_before: Ints

    @classmethod
    def of(cls, space: RetentionSpace) -> Windows:
        problem, count = space.problem, len(space.problem.operators)
        stages, tensors, bytes_kept = [], [], []
        size = space.tensor_bytes
        for e, i in enumerate(space.point_tensor.tolist()):
            covered = space.spanned(e)
            before = int(space.point_before[e])
            if before >= 0 and not space.point_real[before]:
                # kept on beyond a point that stage's operator doesn't read
                covered.append(int(space.point_stage[before]))
            stages += covered
            tensors += [e] * len(covered)
            bytes_kept += [size[i]] * len(covered)
        kept = coo_matrix((bytes_kept, (stages, tensors)), shape=(count, len(space.point_tensor))).tocsr()
        last_real = np.empty(len(space.point_tensor), dtype=np.int64)
        for i, (first, last) in enumerate(space.tensor_range):
            latest = problem.tensors[i].producer
            for e in range(first, last):
                last_real[e] = latest
                if space.point_real[e]:
                    latest = int(space.point_stage[e])
        paged = space.page_point
        moved = np.unique(space.point_tensor[paged]).tolist()
        outs = np.array([i for i in moved if problem.may_page_out(i)], dtype=np.int64)
        return cls(
            own_s=np.array([operator.time_s for operator in problem.operators]),
            kept=kept,
            fixed=space.working_set_bytes,
            in_tensor=space.point_tensor[paged],
            in_after=last_real[paged],
            in_before=space.point_stage[paged],
            out_tensor=outs,
            out_after=np.array([problem.tensors[i].producer for i in outs.tolist()], dtype=np.int64),
            out_before=np.array(
                [
                    count if space.stored[i] else int(space.point_stage[paged[space.point_tensor[paged] == i]].max())
                    for i in outs.tolist()
                ],
                dtype=np.int64,
            ),
        )
