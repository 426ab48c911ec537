"""Method `dearest`: the outputs of the k dearest forward operators are kept, for any k, and the rest is recomputed.

Nobody's; an example. Defined for general graphs: what isn't kept is recomputed from the nearest that is.
"""

from __future__ import annotations

from collections.abc import Iterator

from poetopt.comparison.baselines import Baseline, Features
from poetopt.comparison.baselines.acceptance import DEFAULTS, Settings, cheapest
from poetopt.comparison.baselines.keeping import checkpointed, forward_operators
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
from poetopt.plan.schedule import Schedule


def schedule(problem: Problem, ram_bytes: int, settings: Settings = DEFAULTS) -> Plan:
    """The dearest k are kept, for any k. Raises NoScheduleError where no k fits."""
    ranked = sorted(forward_operators(problem), key=lambda v: (-problem.operators[v].energy_j, v))

    def swept() -> Iterator[Schedule]:
        for k in range(len(ranked) + 1):
            yield from checkpointed(problem, ranked[:k])

    return cheapest(problem, ram_bytes, swept(), settings)


dearest = Baseline(
    "dearest",
    "the outputs of the dearest operators are kept",
    "nobody; an example",
    Features(general_graphs=True, compute_aware=True, power_aware=True),
    "poetopt_wakeups.dearest",
)
