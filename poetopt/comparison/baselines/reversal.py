"""Optimal reversal of a chain of segments within a number of bytes, by dynamic programming.

It is the recurrence of Griewank & Walther with bytes in place of slots. With `tapes`, it may also keep all outputs of a
segment that the segment's backward pass reads (Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova 2019, "Optimal
checkpointing for heterogeneous chains: how to train deep neural networks with limited memory").

Notation. Segment k reads state k (its boundary) and writes state k + 1. Its tape is the part of its own outputs that
its backward pass reads. f is its joules, and need the joules of the operators that its tape requires. Reversing [i, j)
with m bytes beside state i, running again from there, costs

    C(i, i+1, m) = need(i)
    C(i, j, m)   = min of   f(i..k) + C(k, j, m - state k) + H(i, k, m)        over i < k < j: state k is kept
                            f(i) + C(i+1, j, m - tape i - state i+1)           the tape of i is kept

and is infinite if m is less than the step takes while it runs. H is the same with state j held in RAM since its last
read: then a last segment whose tape is its state need not run again. The first pass through the forward graph costs
nothing and has no gradient beside it; it is the same recurrence for j = l, with C = H = 0 on its way.

Bytes are rounded up to `unit`s. On chains of operators with one output the bytes of each step are exact; elsewhere they
are estimates, and the simulator decides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from poetopt.comparison.baselines.chain import ForwardChain
from poetopt.comparison.baselines.keeping import irreplaceable

Values = NDArray[np.float64]
Choices = NDArray[np.int32]

TAPE = -1
"""Choice of keeping a tape; a choice k > 0 keeps state k, and 0 ends the recursion."""
DROP = -2
"""Choice, in H, of freeing the held state."""


@dataclass(frozen=True)
class Footprint:
    """Bytes of the segments of a chain; one entry a segment unless stated otherwise.

    Attributes
    ----------
    state
        Tensors that cross from segment k-1 to k; 0 for the first (graph inputs are counted apart) and for the end.
    tape, kept
        The tape; the tape and the state behind it.
    pass_peak, full_peak, tape_peak
        Peak of running forward beside the state before it, results included: keeping only the state behind it; keeping
        the tape too; keeping the tape, with only the operators that it requires.
    backward_peak
        Peak of the backward pass, gradients and tape included.
    gradient
        (l + 1,) Gradients in RAM before segment k - 1 is reversed.
    """

    state: list[int]
    tape: list[int]
    kept: list[int]
    pass_peak: list[int]
    full_peak: list[int]
    tape_peak: list[int]
    backward_peak: list[int]
    gradient: list[int]


def tape_of(chain: ForwardChain, k: int) -> frozenset[int]:
    """Return the outputs of segment k that its backward pass or a later operator reads, without the loss's own."""
    problem, last = chain.problem, chain.problem.last_forward
    return frozenset(
        i
        for operator in chain.segments[k]
        if operator != last
        for i in problem.operators[operator].outputs
        if i not in chain.shared and problem.readers[i] and problem.readers[i][-1] >= chain.backward_start[k]
    )


def needed(chain: ForwardChain, k: int, required: Collection[int]) -> tuple[int, ...]:
    """Return the operators of segment k that compute `wanted` from state k, in order."""
    missing = set(required)
    operators = []
    for operator in reversed(chain.segments[k]):
        op = chain.problem.operators[operator]
        if missing.intersection(op.outputs) and op.recomputable:
            operators.append(operator)
            missing.update(i for i in op.inputs if i not in chain.shared)
    return tuple(reversed(operators))


def footprint(chain: ForwardChain) -> Footprint:
    """Measure the segments of a chain."""
    problem, last, count = chain.problem, chain.problem.last_forward, len(chain)
    tapes = [tape_of(chain, k) for k in range(count)]
    states = [set(chain.boundary[k]) if k else set() for k in range(count + 1)]
    starts = [*chain.backward_start]
    gradients = [i for i, tensor in enumerate(problem.tensors) if tensor.producer >= last and problem.readers[i]]

    def gradient_at(stage: int) -> int:
        """Return the bytes of gradients alive before a backward stage."""
        return sum(
            problem.tensors[i].nbytes
            for i in gradients
            if problem.tensors[i].producer < stage <= problem.readers[i][-1]
        )

    def running(operators: Collection[int], kept: Collection[int]) -> int:
        """Return the peak of running `operators` while keeping the tensors `kept`."""
        order = sorted(operators)
        reads = {i: operator for operator in order for i in problem.operators[operator].inputs}
        live: set[int] = set()
        peak = 0
        for operator in order:
            op = problem.operators[operator]
            live.update(op.outputs)
            peak = max(peak, problem.nbytes(sorted(live)) + problem.extra_bytes[operator])
            live = {i for i in live if i in kept or reads.get(i, -1) > operator}
        return peak

    def reversing(k: int) -> int:
        end = len(problem.operators) if k == 0 else starts[k - 1]
        peak = 0
        for stage in range(starts[k], end):
            op = problem.operators[stage]
            held = sum(problem.tensors[i].nbytes for i in tapes[k] if problem.readers[i][-1] >= stage)
            peak = max(peak, gradient_at(stage) + held + problem.nbytes(op.outputs) + problem.extra_bytes[stage])
        return peak

    return Footprint(
        state=[problem.nbytes(sorted(state)) for state in states],
        tape=[problem.nbytes(sorted(tape)) for tape in tapes],
        kept=[problem.nbytes(sorted(tape | states[k + 1])) for k, tape in enumerate(tapes)],
        pass_peak=[running(segment, states[k + 1]) for k, segment in enumerate(chain.segments)],
        full_peak=[running(segment, tapes[k] | states[k + 1]) for k, segment in enumerate(chain.segments)],
        tape_peak=[running(needed(chain, k, tapes[k]), tapes[k]) for k in range(count)],
        backward_peak=[reversing(k) for k in range(count)],
        gradient=[0, *(gradient_at(stage) for stage in starts)],
    )


