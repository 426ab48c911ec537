"""One training step on one device, and queries about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from poetopt.graph.problem.features import Feature, check, features
from poetopt.graph.problem.tensors import Home, ProblemOperator, ProblemTensor
from poetopt.util.text import exported, shown

if TYPE_CHECKING:
    from poetopt.graph import TrainingGraph


CLOSING: Mapping[str, Any] = {
    "parts": 1, "closing_ram_bytes": None, "resident_bytes": 0, "flash_bytes": 0, "stack_bytes": 0, "notes": (),
}  # fmt: skip
"""Fields that the updates after the last part don't have, because the step has them."""
MOST_KEPT = 64
"""Maximum number of cached results of `Problem.keeping`."""


@dataclass(frozen=True)
class Problem:
    """One training step on one device. Raises ProblemError if tensors and operators contradict each other.

    Attributes
    ----------
    paging
        Whether the device has storage to page to.
    dma
        Whether transfers run beside the CPU, on one channel.
    placed
        Whether tensors share one arena. If not, each is allocated separately, and only the live bytes count.
    alignment
        Every buffer in the arena starts at a multiple of this many bytes.
    reserve_bytes
        Bytes that kernels allocate outside the arena: the maximum over all operators, reserved for the whole step
        because the arena is one block of fixed size. Counts in every peak.
    wake_j
        Joules of powering the storage on and off again, for each run of transfers without a pause.
    storage_bytes, storage_block_bytes, storage_erase_bytes
        Capacity of the storage, or None if unknown (then it is unlimited); size of the blocks that it is written in;
        and size of the blocks that it erases before (1: it doesn't erase). A tensor takes whole blocks from its first
        page-out to the end of the step; a tensor that is written again keeps its blocks.
    resident_bytes
        Parameters, their gradients, optimizer states and constants: never scheduled, always reported.
    stack_bytes
        RAM for the stack and other needs of a device, in addition to that of the step.
    flash_bytes
        Constants and untrained weights in mapped flash, which take no RAM.
    device_ram_bytes
        RAM of the device, or None if unknown (a problem file without one).
    runtime, runtime_version
        Runtime of the operators (`poetopt.ops.runtimes`), and the version of its kernels, which workspaces and the
        reserve depend on. "" if unknown.
    parts
        Number of parts of a batch: a step runs the operators, which are those of one part, this many times. Seconds and
        joules of operators and transfers are those of all runs together.
    closing
        Updates by summed gradients, which follow the last part once a step. Its tensors are those with the same names.
        None if nothing follows.
    closing_ram_bytes
        RAM that the updates may take: each runs as the variant of least energy that fits. None: without streaming.
    graph
        Training graph that it was made from, or None (a problem file): then the plan can't be executed.
    model_ref, model_hash, structure_hash
        Reference of the model, SHA-256 of its content, and SHA-256 of its operators, shapes and types only
        (`poetopt.frontends.summary`). "" if there is none, as in older plans.
    recipe
        Options of the frontend and of autodiff (`batch`, `train`, `loss`, `output`; plain JSON values). With model_ref,
        it allows the graph to be built again.
    """

    name: str
    device: str
    operators: tuple[ProblemOperator, ...]
    tensors: tuple[ProblemTensor, ...]
    paging: bool = True
    dma: bool = False
    placed: bool = True
    alignment: int = 1
    reserve_bytes: int = 0
    wake_j: float = 0.0
    storage_bytes: int | None = None
    storage_block_bytes: int = 1
    storage_erase_bytes: int = 1
    resident_bytes: int = 0
    stack_bytes: int = 0
    flash_bytes: int = 0
    device_ram_bytes: int | None = None
    runtime: str = ""
    runtime_version: str = ""
    parts: int = 1
    closing: Problem | None = None
    closing_ram_bytes: int | None = None
    graph: TrainingGraph | None = field(default=None, repr=False, compare=False)
    model_ref: str = ""
    model_hash: str = ""
    structure_hash: str = ""
    recipe: Mapping[str, object] = field(default_factory=dict, repr=False, compare=False)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check(self)

    def __repr__(self) -> str:
        size = f"{len(self.operators)} operators, {len(self.tensors)} tensors"
        return f"<Problem {shown(self.name)} on {shown(self.device)}: {size}>"

    def __deepcopy__(self, memo: object) -> Problem:
        """Return itself, as it is immutable: Pyomo copies objects on a model, and a graph is large."""
        return self

    @cached_property
    def memo(self) -> dict[object, Any]:
        """Results of functions of this problem alone, each under that function's own key.

        Problems aren't dictionary keys, because hashing one takes longer than a simulation.
        """
        return {}

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Operators that read each tensor, ascending."""
        by_tensor: list[list[int]] = [[] for _ in self.tensors]
        for index, operator in enumerate(self.operators):
            for tensor in operator.inputs:
                by_tensor[tensor].append(index)
        return tuple(tuple(operators) for operators in by_tensor)

    @property
    def called(self) -> str:
        """Name of the model in messages and reports."""
        return self.model_ref or self.name

    @property
    def beside_bytes(self) -> int:
        """RAM that a step takes with any schedule: the resident region and the stack."""
        return self.resident_bytes + self.stack_bytes

    # Tensors at the start and the end of a step.

    @cached_property
    def at_start(self) -> tuple[int, ...]:
        """Tensors in RAM when the step begins, ascending."""
        return tuple(i for i, tensor in enumerate(self.tensors) if tensor.home is Home.RAM)

    @cached_property
    def given(self) -> tuple[int, ...]:
        """Tensors that no operator computes, in any home, ascending."""
        return tuple(i for i, tensor in enumerate(self.tensors) if not tensor.computed)

    @cached_property
    def start_bytes(self) -> int:
        """Bytes of RAM in use before the first operator: tensors and reserve."""
        return self.nbytes(self.at_start) + self.reserve_bytes

    @cached_property
    def stored_at_start(self) -> tuple[int, ...]:
        """Tensors that storage holds when the step begins, ascending."""
        return tuple(i for i, tensor in enumerate(self.tensors) if tensor.stored)

    @cached_property
    def at_end(self) -> tuple[int, ...]:
        """Tensors that must be in RAM when the step ends, ascending."""
        return tuple(
            i for i, tensor in enumerate(self.tensors) if tensor.result or (tensor.carried and tensor.home is Home.RAM)
        )

    def outlives(self, tensor: int) -> bool:
        """Return whether `tensor` must exist, in any place, when the step ends."""
        return self.tensors[tensor].carried or self.tensors[tensor].result

    def keeping(self, tensors: Iterable[int]) -> Problem:
        """Return the step with some tensors in RAM from one step to the next, although their home is storage.

        These tensors are in RAM at the start and the end. A tensor that is never updated also keeps its copy on
        storage.
        """
        kept = frozenset(tensors)
        if not kept:
            return self
        if kept not in self._keeping:
            if len(self._keeping) >= MOST_KEPT:
                self._keeping.clear()
            self._keeping[kept] = replace(
                self,
                tensors=tuple(
                    replace(tensor, home=Home.RAM, carried=True, backed=not tensor.updated) if i in kept else tensor
                    for i, tensor in enumerate(self.tensors)
                ),
            )
        return self._keeping[kept]

    @cached_property
    def _keeping(self) -> dict[frozenset[int], Problem]:
        """Cached results of `keeping`."""
        return {}

    def within(self, ram_bytes: int) -> Problem:
        """Return the step whose updates after the last part may take `ram_bytes`; itself if there are none."""
        if self.closing is None or self.closing_ram_bytes == ram_bytes:
            return self
        return replace(self, closing_ram_bytes=ram_bytes)

    def on_any_storage(self) -> Problem:
        """Return the step on a storage of unlimited size."""
        if self.storage_bytes is None:
            return self
        updates = None if self.closing is None else self.closing.on_any_storage()
        return replace(self, storage_bytes=None, closing=updates)

    @cached_property
    def asked(self) -> Problem:
        """Problem that a plan was made for: tensors kept in RAM from step to step have their home on storage again."""
        if not self.lasting and self.closing_ram_bytes is None:
            return self
        tensors = list(self.tensors)
        for i in self.lasting:
            if tensors[i].backed is not tensors[i].updated:  # otherwise its home is RAM
                tensors[i] = replace(tensors[i], home=Home.STORAGE, backed=False)
        return replace(self, tensors=tuple(tensors), closing_ram_bytes=None)

    @cached_property
    def lasting(self) -> tuple[int, ...]:
        """Tensors that no operator computes and that are in RAM at the start and the end of a step, ascending."""
        return tuple(i for i, tensor in enumerate(self.tensors) if tensor.home is Home.RAM and tensor.carried)

    @cached_property
    def parameters(self) -> str:
        """`paged` if a carried tensor is scheduled, else `resident`."""
        return "paged" if any(tensor.carried for tensor in self.tensors) else "resident"

    @cached_property
    def first_reads(self) -> tuple[int, ...]:
        """First stage whose own operator reads each tensor; the number of stages if none does."""
        return tuple(readers[0] if readers else len(self.operators) for readers in self.readers)

    # Ways to get a tensor back.

    def may_recompute(self, tensor: int) -> bool:
        """Return whether the operator that writes `tensor` may run again; False if no operator writes it."""
        producer = self.tensors[tensor].producer
        return producer >= 0 and self.operators[producer].recomputable

    def may_page_out(self, tensor: int) -> bool:
        """Return whether `tensor` may be written to storage: not if it is in flash, or on storage and not updated."""
        entry = self.tensors[tensor]
        return self.paging and entry.home is not Home.FLASH and (not entry.stored or entry.updated)

    def written_first(self, tensor: int) -> bool:
        """Return whether `tensor` must be written to storage before it can be read from there."""
        entry = self.tensors[tensor]
        return not entry.stored and entry.home is not Home.FLASH

    def written_in(self, tensor: int) -> int:
        """Return the default stage of the page-out of `tensor`: it is written when that stage begins.

        That is right after its first compute or, if storage holds it from the start, right after its update; 0 for a
        tensor that is in RAM from the start. A later stage never reduces sums of joules and seconds: the tensor is in
        RAM then, and its copy stays valid, so one page-out suffices.
        """
        entry = self.tensors[tensor]
        return (entry.updated_by if entry.stored else entry.producer) + 1

    def written_after(self, stage: int) -> tuple[int, ...]:
        """Return the tensors that may be written right after `stage`, its outputs and updates; -1: at the start."""
        if stage < 0:
            return self.at_start
        return tuple(sorted({*self.operators[stage].outputs, *self.updates[stage]}))

    # Updates.

    @cached_property
    def updates(self) -> tuple[tuple[int, ...], ...]:
        """Tensors that each operator updates in place, ascending."""
        by_operator: list[list[int]] = [[] for _ in self.operators]
        for i, tensor in enumerate(self.tensors):
            if tensor.updated:
                by_operator[tensor.updated_by].append(i)
        return tuple(tuple(tensors) for tensors in by_operator)

    @cached_property
    def last_run(self) -> tuple[int, ...]:
        """Last stage that each operator may run in: no reader of a tensor runs after its update."""
        end = len(self.operators) - 1
        ends = [min(operator.updaters, default=end) for operator in self.operators]
        for i, tensor in enumerate(self.tensors):
            if tensor.updated:
                for reader in self.readers[i]:
                    ends[reader] = min(ends[reader], tensor.updated_by)
        return tuple(ends)

    # Unsupported features.

    @cached_property
    def features(self) -> Mapping[Feature, str]:
        """Features besides plain tensors that are computed or in RAM, each with the first entry that has it."""
        owners: dict[Feature, str] = {}
        for feature, owner in features(self):
            owners.setdefault(feature, owner)
        return owners

    def beyond(self, supports: Set[Feature] = frozenset()) -> str | None:
        """Return a description of a feature that isn't in `supports`, or None if all are."""
        return next((f"{owner} {feature}" for feature, owner in self.features.items() if feature not in supports), None)

    # Order, and sums.

    @cached_property
    def last_forward(self) -> int:
        """Index of the last forward operator, or -1."""
        return max((i for i, operator in enumerate(self.operators) if not operator.backward), default=-1)

    @cached_property
    def has_backward(self) -> bool:
        """Return whether it is a training step, not only a network."""
        return any(operator.backward for operator in self.operators)

    @cached_property
    def baseline_energy_j(self) -> float:
        """Joules of one compute of each operator, in each part."""
        energy_j = sum(operator.energy_j for operator in self.operators)
        return energy_j + (self.closing.baseline_energy_j if self.closing is not None else 0.0)

    @cached_property
    def baseline_time_s(self) -> float:
        """Seconds of one compute of each operator, in each part: the unit of `1.5x`."""
        time_s = sum(operator.time_s for operator in self.operators)
        return time_s + (self.closing.baseline_time_s if self.closing is not None else 0.0)

    def nbytes(self, tensors: Sequence[int]) -> int:
        """Return the total size of `tensors`."""
        return sum(self.tensors[i].nbytes for i in tensors)

    def blocks(self, tensor: int) -> int:
        """Return the number of storage blocks of `tensor`."""
        return -(-self.tensors[tensor].nbytes // self.storage_block_bytes)

    @cached_property
    def extra_bytes(self) -> tuple[int, ...]:
        """Bytes of each operator besides inputs and outputs: its workspace, minus an input that it overwrites.

        May be negative.
        """
        return tuple(op.workspace_bytes - self.nbytes(op.takes[:1]) for op in self.operators)

    @cached_property
    def storage_blocks(self) -> int | None:
        """Number of whole blocks of the storage, or None if unknown."""
        return None if self.storage_bytes is None else self.storage_bytes // self.storage_block_bytes

    @cached_property
    def starts_within_storage(self) -> bool:
        """Return whether the tensors that begin on storage fit it."""
        return self.storage_blocks is None or sum(map(self.blocks, self.stored_at_start)) <= self.storage_blocks

    def working_set_bytes(self, operator: int, variant: int = 0) -> int:
        """Return the bytes in RAM while `operator` runs: inputs, outputs, workspace, minus streamed tensors."""
        return self._working_sets[operator][variant]

    @cached_property
    def _working_sets(self) -> list[list[int]]:
        """(n_operators, 1 + its variants) bytes."""
        return [
            [self.nbytes(op.held(v)) + op.variant(v).workspace_bytes for v in range(1 + len(op.variants))]
            for op in self.operators
        ]

    def fits_plain(self, operator: int, ram_bytes: int) -> bool:
        """Return whether `operator` alone fits `ram_bytes` without streaming."""
        return self.working_set_bytes(operator) <= ram_bytes - self.reserve_bytes

    def ways(self, operator: int, *, paging: bool = True) -> tuple[int, ...]:
        """Return the numbers of the variants that `operator` may run as; without storage none that streams."""
        variants = enumerate(self.operators[operator].variants, 1)
        return (0, *(v for v, variant in variants if (paging and self.paging) or not variant.streams))

    def least_working_set_bytes(self, operator: int, *, paging: bool = True) -> int:
        """Return the bytes in RAM while `operator` runs as its smallest variant."""
        return min(self.working_set_bytes(operator, variant) for variant in self.ways(operator, paging=paging))

    @cached_property
    def least_ram_bytes(self) -> int:
        """Lower bound on the RAM of any schedule: the largest working set plus reserve, or the bytes at the start."""
        sets = (self.least_working_set_bytes(i) + self.reserve_bytes for i in range(len(self.operators)))
        least_bytes = max(max(sets, default=0), self.start_bytes)
        return least_bytes if self.closing is None else max(least_bytes, self.closing.least_ram_bytes)


def check_problem(given: object) -> None:
    """Raise TypeError for an object that isn't a Problem; the message says how to make one."""
    if isinstance(given, Problem):
        return
    advice = {
        "Model": "call its .differentiate().cost(device)",
        **dict.fromkeys(("Training", "TrainingFile"), "call its .cost(device)"),
    }
    kind = type(given).__name__
    raise TypeError(
        f"a Problem is needed here, not {'an' if kind[0] in 'AEIOU' else 'a'} {kind}: "
        + (exported(given) or advice.get(kind, 'as of po.load(model).differentiate().cost("a72")'))
    )


def slots(problem: Problem, nbytes: int) -> int:
    """Return the bytes of the arena that a buffer of `nbytes` takes."""
    return -(-nbytes // problem.alignment) * problem.alignment


def extra_slots(problem: Problem, operator: int) -> int:
    """Return the arena bytes of a run besides operands and outputs: workspace, minus an overwritten input."""
    op = problem.operators[operator]
    return slots(problem, op.workspace_bytes) - sum(slots(problem, problem.tensors[i].nbytes) for i in op.takes[:1])


def run_bytes(problem: Problem, operator: int, variant: int = 0) -> int:
    """Return the arena bytes of a run: operands, outputs and workspace, without streamed tensors."""
    op = problem.operators[operator]
    sizes = [*(problem.tensors[i].nbytes for i in op.held(variant)), op.variant(variant).workspace_bytes]
    return sum(slots(problem, nbytes) for nbytes in sizes)


def closing_with(problem: Problem, kept: Iterable[int]) -> tuple[Problem, int]:
    """Return the updates after parts that keep `kept` in RAM, and the bytes of kept tensors that no update reads."""
    updates = problem.closing
    assert updates is not None
    names = {problem.tensors[i].name: slots(problem, problem.tensors[i].nbytes) for i in kept}
    shared = [i for i, tensor in enumerate(updates.tensors) if tensor.name in names and tensor.may_stay]
    unread_bytes = sum(names.values()) - sum(names[updates.tensors[i].name] for i in shared)
    return updates.keeping(shared), unread_bytes


def ways_within(closing: Problem, room_bytes: int) -> tuple[int, ...]:
    """Return, for each operator, the number of the cheapest variant that fits, or of the smallest if none does.

    Parameters
    ----------
    closing
        Problem whose `lasting` tensors are in RAM throughout. Other operands are paged in for their operator, or
        streamed.
    room_bytes
        Bytes for its operands, workspace and lasting tensors.
    """
    lasting_slots = {i: slots(closing, closing.tensors[i].nbytes) for i in closing.lasting}
    lasting_bytes = sum(lasting_slots.values())
    chosen = []
    for k, operator in enumerate(closing.operators):
        other_bytes = lasting_bytes - sum(lasting_slots.get(i, 0) for i in operator.inputs)
        variants = [v for v in closing.ways(k) if lasting_slots.keys().isdisjoint(operator.variant(v).streamed_in)]
        sizes = {v: run_bytes(closing, k, v) + other_bytes for v in variants}
        fitting = [v for v in variants if sizes[v] <= room_bytes]
        costs = {v: (moving_j(closing, k, v), sizes[v]) for v in fitting}
        chosen.append(min(costs, key=costs.__getitem__) if costs else min(variants, key=sizes.__getitem__))
    return tuple(chosen)


def moving_j(closing: Problem, operator: int, variant: int) -> float:
    """Return the joules of a run, including page-ins and write-backs of operands that aren't in RAM throughout."""
    op, lasting = closing.operators[operator], set(closing.lasting)
    chosen = op.variant(variant)
    paged = (closing.tensors[i] for i in op.inputs if i not in lasting and i not in chosen.streamed_in)
    transfer_j = sum(
        tensor.page_in_j + (tensor.page_out_j if tensor.updated_by == operator else 0.0) for tensor in paged
    )
    return chosen.energy_j + transfer_j
