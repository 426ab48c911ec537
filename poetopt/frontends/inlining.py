"""Replace each If whose condition is known by its branch, and inline functions.

PyTorch's older exporter writes such nodes (`diagonal`, `local_response_norm`, `scatter_reduce`): the condition is a
literal or compares shapes. The shapes are static for the given batch, so they are inferred, and integers computed, for
the nodes that one tensor depends on. Stored floats stay unknown, because training changes them. An If whose condition
depends on activations or weights stays, and is refused later.

Calls of functions that the file defines become the functions' bodies (torch's newer exporter writes some).

ONNX's inliner ignores the default of an attribute in the definition: if a call omits the attribute, so does the inlined
body, where the operator's default then applies. So each call gets all attributes before it is inlined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.inliner
from onnx import FunctionProto, GraphProto, NodeProto, TensorProto, helper

from poetopt.frontends.draft import FoldingBudget, Type
from poetopt.frontends.places import FLOATS
from poetopt.frontends.proto import copied, subgraphs, unique
from poetopt.frontends.read import LIBRARY_ERRORS, Document, all_nodes, array_of, constant_array, stored
from poetopt.frontends.reading import ReadOptions
from poetopt.frontends.sizes import fix_inputs, rebatched
from poetopt.frontends.specialise import specialise
from poetopt.frontends.structure import CONTROL_FLOW, describe, first_line
from poetopt.util.errors import ModelError, UnsupportedOpError

if TYPE_CHECKING:
    from poetopt.graph import Array

MOST_NODES = 50_000
"""Limit of nodes after inlining: no trained network has as many, and reading them takes ten seconds."""
_Key = tuple[str, str]
"""Domain and name of a function; overloads are inlined together."""


def inline_functions(document: Document) -> None:
    """Replace calls of the file's functions by their bodies, in place.

    Raise `ModelError` for recursive functions, `UnsupportedOpError` for a function of another opset than the model's.
    """
    if not document.proto.functions:
        return
    _keep_functions(document, _called_functions(document))
    _check_inlined_size(document)
    while document.proto.functions:
        chosen = _next_functions(document.proto.functions)
        _add_defaults(document)
        try:
            inlined = onnx.inliner.inline_selected_functions(document.proto, sorted(chosen))
        except LIBRARY_ERRORS as error:
            raise ModelError(f"{document.where}: its functions can't be inlined ({first_line(error)})") from error
        document.proto.CopyFrom(inlined)
        _keep_functions(document, {_key(function) for function in inlined.functions} - chosen)


def _check_inlined_size(document: Document) -> None:
    """Raise `ModelError` if inlining would give more than `MOST_NODES` nodes: nested calls grow exponentially."""
    functions = {_key(function): function for function in document.proto.functions}
    counts: dict[_Key, int] = {}

    def expanded(nodes: Iterable[NodeProto]) -> int:
        return sum(counts.get(_domain_and_op(node), 1) for node in all_nodes(nodes))

    todo = list(functions)
    opened: set[_Key] = set()
    while todo:
        key = todo[-1]
        called = {_domain_and_op(node) for node in all_nodes(functions[key].node)}
        calls = {other for other in called if other in functions and other not in counts}
        if key not in counts and calls and key not in opened:
            opened.add(key)
            todo += sorted(other for other in calls if other not in opened)  # ONNX's inliner refuses loops
            continue
        counts[key] = expanded(functions[key].node)
        todo.pop()
    calls_of = [node for node in all_nodes(document.proto.graph.node) if _domain_and_op(node) in functions]
    total = expanded(calls_of)
    if total > MOST_NODES:
        worst = max(calls_of, key=lambda node: counts[_domain_and_op(node)])
        raise ModelError(
            f"{describe(document.where, worst, document.opset)}: inlined, this function of the file has "
            f"{_node_count_text(counts[_domain_and_op(worst)])} nodes, of {_node_count_text(total)} in all, and the "
            f"limit is {MOST_NODES:,}. Export the model without functions, or a part of it"
        )


def _node_count_text(count: int) -> str:
    """Return a number of nodes as text, shortened: nested calls make it arbitrarily long."""
    return f"{count:,}" if count < 10**15 else "more than 10^15"


def _keep_functions(document: Document, keys: Set[_Key]) -> None:
    kept = [function for function in document.proto.functions if _key(function) in keys]
    copy = onnx.ModelProto(functions=kept)
    del document.proto.functions[:]
    document.proto.functions.extend(copy.functions)


def _key(function: FunctionProto) -> _Key:
    return function.domain, function.name


def _next_functions(functions: Iterable[FunctionProto]) -> set[_Key]:
    """Return the functions to inline next: all, or, if there are defaults, only those that no other one calls.

    The default of an outer function may set an attribute of the inner call, or leave it to the inner default.
    """
    listed = list(functions)
    keys = {_key(function) for function in listed}
    if not any(function.attribute_proto for function in listed):
        return keys
    called = {_domain_and_op(node) for function in listed for node in all_nodes(function.node)}
    return keys - called or keys


def _domain_and_op(node: NodeProto) -> _Key:
    return node.domain, node.op_type


def _add_defaults(document: Document) -> None:
    """Add to each call in the graph the default attributes that it omits."""
    functions = {(*_key(function), function.overload): function for function in document.proto.functions}
    for node in all_nodes(document.proto.graph.node):
        function = functions.get((*_domain_and_op(node), node.overload))
        if function is not None:
            stated = {attribute.name for attribute in node.attribute}
            node.attribute.extend(default for default in function.attribute_proto if default.name not in stated)


def _called_functions(document: Document) -> set[_Key]:
    """Return the functions that the graph calls, directly or not.

    Raise `UnsupportedOpError` for a function of another opset than the model's: the inliner would leave its calls.
    """
    functions = {_key(function): function for function in document.proto.functions}
    versions = _versions(document.proto.opset_import)
    todo = list(all_nodes(document.proto.graph.node))
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
                    f"{describe(document.where, node, document.opset)}: calls a function of the file in "
                    f"opset {version} of {domain or 'ai.onnx'}, and the model is in opset {versions[domain]}. "
                    "Export the model with one opset for both"
                )
        todo.extend(all_nodes(function.node))
    return seen


def _versions(imports: Iterable[onnx.OperatorSetIdProto]) -> Mapping[str, int]:
    versions: dict[str, int] = {}
    for entry in imports:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        versions[domain] = max(int(entry.version), versions.get(domain, int(entry.version)))
    return versions


@dataclass
class Ahead:
    """Types and constants known for one batch, for the tensors requested so far and their inputs."""

    types: dict[str, Type]
    constants: dict[str, Array] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    budget: FoldingBudget = field(default_factory=FoldingBudget)

    def reach(self, document: Document, producers: Mapping[str, NodeProto], name: str) -> bool:
        """Infer `name`, which a node of `producers` writes, with all it depends on; return whether that succeeded."""
        nodes = self._unresolved_nodes(document, producers, name)
        if nodes is None:
            return False
        for node in nodes:
            for weight in node.input:
                if weight in document.weights and weight not in self.types:
                    proto = document.weights[weight]
                    self.types[weight] = (int(proto.data_type), tuple(map(int, proto.dims)))
                    if proto.data_type not in FLOATS or weight in document.given:
                        self.constants[weight] = array_of(document, weight)
        try:
            draft = specialise(
                document.where, document.opset, nodes, self.types, self.constants, {}, budget=self.budget
            )
        except (ModelError, *LIBRARY_ERRORS):
            return False
        self.types, self.constants = draft.types, draft.constants
        self.done.update(output for node in nodes for output in node.output)
        return True

    def _unresolved_nodes(
        self, document: Document, producers: Mapping[str, NodeProto], name: str
    ) -> list[NodeProto] | None:
        """Return the nodes that `name` needs and that weren't inferred yet, in topological order."""
        order: list[NodeProto] = []
        seen: set[str] = set()
        todo = [(name, False)]
        while todo:
            requested, ready = todo.pop()
            node = producers.get(requested)
            if node is None or requested in self.done:
                continue
            if ready:
                order.append(node)
                continue
            first = next(filter(None, node.output))
            if first in seen:
                continue
            if node.op_type in CONTROL_FLOW or not onnx.defs.has(node.op_type, document.opset, node.domain):
                return None
            seen.add(first)
            todo.append((first, True))
            todo.extend((read, False) for read in reversed(node.input) if read)
        return order


