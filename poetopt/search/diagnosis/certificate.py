"""Bound that doesn't rest on a solver's tolerances: the relaxation's dual, summed in exact arithmetic.

For the relaxation  min c x  subject to  l <= A x <= u,  0 <= x <= 1  and any multipliers y with y_i > 0
only where l_i is finite and y_i < 0 only where u_i is,

    sum_i (y_i l_i if y_i > 0 else y_i u_i) + sum_j min(0, d_j),     d = c - A^T y

is a lower bound on c x, whatever y is: a bad y only makes it weak. So the solver's y is used unchanged, every float as
the rational number that it denotes, and the sum is computed over the rationals. It remains to trust that each row holds
for every schedule. The model's own rows are its mathematics. Each cut is derived again here from its path, or from the
memory row that it rounds, by code that shares nothing with the separators.

If the relaxation proves less than the claim, a tree of branches goes on. Each of its nodes is closed by such a sum over
its own box alone, or by one that proves the box empty (`poetopt.search.diagnosis.certified_nodes`).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from poetopt.backends.solvers.solver import Capability, Session
from poetopt.formulations import formulation
from poetopt.formulations.language import Formulation
from poetopt.formulations.retention.chain_rows import Chain
from poetopt.formulations.retention.rounding import Rounded
from poetopt.formulations.retention.space import RetentionSpace
from poetopt.formulations.retention.streaming import Room
from poetopt.formulations.rows import Row
from poetopt.formulations.scope import ALL
from poetopt.graph.problem import Problem
from poetopt.search.cutting import cut, model_of, session_of
from poetopt.search.diagnosis.certified_nodes import down, exact_bound, grown
from poetopt.search.outer import gained, levels
from poetopt.search.run import Budget
from poetopt.search.solution import Options
from poetopt.util import work
from poetopt.util.errors import FormulationError, PoetError, TimeUpError


@dataclass(frozen=True)
class Certificate:
    """Certified lower bound on the overhead of every schedule in a scope.

    Attributes
    ----------
    bound_j
        Joules, rounded down from the exact sum.
    relaxation_j
        The solver's value of the same relaxation's optimum.
    rows, cuts
        Number of rows of the relaxation, and of cuts that were derived again.
    nodes
        Number of tree nodes that the bound rests on; 0: the relaxation alone proves it.
    """

    scope: str
    bound_j: float
    relaxation_j: float
    rows: int
    cuts: int
    nodes: int
    seconds: float


def certify(problem: Problem, options: Options, scope: str, *, claimed_j: float | None = None) -> Certificate:
    """Prove a bound in `scope` for `problem` within the budget, deadline and time limit of `options`.

    The scope `all` refers to all plans, in models that grow as those of a search do (`poetopt.search.outer`).

    Parameters
    ----------
    claimed_j
        Bound at which a tree may stop. None: the relaxation's bound alone.

    Raises
    ------
    FormulationError
        If the formulation or the backend offers nothing to certify.
    PoetError
        For a cut that its path does not support.
    TimeUpError
        If not even the model was built in time.
    """
    begin = time.monotonic()
    if options.formulation_name != "retention":
        raise FormulationError(
            f"certificates exist for the formulation 'retention', not for '{options.formulation_name}'"
        )
    chosen, spaces = formulation(options.formulation), [scope]
    if scope == ALL:
        assert chosen.search.outer is not None
        chosen, spaces = chosen.search.outer, [f"full:{level}" for level in levels(problem)]
    until, goal_j = begin + options.time_limit_s, math.inf if claimed_j is None else claimed_j
    best: _Relaxation | None = None
    for space in spaces:
        try:
            relaxation = _Relaxation.cut_down(chosen, problem, options, space, until, goal_j)
        except TimeUpError:
            if best is None:
                raise
            break
        improves = best is None or gained(best.bound_j, relaxation.bound_j, goal_j)
        best = relaxation if best is None or relaxation.bound_j > best.bound_j else best
        if best.bound_j >= goal_j or not improves:
            break
    assert best is not None
    bound_j, n_nodes = best.bound_j, 0
    if claimed_j is not None and bound_j < claimed_j and Capability.NODES in best.session.capabilities:
        tree = grown(best.session.nodes(), partial(best.chosen.separate, best.model), best.rederive, claimed_j, until)
        if tree.bound_j > bound_j:
            bound_j, n_nodes = tree.bound_j, tree.explored
    return Certificate(
        scope=best.model.space.name,
        bound_j=bound_j,
        relaxation_j=best.objective_j,
        rows=best.rows,
        cuts=best.cuts,
        nodes=n_nodes,
        seconds=time.monotonic() - begin,
    )


@dataclass
class _Relaxation:
    """Relaxation of one model with rederived cuts, and the bound that it proves."""

    chosen: Formulation
    model: Any
    session: Session
    bound_j: float = -math.inf
    objective_j: float = -math.inf
    rows: int = 0
    cuts: int = 0

    @classmethod
    def cut_down(
        cls, chosen: Formulation, problem: Problem, options: Options, scope: str, until: float, goal_j: float
    ) -> _Relaxation:
        """Build the model of a scope, and cut until `goal_j` is proven, or nothing more is gained."""
        with work.ending(until):
            model = model_of(chosen, problem, options, scope)
            session = session_of(model, options, scale=1e4 / (problem.baseline_energy_j or 1.0))
        relaxation = cls(chosen, model, session)
        cut(
            chosen,
            model,
            session,
            until=Budget.by_clock(until),
            overhead_j=None,
            on_bound=lambda value: value >= goal_j and down(exact_bound(session.dual_proof())) >= goal_j,
            on_rows=relaxation.rederive,
        )
        relaxation.objective_j = session.relax(max(1.0, until - time.monotonic())).objective
        proof = session.dual_proof()
        relaxation.bound_j, relaxation.rows = down(exact_bound(proof)), len(proof.multipliers)
        return relaxation

    def rederive(self, rows: Sequence[Row]) -> None:
        """Check cuts. A core row without a key is one of the model's own rows, like the written ones."""
        for row in rows:
            if row.key is not None or not row.core:
                rederive(self.model, row)
                self.cuts += 1


