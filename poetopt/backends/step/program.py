"""A plan made ready to run: every binding and every transfer prepared, so that a step is one tight loop.

Inputs, outputs and temporaries of every node are bound to their addresses in the arena beforehand, once
for each COMPUTE of the plan. Nothing of a tensor's size is allocated while the step runs, but what kernels take for
themselves, and that goes back to the system as the step goes on: before a kernel that could bring what kernels took
since memory was given back over the plan's reserve, by the runtime's own figures.
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
    """Arrays by the names of the graph's inputs."""

Act = Callable[[], object]
"""Something that a step does, with everything prepared."""


class Kernels(Protocol):
    """Kernels of one runtime, for the nodes of one graph."""

    @property
    def runtime(self) -> Runtime:
        """Gives what they take of RAM."""
        ...

    def bound(self, node: Node, addresses: Mapping[str, int], shapes: Mapping[str, Tensor] | None = None) -> Act:
        """Running `node` with every tensor that it names at its address.

        shapes
            The tensors as the node sees them, where they are not those of the graph: of a slice.

        Raises `ExecutionError` where there is no kernel for it.
        """
        ...

    def draws(self, node: Node) -> bool:
        """Says whether a bound node draws random numbers: bound anew, it draws the same ones again."""
        ...

    def give_back(self) -> Act | None:
        """Gives what returns to the system all memory that kernels have freed; None where nothing does."""
        ...

    def errors(self) -> tuple[type[Exception], ...]:
        """The exceptions that a kernel may raise."""
        ...

    def reason(self, error: BaseException) -> str:
        """Gives what such an exception says, on one line."""
        ...


class _Watched:
    """Room of their own for tensors of a step, beside the arena.

    copies
        By name: what the last step computed.

    Raises `ModelError` for a tensor that no kernel of the step computes.
    """

    def __init__(self, graph: TrainingGraph, names: Collection[str] = ()) -> None:
        nodes = {name: node for operator in graph.operators for node in operator.nodes for name in node.outputs}
        self.copies: dict[str, Array] = {}
        self._of: dict[str, list[str]] = {}
        for name in names:
            made = _computed(nodes, name)
            if made not in nodes:
                aside = {n for operator in graph.aside for n in operator.outputs}
                own = [n for n in graph.outputs if n not in aside]
                loss = "; its loss is computed without, and the trained network has it" if name in aside else ""
                raise ModelError(
                    f"the step of {graph.name!r} computes no tensor {name!r}{loss or closest(name, nodes)}; "
                    f"its outputs are {', '.join(map(repr, own)) or 'none'}"
                )
            tensor = graph.tensors[name]
            self.copies[name] = np.empty(tensor.shape, numpy_dtype(tensor.dtype))
            self._of.setdefault(made, []).append(name)

    def of(self, node: Node) -> tuple[tuple[str, Array], ...]:
        """Gives what is to be copied once `node` has run: the tensor that it wrote, and where to."""
        return tuple((made, self.copies[name]) for made in node.outputs for name in self._of.get(made, ()))


def _computed(nodes: Mapping[str, Node], name: str) -> str:
    """The tensor whose bytes `name` has, as a kernel writes them: views move none."""
    while name in nodes and nodes[name].op_type in VIEW_OPS and not nodes[name].domain:
        name = nodes[name].inputs[0]
    return name


@dataclass(frozen=True, slots=True)
class _BoundCall:
    """One act of the step: running a node, copying or moving a tensor, giving memory back.

    what
        For error messages.
    number
        The plan's instruction that it belongs to.
    moves
        Whether it moves something from or to storage.
    """

    what: str
    number: int
    act: Act
    moves: bool = False