def ahead(document: Document, options: ReadOptions) -> list[Ahead]:
    """Return empty knowledge for the file's batch, and for another batch if the user gave one.

    Raise `ModelError` if a size stays open.
    """
    fixed = fix_inputs(document, options)
    known = [Ahead(dict(fixed.types))]
    if fixed.changed is not None:
        known.append(Ahead(dict(rebatched(fixed))))
    return known


def counting(document: Document, options: ReadOptions) -> Callable[[str], int | None]:
    """Return a function from the name of a tensor to its number of elements (None if unknown)."""
    producers = {written: node for node in document.proto.graph.node for written in node.output if written}
    known: list[Ahead] = []

    def elements(name: str) -> int | None:
        if not known:
            known.extend(ahead(document, options)[:1])
        known[0].reach(document, producers, name)
        return math.prod(known[0].types[name][1]) if name in known[0].types else None

    return elements


def inline_branches(document: Document, options: ReadOptions) -> None:
    """Replace every If of `document` whose condition is known, including those inside branches.

    Raise `ModelError` if a condition depends on a batch that neither the file nor `options` give.
    """
    graph = document.proto.graph
    if any(node.op_type == "If" for node in graph.node):
        nodes = list(_Inlining(document, options).nodes())
        document.put_nodes(nodes)


