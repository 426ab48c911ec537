"""Three training steps in a row by hand, every value a term: what a plan has to do, without the package's machine.

Ordinary training comes first, each operator once, everything in RAM: it says which term each operator reads and what
each step leaves. Then the plan runs in a RAM of bytes and a storage of copies. What is carried is never put back: the
second step finds what the first has left, where it has left it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from poetopt.graph.problem import Home, Problem, Variant
from poetopt.plan.instructions import Action, Plan

STEPS = 3

Term = int
"""A value: what computed it, of which values; equal numbers are equal terms."""


class BrokenError(Exception):
    """A step reads what it must not, has no place for it, or leaves what the next one can't begin from."""


@dataclass
class _Training:
    """Ordinary training. `reads`: what each operator reads; `end`: each tensor when the step is over."""

    problem: Problem
    terms: dict[tuple[object, ...], Term] = field(default_factory=dict)
    start: list[list[Term]] = field(default_factory=list)
    reads: list[list[tuple[Term, ...]]] = field(default_factory=list)
    end: list[list[Term]] = field(default_factory=list)

    def __post_init__(self) -> None:
        tensors = self.problem.tensors
        for number in range(STEPS):
            value = [self.given(i, number) for i in range(len(tensors))]
            if number:
                value = [self.end[-1][i] if tensor.carried else value[i] for i, tensor in enumerate(tensors)]
            self.start.append(list(value))
            reads: list[tuple[Term, ...]] = []
            for k in range(len(self.problem.operators)):
                reads.append(tuple(value[i] for i in self.problem.operators[k].inputs))
                value = self.computed(k, reads[k], value)
            self.reads.append(reads)
            self.end.append(value)

    def term(self, *parts: object) -> Term:
        return self.terms.setdefault(parts, len(self.terms))

    def given(self, i: int, number: int) -> Term:
        return self.term("given", i, 0 if self.problem.tensors[i].home is Home.FLASH else number)

    def writes(self, k: int) -> list[int]:
        """What operator k makes, and what it writes anew over itself."""
        return [i for i, held in enumerate(self.problem.tensors) if k in (held.producer, held.updated_by)]

    def computed(self, k: int, read: tuple[Term, ...], value: list[Term]) -> list[Term]:
        found = list(value)
        for i in self.writes(k):
            found[i] = self.term(k, i, read)
        return found