class Program:
    """A plan bound to an arena, a resident region and a paging file.

    run
        The step, as fast as it goes.
    run_checked
        The step, with every byte that the plan has given up overwritten at once: who reads what is freed, or was never
        written, computes nonsense instead of passing by luck.
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
        self._given_up: dict[int, tuple[tuple[int, int], ...]] = {}
        self._room = plan.problem.reserve_bytes - kernels.runtime.reserve_bytes(0)
        self._taken = self._number = 0
        for moment in moments(plan):
            self._number = moment.number
            told(f"preparing kernels: instruction {moment.number:,} of {len(plan.instructions):,}")
            self._prepare(moment)
        self._fed = {held.name for held in plan.problem.tensors if held.of_batch and held.name in graph.inputs}
        self._inputs = {name: self._input(name) for name in graph.inputs}
        self.carried = Carried(plan, graph, arena, pages)

    def load(self, batch: Batch, *, anew: bool = True) -> None:
        """Put a batch, as `Carried.take` gives it, where the step expects it.

        With `anew`, it will be a first step: what steps have updated is as it was, and random nodes draw from the
        beginning again.
        """
        if anew:
            self.region.reset()
            self.carried.begin()
            self.redraw()
        self.carried.choose()
        for name, array in self._inputs.items():
            if array is not None:
                copy_mapped(array, batch[name])
            elif name in self._fed:
                self.pages.write(name, bytes_of(batch[name]))

    def redraw(self, steps: int = 0) -> None:
        """Let random nodes draw as in the step behind so many (`poetopt.backends.step.region`); for between steps."""
        window, drawn = divmod(steps, WINDOW)
        lying = self.carried.in_ram.values() if drawn and self._redraws else ()
        kept = [(array, array.copy()) for array in lying]  # what they draw on the way is written over the arena
        for place, node, addresses in self._redraws:
            call = self.calls[place]
            act = self.kernels.bound(reseeded(node, window), addresses)
            for _ in range(drawn):
                act()
            self.calls[place] = _BoundCall(call.what, call.number, act)
        for array, copy in kept:
            np.copyto(array, copy)

    @property
    def transfers(self) -> frozenset[int]:
        """The places of the acts that move a tensor, or a slice of one, from or to storage."""
        return frozenset(k for k, call in enumerate(self.calls) if call.moves)

    @property
    def acts(self) -> list[Act]:
        """The step, act by act."""
        return [call.act for call in self.calls]

    def run(self) -> None:
        """One step. Raises `ExecutionError` where a kernel or the storage fails."""
        acts = self.acts
        done = 0
        try:
            for done, act in enumerate(acts):  # noqa: B007 - read where an act fails
                act()
        except self.kernels.errors() as error:
            raise self._failure(done, error) from error

    def run_checked(self, batch: Batch) -> None:
        """Load `batch` and run one step with freed bytes poisoned."""
        self.arena.bytes.fill(POISON)
        self.region.block.bytes.fill(POISON)
        self.load(batch)
        self.poisoning()

    def poisoning(self) -> None:
        """Run what is loaded, and poison what is freed."""
        done = 0
        try:
            for done, call in enumerate(self.calls):
                call.act()
                last = done + 1 == len(self.calls) or self.calls[done + 1].number != call.number
                following = self.calls[done + 1].number if done + 1 < len(self.calls) else len(self.plan.instructions)
                for number in range(call.number, following) if last else ():
                    for offset, nbytes in self._given_up.get(number, ()):
                        self.arena.span(offset, nbytes).fill(POISON)
        except self.kernels.errors() as error:
            raise self._failure(done, error) from error

    def result(self, name: str) -> Array:
        """Gives what the last step left behind of the step's results: a view where it is in RAM, else a copy."""
        root = self.graph.root(name)
        if root in self.carried.first:
            return self.carried.value(root).reshape(self.graph.tensors[name].shape)
        return self.region.value(self.graph, name)

    def digest(self, name: str) -> bytes:
        """SHA-256 of `result(name)`, of which a piece is in memory at once where it is on storage."""
        found, root = sha256(), self.graph.root(name)
        parts = self.carried.pieces(root) if root in self.carried.first else [bytes_of(self.result(name))]
        for piece in parts:
            found.update(piece.data)
        return found.digest()

    @property
    def begun(self) -> Mapping[str, Array]:
        """Gives what the first step reads beside its batch, whatever steps have updated since. Read-only."""
        return {**self.region.begun, **self.carried.begun}

    def _input(self, name: str) -> Array | None:
        """Says where a graph input lies at the start; None where nothing reads it, or where it begins on storage."""
        tensor = self.graph.tensors[name]
        if name in self.region.written:
            return self.region.written[name]
        index = self.places.index.get(name)
        return None if index is None or name in self._fed else self.arena.view(input_offsets(self.plan)[index], tensor)

    def _prepare(self, moment: Moment) -> None:
        """Bind what one instruction comes to."""
        action, target, problem = moment.instruction.action, moment.instruction.target, self.plan.problem
        if action is not Action.COMPUTE:
            tensor = problem.tensors[target]
            if action is Action.FREE:
                if target in moment.at:  # else an output has taken it over
                    self._given_up[moment.number] = ((moment.at[target], tensor.nbytes),)
                return
            move = self.pages.write if action is Action.PAGE_OUT else self.pages.read
            lying = self.arena.span(moment.at[target], tensor.nbytes)
            what = f"{action.replace('_', ' ')} of {tensor.name!r}"
            self.add(what, partial(move, tensor.name, lying), moves=True)
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
                    lying = self.span(places[name], copy.nbytes)
                    act = partial(np.copyto, copy.reshape(-1).view(np.uint8), lying)
                    self.add(f"a copy of {name!r}", act)
        if any(buffer.workspace for buffer in moment.made):
            self._given_up[moment.number] = tuple((b.offset, b.nbytes) for b in moment.made if b.workspace)

    def add(self, what: str, act: Act, *, moves: bool = False) -> None:
        """Have the instruction that is being prepared do something; see `_BoundCall`."""
        self.calls.append(_BoundCall(what, self._number, act, moves))

    def room_for(self, kernel_bytes: int) -> None:
        """Give memory back first where a kernel that allocates so much could pass the reserve."""
        if self._taken and self._taken + kernel_bytes > self._room:
            self._taken, give_back = 0, self.kernels.give_back()
            if give_back is not None:
                self.add("giving memory back", give_back)
        self._taken += kernel_bytes

    def bind(
        self,
        node: Node,
        of: str,
        places: Mapping[str, Place],
        kernel_bytes: int,
        shapes: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Run a node with what it names at these places; `shapes` as for `Kernels.bound`."""
        self.room_for(kernel_bytes)
        addresses = {name: self._address(place) for name, place in places.items()}
        if shapes is None and self.kernels.draws(node):
            self._redraws.append((len(self.calls), node, addresses))
        act = self.kernels.bound(node, addresses, shapes)
        self.add(f"node {node.name or node.op_type!r} ({node.op_type}) of {of}", act)

    def _address(self, place: Place) -> int:
        return (self.region.address(place.root) if place.root else self.arena.address) + place.offset

    def span(self, place: Place, nbytes: int) -> Bytes:
        """The bytes at a place, without a copy."""
        if not place.root:
            return self.arena.span(place.offset, nbytes)
        held = self.region.given[place.root] if place.root in self.region.given else self.region.written[place.root]
        return held.reshape(-1).view(np.uint8)[place.offset : place.offset + nbytes]

    def _failure(self, place: int, error: BaseException) -> ExecutionError:
        call = self.calls[place]
        return ExecutionError(f"instruction {call.number}: {call.what} failed: {self.kernels.reason(error)}")