class _Inlining:
    """One pass over the nodes of a graph that replaces each If by its branch, which the pass visits next.

    Attributes
    ----------
    _todo
        Nodes not visited yet, the next one last.
    _name_counts
        Every name, with the number of nodes that have it.
    """

    def __init__(self, document: Document, options: ReadOptions) -> None:
        self._document, self._options = document, options
        self._todo = [copied(node) for node in reversed(document.proto.graph.node)]
        self._kept: list[NodeProto] = []
        self._name_counts = dict.fromkeys((*document.weights, *(info.name for info in document.proto.graph.input)), 1)
        self._numbers: dict[str, int] = {}
        self._producers: dict[str, NodeProto] = {}
        self._known: list[Ahead] | None = None
        for node in self._todo:
            self._add_node(node)

    def nodes(self) -> list[NodeProto]:
        """Return all nodes without the Ifs whose condition is known."""
        while self._todo:
            node = self._todo.pop()
            branch = self._known_branch(node) if _is_if(node) else None
            if branch is None:
                self._kept.append(node)
                continue
            self._count_names(_names_in(node), -1)
            spliced = self._splice(node, branch)
            for inner in spliced:
                self._add_node(inner)
            self._todo += reversed(spliced)
        return self._kept

    def _count_names(self, names: Iterable[str], by: int) -> None:
        for name in names:
            total = self._name_counts.get(name, 0) + by
            if total:
                self._name_counts[name] = total
            else:
                del self._name_counts[name]

    def _add_node(self, node: NodeProto) -> None:
        self._count_names(_names_in(node), 1)
        self._producers.update(dict.fromkeys(filter(None, node.output), node))

    def _known_branch(self, node: NodeProto) -> GraphProto | None:
        """Return the branch of an If, or None if it is unknown or can't be spliced."""
        literal = self._stored(node.input[0])
        condition = None if literal is None else _scalar_bool(literal)
        if condition is None:
            if self._known is None:
                self._document.put_nodes([*self._kept, node, *reversed(self._todo)])
                self._known = ahead(self._document, self._options)
            answers = [self._condition(known, node.input[0]) for known in self._known]
            known_answers = set(answers) - {None}
            condition = answers[0] if len(known_answers) == 1 else None
        branch: GraphProto | None = next(
            (a.g for a in node.attribute if a.name == ("then_branch" if condition else "else_branch")), None
        )
        if condition is None or branch is None or len(branch.output) != len(node.output) or branch.sparse_initializer:
            return None
        return branch

    def _stored(self, name: str) -> Array | None:
        """Return the value of `name` if the file, or a spliced branch, stores it; else None."""
        node = self._producers.get(name)
        return stored(self._document, name) if node is None else constant_array(node)

    def _condition(self, known: Ahead, name: str) -> bool | None:
        """Return the value of `name` if shapes alone decide it, else None."""
        value = known.constants.get(name) if known.reach(self._document, self._producers, name) else None
        return None if value is None else _scalar_bool(value)

    def _splice(self, node: NodeProto, branch: GraphProto) -> list[NodeProto]:
        """Return the nodes of `branch` with the outputs of `node`, after making names unique and adding its weights."""
        document = self._document
        self._count_names({*node.input, *node.output}, 1)  # these names stay in use
        inner_outputs = [name for n in branch.node for name in n.output if name]
        own_names = [*(proto.name for proto in branch.initializer), *inner_outputs]
        rename: dict[str, str] = {}
        passes: list[NodeProto] = []
        for info, output in zip(branch.output, node.output, strict=True):
            if output and info.name in inner_outputs and info.name not in rename:
                rename[info.name] = output
            elif output:
                passes.append(helper.make_node("Identity", [info.name], [output], name=f"{node.name or output}.pass"))
        for name in own_names:
            if name not in rename:
                rename[name] = unique(name, self._name_counts, self._numbers)
                self._count_names([rename[name]], 1)
        for proto in branch.initializer:
            weight = TensorProto()
            weight.CopyFrom(proto)
            weight.name = rename[proto.name]
            document.weights[weight.name] = weight
        nodes = [copied(n) for n in (*branch.node, *passes)]
        for inner in nodes[: len(branch.node)]:
            inner.output[:] = [rename.get(name, name) for name in inner.output]
        for inner in nodes:
            _rename_reads(inner, rename)
        return nodes


def _is_if(node: NodeProto) -> bool:
    return node.op_type == "If" and node.domain in ("", "ai.onnx") and bool(node.output) and len(node.input) == 1


def _scalar_bool(array: Array) -> bool | None:
    return bool(array.reshape(-1)[0]) if array.size == 1 and array.dtype == np.bool_ else None


def _names_in(node: NodeProto) -> set[str]:
    """Return every name in `node` and its subgraphs."""
    names = {*node.input, *node.output}
    for graph in subgraphs(node):
        names.update(proto.name for proto in graph.initializer)
        for inner in graph.node:
            names |= _names_in(inner)
    return names


def _rename_reads(node: NodeProto, rename: Mapping[str, str]) -> None:
    """Rename what `node` reads, in its subgraphs too unless they have a tensor of that name."""
    node.input[:] = [rename.get(name, name) for name in node.input]
    for graph in subgraphs(node):
        hidden = {*(info.name for info in graph.input), *(proto.name for proto in graph.initializer)}
        hidden.update(name for inner in graph.node for name in inner.output)
        visible = {old: new for old, new in rename.items() if old not in hidden}
        for inner in graph.node:
            _rename_reads(inner, visible)
        for info in graph.output:
            info.name = visible.get(info.name, info.name)
