"""Index sets of `poet`: stages x operators and stages x tensors, as in Algorithm 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from poetopt.formulations.block import IndexSet, Kind, Limits
from poetopt.graph.problem import COMPUTES, PLAINLY, Feature, Problem, check_supported
from poetopt.util.errors import FormulationError

SUPPORTS = frozenset({Feature.STORED, Feature.UPDATED, *COMPUTES, *PLAINLY})
"""Features of problems that the formulation supports. Its operators run without streaming, as in Algorithm 1."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PoetSpace:
    """Pairs (stage t, operator j <= t) and (stage t, tensor i that exists before t), in order.

    An operator first runs in its own stage and may run again in any later one ("frontier-advancing", Checkmate section
    4.6). A run before its stage saves nothing, since the operator runs in its stage anyway.
    """

    problem: Problem
    limits: Limits
    name: str
    paging: bool
    remat: bool

    def __deepcopy__(self, memo: object) -> PoetSpace:
        """Return the object itself: Pyomo copies what is on a model, and this never changes."""
        return self

    @property
    def room_bytes(self) -> int:
        """Budget of the arena in bytes: the limit less what kernels allocate outside of the arena."""
        return self.limits.ram_bytes - self.problem.reserve_bytes

    @cached_property
    def computes(self) -> list[tuple[int, int]]:
        """Pairs (t, j): operator j may run in stage t; (t, t) always does."""
        operators, last_run = self.problem.operators, self.problem.last_run
        return [
            (t, j)
            for t in range(len(operators))
            for j in range(t + 1)
            if j == t or (self.remat and operators[j].recomputable and t <= last_run[j])
        ]

    @cached_property
    def residences(self) -> list[tuple[int, int]]:
        """Pairs (t, i): tensor i may be in RAM or on storage as stage t begins; after the last stage only `lasting`."""
        tensors = self.problem.tensors
        stages = range(len(self.problem.operators))
        pairs = [(t, i) for t in stages for i in range(len(tensors)) if tensors[i].producer < t]
        return [*pairs, *((len(stages), i) for i in self.lasting if stages)]

    @cached_property
    def residents(self) -> list[int]:
        """Tensors that may be in RAM or on storage when a stage begins, ascending."""
        return sorted({i for _, i in self.residences})

    def begins(self, t: int, i: int) -> bool:
        """Return whether (t, i) is the first residence of tensor i: right after its first compute, or stage 0."""
        return t == self.problem.tensors[i].producer + 1

    @cached_property
    def lasting(self) -> list[int]:
        """Tensors for which the model chooses RAM, storage or both from one step to the next, ascending."""
        return [i for i in self.problem.stored_at_start if self.problem.tensors[i].carried]

    def arrives(self, t: int, i: int) -> int | None:
        """Return the stage before which tensor i arrives if it is paged in during stage t; None if it can't be.

        A tensor that arrives during the last stage is there for the first stage of the next step. An update holds its
        tensor in RAM, and makes the copy on storage invalid.
        """
        count = len(self.problem.operators)
        if t == count or t == self.problem.tensors[i].updated_by:
            return None
        return 0 if t == count - 1 and self.problem.tensors[i].stored else t + 1

    def paged_in(self, stage: int, i: int) -> tuple[int, int] | None:
        """Return the residence whose M_in brings tensor i back before `stage`, or None."""
        t = (stage or len(self.problem.operators)) - 1
        return (t, i) if self.problem.tensors[i].producer < t and self.arrives(t, i) == stage else None

    def frozen(self, i: int) -> bool:
        """Return whether storage always holds a valid copy of tensor i: no operator updates it."""
        return self.problem.tensors[i].stored and not self.problem.tensors[i].updated

    def unwritten(self, t: int, i: int) -> bool:
        """Return whether tensor i is never written out in stage t: it is frozen, or the step is over."""
        return t == len(self.problem.operators) or self.frozen(i)

    @cached_property
    def memory_unit(self) -> float:
        """Bytes of one unit in a memory row: the greatest common divisor of all sizes."""
        sizes = [tensor.nbytes for tensor in self.problem.tensors]
        sizes += self.problem.extra_bytes
        return float(math.gcd(*sizes) or 1)


def poet_space(
    problem: Problem, limits: Limits, scope: str, paging: bool, remat: bool, kind: Kind = Kind.TIMED
) -> PoetSpace:
    """Return the space of Algorithm 1, in which every transfer has its stage.

    Raises
    ------
    FormulationError
        The scope isn't `full`, or a tensor on storage isn't carried from step to step.
    """
    check_supported(problem, "formulation 'poet'", SUPPORTS)
    uncarried = [held.name for held in problem.tensors if held.stored and not held.carried]
    if uncarried:
        raise FormulationError(
            f"formulation 'poet' supports a tensor on storage only if it is carried from step to step, and "
            f"{uncarried[0]!r} isn't. Leave out --formulation poet"
        )
    if scope != "full":
        raise FormulationError(f"formulation 'poet' has no scope '{scope}'; its only scope is 'full'")
    return PoetSpace(problem=problem, limits=limits, name="full", paging=paging, remat=remat)


def _computes(space: PoetSpace) -> list[tuple[int, int]]:
    return space.computes


def _residences(space: PoetSpace) -> list[tuple[int, int]]:
    return space.residences


def _beginnings(space: PoetSpace) -> list[tuple[int, int]]:
    return [at for at in space.residences if space.begins(*at)]


def _continuations(space: PoetSpace) -> list[tuple[int, int]]:
    return [at for at in space.residences if not space.begins(*at)]


def _endings(space: PoetSpace) -> list[tuple[int, int]]:
    return [(t, i) for t, i in space.residences if t == len(space.problem.operators)]


SETS = {
    "computes": IndexSet(_computes, 2, "(t, j): operator j may run in stage t"),
    "residences": IndexSet(
        _residences, 2, "(t, i): tensor i may be in RAM or on storage when stage t begins, or when the step ends"
    ),
    "beginnings": IndexSet(_beginnings, 2, "(t, i): the first of tensor i's residences"),
    "continuations": IndexSet(_continuations, 2, "(t, i): tensor i also has a residence in the stage before"),
    "endings": IndexSet(_endings, 2, "(t, i): tensor i's residence when the step ends"),
}
