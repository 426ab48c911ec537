"""Partition of a joint graph into forward and backward by a plan, and the peak memory of the two graphs.

Each compute of the plan becomes a call. Views are created again where they are read. Tensors that backward reads from
forward are saved. Imports torch: only `po.torch.compile` and `po.torch.plan` import it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import fx
from torch._functorch.partitioners import _extract_fwd_bwd_modules
from torch.multiprocessing.reductions import StorageWeakRef

from poetopt.plan.instructions import Action, Instruction
from poetopt.torch.joint import (
    BACKWARD,
    FORWARD,
    Joint,
    bytes_of,
    call,
    is_number,
    is_tangent,
    storages_of,
    tensors_of,
)
from poetopt.torch.offload import PAGE_IN, PAGE_OUT

Graphs = tuple[fx.GraphModule, fx.GraphModule]
"""Forward and backward, as AOTAutograd expects them."""


def partitioned(joint: Joint, instructions: Iterable[Instruction], folder: str = "") -> Graphs:
    """Return the graphs that compute and move like a plan, in its order; forward ends at the tangents.

    Parameters
    ----------
    folder
        Folder for the files of tensors on a CPU.
    """
    rebuilt = _GraphWriter(joint, folder)
    for instruction in instructions:
        if instruction.action is Action.COMPUTE and instruction.target == joint.boundary:
            rebuilt.cross()
        elif instruction.action is Action.COMPUTE and instruction.target < len(joint.steps):
            rebuilt.compute(instruction.target)
        elif instruction.action is Action.FREE:
            rebuilt.resident.discard(instruction.target)
        elif instruction.action is Action.PAGE_OUT:
            rebuilt.page_out(instruction.target)
        elif instruction.action is Action.PAGE_IN:
            rebuilt.page_in(instruction.target)
    return rebuilt.split()


class _GraphWriter:
    """Joint graph that is written again in a plan's order."""

    def __init__(self, joint: Joint, folder: str) -> None:
        self.joint, self.folder = joint, folder
        self.graph = fx.Graph()
        self.tag = FORWARD
        self.resident: set[int] = set()  # storages that the plan has in memory
        self.now: dict[fx.Node, fx.Node] = {}  # the current copy of each node
        self.away: dict[fx.Node, fx.Node] = {}  # its copy out of memory
        self.views: dict[tuple[object, ...], fx.Node] = {}
        self.forward: set[fx.Node] = set()
        self.outputs: list[fx.Node | None] = []
        for node in joint.module.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self.now[node] = self.graph.node_copy(node)

    def compute(self, index: int) -> None:
        """Write a step; outputs that are still resident keep their old copy."""
        step = self.joint.steps[index]
        assert step.node is not None
        copy = self._copy(step.node)
        self.now[step.node] = copy
        for node in step.outputs:
            if self.joint.held[node] in self.resident and node in self.now:
                continue
            self.now[node] = copy if node is step.node else self._copy(node)
        self.resident.update(step.writes)

    def page_out(self, storage: int) -> None:
        """Write the copy of a storage out of memory."""
        for node in self._of(storage):
            self.away[node] = self._call(node, PAGE_OUT, self.now[node], self.folder)

    def page_in(self, storage: int) -> None:
        """Write the copy of a storage back into memory, which becomes the current one."""
        for node in self._of(storage):
            back = self._call(node, PAGE_IN, self.away[node], node.meta["val"].device)
            back.meta["val"] = node.meta["val"]  # later views have this storage
            self.now[node] = back
        self.resident.add(storage)

    def _of(self, storage: int) -> list[fx.Node]:
        producer = self.joint.steps[self.joint.producer[storage]]
        return [node for node in producer.outputs if self.joint.held[node] == storage]

    def _call(self, like: fx.Node, target: Any, *args: Any) -> fx.Node:
        node = call(self.graph, like, target, *args)
        node.meta["partitioner_tag"] = self.tag
        return node

    def cross(self) -> None:
        """End forward: compute its outputs; later views of saved tensors are created again."""
        self.outputs = [self.value(node) for node in self.joint.forward_outputs]
        self.forward = {
            node for node in self.graph.nodes if node.op != "get_attr" and not is_tangent(node)
        }  # fmt: skip
        self.tag = BACKWARD
        self.views.clear()
        self.resident.update(self.joint.steps[self.joint.boundary].writes)

    def split(self) -> Graphs:
        """Return the two graphs."""
        joint, backward_outputs = self.joint, [self.value(node) for node in self.joint.backward_outputs]
        output = self.graph.output([*self.outputs, *backward_outputs])
        output.meta = dict(next(iter(joint.module.graph.find_nodes(op="output"))).meta)
        backward_nodes = [node for node in self.graph.nodes if node not in self.forward and node is not output]
        read = {*backward_outputs, *(n for node in backward_nodes for n in node.all_input_nodes)}
        crossing = [node for node in self.graph.nodes if node in self.forward and node in read]
        return _extract_fwd_bwd_modules(  # type: ignore[no-any-return]
            fx.GraphModule(joint.module, self.graph),
            [node for node in crossing if not is_number(node)],
            saved_sym_nodes=[node for node in crossing if is_number(node)],
            num_fwd_outputs=len(self.outputs),
        )

    def value(self, node: Any) -> Any:
        """Return the current copy of a node; a view is created from the current copy of its base."""
        if not isinstance(node, fx.Node):
            return node
        if node not in self.now and is_number(node):
            self.now[node] = self._copy(node)
        if node in self.now:
            return self.now[node]
        key = (node, *(self.value(n) for n in node.all_input_nodes))
        if key not in self.views:
            self.views[key] = self._copy(node)
        return self.views[key]

    def _copy(self, node: fx.Node) -> fx.Node:
        copy = self.graph.node_copy(node, self.value)
        copy.meta["partitioner_tag"] = self.tag
        return copy


