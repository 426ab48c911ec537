"""Effects of instructions: what each reads, makes, stores and frees, in one table for all who follow a plan.

A new kind of instruction needs an `Action`, a row of `Effects`, a check in `Machine.apply` if no other instruction has
that condition, and its seconds in `Clock.advance`.
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
    """Effect of an instruction whenever it runs. Sequences contain tensors.

    Attributes
    ----------
    seconds, joules
        Time and energy of the CPU for a compute, of the transfer for a page-in or page-out.
    operator
        Operator that it computes; -1 if none.
    recomputable, until
        Whether it may run again, and the last stage for that: an update ends the life of the old value.
    reads
        Tensors that must be in RAM; those in flash are left out.
    fetches
        Tensors that must be on storage and not in RAM.
    makes
        Tensors that are in RAM from now on, in a fresh buffer or over their old value.
    updates
        Tensors that are overwritten with a new value; their copies on storage become stale.
    stores
        Tensors that are on storage from now on.
    frees
        Tensors whose buffers are released when it ends.
    settles
        Tensors whose pending transfers it waits for, because it overwrites or frees them.
    streams_in
        Tensors that are read in chunks from storage, where they must be; they take no RAM.
    streams_out
        Tensors that are written in chunks to storage; they must not be in RAM.
    streams
        Whether it streams anything; then CPU and storage are both busy.
    takes
        Input that its output overwrites and that no longer exists afterwards; the FREE that follows releases no bytes.
    extra_bytes
        RAM that it needs besides these tensors while it runs; less than its workspace if it overwrites an input.
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
    """Compute of an operator.

    Attributes
    ----------
    reads
        Inputs that are not read in flash.
    updates
        Tensors that it updates.
    until
        Last stage that it may run in.
    extra_bytes
        Bytes that it needs besides inputs and outputs.
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
        update_stages = (tensors[i].updated_by for i in reads if tensors[i].updated)
        until = min((*update_stages, *operator.updaters), default=end)
        yield _Running(operator, reads, updates, until, extra)


def _compute(index: int, run: _Running) -> Effect:
    operator, overwritten = run.operator, run.operator.takes[:1]
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
        settles=(*operator.outputs, *run.updates, *overwritten),
        takes=overwritten,
        extra_bytes=run.extra_bytes,
    )


def _streamed(plain: Effect, variant: Variant, number: int) -> Effect:
    """Return the effect of the same compute as a variant: streamed tensors are neither read from RAM nor made there."""
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
    tensors = (i,)
    return Effect(Instruction(Action.PAGE_OUT, i), tensor.page_out_s, tensor.page_out_j, reads=tensors, stores=tensors)


def _page_in(i: int, tensor: ProblemTensor) -> Effect:
    tensors = (i,)
    return Effect(Instruction(Action.PAGE_IN, i), tensor.page_in_s, tensor.page_in_j, fetches=tensors, makes=tensors)


def _free(i: int, _: ProblemTensor) -> Effect:
    tensors = (i,)
    return Effect(Instruction(Action.FREE, i), frees=tensors, settles=tensors)


class _Row(dict[int, Effect]):
    """Effects of one action by target, each built on first use. Raises PlanError for an invalid target."""

    def __init__(self, make: Callable[[int, Any], Effect], entries: Sequence[_Running | ProblemTensor]) -> None:
        super().__init__()
        self.make, self.entries = make, entries

    def __missing__(self, target: int) -> Effect:
        if not 0 <= target < len(self.entries):
            raise PlanError("there is no operator or tensor with that index")
        effect = self[target] = self.make(target, self.entries[target])
        return effect


class _Variants(dict[tuple[int, int], Effect]):
    """Effects of computes by variants, by (operator, variant). Raises PlanError for an invalid variant."""

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
    """Table of a problem's effects: `effects[action][target]`, and `variants` of computes.

    It has no reference to the problem, which owns it.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self[Action.COMPUTE] = _Row(_compute, [*_runs(problem)])
        self[Action.PAGE_OUT] = _Row(_page_out, problem.tensors)
        self[Action.PAGE_IN] = _Row(_page_in, problem.tensors)
        self[Action.FREE] = _Row(_free, problem.tensors)
        self.variants = _Variants(self[Action.COMPUTE], [operator.variants for operator in problem.operators])

    def of(self, step: Instruction) -> Effect:
        """Return the effect of an instruction. Raises PlanError for an invalid target or variant."""
        return self.variants[step.target, step.variant] if step.variant else self[step.action][step.target]

    def each(self, steps: Iterable[Instruction]) -> Iterator[Effect]:
        """Yield the effects of a list of instructions. Raises PlanError for an invalid target or variant."""
        return map(self.of, steps)


def effects(problem: Problem) -> Effects:
    """Return the table of `problem`, which is built once."""
    if Effects not in problem.memo:
        problem.memo[Effects] = Effects(problem)
    table: Effects = problem.memo[Effects]
    return table
