"""Is it a graph at all? Single assignment, no missing inputs, no cycles, only operators that can be trained through.

The result has its nodes in topological order, those that no output needs left out, and outputs that need an operator
which can't be imported: a classifier's label, a list of what was found. Training needs one output.
"""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Iterable, Sequence

import onnx
from onnx import NodeProto

from poetopt.frontends.checks import GROUP_NORMALIZATION_BY_CHANNEL
from poetopt.frontends.proto import subgraphs
from poetopt.frontends.read import LIBRARY_ERRORS, Document
from poetopt.frontends.values import deciding
from poetopt.util.errors import ModelError, OpenError, UnsupportedOpError

CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})


def describe(where: str, node: NodeProto, opset: int) -> str:
    """Says how messages refer to a node: file, name, op, opset."""
    name = node.name or next((output for output in node.output if output), "?")
    op = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    # a damaged file has line breaks in names, and a message is one line
    return f"{where}: node {name!r} ({repr(op)[1:-1]}, opset {opset})"


def tidy(document: Document) -> dict[str, str]:
    """Check the structure of `document`, sort its nodes, and drop those that lead to no output.

    The result has the outputs that were dropped because of operators that can't be imported, and why. Raises
    `ModelError` for duplicate names, missing inputs and cycles, `UnsupportedOpError` where no output is left.
    """
    graph = document.proto.graph
    for node in graph.node:
        if node.domain == "ai.onnx":
            node.domain = ""
    _check_names(document)
    ordered = _sorted(document, needed(graph.node, [info.name for info in graph.output]))
    unread: dict[str, str] = {}
    if ordered:
        ordered, unread = _importable(document, ordered)
    document.put_nodes(ordered)
    for node in graph.node:
        node.ClearField("doc_string")
        del node.metadata_props[:]
    if not graph.node:
        raise ModelError(f"{document.where}: no node leads to an output, the graph is empty; export the model again")
    return unread


def _importable(document: Document, ordered: Sequence[NodeProto]) -> tuple[list[NodeProto], dict[str, str]]:
    """The nodes that the outputs need which can be imported, and why others can't.

    Where some can't, they are dropped from `document`, and the inputs that they alone need.
    """
    graph = document.proto.graph
    lost = _check_operators(document, ordered)
    if not lost:
        return list(ordered), {}
    outputs = [info.name for info in graph.output]
    unread = {name: str(lost[name]) for name in outputs if name in lost}
    if len(unread) == len(outputs):
        raise next((error for error in lost.values() if "zipmap" in str(error)), next(iter(lost.values())))
    left = needed(ordered, [name for name in outputs if name not in unread])
    read = {name for node in left for name in _reads(node)}
    before = {name for node in ordered for name in _reads(node)} | unread.keys()
    for infos, kept in (
        (graph.output, [info for info in graph.output if info.name not in unread]),
        (graph.input, [info for info in graph.input if info.name in read or info.name not in before]),
    ):
        del infos[:]
        infos.extend(kept)
    return left, unread


def _check_names(document: Document) -> None:
    graph, where = document.proto.graph, document.where
    writers: dict[str, str] = dict.fromkeys(document.weights, "an initializer")
    for info in graph.input:
        if not info.name or info.name in writers:
            raise ModelError(f"{where}: two inputs are called {info.name!r}; export the model again")
        writers[info.name] = "a graph input"
    for node in graph.node:
        for name in filter(None, node.output):
            if name in writers:
                at = describe(where, node, document.opset)
                raise ModelError(f"{at}: writes {name!r}, which {writers[name]} writes too; names must be unique")
            writers[name] = f"node {node.name or node.op_type!r}"
    seen: set[str] = set()
    for info in graph.output:
        if info.name not in writers:
            close = _closest(info.name, writers)
            raise ModelError(f"{where}: graph output {info.name!r} is written by no node{close}")
        if info.name in seen:
            raise ModelError(f"{where}: graph output {info.name!r} is listed twice; export the model again")
        seen.add(info.name)


def _closest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=3)
    return f"; the closest names are {', '.join(close)}" if close else ""


def _outer_names(graph: onnx.GraphProto) -> set[str]:
    """Names that a subgraph (of If, Loop, Scan) reads, its own included: enough to keep what it needs."""
    names: set[str] = {output.name for output in graph.output}
    for node in graph.node:
        names.update(_reads(node))
    return names


def _reads(node: NodeProto) -> list[str]:
    names = [name for name in node.input if name]
    for graph in subgraphs(node):
        names.extend(sorted(_outer_names(graph)))
    return names


def needed(nodes: Sequence[NodeProto], outputs: Iterable[str]) -> list[NodeProto]:
    """Those of `nodes` that `outputs` need, in their order."""
    producer = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    todo = list(outputs)
    kept: set[int] = set()
    while todo:
        index = producer.get(todo.pop())
        if index is not None and index not in kept:
            kept.add(index)
            todo.extend(_reads(nodes[index]))
    return [node for index, node in enumerate(nodes) if index in kept]