def peak_bytes(graphs: Graphs, joint: Joint) -> int:
    """Return the most bytes that a step allocates at once, if each value is freed after its last use.

    Forward's outputs stay to the end of backward, and so do gradients. Inputs, parameters, buffers and offloaded
    tensors don't count.
    """
    excluded = {
        storage
        for node in joint.module.graph.find_nodes(op="placeholder")
        if not is_tangent(node)
        for storage in storages_of(node)
    }
    forward, backward = graphs
    for graph in graphs:
        for node in graph.graph.find_nodes(op="call_function", target=PAGE_OUT):
            excluded.update(storages_of(node))
    staying = {
        storage: bytes_of(value)
        for node in joint.kept
        if node not in joint.backward_outputs
        for value, storage in zip(tensors_of(node), storages_of(node), strict=True)
        if storage not in excluded
    }
    return max(_peak(forward.graph, excluded, {}), _peak(backward.graph, excluded, staying))


def _peak(graph: fx.Graph, excluded: set[StorageWeakRef], staying: dict[StorageWeakRef, int]) -> int:
    """Return the peak of one graph; `staying` are storages that others hold meanwhile."""
    bytes_: dict[int, int] = {}  # bytes of each buffer
    holders: dict[int, int] = {}
    buffers_of: dict[fx.Node, dict[StorageWeakRef, int]] = {}
    buffer_of: dict[StorageWeakRef, int] = {}

    def buffer(size: int) -> int:
        bytes_[len(bytes_)] = size
        holders[len(bytes_) - 1] = 0
        return len(bytes_) - 1

    for storage, size in staying.items():
        buffer_of[storage] = buffer(size)
        holders[buffer_of[storage]] = 1
    live = sum(staying.values())
    nodes = list(graph.nodes)
    last_use = {n: position for position, node in enumerate(nodes) for n in node.all_input_nodes}
    for node in nodes:  # all inputs exist when the graph begins
        if node.op == "placeholder":
            buffers_of[node] = {}
            for value, storage in zip(tensors_of(node), storages_of(node), strict=True):
                if storage not in excluded and storage not in buffer_of:
                    buffer_of[storage] = buffer(bytes_of(value))
                    live += bytes_of(value)
                if storage in buffer_of:
                    buffers_of[node][storage] = buffer_of[storage]
                    holders[buffer_of[storage]] += 1
    peak = live

    def release(node: fx.Node) -> int:
        freed = 0
        for held in buffers_of[node].values():
            holders[held] -= 1
            freed += bytes_[held] if not holders[held] else 0
        return freed

    for position, node in enumerate(nodes):
        if node.op not in ("placeholder", "output"):
            buffers_of[node] = {}
            for value, storage in zip(tensors_of(node), storages_of(node), strict=True):
                if storage in buffers_of[node] or storage in excluded:
                    continue
                shared = next((buffers_of[n][storage] for n in node.all_input_nodes if storage in buffers_of[n]), None)
                if shared is None:
                    shared = buffer(bytes_of(value))
                    live += bytes_of(value)
                buffers_of[node][storage] = shared
                holders[shared] += 1
            peak = max(peak, live)
        if node.op != "output":
            for n in {*node.all_input_nodes, node}:
                if last_use.get(n, position) == position and (n is not node or n not in last_use):
                    live -= release(n)
    return peak


def again(joint: Joint, instructions: Iterable[Instruction]) -> int:
    """Return the number of kernels that a plan runs beyond once each."""
    runs = [
        instruction.target
        for instruction in instructions
        if instruction.action is Action.COMPUTE and instruction.target < len(joint.steps)
    ]
    return len(runs) - len(set(runs))
