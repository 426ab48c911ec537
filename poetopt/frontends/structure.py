"""Check the graph: single assignment, no missing inputs, no cycles, only operators that can be trained through.

The nodes are then in topological order, without those that no output needs. Outputs that need an operator which can't
be imported (a classifier's label, a list of detections) are dropped: training needs only one output.
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
    """Return the location of a node for messages: file, name, op, opset."""
    name = node.name or next((output for output in node.output if output), "?")
    op = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    # repr escapes line breaks in the names of a damaged file: a message is one line
    return f"{where}: node {name!r} ({repr(op)[1:-1]}, opset {opset})"


def tidy(document: Document) -> dict[str, str]:
    """Check the structure of `document`, sort its nodes, and drop those that no output needs.

    Return the outputs that were dropped because of operators that can't be imported, and why. Raise `ModelError` for
    duplicate names, missing inputs and cycles, `UnsupportedOpError` if no output is left.
    """
    graph = document.proto.graph
    for node in graph.node:
        if node.domain == "ai.onnx":
            node.domain = ""
    _check_names(document)
    ordered = _sorted(document, needed(graph.node, [info.name for info in graph.output]))
    unread: dict[str, str] = {}
    if ordered:
        ordered, unread = _keep_importable(document, ordered)
    document.put_nodes(ordered)
    for node in graph.node:
        node.ClearField("doc_string")
        del node.metadata_props[:]
    if not graph.node:
        raise ModelError(f"{document.where}: no node leads to an output, so the graph is empty. Export the model again")
    return unread


def _keep_importable(document: Document, ordered: Sequence[NodeProto]) -> tuple[list[NodeProto], dict[str, str]]:
    """Return the nodes that the importable outputs need, and the reasons why other outputs can't be imported.

    The other outputs, and the inputs that only they need, are dropped from `document`.
    """
    graph = document.proto.graph
    errors = _check_operators(document, ordered)
    if not errors:
        return list(ordered), {}
    outputs = [info.name for info in graph.output]
    unread = {name: str(errors[name]) for name in outputs if name in errors}
    if len(unread) == len(outputs):
        raise next((error for error in errors.values() if "zipmap" in str(error)), next(iter(errors.values())))
    kept_nodes = needed(ordered, [name for name in outputs if name not in unread])
    read = {name for node in kept_nodes for name in _reads(node)}
    read_before = {name for node in ordered for name in _reads(node)} | unread.keys()
    for infos, kept in (
        (graph.output, [info for info in graph.output if info.name not in unread]),
        (graph.input, [info for info in graph.input if info.name in read or info.name not in read_before]),
    ):
        del infos[:]
        infos.extend(kept)
    return kept_nodes, unread


def _check_names(document: Document) -> None:
    graph, where = document.proto.graph, document.where
    writers: dict[str, str] = dict.fromkeys(document.weights, "an initializer")
    for info in graph.input:
        if not info.name or info.name in writers:
            raise ModelError(f"{where}: two inputs are called {info.name!r}. Export the model again")
        writers[info.name] = "a graph input"
    for node in graph.node:
        for name in filter(None, node.output):
            if name in writers:
                at = describe(where, node, document.opset)
                raise ModelError(f"{at}: writes {name!r}, which {writers[name]} writes too. Export the model again")
            writers[name] = f"node {node.name or node.op_type!r}"
    seen: set[str] = set()
    for info in graph.output:
        if info.name not in writers:
            close = _closest(info.name, writers)
            raise ModelError(f"{where}: graph output {info.name!r} is written by no node{close}")
        if info.name in seen:
            raise ModelError(f"{where}: graph output {info.name!r} is listed twice. Export the model again")
        seen.add(info.name)


def _closest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=3)
    return f"; the closest names are {', '.join(close)}" if close else ""


def _names_in_subgraph(graph: onnx.GraphProto) -> set[str]:
    """Return the names that a subgraph (of If, Loop, Scan) reads, a superset of the outer ones that it needs."""
    names: set[str] = {output.name for output in graph.output}
    for node in graph.node:
        names.update(_reads(node))
    return names


def _reads(node: NodeProto) -> list[str]:
    names = [name for name in node.input if name]
    for graph in subgraphs(node):
        names.extend(sorted(_names_in_subgraph(graph)))
    return names


def needed(nodes: Sequence[NodeProto], outputs: Iterable[str]) -> list[NodeProto]:
    """Return the nodes that `outputs` need, in their order."""
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
    """Return the nodes in topological order, ties in the order of the file."""
    known = {*document.weights, *(info.name for info in document.proto.graph.input)}
    producer = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    waiting: list[int] = []
    readers: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        read_names = {name for name in node.input if name}
        for name in sorted(name for name in read_names if name not in known and name not in producer):
            at = describe(document.where, node, document.opset)
            raise ModelError(
                f"{at}: reads {name!r}, which no node, input or initializer provides{_closest(name, known)}. "
                "The file is incomplete: export it again"
            )
        sources = {producer[name] for name in read_names if name in producer}
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
            f"{describe(document.where, stuck[0], document.opset)}: on or after a cycle (nodes {names}{more}). "
            "A network must be acyclic: export it again"
        )
    return [nodes[index] for index in order]


def _check_operators(document: Document, nodes: Sequence[NodeProto]) -> dict[str, UnsupportedOpError]:
    """Return the tensors that can't be imported, with the errors. Raise ModelError for an invalid node."""
    opset = document.opset
    newer = _checker_context(document, opset)
    # ONNX deprecated GroupNormalization of opsets 18 to 20; its later form accepts the same attributes.
    older = (
        _checker_context(document, GROUP_NORMALIZATION_BY_CHANNEL) if opset < GROUP_NORMALIZATION_BY_CHANNEL else newer
    )
    errors: dict[str, UnsupportedOpError] = {}
    for node in nodes:
        at = describe(document.where, node, opset)
        error = next((errors[name] for name in _reads(node) if name in errors), None)
        try:
            _check_operator(at, node, document)
        except UnsupportedOpError as unsupported:
            error = error or unsupported
        if error is not None:
            errors.update((name, error) for name in node.output if name)
            continue
        try:
            is_deprecated = onnx.defs.get_schema(node.op_type, opset).deprecated
            onnx.checker.check_node(node, older if is_deprecated else newer)
        except LIBRARY_ERRORS as invalid:
            raise ModelError(f"{at}: {first_line(invalid)}. Export the model again") from invalid
    return errors