def rederive(model: Any, row: Row) -> None:
    """Check a cut from its key alone. Raise PoetError if the row claims more than the key proves."""
    if isinstance(row.key, Chain) and (row.lower, row.upper) == (1.0, math.inf):
        _rederive_chain(model, row, row.key)
    elif isinstance(row.key, Rounded) and row.lower == -math.inf:
        _rederive_rounding(model, row, row.key)
    elif isinstance(row.key, Room) and row.lower == -math.inf:
        _rederive_room(model, row, row.key)
    else:
        raise PoetError(f"a row of the block '{row.block}' can't be derived again")


def _rederive_chain(model: Any, row: Row, chain: Chain) -> None:
    """Repeat the proof of `chain_cuts` step by step."""
    space: RetentionSpace = model.space
    problem = space.problem
    s, read, path, by_page = chain
    begins = space.first_stages[path[0]] <= s < read and space.decided[s] == s
    if read not in problem.readers[path[0]] or not begins:
        raise PoetError(f"the cut over stages {s}..{read} isn't about a use of '{problem.tensors[path[0]].name}'")
    b = int(space.ends[read])  # stages that are decided together count at their last
    for later, earlier in itertools.pairwise(path):
        tensor = problem.tensors[later]
        if not tensor.computed or earlier not in problem.operators[tensor.producer].inputs:
            raise PoetError(f"the cut's path goes from '{problem.tensors[earlier].name}' to no reader of it")
    allowed: set[int] = set()
    stream_vars = list(model.streaming.y.values()) if space.streams else []
    first = problem.tensors[path[-1]].producer
    for t in range(s + 1, b + 1):
        if (first, t) in space.recompute_of:
            allowed.add(id(model.recompute.r[first, t]))
    readers = (read, *(problem.tensors[i].producer for i in path))
    for i, reader, paged in zip(path, readers, by_page, strict=False):
        for e in range(*space.tensor_range[i]):
            stage = int(space.point_stage[e])
            if space.crosses(e, s):
                allowed.add(id(model.residency.k[space.points[e]]))
            if paged and space.page_index[e] >= 0 and s < stage <= b:
                allowed.add(id(model.paging.p[space.points[e]]))
        if not paged and space.paging and i in model.paging.o_index:
            allowed.add(id(model.paging.o[i]))
        for n, variant in enumerate(space.stream_ways):
            of_reader = space.streams.operator[n] == reader and s < space.streams.stage[n] <= b
            if (paged and of_reader and i in variant.streamed_in) or (not paged and i in variant.streamed_out):
                allowed.add(id(stream_vars[n]))
    # every term that the proof needs must stand in the row, with a coefficient of at least one
    present = {id(v) for v, c in zip(row.variables, row.coefficients, strict=True) if c >= 1.0}
    if not allowed <= present:
        raise PoetError(f"the cut over stages {s}..{b} leaves out a term that its path needs")


