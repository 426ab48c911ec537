"""A plan prepared to run: every binding and every transfer is ready, so that a step is one tight loop.

Inputs, outputs and temporaries of every node are bound to their addresses in the arena beforehand, once for each
COMPUTE of the plan. While the step runs, only kernels allocate memory of a tensor's size, for themselves. The step
releases it before a kernel that could exceed the plan's reserve, by the runtime's own figures.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

import numpy as np

from poetopt.backends.step.memory import POISON, MappedBlock, bytes_of, copy_mapped, numpy_dtype
from poetopt.backends.step.places import Moment, Place, Places, input_offsets, moments
from poetopt.backends.step.region import WINDOW, Carried, ResidentRegion, reseeded
from poetopt.backends.step.slices import BoundSlices
from poetopt.backends.step.storage import Bytes, PageFile
from poetopt.graph import VIEW_OPS, Node, Tensor, TrainingGraph
from poetopt.ops.nodes import is_inner_view
from poetopt.ops.runtimes.contract import Runtime
from poetopt.plan.instructions import Action, Plan
from poetopt.util.errors import ExecutionError, ModelError
from poetopt.util.progress import Told, silent
from poetopt.util.text import closest

if TYPE_CHECKING:
    from poetopt.graph import Array

    Batch = Mapping[str, Array]
    """Arrays by the graph's input names."""

Act = Callable[[], object]
"""Prepared action of a step."""


class Kernels(Protocol):
    """Kernels of one runtime, for the nodes of one graph."""

    @property
    def runtime(self) -> Runtime:
        """Runtime whose memory figures apply."""
        ...

    def bound(self, node: Node, addresses: Mapping[str, int], shapes: Mapping[str, Tensor] | None = None) -> Act:
        """Return an action that runs `node` with every tensor that it names at its address.

        Parameters
        ----------
        shapes
            Tensors as the node sees them, where they differ from the graph's: slices.

        Raises
        ------
        ExecutionError
            The runtime has no kernel for the node.
        """
        ...

    def draws(self, node: Node) -> bool:
        """Return whether a bound node draws random numbers. Bound again, it draws the same numbers again."""
        ...

    def give_back(self) -> Act | None:
        """Return an action that releases all memory that kernels have freed to the system; None where nothing can."""
        ...

    def errors(self) -> tuple[type[Exception], ...]:
        """Return the exceptions that a kernel may raise."""
        ...

    def reason(self, error: BaseException) -> str:
        """Return the message of such an exception, on one line."""
        ...


class _Watched:
    """Copies of chosen tensors of a step, outside the arena.

    Attributes
    ----------
    copies
        Values that the last step computed, by name.

    Raises
    ------
    ModelError
        No kernel of the step computes a tensor of that name.
    """

    def __init__(self, graph: TrainingGraph, names: Collection[str] = ()) -> None:
        nodes = {name: node for operator in graph.operators for node in operator.nodes for name in node.outputs}
        self.copies: dict[str, Array] = {}
        self._names_by_written: dict[str, list[str]] = {}
        for name in names:
            written = _computed(nodes, name)
            if written not in nodes:
                aside = {n for operator in graph.aside for n in operator.outputs}
                outputs = [n for n in graph.outputs if n not in aside]
                loss_hint = "; the loss doesn't need it, and the trained network has it" if name in aside else ""
                raise ModelError(
                    f"the step of {graph.name!r} computes no tensor {name!r}{loss_hint or closest(name, nodes)}; "
                    f"its outputs are {', '.join(map(repr, outputs)) or 'none'}"
                )
            tensor = graph.tensors[name]
            self.copies[name] = np.empty(tensor.shape, numpy_dtype(tensor.dtype))
            self._names_by_written.setdefault(written, []).append(name)

    def of(self, node: Node) -> tuple[tuple[str, Array], ...]:
        """Return the tensors to copy after `node` has run, each with its copy."""
        return tuple(
            (written, self.copies[name]) for written in node.outputs for name in self._names_by_written.get(written, ())
        )


def _computed(nodes: Mapping[str, Node], name: str) -> str:
    """Return the tensor that a kernel writes and whose bytes `name` has: views move no bytes."""
    while name in nodes and nodes[name].op_type in VIEW_OPS and not nodes[name].domain:
        name = nodes[name].inputs[0]
    return name


@dataclass(frozen=True, slots=True)
class _BoundCall:
    """Action of the step: it runs a node, copies or moves a tensor, or releases memory.

    Attributes
    ----------
    what
        Description for error messages.
    number
        Index of the plan's instruction that the action belongs to.
    moves
        Whether the action moves data from or to storage.
    """

    what: str
    number: int
    act: Act
    moves: bool = False


