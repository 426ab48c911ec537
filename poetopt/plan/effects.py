"""Effects of instructions, as they read, make, store and free: the one table, which everybody asks who follows a plan.

A new kind of instruction is an `Action`, a row of `Effects`, and where it asks for what no other does a check in
`Machine.apply`; its seconds are `Clock.advance`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from poetopt.graph.problem import Home, Problem, ProblemOperator, ProblemTensor, Variant
from poetopt.plan.instructions import Action, Instruction
from poetopt.util.errors import PlanError


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of an instruction whenever it runs. Sequences hold tensors.

    seconds, joules
        Of the CPU for a compute, of the transfer for a page-in or page-out.
    operator
        What it computes; -1 where it computes nothing.
    recomputable, until
        Whether it may run again, and the last stage for that: an update ends what reads the old value.
    reads
        They must be in RAM; what lies in flash isn't among them.
    fetches
        They must be on storage, and not in RAM.
    makes
        They are in RAM from now on: in a fresh buffer, or over what is there.
    updates
        They are written anew, over themselves: a copy of them on storage is old from now on.
    stores
        They are on storage from now on.
    frees
        Their buffers are released as it ends.
    settles
        It waits for transfers of them that are under way: it overwrites or frees them.
    streams_in
        Read chunk by chunk from storage, where they must be; none of them takes room.
    streams_out
        Written chunk by chunk to storage, where they are from now on; they must not be in RAM.
    streams
        Whether it streams anything: CPU and storage are both busy with it.
    takes
        An input that its output is written over, and that is gone then; its FREE follows, and finds no bytes.
    extra_bytes
        What it takes of RAM beside them while it runs; less than its workspace where it takes over an input.
    """

    step: Instruction
    seconds: float = 0.0
    joules: float = 0.0
    operator: int = -1
    recomputable: bool = True
    until: int = -1
    reads: tuple[int, ...] = ()
    fetches: tuple[int, ...] = ()
    makes: tuple[int, ...] = ()
    updates: tuple[int, ...] = ()
    stores: tuple[int, ...] = ()
    frees: tuple[int, ...] = ()
    settles: tuple[int, ...] = ()
    streams_in: tuple[int, ...] = ()
    streams_out: tuple[int, ...] = ()
    streams: bool = False
    takes: tuple[int, ...] = ()
    extra_bytes: int = 0


class _Running(NamedTuple):
    """A compute.

    The operator, what of its inputs isn't read in flash, what it updates, the last stage for it, and what it takes
    beside inputs and outputs.
    """

    operator: ProblemOperator
    reads: tuple[int, ...]
    updates: tuple[int, ...]
    until: int
    extra_bytes: int


def _runs(problem: Problem) -> Iterator[_Running]:
    tensors, end = problem.tensors, len(problem.operators)
    for operator, updates, extra in zip(problem.operators, problem.updates, problem.extra_bytes, strict=True):
        reads = tuple(i for i in operator.inputs if tensors[i].home is not Home.FLASH)
        overtaken = (tensors[i].updated_by for i in reads if tensors[i].updated)
        until = min((*overtaken, *operator.updaters), default=end)
        yield _Running(operator, reads, updates, until, extra)


def _compute(index: int, run: _Running) -> Effect:
    operator, taken = run.operator, run.operator.takes[:1]
    return Effect(
        Instruction(Action.COMPUTE, index),
        operator.time_s,
        operator.energy_j,
        operator=index,
        recomputable=operator.recomputable,
        until=run.until,
        reads=run.reads,
        makes=operator.outputs,
        updates=run.updates,
        settles=(*operator.outputs, *run.updates, *taken),
        takes=taken,
        extra_bytes=run.extra_bytes,
    )


def _streamed(plain: Effect, variant: Variant, number: int) -> Effect:
    """The same compute in another way: what is streamed is neither read from RAM nor made there."""
    streamed = {*variant.streamed_in, *variant.streamed_out}
    reads = tuple(i for i in plain.reads if i not in streamed)
    makes = tuple(i for i in plain.makes if i not in streamed)
    return replace(
        plain,
        step=replace(plain.step, variant=number),
        seconds=variant.time_s,
        joules=variant.energy_j,
        reads=reads,
        makes=makes,
        settles=(*makes, *(i for i in plain.updates if i not in streamed)),
        takes=(),
        streams_in=variant.streamed_in,
        streams_out=variant.streamed_out,
        streams=variant.streams,
        extra_bytes=variant.workspace_bytes,
    )


def _page_out(i: int, tensor: ProblemTensor) -> Effect:
    here = (i,)
    return Effect(Instruction(Action.PAGE_OUT, i), tensor.page_out_s, tensor.page_out_j, reads=here, stores=here)


def _page_in(i: int, tensor: ProblemTensor) -> Effect:
    here = (i,)
    return Effect(Instruction(Action.PAGE_IN, i), tensor.page_in_s, tensor.page_in_j, fetches=here, makes=here)


def _free(i: int, _: ProblemTensor) -> Effect:
    here = (i,)
    return Effect(Instruction(Action.FREE, i), frees=here, settles=here)


class _Row(dict[int, Effect]):
    """The effects of one action by target, each made when it is first asked for. Raises PlanError for no target."""

    def __init__(self, make: Callable[[int, Any], Effect], entries: Sequence[_Running | ProblemTensor]) -> None:
        super().__init__()
        self.make, self.entries = make, entries

    def __missing__(self, target: int) -> Effect:
        if not 0 <= target < len(self.entries):
            raise PlanError("there is no operator or tensor of that index")
        effect = self[target] = self.make(target, self.entries[target])
        return effect


class _Variants(dict[tuple[int, int], Effect]):
    """The effects of computes that aren't plain, by operator and variant. Raises PlanError for no such variant."""

    def __init__(self, plain: _Row, variants: Sequence[tuple[Variant, ...]]) -> None:
        super().__init__()
        self.plain, self.variants = plain, variants

    def __missing__(self, key: tuple[int, int]) -> Effect:
        operator, number = key
        plain = self.plain[operator]
        if not 0 < number <= len(self.variants[operator]):
            raise PlanError(f"it has no variant {number}")
        effect = self[key] = _streamed(plain, self.variants[operator][number - 1], number)
        return effect


class Effects(dict[Action, _Row]):
    """The table of a problem: `effects[action][target]`, and `variants` of computes that aren't plain.

    It holds no reference to the problem, which holds it.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self[Action.COMPUTE] = _Row(_compute, [*_runs(problem)])
        self[Action.PAGE_OUT] = _Row(_page_out, problem.tensors)
        self[Action.PAGE_IN] = _Row(_page_in, problem.tensors)
        self[Action.FREE] = _Row(_free, problem.tensors)
        self.variants = _Variants(self[Action.COMPUTE], [operator.variants for operator in problem.operators])

    def of(self, step: Instruction) -> Effect:
        """The effect of an instruction. Raises PlanError for a target or a variant that isn't there."""
        return self.variants[step.target, step.variant] if step.variant else self[step.action][step.target]

    def each(self, steps: Iterable[Instruction]) -> Iterator[Effect]:
        """The effects of a list of instructions. Raises PlanError for a target or a variant that isn't there."""
        return map(self.of, steps)


def effects(problem: Problem) -> Effects:
    """The table of `problem`, made once."""
    if Effects not in problem.memo:
        problem.memo[Effects] = Effects(problem)
    found: Effects = problem.memo[Effects]
    return found