def _rederive_room(model: Any, row: Row, key: Room) -> None:
    """Check that a tensor kept across a stage leaves no room for a variant of its operator."""
    space: RetentionSpace = model.space
    problem, t = space.problem, key.stage
    operator = problem.operators[t]
    if t not in space.spanned(key.point):
        raise PoetError(f"the row on room in stage {t} is about a tensor that isn't kept across it")

    def fits(variant: int) -> bool:
        run = operator.variant(variant)
        in_ram = {*operator.inputs, *operator.outputs} - {*run.streamed_in, *run.streamed_out}
        if not variant:
            in_ram -= {*operator.takes[:1]}
        sizes = [*(problem.tensors[i].nbytes for i in in_ram), run.workspace_bytes]
        needed = sum(-(-size // problem.alignment) * problem.alignment for size in sizes)
        return bool(needed + space.tensor_bytes[space.point_tensor[key.point]] <= space.room_bytes)

    stream_vars = list(model.streaming.y.values())
    has_room_by_id = {id(stream_vars[n]): fits(int(space.streams.variant[n])) for n in space.streams_of[t, t]}
    kept = id(model.residency.k[space.points[key.point]])
    claimed = {id(v): c for v, c in zip(row.variables, row.coefficients, strict=True)}
    if fits(0):  # k + those without room <= 1
        is_valid = row.upper >= 1 and all(
            v == kept or not has_room_by_id.get(v, True) for v, c in claimed.items() if c > 0
        )
    else:  # k <= those with room
        is_valid = row.upper >= 0 and all(claimed.get(v, 0.0) <= -1 for v, room in has_room_by_id.items() if room)
        is_valid = is_valid and all(v == kept for v, c in claimed.items() if c > 0)
    if not is_valid or max(claimed.values()) > 1:
        raise PoetError(f"the row on room in stage {t} claims more than the operator's variants prove")


def _rederive_rounding(model: Any, row: Row, key: Rounded) -> None:
    """Apply the formula of `rounding`, over the rationals, to the memory row that the key names."""
    if key.found < 0:
        base = model.memory.stage[key.stage]
        variables, coefficients, room = base.body.linear_vars, base.body.linear_coefs, base.upper()
    else:
        base = model.memory.found[key.found]
        variables, coefficients, room = base.variables, base.coefficients, base.upper
    complemented = set(key.complemented)
    beta = Fraction(room) - sum(Fraction(coefficients[term]) for term in complemented)
    quotient, remainder = divmod(beta, key.divisor)
    proven: dict[int, Fraction] = {}
    upper = Fraction(quotient)
    for term, (variable, coefficient) in enumerate(zip(variables, coefficients, strict=True)):
        sign = -1 if term in complemented else 1
        multiple, rest = divmod(sign * Fraction(coefficient), key.divisor)
        rounded = multiple + max(Fraction(0), rest - remainder) / (key.divisor - remainder)
        proven[id(variable)] = sign * rounded
        upper -= rounded if term in complemented else 0
    # the most that the row can claim beyond the formula, over all 0-1 values of the variables
    claimed = {id(v): Fraction(c) for v, c in zip(row.variables, row.coefficients, strict=True)}
    excess = sum((max(Fraction(0), claimed.get(v, Fraction(0)) - c) for v, c in proven.items()), Fraction(0))
    excess += sum((max(Fraction(0), c) for v, c in claimed.items() if v not in proven), Fraction(0))
    if upper + excess > Fraction(row.upper):
        raise PoetError(f"the rounded memory row of stage {key.stage} claims more than its row and divisor prove")
