"""A bound that doesn't rest on a solver's tolerances: the relaxation's dual, summed in exact arithmetic.

For the relaxation  min c x  subject to  l <= A x <= u,  0 <= x <= 1  and any multipliers y with y_i > 0
only where l_i is finite and y_i < 0 only where u_i is,

    sum_i (y_i l_i if y_i > 0 else y_i u_i) + sum_j min(0, d_j),     d = c - A^T y

is a lower bound on c x, whatever y is: a bad y only makes it weak. So the solver's y is taken as it is,
every float as the rational number that it denotes, and the sum is done over the rationals. What
remains to be trusted is that each row holds of every schedule: the model's own rows are its mathematics, and each cut
is derived again here from its path, or from the memory row that it rounds, by code that shares nothing with the
separators.

Where the relaxation proves less than what is claimed, a tree of branches goes on, each of whose nodes is closed by such
a sum over its own box alone, or by one that shows it empty (`poetopt.search.diagnosis.certified_nodes`).
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
    """A certified lower bound on the overhead of every schedule in a scope.

    bound_j
        Joules, rounded down from the exact sum.
    relaxation_j
        What the solver says that the same relaxation's optimum is.
    rows, cuts
        How many rows the relaxation has, and how many cuts were derived again.
    nodes
        How many nodes of a tree the bound rests on; 0: the relaxation alone proves it.
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

    `all` as the scope is of all plans, in models that grow as those of a search do (`poetopt.search.outer`).

    claimed_j
        The bound that would do: a tree goes on until it is reached. None: the relaxation's alone.

    Raises FormulationError where the formulation or the backend offers nothing to certify, PoetError for a cut that its
    path does not support, and TimeUpError where not even the model was built in time.
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
            found = _Relaxation.cut_down(chosen, problem, options, space, until, goal_j)
        except TimeUpError:
            if best is None:
                raise
            break
        gains = best is None or gained(best.bound_j, found.bound_j, goal_j)
        best = found if best is None or found.bound_j > best.bound_j else best
        if best.bound_j >= goal_j or not gains:
            break
    assert best is not None
    bound_j, explored = best.bound_j, 0
    if claimed_j is not None and bound_j < claimed_j and Capability.NODES in best.session.capabilities:
        tree = grown(best.session.nodes(), partial(best.chosen.separate, best.model), best.rederive, claimed_j, until)
        if tree.bound_j > bound_j:
            bound_j, explored = tree.bound_j, tree.explored
    return Certificate(
        scope=best.model.space.name,
        bound_j=bound_j,
        relaxation_j=best.objective_j,
        rows=best.rows,
        cuts=best.cuts,
        nodes=explored,
        seconds=time.monotonic() - begin,
    )


@dataclass
class _Relaxation:
    """The relaxation of one model, each of whose cuts was derived again, and the bound that it proves."""

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
        found = cls(chosen, model, session)
        cut(
            chosen,
            model,
            session,
            until=Budget.by_clock(until),
            overhead_j=None,
            on_bound=lambda value: value >= goal_j and down(exact_bound(session.dual_proof())) >= goal_j,
            on_rows=found.rederive,
        )
        found.objective_j = session.relax(max(1.0, until - time.monotonic())).objective
        proof = session.dual_proof()
        found.bound_j, found.rows = down(exact_bound(proof)), len(proof.multipliers)
        return found

    def rederive(self, rows: Sequence[Row]) -> None:
        """Check cuts; a core row without a key is the model's own, as those written down are."""
        for row in rows:
            if row.key is not None or not row.core:
                rederive(self.model, row)
                self.cuts += 1


def rederive(model: Any, row: Row) -> None:
    """Check a cut from its key alone.

    Raises PoetError where the row claims more than that proves.
    """
    if isinstance(row.key, Chain) and (row.lower, row.upper) == (1.0, math.inf):
        _rederive_chain(model, row, row.key)
    elif isinstance(row.key, Rounded) and row.lower == -math.inf:
        _rederive_rounding(model, row, row.key)
    elif isinstance(row.key, Room) and row.lower == -math.inf:
        _rederive_room(model, row, row.key)
    else:
        raise PoetError(f"a row of the block '{row.block}' can't be derived again")