def _sorted(document: Document, nodes: Sequence[NodeProto]) -> list[NodeProto]:
    """Topological order; of several nodes that could be next, the first in the file."""
    known = {*document.weights, *(info.name for info in document.proto.graph.input)}
    producer = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    waiting: list[int] = []
    readers: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        own = {name for name in node.input if name}
        for name in sorted(name for name in own if name not in known and name not in producer):
            at = describe(document.where, node, document.opset)
            raise ModelError(
                f"{at}: reads {name!r}, which no node, input or initializer provides{_closest(name, known)}; "
                "the file is incomplete, export it again"
            )
        sources = {producer[name] for name in own if name in producer}
        waiting.append(len(sources))
        for source in sources:
            readers.setdefault(source, []).append(index)
    ready = [index for index, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers.get(index, ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        done = set(order)
        stuck = [nodes[index] for index in range(len(nodes)) if index not in done]
        names = ", ".join(repr(node.name or node.output[0]) for node in stuck[:4])
        more = ", ..." if len(stuck) > 4 else ""
        raise ModelError(
            f"{describe(document.where, stuck[0], document.opset)}: on or behind a cycle (nodes {names}{more}); "
            "a network must be acyclic"
        )
    return [nodes[index] for index in order]


def _check_operators(document: Document, nodes: Sequence[NodeProto]) -> dict[str, UnsupportedOpError]:
    """The tensors that can't be had, because of operators that can't be imported. Raises ModelError for damage."""
    opset = document.opset
    context = _context(document, opset)
    # GroupNormalization of opsets 18 to 20 is withdrawn for its later form, whose attributes include its own.
    withdrawn = (
        _context(document, GROUP_NORMALIZATION_BY_CHANNEL) if opset < GROUP_NORMALIZATION_BY_CHANNEL else context
    )
    lost: dict[str, UnsupportedOpError] = {}
    for node in nodes:
        at = describe(document.where, node, opset)
        error = next((lost[name] for name in _reads(node) if name in lost), None)
        try:
            _check_operator(at, node, document)
        except UnsupportedOpError as found:
            error = error or found
        if error is not None:
            lost.update((name, error) for name in node.output if name)
            continue
        try:
            old = onnx.defs.get_schema(node.op_type, opset).deprecated
            onnx.checker.check_node(node, withdrawn if old else context)
        except LIBRARY_ERRORS as wrong:
            raise ModelError(f"{at}: {first_line(wrong)}; export the model again") from wrong
    return lost


def _check_operator(at: str, node: NodeProto, document: Document) -> None:
    """Raises UnsupportedOpError for an operator that can't be imported."""
    op, opset = node.op_type, document.opset
    # operators that onnxruntime's optimization writes into the default domain, which doesn't have them
    if node.domain.startswith("com.microsoft") or (not node.domain and op == "SimplifiedLayerNormalization"):
        raise UnsupportedOpError(
            f"{at}: onnxruntime's own operator, which can't be differentiated; where its optimization wrote it "
            "('extended' or 'all'), give the file from before or optimise at 'basic', else export with standard ONNX "
            "operators"
        )
    if node.op_type == "ZipMap":
        raise UnsupportedOpError(
            f"{at}: it makes a sequence of maps of the probabilities, on which no loss can be; export with "
            "zipmap=False, as in skl2onnx.to_onnx(model, X, options={'zipmap': False}), which leaves the tensor"
        )
    if node.domain:
        raise UnsupportedOpError(
            f"{at}: operators of the domain {node.domain!r} can't be differentiated; "
            "export with standard ONNX operators only"
        )
    if op == "If":
        decided = deciding(document, next(iter(node.input), ""))
        if decided:
            raise OpenError(
                f"{at}: the value of an input decides its condition, and a schedule has one sequence of operators; "
                f"say the value: {decided}"
            )
        raise UnsupportedOpError(
            f"{at}: its condition {next(iter(node.input), '')!r} isn't known before the model runs (shapes don't "
            "decide it), and a schedule has one sequence of operators; take the choice out of the model (compute "
            "both and select with torch.where, or keep the branch that is trained) and export it again"
        )
    if op in CONTROL_FLOW:
        raise UnsupportedOpError(
            f"{at}: control flow can't be scheduled; export the model with it unrolled (traced with fixed shapes)"
        )
    if op.startswith(("Sequence", "Optional")) or op.endswith(("ToSequence", "FromSequence")):
        raise UnsupportedOpError(f"{at}: sequences and optionals are not supported; export with plain tensors")
    if not onnx.defs.has(op, opset, ""):
        newer = f"; opset {onnx.defs.get_schema(op).since_version} has it" if onnx.defs.has(op) else ""
        known = (schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain)
        raise UnsupportedOpError(f"{at}: no such operator in this opset{newer}{_closest(op, known)}")
    for attribute in node.attribute:
        if attribute.ref_attr_name or attribute.HasField("g") or attribute.graphs:
            raise UnsupportedOpError(f"{at}: attribute {attribute.name!r} is a graph or a reference; not supported")


def _context(document: Document, opset: int) -> onnx.checker.C.CheckerContext:
    context = onnx.checker.C.CheckerContext()
    context.ir_version = max(document.proto.ir_version, 3)
    context.opset_imports = {"": opset}
    return context


def first_line(error: Exception) -> str:
    """The first line of a library's message."""
    return str(error).strip().partition("\n")[0].rstrip(".;") or type(error).__name__
