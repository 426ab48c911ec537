"""The machine that a plan runs on: what each instruction does to RAM and storage.

`Effects` is the one table of what an instruction reads, makes, stores and frees. The simulator, the layout,
`normalize`, the replays and the reports ask it, or walk the `Machine`, which is the moment between two instructions. A
new kind of instruction is an `Action`, a row of `Effects`, and where it asks for what no other does a check in
`Machine.apply`. Its time is in `poetopt.plan.clock`.

Bytes. A buffer counts from the instruction that makes it to the FREE that releases it, both included; a workspace
counts during its COMPUTE. A tensor takes its whole blocks of the storage from its first PAGE_OUT to the end of the
step; one written again takes the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from poetopt.errors import PlanError
from poetopt.plan.instructions import Action, Instruction
from poetopt.problem import Problem, ProblemOperator, ProblemTensor


@dataclass(frozen=True, slots=True)
class Effect:
    """What an instruction does whenever it runs. Sequences hold tensors.

    seconds, joules
        Of the CPU for a compute, of the transfer for a page-in or page-out.
    operator
        What it computes; -1 where it computes nothing.
    recomputable
        Whether it may run again.
    reads
        They must be in RAM.
    fetches
        They must be on storage, and not in RAM.
    makes
        They are in RAM from now on: in a fresh buffer, or over what is there.
    stores
        They are on storage from now on.
    frees
        Their buffers are released as it ends.
    workspace_bytes
        What it takes of RAM beside them while it runs.
    """

    step: Instruction
    seconds: float = 0.0
    joules: float = 0.0
    operator: int = -1
    recomputable: bool = True
    reads: tuple[int, ...] = ()
    fetches: tuple[int, ...] = ()
    makes: tuple[int, ...] = ()
    stores: tuple[int, ...] = ()
    frees: tuple[int, ...] = ()
    workspace_bytes: int = 0


def _compute(index: int, operator: ProblemOperator) -> Effect:
    return Effect(
        Instruction(Action.COMPUTE, index),
        operator.time_s,
        operator.energy_j,
        operator=index,
        recomputable=operator.recomputable,
        reads=operator.inputs,
        makes=operator.outputs,
        workspace_bytes=operator.workspace_bytes,
    )


def _page_out(i: int, tensor: ProblemTensor) -> Effect:
    here = (i,)
    return Effect(Instruction(Action.PAGE_OUT, i), tensor.page_out_s, tensor.page_out_j, reads=here, stores=here)


def _page_in(i: int, tensor: ProblemTensor) -> Effect:
    here = (i,)
    return Effect(Instruction(Action.PAGE_IN, i), tensor.page_in_s, tensor.page_in_j, fetches=here, makes=here)


def _free(i: int, _: ProblemTensor) -> Effect:
    return Effect(Instruction(Action.FREE, i), frees=(i,))


class _Row(dict[int, Effect]):
    """The effects of one action by target, each made when it is first asked for. Raises PlanError for no target."""

    def __init__(self, make: Callable[[int, Any], Effect], entries: Sequence[ProblemOperator | ProblemTensor]) -> None:
        super().__init__()
        self.make, self.entries = make, entries

    def __missing__(self, target: int) -> Effect:
        if not 0 <= target < len(self.entries):
            raise PlanError("there is no operator or tensor of that index")
        effect = self[target] = self.make(target, self.entries[target])
        return effect


class Effects(dict[Action, _Row]):
    """The table of a problem: `effects[action][target]`. It holds no reference to the problem, which holds it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self[Action.COMPUTE] = _Row(_compute, problem.operators)
        self[Action.PAGE_OUT] = _Row(_page_out, problem.tensors)
        self[Action.PAGE_IN] = _Row(_page_in, problem.tensors)
        self[Action.FREE] = _Row(_free, problem.tensors)

    def each(self, steps: Iterable[Instruction]) -> Iterator[Effect]:
        """The effects of a list of instructions. Raises PlanError for a target that isn't there."""
        return (self[step.action][step.target] for step in steps)


def effects(problem: Problem) -> Effects:
    """The table of `problem`, made once."""
    # Kept with the problem, as its cached properties are: a hash of a problem takes longer than a simulation.
    found: Effects | None = vars(problem).get("_effects")
    if found is None:
        found = vars(problem)["_effects"] = Effects(problem)
    return found