def _rederive_chain(model: Any, row: Row, chain: Chain) -> None:
    """The proof of `chain_cuts`, step by step."""
    space: RetentionSpace = model.space
    problem = space.problem
    s, read, path, by_page = chain
    begins = space.first_stages[path[0]] <= s < read and space.decided[s] == s
    if read not in problem.readers[path[0]] or not begins:
        raise PoetError(f"the cut over stages {s}..{read} isn't about a use of '{problem.tensors[path[0]].name}'")
    b = int(space.ends[read])  # what is decided together with the read counts there
    for later, earlier in itertools.pairwise(path):
        made = problem.tensors[later]
        if not made.computed or earlier not in problem.operators[made.producer].inputs:
            raise PoetError(f"the cut's path goes from '{problem.tensors[earlier].name}' to no reader of it")
    allowed: set[int] = set()
    ways = list(model.streaming.y.values()) if space.streams else []
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
        for n, way in enumerate(space.stream_ways):
            of_reader = space.streams.operator[n] == reader and s < space.streams.stage[n] <= b
            if (paged and of_reader and i in way.streamed_in) or (not paged and i in way.streamed_out):
                allowed.add(id(ways[n]))
    # every term that the proof needs must stand in the row, with a coefficient of at least one
    present = {id(v) for v, c in zip(row.variables, row.coefficients, strict=True) if c >= 1.0}
    if not allowed <= present:
        raise PoetError(f"the cut over stages {s}..{b} leaves out a term that its path needs")


def _rederive_room(model: Any, row: Row, key: Room) -> None:
    """Check that what stays across a stage leaves no room for a way to run its operator."""
    space: RetentionSpace = model.space
    problem, t = space.problem, key.stage
    operator = problem.operators[t]
    if t not in space.spanned(key.point):
        raise PoetError(f"the row on room in stage {t} is about what isn't kept across it")

    def fits(variant: int) -> bool:
        way = operator.variant(variant)
        whole = {*operator.inputs, *operator.outputs} - {*way.streamed_in, *way.streamed_out}
        if not variant:
            whole -= {*operator.takes[:1]}
        sizes = [*(problem.tensors[i].nbytes for i in whole), way.workspace_bytes]
        needed = sum(-(-size // problem.alignment) * problem.alignment for size in sizes)
        return bool(needed + space.tensor_bytes[space.point_tensor[key.point]] <= space.room_bytes)

    ways = list(model.streaming.y.values())
    own = {id(ways[n]): fits(int(space.streams.variant[n])) for n in space.streams_of[t, t]}
    kept = id(model.residency.k[space.points[key.point]])
    claimed = {id(v): c for v, c in zip(row.variables, row.coefficients, strict=True)}
    if fits(0):  # k + those without room <= 1
        right = row.upper >= 1 and all(v == kept or not own.get(v, True) for v, c in claimed.items() if c > 0)
    else:  # k <= those with room
        right = row.upper >= 0 and all(claimed.get(v, 0.0) <= -1 for v, room in own.items() if room)
        right = right and all(v == kept for v, c in claimed.items() if c > 0)
    if not right or max(claimed.values()) > 1:
        raise PoetError(f"the row on room in stage {t} claims more than the operator's ways prove")


def _rederive_rounding(model: Any, row: Row, key: Rounded) -> None:
    """The formula of `rounding`, over the rationals, on the memory row that the key names."""
    if key.found < 0:
        base = model.memory.stage[key.stage]
        variables, coefficients, room = base.body.linear_vars, base.body.linear_coefs, base.upper()
    else:
        base = model.memory.found[key.found]
        variables, coefficients, room = base.variables, base.coefficients, base.upper
    missing = set(key.complemented)
    beta = Fraction(room) - sum(Fraction(coefficients[term]) for term in missing)
    whole, left = divmod(beta, key.divisor)
    proven: dict[int, Fraction] = {}
    upper = Fraction(whole)
    for term, (variable, coefficient) in enumerate(zip(variables, coefficients, strict=True)):
        sign = -1 if term in missing else 1
        times, over = divmod(sign * Fraction(coefficient), key.divisor)
        rounded = times + max(Fraction(0), over - left) / (key.divisor - left)
        proven[id(variable)] = sign * rounded
        upper -= rounded if term in missing else 0
    # what the row claims beyond the formula, where every variable is 1 that makes it the most
    claimed = {id(v): Fraction(c) for v, c in zip(row.variables, row.coefficients, strict=True)}
    more = sum((max(Fraction(0), claimed.get(v, Fraction(0)) - c) for v, c in proven.items()), Fraction(0))
    more += sum((max(Fraction(0), c) for v, c in claimed.items() if v not in proven), Fraction(0))
    if upper + more > Fraction(row.upper):
        raise PoetError(f"the rounded memory row of stage {key.stage} claims more than its row and divisor prove")
