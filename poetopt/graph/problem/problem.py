"""One training step on one device, and the questions that everybody asks of it."""

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
"""Fields of what follows the last part of a batch that say nothing beside the step's own."""
MOST_KEPT = 64
"""So many answers of `Problem.keeping` are remembered."""


@dataclass(frozen=True)
class Problem:
    """One training step on one device. Raises ProblemError where tensors and operators contradict each other.

    paging
        Whether the device has storage to page to.
    dma
        Whether transfers run beside the CPU on one channel.
    placed
        Whether tensors share one arena. False: each is allocated by itself, and the bytes that are live count alone.
    alignment
        Every buffer in the arena starts at a multiple of this many bytes.
    reserve_bytes
        What kernels allocate beside the arena: the most that any operator's do, reserved for the whole
        step because the arena is one block of fixed size. Counts in every peak.
    wake_j
        Joules of powering the storage on and off again, for each run of transfers without a pause.
    storage_bytes, storage_block_bytes, storage_erase_bytes
        What the storage holds, or None where that is not known (then it holds anything); the blocks that it is written
        in; and what it erases at once before (1: nothing). A tensor takes whole blocks from its first page-out to the
        end of the step; one written again takes the same place.
    resident_bytes
        Parameters, their gradients, optimizer state and constants: never scheduled, always reported.
    stack_bytes
        RAM for the stack and what a device needs besides, beside all that a step takes.
    flash_bytes
        Constants and weights that nobody trains, in mapped flash: they take no RAM.
    device_ram_bytes
        The device's RAM, or None where it is not known (a problem file without one).
    runtime, runtime_version
        What runs the operators (`poetopt.ops.runtimes`), and the version of its kernels: workspaces and the reserve are
        of those. "" where it is not known.
    parts
        Of how many parts a batch is: a step runs the operators, which are one part's, so many times. Seconds and joules
        of operators and transfers are those of all runs together.
    closing
        The operators that follow the last part, once a step: updates by summed gradients. Its tensors are those of the
        same names. None where nothing follows.
    closing_ram_bytes
        What these may take of RAM: each runs in the way of least energy that fits. None: plain.
    graph
        The training graph behind it, or None (a problem file): then the plan can't be executed.
    model_ref, model_hash, structure_hash
        How to find the model again, and the SHA-256 of its content, and of its operators, shapes and types alone
        (`poetopt.frontends.summary`): the problem is of those. "" where there is none, as in older plans.
    recipe
        What was asked of the frontend and of autodiff (`batch`, `train`, `loss`, `output`; plain JSON values): with
        model_ref, how to make the graph again.
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
        """Itself, as nothing in it changes: Pyomo copies what stands on a model, and a graph is large."""
        return self

    @cached_property
    def memo(self) -> dict[object, Any]:
        """Results of functions of this problem alone, each under a key of that function's own.

        A hash of a problem takes longer than a simulation, so that no dictionary has it as a key.
        """
        return {}

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor, the operators that read it, ascending."""
        found: list[list[int]] = [[] for _ in self.tensors]
        for index, operator in enumerate(self.operators):
            for tensor in operator.inputs:
                found[tensor].append(index)
        return tuple(tuple(operators) for operators in found)

    @property
    def called(self) -> str:
        """Gives what messages and reports call the model."""
        return self.model_ref or self.name

    @property
    def beside_bytes(self) -> int:
        """RAM that a step takes whatever its schedule: the resident region and the stack."""
        return self.resident_bytes + self.stack_bytes

    # Where tensors begin and end.

    @cached_property
    def at_start(self) -> tuple[int, ...]:
        """The tensors in RAM when the step begins, ascending."""
        return tuple(i for i, tensor in enumerate(self.tensors) if tensor.home is Home.RAM)

    @cached_property
    def given(self) -> tuple[int, ...]:
        """The tensors that no operator computes, wherever they are when the step begins; ascending."""
        return tuple(i for i, tensor in enumerate(self.tensors) if not tensor.computed)

    @cached_property
    def start_bytes(self) -> int:
        """Bytes of RAM taken before the first operator: what is there, and the reserve."""
        return self.nbytes(self.at_start) + self.reserve_bytes

    @cached_property
    def stored_at_start(self) -> tuple[int, ...]:
        """The tensors that storage holds when the step begins, ascending."""
        return tuple(i for i, tensor in enumerate(self.tensors) if tensor.stored)

    @cached_property
    def at_end(self) -> tuple[int, ...]:
        """The tensors that have to be in RAM when the step ends, ascending."""
        return tuple(
            i for i, tensor in enumerate(self.tensors) if tensor.result or (tensor.carried and tensor.home is Home.RAM)
        )

    def outlives(self, tensor: int) -> bool:
        """Says whether the step may not end without `tensor`, wherever it lies then."""
        return self.tensors[tensor].carried or self.tensors[tensor].result

    def keeping(self, tensors: Iterable[int]) -> Problem:
        """The same step where some tensors stay in RAM from one step to the next, though their home is storage.

        They begin and end in RAM then. What is never written anew keeps its copy on storage beside that.
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
                    replace(held, home=Home.RAM, carried=True, backed=not held.updated) if i in kept else held
                    for i, held in enumerate(self.tensors)
                ),
            )
        return self._keeping[kept]

    @cached_property
    def _keeping(self) -> dict[frozenset[int], Problem]:
        """Answers of `keeping`."""
        return {}

    def within(self, ram_bytes: int) -> Problem:
        """The same step where what follows the last part may take so many bytes; itself where nothing follows."""
        if self.closing is None or self.closing_ram_bytes == ram_bytes:
            return self
        return replace(self, closing_ram_bytes=ram_bytes)

    def on_any_storage(self) -> Problem:
        """Return the same step on a storage that holds whatever is written."""
        if self.storage_bytes is None:
            return self
        closing = None if self.closing is None else self.closing.on_any_storage()
        return replace(self, storage_bytes=None, closing=closing)

    @cached_property
    def asked(self) -> Problem:
        """The problem that a plan was looked for: what stays in RAM from step to step has its home on storage again."""
        if not self.lasting and self.closing_ram_bytes is None:
            return self
        tensors = list(self.tensors)
        for i in self.lasting:
            if tensors[i].backed is not tensors[i].updated:  # else it begins in RAM of itself
                tensors[i] = replace(tensors[i], home=Home.STORAGE, backed=False)
        return replace(self, tensors=tuple(tensors), closing_ram_bytes=None)

    @cached_property
    def lasting(self) -> tuple[int, ...]:
        """The tensors that no operator computes, and that are in RAM as the step begins and as it ends; ascending."""
        return tuple(i for i, held in enumerate(self.tensors) if held.home is Home.RAM and held.carried)

    @cached_property
    def parameters(self) -> str:
        """`paged` where something that is carried from step to step is scheduled, else `resident`."""
        return "paged" if any(held.carried for held in self.tensors) else "resident"

    @cached_property
    def first_reads(self) -> tuple[int, ...]:
        """For each tensor, the first stage whose own operator reads it; the number of stages where none does."""
        return tuple(readers[0] if readers else len(self.operators) for readers in self.readers)

    # What may bring a tensor back.

    def may_recompute(self, tensor: int) -> bool:
        """Says whether the operator that writes `tensor` may run again; never where it is there from the start."""
        producer = self.tensors[tensor].producer
        return producer >= 0 and self.operators[producer].recomputable

    def may_page_out(self, tensor: int) -> bool:
        """Says whether `tensor` may be written to storage: not what lies in flash, nor what storage holds unchanged."""
        held = self.tensors[tensor]
        return self.paging and held.home is not Home.FLASH and (not held.stored or held.updated)

    def written_first(self, tensor: int) -> bool:
        """Says whether `tensor` has to be written to storage before it can be read from there."""
        held = self.tensors[tensor]
        return not held.stored and held.home is not Home.FLASH

    def written_in(self, tensor: int) -> int:
        """The stage as which begins `tensor` is written out, unless a schedule says another.

        That is right after its first compute or, where storage holds it from the start, right after its update; 0 for
        one that is in RAM from the start. Nothing that counts sums of joules and seconds finds later better: its bytes
        are in RAM then, and its copy stays valid, so that once is enough.
        """
        held = self.tensors[tensor]
        return (held.updated_by if held.stored else held.producer) + 1

    def written_after(self, stage: int) -> tuple[int, ...]:
        """The tensors that may be written out right after `stage`: what it made or updated; -1: before the first."""
        if stage < 0:
            return self.at_start
        return tuple(sorted({*self.operators[stage].outputs, *self.updates[stage]}))

    # What an update ends.

    @cached_property
    def updates(self) -> tuple[tuple[int, ...], ...]:
        """For each operator, the tensors that it writes anew over themselves, ascending."""
        found: list[list[int]] = [[] for _ in self.operators]
        for i, tensor in enumerate(self.tensors):
            if tensor.updated:
                found[tensor.updated_by].append(i)
        return tuple(tuple(tensors) for tensors in found)

    @cached_property
    def last_run(self) -> tuple[int, ...]:
        """For each operator, the last stage that it may run in: nothing that reads a tensor runs after its update."""
        end = len(self.operators) - 1
        ends = [min(operator.updaters, default=end) for operator in self.operators]
        for i, tensor in enumerate(self.tensors):
            if tensor.updated:
                for reader in self.readers[i]:
                    ends[reader] = min(ends[reader], tensor.updated_by)
        return tuple(ends)

    # What somebody can't plan for.

    @cached_property
    def features(self) -> Mapping[Feature, str]:
        """Features that it has beside plain tensors, computed or in RAM, and what first has each."""
        found: dict[Feature, str] = {}
        for feature, who in features(self):
            found.setdefault(feature, who)
        return found

    def beyond(self, supports: Set[Feature] = frozenset()) -> str | None:
        """Gives what goes beyond the features that somebody `supports`, in words; None where nothing does."""
        return next((f"{who} {feature}" for feature, who in self.features.items() if feature not in supports), None)

    # Order, and sums.

    @cached_property
    def last_forward(self) -> int:
        """Index of the last forward operator, or -1."""
        return max((i for i, operator in enumerate(self.operators) if not operator.backward), default=-1)

    @cached_property
    def has_backward(self) -> bool:
        """Says whether it is a training step, and no network alone."""
        return any(operator.backward for operator in self.operators)

    @cached_property
    def baseline_energy_j(self) -> float:
        """Joules of one compute of each operator, in each part."""
        own = sum(operator.energy_j for operator in self.operators)
        return own + (self.closing.baseline_energy_j if self.closing is not None else 0.0)

    @cached_property
    def baseline_time_s(self) -> float:
        """Seconds of one compute of each operator, in each part: what `1.5x` multiplies."""
        own = sum(operator.time_s for operator in self.operators)
        return own + (self.closing.baseline_time_s if self.closing is not None else 0.0)

    def nbytes(self, tensors: Sequence[int]) -> int:
        """Sum of the sizes of `tensors`."""
        return sum(self.tensors[i].nbytes for i in tensors)

    def blocks(self, tensor: int) -> int:
        """Says how many blocks `tensor` takes on storage."""
        return -(-self.tensors[tensor].nbytes // self.storage_block_bytes)

    @cached_property
    def extra_bytes(self) -> tuple[int, ...]:
        """For each operator, what it takes beside inputs and outputs: its workspace, less an input that it takes over.

        May be negative.
        """
        return tuple(op.workspace_bytes - self.nbytes(op.takes[:1]) for op in self.operators)

    @cached_property
    def storage_blocks(self) -> int | None:
        """Says how many whole blocks the storage holds, or None where that is not known."""
        return None if self.storage_bytes is None else self.storage_bytes // self.storage_block_bytes

    @cached_property
    def starts_within_storage(self) -> bool:
        """Return whether storage holds what begins there."""
        return self.storage_blocks is None or sum(map(self.blocks, self.stored_at_start)) <= self.storage_blocks

    def working_set_bytes(self, operator: int, variant: int = 0) -> int:
        """Bytes in RAM while `operator` runs: inputs, outputs and workspace, less what the variant streams."""
        return self._working_sets[operator][variant]

    @cached_property
    def _working_sets(self) -> list[list[int]]:
        """(n_operators, 1 + its variants) bytes."""
        return [
            [self.nbytes(op.held(v)) + op.variant(v).workspace_bytes for v in range(1 + len(op.variants))]
            for op in self.operators
        ]

    def fits_plain(self, operator: int, ram_bytes: int) -> bool:
        """Says whether a budget has room for `operator` alone, with nothing streamed."""
        return self.working_set_bytes(operator) <= ram_bytes - self.reserve_bytes

    def ways(self, operator: int, *, paging: bool = True) -> tuple[int, ...]:
        """The ways in which `operator` may run, as an `Instruction` numbers them; without storage none that streams."""
        variants = enumerate(self.operators[operator].variants, 1)
        return (0, *(v for v, way in variants if (paging and self.paging) or not way.streams))

    def least_working_set_bytes(self, operator: int, *, paging: bool = True) -> int:
        """Gives what must be in RAM while `operator` runs in the way that takes the least."""
        return min(self.working_set_bytes(operator, variant) for variant in self.ways(operator, paging=paging))

    @cached_property
    def least_ram_bytes(self) -> int:
        """A lower bound on the RAM of any schedule: the largest working set or all that is there first, the reserve."""
        sets = (self.least_working_set_bytes(i) + self.reserve_bytes for i in range(len(self.operators)))
        own = max(max(sets, default=0), self.start_bytes)
        return own if self.closing is None else max(own, self.closing.least_ram_bytes)


def check_problem(given: object) -> None:
    """Raise TypeError for what isn't a Problem, and say what makes one."""
    if isinstance(given, Problem):
        return
    made = {
        "Model": "call its .differentiate().cost(device)",
        **dict.fromkeys(("Training", "TrainingFile"), "call its .cost(device)"),
    }
    kind = type(given).__name__
    raise TypeError(
        f"a Problem is needed here, not {'an' if kind[0] in 'AEIOU' else 'a'} {kind}: "
        + (exported(given) or made.get(kind, 'as of po.load(model).differentiate().cost("a72")'))
    )