class Program:
    """Plan bound to an arena, a resident region and a paging file.

    `run` takes the step at full speed. `run_checked` overwrites at once every byte that the plan has freed: a node that
    reads freed or unwritten memory computes nonsense instead of passing by luck.
    """

    def __init__(
        self,
        plan: Plan,
        graph: TrainingGraph,
        arena: MappedBlock,
        region: ResidentRegion,
        kernels: Kernels,
        pages: PageFile,
        told: Told = silent,
        watched: Collection[str] = (),
    ) -> None:
        self.plan = plan
        self.graph = graph
        self.arena = arena
        self.region = region
        self.kernels = kernels
        self.pages = pages
        self.places = Places(graph, plan.problem, kernels.runtime)
        self.calls: list[_BoundCall] = []
        self.watched = _Watched(graph, watched)
        self._redraws: list[tuple[int, Node, Mapping[str, int]]] = []
        self._freed_spans: dict[int, tuple[tuple[int, int], ...]] = {}
        self._kernel_limit_bytes = plan.problem.reserve_bytes - kernels.runtime.reserve_bytes(0)
        self._kernel_bytes = self._number = 0
        for moment in moments(plan):
            self._number = moment.number
            told(f"preparing kernels: instruction {moment.number:,} of {len(plan.instructions):,}")
            self._prepare(moment)
        self._stored_inputs = {
            tensor.name for tensor in plan.problem.tensors if tensor.of_batch and tensor.name in graph.inputs
        }
        self._inputs = {name: self._input_view(name) for name in graph.inputs}
        self.carried = Carried(plan, graph, arena, pages)

    def load(self, batch: Batch, *, anew: bool = True) -> None:
        """Put a batch, as `Carried.take` returns it, where the step reads it.

        With `anew`, the next step is a first step: updated values are reset, and random nodes draw from the beginning
        again.
        """
        if anew:
            self.region.reset()
            self.carried.begin()
            self.redraw()
        self.carried.choose()
        for name, array in self._inputs.items():
            if array is not None:
                copy_mapped(array, batch[name])
            elif name in self._stored_inputs:
                self.pages.write(name, bytes_of(batch[name]))

    def redraw(self, steps: int = 0) -> None:
        """Let random nodes draw as after `steps` steps (`poetopt.backends.step.region`). Call it between steps."""
        seed_window, n_draws = divmod(steps, WINDOW)
        in_arena = self.carried.in_ram.values() if n_draws and self._redraws else ()
        saved = [(array, array.copy()) for array in in_arena]  # the draws to skip are written into the arena
        for index, node, addresses in self._redraws:
            call = self.calls[index]
            act = self.kernels.bound(reseeded(node, seed_window), addresses)
            for _ in range(n_draws):
                act()
            self.calls[index] = _BoundCall(call.what, call.number, act)
        for array, copy in saved:
            np.copyto(array, copy)

    @property
    def transfers(self) -> frozenset[int]:
        """Indices of the actions that move a tensor, or a slice of one, from or to storage."""
        return frozenset(k for k, call in enumerate(self.calls) if call.moves)

    @property
    def acts(self) -> list[Act]:
        """Actions of the step, in order."""
        return [call.act for call in self.calls]

    def run(self) -> None:
        """Run one step. Raise `ExecutionError` where a kernel or the storage fails."""
        actions = self.acts
        index = 0
        try:
            for index, action in enumerate(actions):  # noqa: B007 - read where an action fails
                action()
        except self.kernels.errors() as error:
            raise self._failure(index, error) from error

    def run_checked(self, batch: Batch) -> None:
        """Load `batch` and run one step with freed bytes poisoned."""
        self.arena.bytes.fill(POISON)
        self.region.block.bytes.fill(POISON)
        self.load(batch)
        self.poisoning()

    def poisoning(self) -> None:
        """Run one step on the loaded batch, and poison freed bytes."""
        index = 0
        try:
            for index, call in enumerate(self.calls):
                call.act()
                is_last = index + 1 == len(self.calls) or self.calls[index + 1].number != call.number
                next_number = (
                    self.calls[index + 1].number if index + 1 < len(self.calls) else len(self.plan.instructions)
                )
                for number in range(call.number, next_number) if is_last else ():
                    for offset, nbytes in self._freed_spans.get(number, ()):
                        self.arena.span(offset, nbytes).fill(POISON)
        except self.kernels.errors() as error:
            raise self._failure(index, error) from error

    def result(self, name: str) -> Array:
        """Return a result of the last step: a view where it is in RAM, else a copy."""
        root = self.graph.root(name)
        if root in self.carried.first:
            return self.carried.value(root).reshape(self.graph.tensors[name].shape)
        return self.region.value(self.graph, name)

    def digest(self, name: str) -> bytes:
        """Return the SHA-256 of `result(name)`. A result on storage is read piece by piece."""
        sha, root = sha256(), self.graph.root(name)
        chunks = self.carried.pieces(root) if root in self.carried.first else [bytes_of(self.result(name))]
        for piece in chunks:
            sha.update(piece.data)
        return sha.digest()

    @property
    def begun(self) -> Mapping[str, Array]:
        """Values that the first step reads besides its batch, without later updates. Read-only."""
        return {**self.region.begun, **self.carried.begun}

    def _input_view(self, name: str) -> Array | None:
        """Return the graph input `name` at the start; None where nothing reads it, or where it begins on storage."""
        tensor = self.graph.tensors[name]
        if name in self.region.written:
            return self.region.written[name]
        index = self.places.index.get(name)
        return (
            None
            if index is None or name in self._stored_inputs
            else self.arena.view(input_offsets(self.plan)[index], tensor)
        )

    def _prepare(self, moment: Moment) -> None:
        """Bind one instruction."""
        action, target, problem = moment.instruction.action, moment.instruction.target, self.plan.problem
        if action is not Action.COMPUTE:
            tensor = problem.tensors[target]
            if action is Action.FREE:
                if target in moment.at:  # else an output has overwritten it
                    self._freed_spans[moment.number] = ((moment.at[target], tensor.nbytes),)
                return
            move = self.pages.write if action is Action.PAGE_OUT else self.pages.read
            in_arena = self.arena.span(moment.at[target], tensor.nbytes)
            what = f"{action.replace('_', ' ')} of {tensor.name!r}"
            self.add(what, partial(move, tensor.name, in_arena), moves=True)
            return
        operator = self.places.operators[problem.operators[target].name]
        if moment.instruction.variant or problem.operators[target].takes:
            BoundSlices(self, operator, moment).bind()
        else:
            inner = self.places.inner(operator)
            for node, need in zip(operator.nodes, inner.kernel_bytes, strict=True):
                if is_inner_view(node, inner.storage):
                    self.room_for(need)
                    continue
                names = dict.fromkeys(name for name in (*node.inputs, *node.outputs) if name)
                places = {name: self.places.of(name, operator, moment) for name in names}
                self.bind(node, f"operator {operator.name!r}", places, need)
                for name, copy in self.watched.of(node):
                    in_arena = self.span(places[name], copy.nbytes)
                    act = partial(np.copyto, copy.reshape(-1).view(np.uint8), in_arena)
                    self.add(f"a copy of {name!r}", act)
        if any(buffer.workspace for buffer in moment.made):
            self._freed_spans[moment.number] = tuple((b.offset, b.nbytes) for b in moment.made if b.workspace)

    def add(self, what: str, act: Act, *, moves: bool = False) -> None:
        """Append an action to the instruction that is being prepared; the parameters are those of `_BoundCall`."""
        self.calls.append(_BoundCall(what, self._number, act, moves))

    def room_for(self, kernel_bytes: int) -> None:
        """Release memory first where a kernel that allocates `kernel_bytes` could exceed the reserve."""
        if self._kernel_bytes and self._kernel_bytes + kernel_bytes > self._kernel_limit_bytes:
            self._kernel_bytes, give_back = 0, self.kernels.give_back()
            if give_back is not None:
                self.add("giving memory back", give_back)
        self._kernel_bytes += kernel_bytes

    def bind(
        self,
        node: Node,
        owner: str,
        places: Mapping[str, Place],
        kernel_bytes: int,
        shapes: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Append the run of a node with its tensors at these addresses; `shapes` as for `Kernels.bound`."""
        self.room_for(kernel_bytes)
        addresses = {name: self._address(place) for name, place in places.items()}
        if shapes is None and self.kernels.draws(node):
            self._redraws.append((len(self.calls), node, addresses))
        action = self.kernels.bound(node, addresses, shapes)
        self.add(f"node {node.name or node.op_type!r} ({node.op_type}) of {owner}", action)

    def _address(self, place: Place) -> int:
        return (self.region.address(place.root) if place.root else self.arena.address) + place.offset

    def span(self, place: Place, nbytes: int) -> Bytes:
        """Return `nbytes` bytes at an address, without a copy."""
        if not place.root:
            return self.arena.span(place.offset, nbytes)
        array = self.region.given[place.root] if place.root in self.region.given else self.region.written[place.root]
        return array.reshape(-1).view(np.uint8)[place.offset : place.offset + nbytes]

    def _failure(self, place: int, error: BaseException) -> ExecutionError:
        call = self.calls[place]
        return ExecutionError(f"instruction {call.number}: {call.what} failed: {self.kernels.reason(error)}")