class Reversals:
    """Tables C and H for all intervals and numbers of bytes.

    Parameters
    ----------
    room_bytes
        Largest number of bytes: the budget without the reserve and graph inputs.
    tapes
        Whether whole tapes may be kept, or states only.
    levels
        Maximum number of units.
    """

    def __init__(self, chain: ForwardChain, room_bytes: int, *, tapes: bool, levels: int = 200) -> None:
        self.chain = chain
        self.size = footprint(chain)
        size, count = self.size, len(chain)
        problem = chain.problem
        divisor = gcd(room_bytes, *(tensor.nbytes for tensor in problem.tensors)) or 1
        divisor = gcd(divisor, *problem.extra_bytes) or 1
        self.unit = max(divisor, -(-max(room_bytes, 1) // levels))
        self.top = max(room_bytes, 0) // self.unit
        energies = [operator.energy_j for operator in problem.operators]
        self.joules = np.concatenate([[0.0], np.cumsum(chain.cost(energies))])
        tape = [tape_of(chain, k) for k in range(count)]
        self.needs = [needed(chain, k, tape[k]) for k in range(count)]
        self.needs_held = [needed(chain, k, tape[k] - set(chain.boundary[k + 1])) for k in range(count)]
        self.need = [sum(energies[operator] for operator in self.needs[k]) for k in range(count)]
        self.need_held = [sum(energies[operator] for operator in self.needs_held[k]) for k in range(count)]
        self.advance = self._advances()
        self.keep = [self._units(value) for value in size.kept]
        self.state = [self._units(value) for value in size.state]
        self._fill_tables(tapes)
        self._first_pass(tapes)

    def _fill_tables(self, tapes: bool) -> None:
        """Fill C and H, from short intervals to long ones."""
        count = len(self.chain)
        shape = (count + 1, count + 1, self.top + 1)
        self.C = np.full(shape, np.inf)
        self.H = np.full(shape, np.inf)
        self.C_choice = np.zeros(shape, dtype=np.int32)
        self.H_choice = np.zeros(shape, dtype=np.int32)
        # C and H minus the units of their first state
        C_less, H_less = np.full(shape, np.inf), np.full(shape, np.inf)
        for span in range(1, count + 1):
            for i in range(count - span + 1):
                j = i + span
                gradient, held = self.size.gradient[j], self.size.state[j]
                for table, choice, reduced, beside_bytes in (
                    (self.C, self.C_choice, C_less, gradient),
                    (self.H, self.H_choice, H_less, gradient + held),
                ):
                    is_held = table is self.H
                    if span == 1:
                        best, chosen = self._solve_single(i, gradient, is_held)
                    else:
                        best, chosen = self._solve_split(i, j, table, reduced, beside_bytes, tapes)
                    if is_held:  # freeing the state continues with C
                        drop = self.C[i, j] <= best
                        best = np.where(drop, self.C[i, j], best)
                        chosen = np.where(drop, DROP, chosen).astype(np.int32)
                    table[i, j], choice[i, j] = best, chosen
                    reduced[i, j] = _shift_levels(best, self.state[i]) if i else best

    def _solve_single(self, i: int, gradient: int, is_held: bool) -> tuple[Values, Choices]:
        """Return, for each level, the least joules of reversing segment i alone; there is no choice."""
        level = np.arange(self.top + 1)
        best = np.full(self.top + 1, np.inf)
        runs = self.needs_held[i] if is_held else self.needs[i]
        peak_bytes = max(self.size.tape_peak[i] + gradient if runs else 0, self.size.backward_peak[i])
        best[level >= self._units(peak_bytes)] = self.need_held[i] if is_held else self.need[i]
        return best, np.zeros(self.top + 1, dtype=np.int32)

    def _solve_split(
        self, i: int, j: int, table: Values, reduced: Values, beside_bytes: int, tapes: bool
    ) -> tuple[Values, Choices]:
        """Return, for each level, the least joules of reversing segments i..j-1, and the split or TAPE."""
        level = np.arange(self.top + 1)
        middle = np.arange(i + 1, j)
        total = (self.joules[middle] - self.joules[i])[:, None] + reduced[i + 1 : j, j] + self.H[i, i + 1 : j]
        peak_units = np.array([self._units(self.advance[i][k] + beside_bytes) for k in middle])
        total = np.where(level[None, :] >= peak_units[:, None], total, np.inf)
        best_index = np.argmin(total, axis=0)
        best: Values = total[best_index, level]
        chosen = (best_index + i + 1).astype(np.int32)
        if tapes:
            tape_cost = self.joules[i + 1] - self.joules[i] + _shift_levels(table[i + 1, j], self.keep[i])
            peak_bytes = max(self.size.full_peak[i] + beside_bytes, self.size.backward_peak[i])
            tape_cost[level < self._units(peak_bytes)] = np.inf
            chosen[tape_cost < best] = TAPE
            best = np.minimum(best, tape_cost)
        return best, chosen

    def _first_pass(self, tapes: bool) -> None:
        """Fill the tables of the whole chain, whose first forward pass is no recompute."""
        size, count = self.size, len(self.chain)
        level = np.arange(self.top + 1)
        self.first = np.full((count + 1, self.top + 1), np.inf)
        self.first_choice = np.zeros((count + 1, self.top + 1), dtype=np.int32)
        for i in range(count - 1, -1, -1):
            peak_bytes = max(size.full_peak[i], size.backward_peak[i])
            if i == count - 1:
                self.first[i][level >= self._units(peak_bytes)] = 0.0
                continue
            for k in range(i + 1, count):
                total = _shift_levels(self.first[k], self.state[k]) + self.H[i, k]
                total[level < self._units(self.advance[i][k])] = np.inf
                better = total < self.first[i]
                self.first[i][better] = total[better]
                self.first_choice[i][better] = k
            if tapes:
                total = _shift_levels(self.first[i + 1], self.keep[i])
                total[level < self._units(peak_bytes)] = np.inf
                better = total < self.first[i]
                self.first[i][better] = total[better]
                self.first_choice[i][better] = TAPE

    def _advances(self) -> list[list[int]]:
        """Return the bytes of running segments i..k-1, with only the state behind each kept."""
        size, count = self.size, len(self.chain)
        table = [[0] * (count + 1) for _ in range(count + 1)]
        for i in range(count):
            for k in range(i + 1, count + 1):
                peak_bytes = size.pass_peak[k - 1] + (size.state[k - 1] if k - 1 > i else 0)
                table[i][k] = max(table[i][k - 1], peak_bytes)
        return table

    def _units(self, nbytes: int) -> int:
        return -(-nbytes // self.unit)

    def level(self, nbytes: int) -> int:
        """Return the table's index for a number of bytes."""
        return max(-1, min(self.top, nbytes // self.unit))

    def whole(self, level: int) -> frozenset[tuple[int, int]] | None:
        """Return the recomputes of the best reversal of the whole chain with `level` units, or None."""
        if level < 0 or not len(self.chain) or not np.isfinite(self.first[0, level]):
            return None
        return frozenset(self._first_runs(level))

    def interval(self, i: int, j: int, level: int) -> Iterator[tuple[int, int]]:
        """Return the recomputes of the best reversal of segments i..j-1 from state i with `level` units beside it."""
        yield from self._runs(i, j, level, False)

    def _first_runs(self, level: int) -> Iterator[tuple[int, int]]:
        i, count = 0, len(self.chain)
        while i < count - 1:
            choice = int(self.first_choice[i, level])
            if choice == TAPE:
                level -= self._units(self.size.kept[i])
                i += 1
            else:
                yield from self._runs(i, choice, level, True)
                level -= self._units(self.size.state[choice])
                i = choice

    def _runs(self, i: int, j: int, level: int, is_held: bool) -> Iterator[tuple[int, int]]:
        if is_held and self.H_choice[i, j, level] == DROP:
            is_held = False
        choice = int((self.H_choice if is_held else self.C_choice)[i, j, level])
        stage = self.chain.backward_start[j - 1]
        if j - i == 1:
            runs = self.needs_held[i] if is_held else self.needs[i]
            yield from ((stage, operator) for operator in runs if operator < stage)
        elif choice == TAPE:
            yield from self.chain.again(i, i + 1, stage=stage)
            yield from self._runs(i + 1, j, level - self._units(self.size.kept[i]), is_held)
        else:
            yield from self.chain.again(i, choice, stage=stage)
            yield from self._runs(choice, j, level - self._units(self.size.state[choice]), is_held)
            yield from self._runs(i, choice, level, True)


def _shift_levels(values: Values, units: int) -> Values:
    """Return values[m - units], infinite below."""
    result = np.full_like(values, np.inf)
    if units < len(values):
        result[units:] = values[: len(values) - units]
    return result


def room_of(chain: ForwardChain, ram_bytes: int) -> int:
    """Return the bytes left for the reversal, without the reserve and tensors that always stay in RAM."""
    problem = chain.problem
    staying = [i for i in problem.at_start if problem.readers[i]]
    staying += [
        i
        for operator in problem.operators
        if not operator.backward
        for i in operator.outputs
        if (irreplaceable(problem, i) or i in chain.shared) and problem.readers[i]
    ]
    return ram_bytes - problem.reserve_bytes - problem.nbytes(staying)
