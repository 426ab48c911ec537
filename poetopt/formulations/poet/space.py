"""The index sets of `poet`: stages x operators and stages x tensors, as Algorithm 1 has them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from poetopt.formulations.block import IndexSet, Kind, Limits
from poetopt.graph.problem import COMPUTES, PLAINLY, Feature, Problem, check_supported
from poetopt.util.errors import FormulationError

SUPPORTS = frozenset({Feature.STORED, Feature.UPDATED, *COMPUTES, *PLAINLY})
"""Features of problems that the formulation plans for: its operators run plain, as Algorithm 1's do."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PoetSpace:
    """Pairs (stage t, operator j <= t) and (stage t, tensor i that exists before t), in order.

    An operator first runs in its own stage and may run again in any later one ("frontier-advancing",
    Checkmate section 4.6): running ahead of its stage saves nothing, since it runs then anyway.
    """

    problem: Problem
    limits: Limits
    name: str
    paging: bool
    remat: bool

    def __deepcopy__(self, memo: object) -> PoetSpace:
        """Itself, as nothing in it changes: Pyomo copies what stands on a model."""
        return self

    @property
    def room_bytes(self) -> int:
        """The budget without what kernels allocate beside the arena."""
        return self.limits.ram_bytes - self.problem.reserve_bytes

    @cached_property
    def computes(self) -> list[tuple[int, int]]:
        """(t, j): operator j may run in stage t; (t, t) always does."""
        operators, last_run = self.problem.operators, self.problem.last_run
        return [
            (t, j)
            for t in range(len(operators))
            for j in range(t + 1)
            if j == t or (self.remat and operators[j].recomputable and t <= last_run[j])
        ]

    @cached_property
    def residences(self) -> list[tuple[int, int]]:
        """(t, i): tensor i may be in RAM, or on storage, when stage t begins; after the last stage, the `lasting`."""
        tensors = self.problem.tensors
        stages = range(len(self.problem.operators))
        found = [(t, i) for t in stages for i in range(len(tensors)) if tensors[i].producer < t]
        return [*found, *((len(stages), i) for i in self.lasting if stages)]

    @cached_property
    def residents(self) -> list[int]:
        """The tensors that may be in RAM, or on storage, when a stage begins; ascending."""
        return sorted({i for _, i in self.residences})

    def begins(self, t: int, i: int) -> bool:
        """Return whether stage t is the first that tensor i may be there for: right after its first compute, or 0."""
        return t == self.problem.tensors[i].producer + 1

    @cached_property
    def lasting(self) -> list[int]:
        """The tensors that are from one step to the next in RAM, on storage, or both, by choice; ascending."""
        return [i for i in self.problem.stored_at_start if self.problem.tensors[i].carried]

    def arrives(self, t: int, i: int) -> int | None:
        """The stage before which tensor i is back that is paged in during stage t; None where it can't be.

        What arrives during the last stage is there for the first one of the next step. An update holds its tensor, and
        makes the copy on storage an old one.
        """
        count = len(self.problem.operators)
        if t == count or t == self.problem.tensors[i].updated_by:
            return None
        return 0 if t == count - 1 and self.problem.tensors[i].stored else t + 1

    def paged_in(self, stage: int, i: int) -> tuple[int, int] | None:
        """The residence whose M_in brings tensor i back before `stage`; None where none does."""
        t = (stage or len(self.problem.operators)) - 1
        return (t, i) if self.problem.tensors[i].producer < t and self.arrives(t, i) == stage else None

    def frozen(self, i: int) -> bool:
        """Say whether storage holds tensor i for good: no operator updates it."""
        return self.problem.tensors[i].stored and not self.problem.tensors[i].updated

    def unwritten(self, t: int, i: int) -> bool:
        """Say whether tensor i is never written out in stage t: storage holds it for good, or the step is over."""
        return t == len(self.problem.operators) or self.frozen(i)

    @cached_property
    def memory_unit(self) -> float:
        """Bytes that one unit in a memory row stands for: the sizes' greatest common divisor."""
        sizes = [tensor.nbytes for tensor in self.problem.tensors]
        sizes += self.problem.extra_bytes
        return float(math.gcd(*sizes) or 1)


def poet_space(
    problem: Problem, limits: Limits, scope: str, paging: bool, remat: bool, kind: Kind = Kind.TIMED
) -> PoetSpace:
    """Algorithm 1's space, in which every transfer has its stage.

    Raises FormulationError for any scope but `full`, and for what is new on storage in each step.
    """
    check_supported(problem, "formulation 'poet'", SUPPORTS)
    new = [held.name for held in problem.tensors if held.stored and not held.carried]
    if new:
        raise FormulationError(
            f"formulation 'poet' takes what lies on storage only where it is carried from step to step, and {new[0]!r} "
            "isn't; leave out --formulation poet"
        )
    if scope != "full":
        raise FormulationError(f"formulation 'poet' is Algorithm 1, whose scope is 'full'; it has no scope '{scope}'")
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
        _residences, 2, "(t, i): tensor i may be in RAM, or on storage, when stage t begins, or the step ends"
    ),
    "beginnings": IndexSet(_beginnings, 2, "(t, i): the first of tensor i's residences"),
    "continuations": IndexSet(_continuations, 2, "(t, i): tensor i has a residence in the stage before, too"),
    "endings": IndexSet(_endings, 2, "(t, i): tensor i's residence when the step ends"),
}
