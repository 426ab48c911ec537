"""A scheduling problem: operators and tensors with bytes, seconds and joules only.

Formulations, baselines and the simulator know nothing else. A problem has no views (their readers read the storage)
and no resident tensors (they only add to `resident_bytes`). Names are kept for people.

`Problem` defines once what may happen to a tensor; planners, the simulator, the layout, the file format and the
drawings all ask it. `Problem.beyond` names a feature of the problem that a caller doesn't support.
"""

from poetopt.graph.problem.features import COMPUTES, PLAINLY, Feature, check_supported
from poetopt.graph.problem.problem import CLOSING, Problem, check_problem
from poetopt.graph.problem.tensors import Home, ProblemOperator, ProblemTensor, Transfers, Variant

__all__ = [
    "CLOSING",
    "COMPUTES",
    "PLAINLY",
    "Feature",
    "Home",
    "Problem",
    "ProblemOperator",
    "ProblemTensor",
    "Transfers",
    "Variant",
    "check_problem",
    "check_supported",
]