class Machine:
    """One moment of a training step. It begins with the graph inputs in RAM, and nothing on storage.

    resident, stored
        The tensors in RAM, and those with a copy on storage.
    live
        Bytes in RAM, what is reserved for kernels included.
    blocks
        Blocks of the storage that are taken.
    ahead
        The operator that is computed next for the first time.
    sizes
        The bytes that each tensor takes in RAM; its own where they aren't given.
    """

    __slots__ = ("_capacity", "_paging", "ahead", "blocks", "live", "problem", "resident", "sizes", "stored")

    def __init__(self, problem: Problem, sizes: Sequence[int] | None = None) -> None:
        self.problem = problem
        self.sizes = [tensor.nbytes for tensor in problem.tensors] if sizes is None else sizes
        self.resident = set(problem.at_start)
        self.stored: set[int] = set()
        self.live = problem.reserve_bytes + sum(self.sizes[i] for i in problem.at_start)
        self.blocks = self.ahead = 0
        self._paging, self._capacity = problem.paging, problem.storage_blocks

    def copy(self) -> Machine:
        """The same moment, to go on from differently."""
        other = Machine.__new__(Machine)
        for name in Machine.__slots__:
            setattr(other, name, getattr(self, name))
        other.resident, other.stored = self.resident.copy(), self.stored.copy()
        return other

    def apply(self, effect: Effect) -> int:
        """Run an instruction; the bytes that are live during it. Raises PlanError where it must not run now."""
        resident = self.resident
        operator = effect.operator
        if operator >= 0:
            if operator > self.ahead:
                expected = self.problem.operators[self.ahead].name
                raise PlanError(f"its turn comes only after {expected!r}, not computed yet")
            if operator < self.ahead and not effect.recomputable:
                raise PlanError("it is computed a second time, and must not be")
        elif not self._paging and (effect.stores or effect.fetches):
            raise PlanError(f"device {self.problem.device!r} has no storage to page to")
        for i in effect.reads:
            if i not in resident:
                name = self.problem.tensors[i].name
                raise PlanError(f"it reads {name!r}, which is not in RAM" if operator >= 0 else "it is not in RAM")
        for i in effect.fetches:
            if i not in self.stored:
                raise PlanError("it was never written out")
            if i in resident:
                raise PlanError("it is in RAM already")
        for i in effect.stores:
            self.store(i)
        for i in effect.makes:
            if i not in resident:
                resident.add(i)
                self.live += self.sizes[i]
        during = self.live + effect.workspace_bytes
        for i in effect.frees:
            self.free(i)
        if operator == self.ahead:
            self.ahead += 1
        return during

    def fresh(self, effect: Effect) -> list[int]:
        """What it would make that isn't in RAM: a buffer each, in this order."""
        return [i for i in effect.makes if i not in self.resident]

    def need(self, effect: Effect) -> int:
        """The bytes that it would take beside the live ones."""
        return sum(self.sizes[i] for i in effect.makes if i not in self.resident) + effect.workspace_bytes

    def free(self, i: int) -> None:
        """Release the buffer of tensor `i`. Raises PlanError where it has none."""
        if i not in self.resident:
            raise PlanError("it is not in RAM")
        self.resident.remove(i)
        self.live -= self.sizes[i]

    def store(self, i: int) -> None:
        """Set the blocks of tensor `i` aside on storage. Raises PlanError where that is full."""
        if i not in self.stored:
            blocks = self.blocks + self.problem.blocks(i)
            if self._capacity is not None and blocks > self._capacity:
                raise PlanError(_full(self.problem, blocks))
            self.blocks = blocks
            self.stored.add(i)

    def finish(self) -> None:
        """Check that the step may end here. Raises PlanError where an operator was never computed."""
        if self.ahead < len(self.problem.operators):
            raise PlanError(
                f"without operator {self.ahead} ({self.problem.operators[self.ahead].name!r}); "
                "every operator must be computed"
            )


def _full(problem: Problem, blocks: int) -> str:
    """What is wrong with so many blocks on storage."""
    unit = problem.storage_block_bytes
    rounded = f" in blocks of {unit}" if unit > 1 else ""
    return (
        f"what is written out takes {blocks * unit:,} bytes{rounded}, more than the storage of {problem.device!r} "
        f"holds, {problem.storage_bytes:,}"
    )
