"""A scheduling problem: operators and tensors with bytes, seconds and joules, and nothing else.

It is all that formulations, baselines and the simulator know. Views are gone (their readers read
the storage), resident tensors are gone (they only add to `resident_bytes`), names are kept for people.

What may happen to a tensor is said here, once: whoever plans, simulates, lays out, stores or draws a schedule asks
`Problem`. `beyond` says what of a problem somebody can't plan for.
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
