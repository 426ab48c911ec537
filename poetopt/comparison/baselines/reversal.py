"""Optimal reversal of a chain of segments within a number of bytes, by dynamic programming.

The recurrence of Griewank & Walther with bytes in place of slots, and, where `tapes` says so, with the choice of
keeping all that a segment's backward pass reads when it runs (Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova 2019,
"Optimal checkpointing for heterogeneous chains: how to train deep neural networks with limited memory").

Notation. Segment k reads state k (its boundary) and writes state k + 1; f is its joules, need the joules of those of
its operators that its tape takes (the tape: what its backward pass reads of its own outputs). Reversing [i, j) with m
bytes beside state i, running again from there, costs

    C(i, i+1, m) = need(i)
    C(i, j, m)   = min of   f(i..k) + C(k, j, m - state k) + H(i, k, m)        over i < k < j: state k is kept
                            f(i) + C(i+1, j, m - tape i - state i+1)           the tape of i is kept

and is infinite where m is less than what the step takes while it runs. H is the same with state j still in RAM from
its last read, and held: then a last segment whose tape is its state need not run again. The first pass through the
forward graph costs nothing and has no gradient beside it; it is the same recurrence for j = l, with C = H = 0 on its
way.

Bytes are rounded up to `unit`s. On chains of operators with one output the bytes of each step are exact; elsewhere
they are estimates, and the simulator decides.
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
"""The choice of keeping a tape; a choice k > 0 keeps state k, and 0 is the end of the recursion."""
DROP = -2
"""The choice, in H, of letting the held state go."""


@dataclass(frozen=True)
class Footprint:
    """Bytes that the segments of a chain take; one entry a segment unless said otherwise.

    state
        What crosses from segment k-1 to k; 0 for the first (graph inputs are counted apart) and for the end.
    tape, kept
        The tape; the tape and the state behind it.
    pass_peak, tape_peak
        The most that running forward takes beside the state before it, its results included: with only the state
        behind it kept, and with the tape (only the operators that it needs).
    backward_peak
        The same of the backward pass, gradients and tape included.
    gradient
        (l + 1,) Gradients in RAM as segment k - 1 is about to be reversed.
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
    """The part of segment k's outputs that its backward pass, or a later operator, reads (but for the loss's own)."""
    problem, last = chain.problem, chain.problem.last_forward
    return frozenset(
        i
        for operator in chain.segments[k]
        if operator != last
        for i in problem.operators[operator].outputs
        if i not in chain.shared and problem.readers[i] and problem.readers[i][-1] >= chain.backward_start[k]
    )


def needed(chain: ForwardChain, k: int, wanted: Collection[int]) -> tuple[int, ...]:
    """The operators of segment k that `wanted` takes, from state k, in order."""
    missing = set(wanted)
    found = []
    for operator in reversed(chain.segments[k]):
        op = chain.problem.operators[operator]
        if missing.intersection(op.outputs) and op.recomputable:
            found.append(operator)
            missing.update(i for i in op.inputs if i not in chain.shared)
    return tuple(reversed(found))