class _Run:
    """A plan in its arena and beside its storage, over several steps."""

    def __init__(self, plan: Plan, ram_bytes: int | None) -> None:
        self.plan, self.problem, self.ram_bytes = plan, plan.problem, ram_bytes
        self.training = _Training(plan.problem)
        self.made_by = [self.training.writes(k) for k in range(len(plan.problem.operators))]
        self.ram: dict[int, Term] = {}
        self.at: dict[int, int] = {}
        self.storage: dict[int, Term] = {}
        self.gone: set[int] = set()

    def need(self, well: bool) -> None:
        if not well:
            raise BrokenError

    def all_steps(self) -> list[int]:
        live: list[int] = []
        for number in range(STEPS):
            places = iter(self.plan.offsets)
            self.begin(number, places)
            live = self.step(number, places)
            self.need(not self.plan.offsets or next(places, None) is None)
            self.end(number)
        return live

    def begin(self, number: int, places: Iterator[int]) -> None:
        """What is carried is where it was left; what the batch brings is put there; all else is lost."""
        left, where, stored = self.ram, self.at, self.storage
        self.ram, self.at, self.storage = {}, {}, {}
        start = self.training.start[number]
        for i, held in enumerate(self.problem.tensors):
            new = start[i] if not held.carried or number == 0 else None
            if held.home is Home.RAM:
                self.allocate(i, places)
                moved = self.plan.offsets and held.nbytes and where.get(i) != self.at[i]
                self.need(new is not None or not moved)
                self.ram[i] = left[i] if new is None else new
            if held.home is Home.STORAGE or held.backed:
                self.storage[i] = stored[i] if new is None else new
        self.room(0)

    def step(self, number: int, places: Iterator[int]) -> list[int]:
        tensors, operators = self.problem.tensors, self.problem.operators
        now, done = self.training.start[number], 0
        live = []
        for step in self.plan.instructions:
            k, before, workspace = step.target, set(self.ram), 0
            self.need(0 <= k < len(operators if step.action is Action.COMPUTE else tensors))
            if step.action is Action.COMPUTE:
                operator = operators[k]
                self.need(k <= done and (k == done or operator.recomputable))
                self.need(all(updater >= done for updater in operator.updaters))
                self.need(0 <= step.variant <= len(operator.variants))
                way = operator.variants[step.variant - 1] if step.variant else operator.plain
                self.need(self.problem.paging or not (way.streamed_in or way.streamed_out))
                found = tuple(self.read(i, way, now) for i in operator.inputs)
                self.need(found == self.training.reads[number][k])
                now = self.training.computed(k, found, now)
                over = {}
                if operator.takes and not step.variant:  # the output lies where the input was
                    given, made = operator.takes
                    over[made] = self.at.pop(given)
                    del self.ram[given]
                    before.remove(given)
                    self.gone.add(given)
                for i in self.made_by[k]:
                    if i in way.streamed_out:
                        self.need(i not in self.ram)
                        self.storage[i] = now[i]
                        continue
                    if i not in self.ram:
                        self.allocate(i, places)
                        self.need(over.get(i, self.at[i]) == self.at[i])
                        self.gone.discard(i)
                    self.ram[i] = now[i]
                workspace = way.workspace_bytes
                if self.plan.offsets:
                    self.place(next(places, -1), workspace)
                done = max(done, k + 1)
            elif step.action is Action.FREE:
                self.need(k in self.ram or k in self.gone)
                if k in self.gone:
                    self.gone.remove(k)
                else:
                    del self.ram[k], self.at[k]
            elif step.action is Action.PAGE_OUT:
                self.need(k in self.ram and self.problem.paging)
                self.storage[k] = self.ram[k]
            else:
                self.need(k not in self.ram and self.problem.paging and self.storage.get(k) == now[k])
                self.allocate(k, places)
                self.ram[k] = self.storage[k]
            live.append(self.room(workspace, before))
        self.need(done == len(operators))
        return live

    def read(self, i: int, way: Variant, now: list[Term]) -> Term:
        """What an operator finds where it reads a tensor."""
        if self.problem.tensors[i].home is Home.FLASH:
            return now[i]
        return (self.storage if i in way.streamed_in else self.ram).get(i, -1)

    def end(self, number: int) -> None:
        """Everything is where the next step looks for it, and is what ordinary training has left."""
        for i, held in enumerate(self.problem.tensors):
            right = self.training.end[number][i]
            self.need(not held.result or i in self.ram)
            if held.carried and held.home is Home.RAM:
                self.need(self.ram.get(i) == right)
            if held.carried and (held.home is Home.STORAGE or held.backed):
                self.need(self.storage.get(i) == right)

    def allocate(self, i: int, places: Iterator[int]) -> None:
        offset = next(places, -1) if self.plan.offsets else 0
        self.place(offset, self.problem.tensors[i].nbytes)
        self.at[i] = offset

    def place(self, offset: int, nbytes: int) -> None:
        """Whether bytes lie in the arena beside all that is in RAM."""
        if not self.plan.offsets or not nbytes:
            return
        end = offset + nbytes
        self.need(offset >= 0 and offset % self.problem.alignment == 0)
        self.need(self.ram_bytes is None or end + self.problem.reserve_bytes <= self.ram_bytes)
        for other, there in self.at.items():
            size = self.problem.tensors[other].nbytes
            self.need(not size or end <= there or there + size <= offset)

    def room(self, workspace: int, before: set[int] | None = None) -> int:
        """The live bytes, which keep the budget, and whole blocks on storage, which keep its size."""
        held = set(self.ram) | (before or set())
        live = sum(self.problem.tensors[i].nbytes for i in held) + workspace + self.problem.reserve_bytes
        self.need(self.ram_bytes is None or live <= self.ram_bytes)
        if self.problem.storage_bytes is not None:
            block = self.problem.storage_block_bytes
            taken = sum(-(-self.problem.tensors[i].nbytes // block) for i in self.storage)
            self.need(taken <= self.problem.storage_bytes // block)
        return live


def run_thrice(plan: Plan, ram_bytes: int | None = None) -> list[int]:
    """The live bytes of each instruction, in the third step. Raises BrokenError where one of the three can't be run.

    plan
        With offsets or without; only with them do buffers have places.
    """
    return _Run(plan, ram_bytes).all_steps()