def _check_operator(at: str, node: NodeProto, document: Document) -> None:
    """Raise UnsupportedOpError for an operator that can't be imported."""
    op, opset = node.op_type, document.opset
    # onnxruntime's optimizer writes this operator into the default domain, which lacks it
    if node.domain.startswith("com.microsoft") or (not node.domain and op == "SimplifiedLayerNormalization"):
        raise UnsupportedOpError(
            f"{at}: onnxruntime's own operator, which can't be differentiated. If its optimizer wrote it "
            "('extended' or 'all'), give the file from before or optimize at 'basic', else export with standard ONNX "
            "operators"
        )
    if node.op_type == "ZipMap":
        raise UnsupportedOpError(
            f"{at}: it turns the probabilities into a sequence of maps, which can't have a loss. Export with "
            "zipmap=False, as in skl2onnx.to_onnx(model, X, options={'zipmap': False}), which keeps the tensor"
        )
    if node.domain:
        raise UnsupportedOpError(
            f"{at}: operators of the domain {node.domain!r} can't be differentiated. "
            "Export with standard ONNX operators only"
        )
    if op == "If":
        options = deciding(document, next(iter(node.input), ""))
        if options:
            raise OpenError(
                f"{at}: the value of an input decides its condition, and a schedule has one sequence of operators. "
                f"Give the value: {options}"
            )
        raise UnsupportedOpError(
            f"{at}: its condition {next(iter(node.input), '')!r} isn't known before the model runs (shapes don't "
            "decide it), and a schedule has one sequence of operators. Take the choice out of the model (compute "
            "both and select with torch.where, or keep the branch that is trained) and export it again"
        )
    if op in CONTROL_FLOW:
        raise UnsupportedOpError(
            f"{at}: control flow can't be scheduled. Export the model with it unrolled (traced with fixed shapes)"
        )
    if op.startswith(("Sequence", "Optional")) or op.endswith(("ToSequence", "FromSequence")):
        raise UnsupportedOpError(f"{at}: sequences and optionals are not supported. Export with plain tensors")
    if not onnx.defs.has(op, opset, ""):
        newer_opset = f"; opset {onnx.defs.get_schema(op).since_version} has it" if onnx.defs.has(op) else ""
        known = (schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain)
        raise UnsupportedOpError(f"{at}: no such operator in this opset{newer_opset}{_closest(op, known)}")
    for attribute in node.attribute:
        if attribute.ref_attr_name or attribute.HasField("g") or attribute.graphs:
            raise UnsupportedOpError(f"{at}: attribute {attribute.name!r} is a graph or a reference: not supported")


def _checker_context(document: Document, opset: int) -> onnx.checker.C.CheckerContext:
    context = onnx.checker.C.CheckerContext()
    context.ir_version = max(document.proto.ir_version, 3)
    context.opset_imports = {"": opset}
    return context


def first_line(error: Exception) -> str:
    """Return the first line of a library's message, or its type."""
    return str(error).strip().partition("\n")[0].rstrip(".;") or type(error).__name__