def footprint(chain: ForwardChain) -> Footprint:
    """Measure a chain's segments."""
    problem, last, count = chain.problem, chain.problem.last_forward, len(chain)
    tapes = [tape_of(chain, k) for k in range(count)]
    states = [set(chain.boundary[k]) if k else set() for k in range(count + 1)]
    starts = [*chain.backward_start]
    gradients = [i for i, tensor in enumerate(problem.tensors) if tensor.producer >= last and problem.readers[i]]

    def gradient_at(stage: int) -> int:
        """Bytes of gradients alive before a backward stage."""
        return sum(
            problem.tensors[i].nbytes
            for i in gradients
            if problem.tensors[i].producer < stage <= problem.readers[i][-1]
        )

    def running(operators: Collection[int], kept: Collection[int]) -> int:
        """Peak of running `operators`, of which `kept` stays."""
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
    """The tables C and H for all intervals and numbers of bytes.

    room_bytes
        The largest number of bytes asked for: the budget less the reserve and graph inputs.
    tapes
        Whether whole tapes may be kept, or states only.
    levels
        At most this many units are told apart.
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
        self._fill(tapes)
        self._first_pass(tapes)

    def _fill(self, tapes: bool) -> None:
        """C and H, from short intervals to long ones."""
        count = len(self.chain)
        shape = (count + 1, count + 1, self.top + 1)
        self.C = np.full(shape, np.inf)
        self.H = np.full(shape, np.inf)
        self.C_choice = np.zeros(shape, dtype=np.int32)
        self.H_choice = np.zeros(shape, dtype=np.int32)
        # C and H after their first state has been paid for
        C_less, H_less = np.full(shape, np.inf), np.full(shape, np.inf)
        for span in range(1, count + 1):
            for i in range(count - span + 1):
                j = i + span
                gradient, held = self.size.gradient[j], self.size.state[j]
                for table, choice, less, beside in (
                    (self.C, self.C_choice, C_less, gradient),
                    (self.H, self.H_choice, H_less, gradient + held),
                ):
                    holding = table is self.H
                    if span == 1:
                        best, chosen = self._one(i, gradient, holding)
                    else:
                        best, chosen = self._split(i, j, table, less, beside, tapes)
                    if holding:  # letting the state go is following C from there on
                        drop = self.C[i, j] <= best
                        best = np.where(drop, self.C[i, j], best)
                        chosen = np.where(drop, DROP, chosen).astype(np.int32)
                    table[i, j], choice[i, j] = best, chosen
                    less[i, j] = _shifted(best, self.state[i]) if i else best

    def _one(self, i: int, gradient: int, holding: bool) -> tuple[Values, Choices]:
        """For each level, the least joules of reversing segment i alone; there is nothing to choose."""
        level = np.arange(self.top + 1)
        best = np.full(self.top + 1, np.inf)
        runs = self.needs_held[i] if holding else self.needs[i]
        takes = max(self.size.tape_peak[i] + gradient if runs else 0, self.size.backward_peak[i])
        best[level >= self._units(takes)] = self.need_held[i] if holding else self.need[i]
        return best, np.zeros(self.top + 1, dtype=np.int32)

    def _split(self, i: int, j: int, table: Values, less: Values, beside: int, tapes: bool) -> tuple[Values, Choices]:
        """For each level, the least joules of reversing segments i..j-1, and where to split them, or TAPE."""
        level = np.arange(self.top + 1)
        middle = np.arange(i + 1, j)
        total = (self.joules[middle] - self.joules[i])[:, None] + less[i + 1 : j, j] + self.H[i, i + 1 : j]
        takes_all = np.array([self._units(self.advance[i][k] + beside) for k in middle])
        total = np.where(level[None, :] >= takes_all[:, None], total, np.inf)
        at = np.argmin(total, axis=0)
        best: Values = total[at, level]
        chosen = (at + i + 1).astype(np.int32)
        if tapes:
            other = self.joules[i + 1] - self.joules[i] + _shifted(table[i + 1, j], self.keep[i])
            takes = max(self.size.full_peak[i] + beside, self.size.backward_peak[i])
            other[level < self._units(takes)] = np.inf
            chosen[other < best] = TAPE
            best = np.minimum(best, other)
        return best, chosen

    def _first_pass(self, tapes: bool) -> None:
        """The tables of the whole chain, whose first forward pass is no recompute."""
        size, count = self.size, len(self.chain)
        level = np.arange(self.top + 1)
        self.first = np.full((count + 1, self.top + 1), np.inf)
        self.first_choice = np.zeros((count + 1, self.top + 1), dtype=np.int32)
        for i in range(count - 1, -1, -1):
            takes = max(size.full_peak[i], size.backward_peak[i])
            if i == count - 1:
                self.first[i][level >= self._units(takes)] = 0.0
                continue
            for k in range(i + 1, count):
                total = _shifted(self.first[k], self.state[k]) + self.H[i, k]
                total[level < self._units(self.advance[i][k])] = np.inf
                better = total < self.first[i]
                self.first[i][better] = total[better]
                self.first_choice[i][better] = k
            if tapes:
                total = _shifted(self.first[i + 1], self.keep[i])
                total[level < self._units(takes)] = np.inf
                better = total < self.first[i]
                self.first[i][better] = total[better]
                self.first_choice[i][better] = TAPE

    def _advances(self) -> list[list[int]]:
        """Bytes that running segments i..k-1 takes, only the state behind each kept."""
        size, count = self.size, len(self.chain)
        table = [[0] * (count + 1) for _ in range(count + 1)]
        for i in range(count):
            for k in range(i + 1, count + 1):
                here = size.pass_peak[k - 1] + (size.state[k - 1] if k - 1 > i else 0)
                table[i][k] = max(table[i][k - 1], here)
        return table

    def _units(self, nbytes: int) -> int:
        return -(-nbytes // self.unit)

    def level(self, nbytes: int) -> int:
        """The table's index for so many bytes."""
        return max(-1, min(self.top, nbytes // self.unit))

    def whole(self, level: int) -> frozenset[tuple[int, int]] | None:
        """The recomputes of the whole chain's best reversal with `level` units, or None where there is none."""
        if level < 0 or not len(self.chain) or not np.isfinite(self.first[0, level]):
            return None
        return frozenset(self._first_runs(level))

    def interval(self, i: int, j: int, level: int) -> Iterator[tuple[int, int]]:
        """The recomputes of the best reversal of segments i..j-1 from state i with `level` units beside it."""
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

    def _runs(self, i: int, j: int, level: int, held: bool) -> Iterator[tuple[int, int]]:
        if held and self.H_choice[i, j, level] == DROP:
            held = False
        choice = int((self.H_choice if held else self.C_choice)[i, j, level])
        stage = self.chain.backward_start[j - 1]
        if j - i == 1:
            runs = self.needs_held[i] if held else self.needs[i]
            yield from ((stage, operator) for operator in runs if operator < stage)
        elif choice == TAPE:
            yield from self.chain.again(i, i + 1, stage=stage)
            yield from self._runs(i + 1, j, level - self._units(self.size.kept[i]), held)
        else:
            yield from self.chain.again(i, choice, stage=stage)
            yield from self._runs(choice, j, level - self._units(self.size.state[choice]), held)
            yield from self._runs(i, choice, level, True)


def _shifted(values: Values, units: int) -> Values:
    """values[m - units], infinite below."""
    result = np.full_like(values, np.inf)
    if units < len(values):
        result[units:] = values[: len(values) - units]
    return result


def room_of(chain: ForwardChain, ram_bytes: int) -> int:
    """Bytes left for the reversal: without the reserve and what stays in RAM throughout."""
    problem = chain.problem
    stays = [i for i in problem.at_start if problem.readers[i]]
    stays += [
        i
        for operator in problem.operators
        if not operator.backward
        for i in operator.outputs
        if (irreplaceable(problem, i) or i in chain.shared) and problem.readers[i]
    ]
    return ram_bytes - problem.reserve_bytes - problem.nbytes(stays)
