"""From a plan to forward and backward graphs, and what a pair of graphs takes at its peak.

Each compute of the plan is a call of its own, views are made again wherever they are read, and what crosses from
forward to backward is saved. Imports torch: only `po.torch.compile` and `po.torch.plan` import it.
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
"""Forward and backward, as AOTAutograd takes them."""


def partitioned(joint: Joint, instructions: Iterable[Instruction], folder: str = "") -> Graphs:
    """The graphs that compute and move what a plan does, in its order: what runs before the tangents is forward's.

    folder
        Of the files that tensors on a CPU go to.
    """
    rebuilt = _Rebuilt(joint, folder)
    for done in instructions:
        if done.action is Action.COMPUTE and done.target == joint.boundary:
            rebuilt.cross()
        elif done.action is Action.COMPUTE and done.target < len(joint.steps):
            rebuilt.compute(done.target)
        elif done.action is Action.FREE:
            rebuilt.resident.discard(done.target)
        elif done.action is Action.PAGE_OUT:
            rebuilt.page_out(done.target)
        elif done.action is Action.PAGE_IN:
            rebuilt.page_in(done.target)
    return rebuilt.split()


class _Rebuilt:
    """A joint graph, written anew in a plan's order."""

    def __init__(self, joint: Joint, folder: str) -> None:
        self.joint, self.folder = joint, folder
        self.graph = fx.Graph()
        self.tag = FORWARD
        self.resident: set[int] = set()  # storages, as the plan has them
        self.now: dict[fx.Node, fx.Node] = {}  # the copy of a node that counts
        self.away: dict[fx.Node, fx.Node] = {}  # and the one outside
        self.views: dict[tuple[object, ...], fx.Node] = {}
        self.forward: set[fx.Node] = set()
        self.outputs: list[fx.Node | None] = []
        for node in joint.module.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self.now[node] = self.graph.node_copy(node)

    def compute(self, index: int) -> None:
        """Write a step; what of its outputs is still there stays the old one."""
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
        """Write that a storage is copied outside."""
        for node in self._of(storage):
            self.away[node] = self._call(node, PAGE_OUT, self.now[node], self.folder)

    def page_in(self, storage: int) -> None:
        """Write that it comes back: that is the copy which counts."""
        for node in self._of(storage):
            back = self._call(node, PAGE_IN, self.away[node], node.meta["val"].device)
            back.meta["val"] = node.meta["val"]  # views that are made of it have its storage
            self.now[node] = back
        self.resident.add(storage)

    def _of(self, storage: int) -> list[fx.Node]:
        made = self.joint.steps[self.joint.producer[storage]]
        return [node for node in made.outputs if self.joint.held[node] == storage]

    def _call(self, like: fx.Node, target: Any, *given: Any) -> fx.Node:
        made = call(self.graph, like, target, *given)
        made.meta["partitioner_tag"] = self.tag
        return made

    def cross(self) -> None:
        """End forward: its outputs are there, and the views of what is saved are made again."""
        self.outputs = [self.value(node) for node in self.joint.forward_outputs]
        self.forward = {
            node for node in self.graph.nodes if node.op != "get_attr" and not is_tangent(node)
        }  # fmt: skip
        self.tag = BACKWARD
        self.views.clear()
        self.resident.update(self.joint.steps[self.joint.boundary].writes)

    def split(self) -> Graphs:
        """The two graphs."""
        joint, ended = self.joint, [self.value(node) for node in self.joint.backward_outputs]
        output = self.graph.output([*self.outputs, *ended])
        output.meta = dict(next(iter(joint.module.graph.find_nodes(op="output"))).meta)
        later = [node for node in self.graph.nodes if node not in self.forward and node is not output]
        read = {*ended, *(n for node in later for n in node.all_input_nodes)}
        crossing = [node for node in self.graph.nodes if node in self.forward and node in read]
        return _extract_fwd_bwd_modules(  # type: ignore[no-any-return]
            fx.GraphModule(joint.module, self.graph),
            [node for node in crossing if not is_number(node)],
            saved_sym_nodes=[node for node in crossing if is_number(node)],
            num_fwd_outputs=len(self.outputs),
        )

    def value(self, node: Any) -> Any:
        """The copy that stands for a node now; a view is made of its base's."""
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
    """The most bytes that a step holds at once of what it allocates, where each value goes after its last use.

    Forward's outputs stay to the end of backward, and gradients as well; inputs, parameters, buffers and what lies
    outside don't count.
    """
    given = {
        storage
        for node in joint.module.graph.find_nodes(op="placeholder")
        if not is_tangent(node)
        for storage in storages_of(node)
    }
    forward, backward = graphs
    for graph in graphs:
        for node in graph.graph.find_nodes(op="call_function", target=PAGE_OUT):
            given.update(storages_of(node))
    staying = {
        storage: bytes_of(value)
        for node in joint.kept
        if node not in joint.backward_outputs
        for value, storage in zip(tensors_of(node), storages_of(node), strict=True)
        if storage not in given
    }
    return max(_peak(forward.graph, given, {}), _peak(backward.graph, given, staying))


def _peak(graph: fx.Graph, given: set[StorageWeakRef], staying: dict[StorageWeakRef, int]) -> int:
    """Peak of one graph; `staying` are storages that somebody else holds meanwhile."""
    bytes_: dict[int, int] = {}  # of each buffer
    holders: dict[int, int] = {}
    of: dict[fx.Node, dict[StorageWeakRef, int]] = {}
    first: dict[StorageWeakRef, int] = {}

    def buffer(size: int) -> int:
        bytes_[len(bytes_)] = size
        holders[len(bytes_) - 1] = 0
        return len(bytes_) - 1

    for storage, size in staying.items():
        first[storage] = buffer(size)
        holders[first[storage]] = 1
    live = sum(staying.values())
    nodes = list(graph.nodes)
    last = {n: place for place, node in enumerate(nodes) for n in node.all_input_nodes}
    for node in nodes:  # they are all there when the graph begins
        if node.op == "placeholder":
            of[node] = {}
            for value, storage in zip(tensors_of(node), storages_of(node), strict=True):
                if storage not in given and storage not in first:
                    first[storage] = buffer(bytes_of(value))
                    live += bytes_of(value)
                if storage in first:
                    of[node][storage] = first[storage]
                    holders[first[storage]] += 1
    peak = live

    def dropped(node: fx.Node) -> int:
        freed = 0
        for held in of[node].values():
            holders[held] -= 1
            freed += bytes_[held] if not holders[held] else 0
        return freed

    for place, node in enumerate(nodes):
        if node.op not in ("placeholder", "output"):
            of[node] = {}
            for value, storage in zip(tensors_of(node), storages_of(node), strict=True):
                if storage in of[node] or storage in given:
                    continue
                shared = next((of[n][storage] for n in node.all_input_nodes if storage in of[n]), None)
                if shared is None:
                    shared = buffer(bytes_of(value))
                    live += bytes_of(value)
                of[node][storage] = shared
                holders[shared] += 1
            peak = max(peak, live)
        if node.op != "output":
            for n in {*node.all_input_nodes, node}:
                if last.get(n, place) == place and (n is not node or n not in last):
                    live -= dropped(n)
    return peak


def again(joint: Joint, instructions: Iterable[Instruction]) -> int:
    """How many kernels a plan runs beyond once each."""
    runs = [done.target for done in instructions if done.action is Action.COMPUTE and done.target < len(joint.steps)]
    return len(runs) - len(set(runs))
