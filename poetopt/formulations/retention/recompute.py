r"""Block `recompute`: operators that run again, by stage.

For each operator j that may be recomputed in stage t

$$ r_{j,t} \in \{0, 1\}, \qquad
   E = \sum_{j,t} \Phi_j\, r_{j,t}, \qquad T = \sum_{j,t} \Psi_j\, r_{j,t} $$

| symbol      | attribute | unit | meaning                                     |
|-------------|-----------|------|---------------------------------------------|
| $r_{j,t}$   | `r`       | -    | operator j runs again in stage t            |
| $\Phi_j$    | -         | J    | energy of one compute                       |
| $\Psi_j$    | -         | s    | time of one compute                         |

Source: the paper's R restricted to t != j (R[t,t] = 1 is no decision).
"""

from __future__ import annotations

import numpy as np
import pyomo.core as pyo

from poetopt.formulations.block import Block, PyomoBlock
from poetopt.formulations.decisions import Decisions
from poetopt.formulations.figures import figures
from poetopt.formulations.rows import total


def _build(block: PyomoBlock) -> None:
    model = block.model()
    space = model.space
    block.r = pyo.Var(model.recomputations, domain=pyo.Binary)
    compute_j, compute_s = figures(model, "compute_j"), figures(model, "compute_s")
    again = list(zip(space.recompute_operator.tolist(), block.r.values(), strict=True))
    block.energy_j = total((compute_j[j], r) for j, r in again)
    block.compute_s = total((compute_s[j], r) for j, r in again)
    block.recomputes = Decisions(
        block.r, np.arange(len(space.recompute_operator)), space.recompute_stage, space.recompute_operator
    )


recompute = Block("recompute", _build)
