"""A scheduling problem: operators and tensors with bytes, seconds and joules, and nothing else.

It is all that formulations, baselines and the simulator know. Views are gone (their readers read
the storage), resident tensors are gone (they only add to `resident_bytes`), names are kept for people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from poetopt.printable import shown

if TYPE_CHECKING:
    from poetopt.graph import TrainingGraph


@dataclass(frozen=True, slots=True)
class ProblemTensor:
    """A tensor that a schedule may keep, free, page or lose.

    nbytes
        Size in bytes; may be 0.
    producer
        Index of the operator that writes it, or -1 for a graph input (in RAM at the start).
    page_in_s, page_in_j, page_out_s, page_out_j
        Seconds and joules of moving the whole tensor from and to storage.
    """

    name: str
    nbytes: int
    producer: int
    page_in_s: float = 0.0
    page_in_j: float = 0.0
    page_out_s: float = 0.0
    page_out_j: float = 0.0


@dataclass(frozen=True, slots=True)
class ProblemOperator:
    """An operator; its index is its place in the fixed order, and its stage.

    inputs, outputs
        Indices of the (non-resident) tensors that it reads and writes, ascending, without repetition.
    workspace_bytes
        Bytes in the arena that are needed only while it runs: its emitted temporaries.
    recomputable
        Whether it may run more than once.
    count
        How many of the network's operators it is: what it counts for in a chain of recomputations.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    time_s: float
    energy_j: float
    workspace_bytes: int = 0
    recomputable: bool = True
    backward: bool = False
    kind: str = ""
    count: int = 1


@dataclass(frozen=True)
class Problem:
    """One training step on one device.

    paging
        Whether the device has storage to page to.
    dma
        Whether transfers run beside the CPU on one channel.
    alignment
        Every buffer in the arena starts at a multiple of this many bytes.
    reserve_bytes
        What kernels allocate beside the arena: the most that any operator's do, reserved for the whole
        step because the arena is one block of fixed size. Counts in every peak.
    wake_j
        Joules of powering the storage on and off again, for each run of transfers without a pause.
    storage_bytes, storage_block_bytes
        What the storage holds, or None where that is not known (then it holds anything), and the blocks that it is
        written in. A tensor takes whole blocks from its first page-out to the end of the step; one written again
        takes the same place.
    resident_bytes
        Parameters, their gradients, optimizer state and constants: never scheduled, always reported.
    device_ram_bytes
        The device's RAM, or None where it is not known (a problem file without one).
    graph
        The training graph behind it, or None (a problem file): then the plan can't be executed.
    model_ref, model_hash
        How to find the model again, and the SHA-256 of its content.
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
    alignment: int = 1
    reserve_bytes: int = 0
    wake_j: float = 0.0
    storage_bytes: int | None = None
    storage_block_bytes: int = 1
    resident_bytes: int = 0
    device_ram_bytes: int | None = None
    graph: TrainingGraph | None = field(default=None, repr=False, compare=False)
    model_ref: str = ""
    model_hash: str = ""
    recipe: Mapping[str, object] = field(default_factory=dict, repr=False, compare=False)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        size = f"{len(self.operators)} operators, {len(self.tensors)} tensors"
        return f"<Problem {shown(self.name)} on {shown(self.device)}: {size}>"

    def __deepcopy__(self, memo: object) -> Problem:
        """Itself, as nothing in it changes: Pyomo copies what stands on a model, and a graph is large."""
        return self

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor, the operators that read it, ascending."""
        found: list[list[int]] = [[] for _ in self.tensors]
        for index, operator in enumerate(self.operators):
            for tensor in operator.inputs:
                found[tensor].append(index)
        return tuple(tuple(operators) for operators in found)

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """The graph inputs: tensors that no operator writes."""
        return tuple(i for i, tensor in enumerate(self.tensors) if tensor.producer < 0)

    @cached_property
    def last_forward(self) -> int:
        """Index of the last forward operator, or -1."""
        return max((i for i, operator in enumerate(self.operators) if not operator.backward), default=-1)

    @cached_property
    def baseline_energy_j(self) -> float:
        """Joules of one compute of each operator."""
        return sum(operator.energy_j for operator in self.operators)

    @cached_property
    def baseline_time_s(self) -> float:
        """Seconds of one compute of each operator: what `1.5x` multiplies."""
        return sum(operator.time_s for operator in self.operators)

    def nbytes(self, tensors: Sequence[int]) -> int:
        """Sum of the sizes of `tensors`."""
        return sum(self.tensors[i].nbytes for i in tensors)

    def blocks(self, tensor: int) -> int:
        """How many blocks `tensor` takes on storage."""
        return -(-self.tensors[tensor].nbytes // self.storage_block_bytes)

    @cached_property
    def storage_blocks(self) -> int | None:
        """How many whole blocks the storage holds, or None where that is not known."""
        return None if self.storage_bytes is None else self.storage_bytes // self.storage_block_bytes

    def working_set_bytes(self, operator: int) -> int:
        """What must be in RAM while `operator` runs: inputs, outputs and workspace."""
        op = self.operators[operator]
        return self.nbytes(op.inputs) + self.nbytes(op.outputs) + op.workspace_bytes

    @cached_property
    def least_ram_bytes(self) -> int:
        """A lower bound on the RAM of any schedule: the largest working set or all inputs, and the reserve."""
        sets = (self.working_set_bytes(i) for i in range(len(self.operators)))
        return max(max(sets, default=0), self.nbytes(self.inputs)) + self.reserve_bytes


def check_problem(given: object) -> None:
    """Raise TypeError for what isn't a Problem, and say what makes one."""
    if isinstance(given, Problem):
        return
    made = {"Model": ".differentiate().cost(device)", "Training": ".cost(device)", "TrainingFile": ".cost(device)"}
    kind = type(given).__name__
    raise TypeError(
        f"a Problem is needed here, not {'an' if kind[0] in 'AEIOU' else 'a'} {kind}: "
        + (f"call its {made[kind]}" if kind in made else 'as of po.load(model).differentiate().cost("a72")')
    )