def slots(problem: Problem, nbytes: int) -> int:
    """Gives what a buffer of so many bytes takes of the arena."""
    return -(-nbytes // problem.alignment) * problem.alignment


def extra_slots(problem: Problem, operator: int) -> int:
    """Bytes of the arena beside operands and outputs of a plain run: its workspace, less an input it takes over."""
    op = problem.operators[operator]
    return slots(problem, op.workspace_bytes) - sum(slots(problem, problem.tensors[i].nbytes) for i in op.takes[:1])


def run_bytes(problem: Problem, operator: int, variant: int = 0) -> int:
    """Gives what operands, outputs and workspace of a run take of the arena, without what it streams."""
    op = problem.operators[operator]
    sizes = [*(problem.tensors[i].nbytes for i in op.held(variant)), op.variant(variant).workspace_bytes]
    return sum(slots(problem, nbytes) for nbytes in sizes)


def closing_with(problem: Problem, kept: Iterable[int]) -> tuple[Problem, int]:
    """The problem behind the parts that keep these tensors in RAM; and bytes kept that nothing of it reads."""
    closing = problem.closing
    assert closing is not None
    names = {problem.tensors[i].name: slots(problem, problem.tensors[i].nbytes) for i in kept}
    here = [i for i, held in enumerate(closing.tensors) if held.name in names and held.may_stay]
    beside = sum(names.values()) - sum(names[closing.tensors[i].name] for i in here)
    return closing.keeping(here), beside


def ways_within(closing: Problem, room_bytes: int) -> tuple[int, ...]:
    """For each operator the way of least energy that fits, as an `Instruction` numbers it; the leanest where none does.

    closing
        Its `lasting` tensors are in RAM throughout; whatever else an operator reads is paged in for it, or streamed.
    room_bytes
        For its operands, workspace and what lasts.
    """
    there = {i: slots(closing, closing.tensors[i].nbytes) for i in closing.lasting}
    lasting_bytes = sum(there.values())
    found = []
    for k, operator in enumerate(closing.operators):
        beside = lasting_bytes - sum(there.get(i, 0) for i in operator.inputs)
        ways = [v for v in closing.ways(k) if there.keys().isdisjoint(operator.variant(v).streamed_in)]
        taken = {v: run_bytes(closing, k, v) + beside for v in ways}
        fitting = [v for v in ways if taken[v] <= room_bytes]
        prices = {v: (moving_j(closing, k, v), taken[v]) for v in fitting}
        found.append(min(prices, key=prices.__getitem__) if prices else min(ways, key=taken.__getitem__))
    return tuple(found)


def moving_j(closing: Problem, operator: int, variant: int) -> float:
    """Joules of a run in one way, with the page-ins and write-backs around it of what is not in RAM for good."""
    op, there = closing.operators[operator], set(closing.lasting)
    way = op.variant(variant)
    moved = (closing.tensors[i] for i in op.inputs if i not in there and i not in way.streamed_in)
    around = sum(held.page_in_j + (held.page_out_j if held.updated_by == operator else 0.0) for held in moved)
    return way.energy_j + around
