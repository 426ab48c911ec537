"""A plan made ready to run: every binding and every transfer prepared, so that a step is one tight loop.

Inputs, outputs and temporaries of every node are bound to their addresses in the arena beforehand, once
for each COMPUTE of the plan. Nothing of a tensor's size is allocated while the step runs, but what kernels take for
themselves, and that goes back to the system as the step goes on (`poetopt.backends.ort.allocator`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.backends.ort import allocator
from poetopt.backends.ort.batch import Batch
from poetopt.backends.ort.memory import POISON, Block, numpy_dtype
from poetopt.backends.ort.places import Addresses, Moment, Region, input_offsets, moments
from poetopt.backends.ort.sessions import NodeSession, Sessions, first_line, is_random, runtime_errors
from poetopt.backends.ort.storage import PageFile
from poetopt.errors import ExecutionError
from poetopt.frontends.proto import elem_type
from poetopt.graph import Node, Operator, Tensor, TrainingGraph
from poetopt.operators.nodes import is_inner_view
from poetopt.plan.instructions import Action, Plan
from poetopt.runtimes.onnxruntime import runtime
from poetopt.telling import Told, silent

if TYPE_CHECKING:
    from poetopt.graph import Array

Act = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Call:
    """One act of the step: running a node, copying or moving a tensor, giving memory back.

    what
        For error messages.
    number
        The plan's instruction that it belongs to.
    """

    what: str
    number: int
    act: Act


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
        arena: Block,
        region: Region,
        sessions: Sessions,
        pages: PageFile,
        told: Told = silent,
    ) -> None:
        self.plan = plan
        self.graph = graph
        self.arena = arena
        self.region = region
        self.sessions = sessions
        self.pages = pages
        self.addresses = Addresses(graph, plan.problem, region, arena)
        self.calls: list[Call] = []
        self._redraws: list[tuple[int, Node, Mapping[str, int]]] = []
        self._given_up: dict[int, list[tuple[int, int]]] = {}
        self._taken = 0
        """What kernels took since memory was given back, in bytes."""
        self._room = plan.problem.reserve_bytes - runtime.reserve_bytes(0)
        for moment in moments(plan):
            told(f"preparing kernels: instruction {moment.number:,} of {len(plan.instructions):,}")
            self._prepare(moment)
        self._inputs = {name: self._input(name) for name in graph.inputs}

    def load(self, batch: Batch, *, redraw: bool = True) -> None:
        """Put a batch where the step expects it, and (with `redraw`) let random nodes draw from the beginning again."""
        for name, array in self._inputs.items():
            if array is not None:
                np.copyto(array, batch[name])
        for place, node, places in self._redraws if redraw else ():
            call = self.calls[place]
            self.calls[place] = Call(call.what, call.number, self._bound(self.sessions.get(node), places))

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
        except runtime_errors() as error:
            raise self._failure(done, error) from error

    def run_checked(self, batch: Batch) -> None:
        """Load `batch` and run one step with freed bytes poisoned."""
        self.arena.bytes.fill(POISON)
        self.region.block.bytes.fill(POISON)
        self.load(batch)
        done = 0
        try:
            for done, call in enumerate(self.calls):
                call.act()
                last = done + 1 == len(self.calls) or self.calls[done + 1].number != call.number
                following = self.calls[done + 1].number if done + 1 < len(self.calls) else len(self.plan.instructions)
                for number in range(call.number, following) if last else ():
                    for offset, nbytes in self._given_up.get(number, ()):
                        self.arena.span(offset, nbytes).fill(POISON)
        except runtime_errors() as error:
            raise self._failure(done, error) from error

    def result(self, name: str) -> Array:
        """A resident tensor as the last step left it, without a copy."""
        return self.region.value(self.graph, name)

    def _input(self, name: str) -> Array | None:
        """Where a graph input lies at the start; None where the plan has it nowhere (nothing reads it)."""
        tensor = self.graph.tensors[name]
        if name in self.region.written:
            return self.region.written[name]
        index = self.addresses.index.get(name)
        return None if index is None else self.arena.view(input_offsets(self.plan)[index], tensor)

    def _prepare(self, moment: Moment) -> None:
        number, step = moment.number, moment.instruction
        problem = self.plan.problem
        if step.action is Action.COMPUTE:
            operator = self.addresses.operators[problem.operators[step.target].name]
            for node, taken in zip(operator.nodes, self.addresses.inner(operator).kernel_bytes, strict=True):
                self._make_room(taken, number)
                self._prepare_node(node, operator, moment)
            self._given_up[number] = [(buffer.offset, buffer.nbytes) for buffer in moment.made if buffer.workspace]
            return
        tensor = problem.tensors[step.target]
        offset = moment.at[step.target]
        if step.action is Action.FREE:
            self._given_up[number] = [(offset, tensor.nbytes)]
            return
        move = self.pages.write if step.action is Action.PAGE_OUT else self.pages.read
        what = f"{step.action.replace('_', ' ')} of {tensor.name!r}"
        self.calls.append(Call(what, number, partial(move, tensor.name, self.arena.span(offset, tensor.nbytes))))

    def _make_room(self, taken: int, number: int) -> None:
        """Give memory back before a node whose kernels may take new pages beside what was freed."""
        give_back = allocator.give_back()
        if give_back is not None and self._taken and self._taken + taken > self._room:
            self.calls.append(Call("giving memory back", number, give_back))
            self._taken = 0
        self._taken += taken

    def _prepare_node(self, node: Node, operator: Operator, moment: Moment) -> None:
        if is_inner_view(node, self.addresses.inner(operator).storage):
            return
        names = dict.fromkeys(name for name in (*node.inputs, *node.outputs) if name)
        places = {name: self.addresses.of(name, operator, moment) for name in names}
        what = f"node {node.name or node.op_type!r} ({node.op_type}) of operator {operator.name!r}"
        if is_random(node):
            self._redraws.append((len(self.calls), node, places))
        self.calls.append(Call(what, moment.number, self._bound(self.sessions.get(node), places)))

    def _bound(self, prepared: NodeSession, places: Mapping[str, int]) -> Act:
        """Running a session with everything bound to its address."""
        binding: Any = prepared.session.io_binding()
        tensors = self.graph.tensors
        for key, name in prepared.inputs:
            binding.bind_input(key, "cpu", 0, *_type(tensors[name]), places[name])
        for key, name in prepared.outputs:
            binding.bind_output(key, "cpu", 0, *_type(tensors[name]), places[name])
        return partial(prepared.session.run_with_iobinding, binding)

    def _failure(self, place: int, error: BaseException) -> ExecutionError:
        call = self.calls[place]
        return ExecutionError(f"instruction {call.number}: {call.what} failed: {first_line(error)}")


def _type(tensor: Tensor) -> tuple[object, list[int]]:
    """Element type and shape as a binding takes them: onnx's number where numpy has no such type of its own."""
    dtype = numpy_dtype(tensor.dtype)
    return elem_type(tensor.dtype) if dtype.kind == "V" else dtype.type, list(tensor.shape)
