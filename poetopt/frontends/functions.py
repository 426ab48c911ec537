"""Calls of functions that the file itself defines become the functions' bodies (torch's newer exporter writes some).

ONNX's own inliner knows nothing of an attribute's default in the definition: what a call leaves out, it leaves out in
the body too, where the operator's default then counts. So the calls state every attribute before they are inlined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set

import onnx
import onnx.inliner
from onnx import FunctionProto, NodeProto

from poetopt.frontends.proto import subgraphs
from poetopt.frontends.read import LIBRARY_ERRORS, Document
from poetopt.frontends.structure import describe, first_line
from poetopt.util.errors import ModelError, UnsupportedOpError

MOST_NODES = 50_000
"""No network that is trained has this many, and reading them takes ten seconds."""
_Key = tuple[str, str]
"""Domain and name of a function; those that differ in their overload alone are inlined together."""


def inline_functions(document: Document) -> None:
    """Replace calls of the file's own functions by their bodies, in place.

    Raises `ModelError` for functions that call each other in a circle, `UnsupportedOpError` for one of another opset
    than the model's.
    """
    if not document.proto.functions:
        return
    _keep(document, _called(document))
    _bounded(document)
    while document.proto.functions:
        chosen = _callers(document.proto.functions)
        _state_defaults(document)
        try:
            inlined = onnx.inliner.inline_selected_functions(document.proto, sorted(chosen))
        except LIBRARY_ERRORS as error:
            raise ModelError(f"{document.where}: its functions can't be inlined ({first_line(error)})") from error
        document.proto.CopyFrom(inlined)
        _keep(document, {_key(function) for function in inlined.functions} - chosen)


def _bounded(document: Document) -> None:
    """Refuse what a few functions that call each other several times would become."""
    functions = {_key(function): function for function in document.proto.functions}
    counts: dict[_Key, int] = {}

    def expanded(nodes: Iterable[NodeProto]) -> int:
        return sum(counts.get(_domain_and_op(node), 1) for node in _nodes(nodes))

    todo = list(functions)
    open_: set[_Key] = set()
    while todo:
        key = todo[-1]
        called = {_domain_and_op(node) for node in _nodes(functions[key].node)}
        calls = {other for other in called if other in functions and other not in counts}
        if key not in counts and calls and key not in open_:
            open_.add(key)
            todo += sorted(
                other for other in calls if other not in open_
            )  # who calls itself, in the end, is refused by the inliner
            continue
        counts[key] = expanded(functions[key].node)
        todo.pop()
    calls_of = [node for node in _nodes(document.proto.graph.node) if _domain_and_op(node) in functions]
    total = expanded(calls_of)
    if total > MOST_NODES:
        worst = max(calls_of, key=lambda node: counts[_domain_and_op(node)])
        raise ModelError(
            f"{describe(document.where, worst, document.opset)}: a function of the file that is "
            f"{_many(counts[_domain_and_op(worst)])} nodes when written out, of {_many(total)} in all; at most "
            f"{MOST_NODES:,} are read. Export the model without functions, or a part of it"
        )


def _many(count: int) -> str:
    """A number of nodes; functions that call one another make it as long as one likes."""
    return f"{count:,}" if count < 10**15 else "more than 10^15"


def _keep(document: Document, keys: Set[_Key]) -> None:
    kept = [function for function in document.proto.functions if _key(function) in keys]
    copy = onnx.ModelProto(functions=kept)
    del document.proto.functions[:]
    document.proto.functions.extend(copy.functions)


def _key(function: FunctionProto) -> _Key:
    return function.domain, function.name


def _callers(functions: Iterable[FunctionProto]) -> set[_Key]:
    """Functions to inline at once: all of them, but where there are defaults those alone that no other one calls.

    A default of the outer function may reach the inner call, or leave it to the inner one's default.
    """
    found = list(functions)
    keys = {_key(function) for function in found}
    if not any(function.attribute_proto for function in found):
        return keys
    called = {_domain_and_op(node) for function in found for node in _nodes(function.node)}
    return keys - called or keys


def _domain_and_op(node: NodeProto) -> _Key:
    return node.domain, node.op_type


def _nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """`nodes` and those in their subgraphs."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from _nodes(graph.node)


def _state_defaults(document: Document) -> None:
    """Give each call in the graph the defaults of the attributes that it leaves out."""
    functions = {(*_key(function), function.overload): function for function in document.proto.functions}
    for node in _nodes(document.proto.graph.node):
        function = functions.get((*_domain_and_op(node), node.overload))
        if function is not None:
            given = {attribute.name for attribute in node.attribute}
            node.attribute.extend(default for default in function.attribute_proto if default.name not in given)


def _called(document: Document) -> set[_Key]:
    """The functions that the graph calls, in the end.

    Refuses those whose operators are of another version than the model's: the inliner would leave their calls.
    """
    functions = {_key(function): function for function in document.proto.functions}
    versions = _versions(document.proto.opset_import)
    todo = list(_nodes(document.proto.graph.node))
    seen: set[_Key] = set()
    while todo:
        node = todo.pop()
        key = _domain_and_op(node)
        function = functions.get(key)
        if function is None or key in seen:
            continue
        seen.add(key)
        for domain, version in _versions(function.opset_import).items():
            if versions.get(domain, version) != version:
                raise UnsupportedOpError(
                    f"{describe(document.where, node, document.opset)}: calls a function of the file that is written "
                    f"in opset {version} of {domain or 'ai.onnx'}, and the model is in opset {versions[domain]}; "
                    "export the model with one opset for both"
                )
        todo.extend(_nodes(function.node))
    return seen


def _versions(imports: Iterable[onnx.OperatorSetIdProto]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for entry in imports:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        found[domain] = max(int(entry.version), found.get(domain, int(entry.version)))
    return found
