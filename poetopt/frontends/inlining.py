"""An If whose condition is known becomes the branch that is taken.

PyTorch's older exporter leaves such nodes behind (`diagonal`, `local_response_norm`, `scatter_reduce`): the condition
is a literal, or compares shapes, which are fixed here: they are inferred, and integers computed, for the nodes behind
one tensor, with the batch put in. Stored floats stay unknown, as training changes those. An If whose condition depends
on what the network computes, or on its weights, is left, to be refused.

Calls of functions that the file itself defines become the functions' bodies (torch's newer exporter writes some).

ONNX's own inliner knows nothing of an attribute's default in the definition: what a call leaves out, it leaves out in
the body too, where the operator's default then counts. So the calls state every attribute before they are inlined.
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
        return sum(counts.get(_domain_and_op(node), 1) for node in all_nodes(nodes))

    todo = list(functions)
    open_: set[_Key] = set()
    while todo:
        key = todo[-1]
        called = {_domain_and_op(node) for node in all_nodes(functions[key].node)}
        calls = {other for other in called if other in functions and other not in counts}
        if key not in counts and calls and key not in open_:
            open_.add(key)
            todo += sorted(
                other for other in calls if other not in open_
            )  # who calls itself, in the end, is refused by the inliner
            continue
        counts[key] = expanded(functions[key].node)
        todo.pop()
    calls_of = [node for node in all_nodes(document.proto.graph.node) if _domain_and_op(node) in functions]
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
    called = {_domain_and_op(node) for function in found for node in all_nodes(function.node)}
    return keys - called or keys


def _domain_and_op(node: NodeProto) -> _Key:
    return node.domain, node.op_type


def _state_defaults(document: Document) -> None:
    """Give each call in the graph the defaults of the attributes that it leaves out."""
    functions = {(*_key(function), function.overload): function for function in document.proto.functions}
    for node in all_nodes(document.proto.graph.node):
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
                    f"{describe(document.where, node, document.opset)}: calls a function of the file that is written "
                    f"in opset {version} of {domain or 'ai.onnx'}, and the model is in opset {versions[domain]}; "
                    "export the model with one opset for both"
                )
        todo.extend(all_nodes(function.node))
    return seen


def _versions(imports: Iterable[onnx.OperatorSetIdProto]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for entry in imports:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        found[domain] = max(int(entry.version), found.get(domain, int(entry.version)))
    return found


@dataclass
class Ahead:
    """Holds what is known for one batch: types of all tensors that were asked for, and constants."""

    types: dict[str, Type]
    constants: dict[str, Array] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    budget: FoldingBudget = field(default_factory=FoldingBudget)

    def reach(self, document: Document, producers: Mapping[str, NodeProto], name: str) -> bool:
        """Find out about `name`, which a node of `producers` writes; whether that went well."""
        nodes = self._behind(document, producers, name)
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

    def _behind(self, document: Document, producers: Mapping[str, NodeProto], name: str) -> list[NodeProto] | None:
        """The nodes that `name` needs and that weren't asked for before, in an order that can be run."""
        order: list[NodeProto] = []
        seen: set[str] = set()
        todo = [(name, False)]
        while todo:
            wanted, ready = todo.pop()
            node = producers.get(wanted)
            if node is None or wanted in self.done:
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
    """Nothing known yet, for the file's batch, and for another one that is asked for.

    Raises `ModelError` where a size stays open.
    """
    fixed = fix_inputs(document, options)
    known = [Ahead(dict(fixed.types))]
    if fixed.changed is not None:
        known.append(Ahead(dict(rebatched(fixed))))
    return known


def counting(document: Document, options: ReadOptions) -> Callable[[str], int | None]:
    """A function that says how many elements an input or a computed tensor has; None where that isn't known."""
    producers = {written: node for node in document.proto.graph.node for written in node.output if written}
    known: list[Ahead] = []

    def elements(name: str) -> int | None:
        if not known:
            known.extend(ahead(document, options)[:1])
        known[0].reach(document, producers, name)
        return math.prod(known[0].types[name][1]) if name in known[0].types else None

    return elements


def inline_branches(document: Document, options: ReadOptions) -> None:
    """Replace every If of `document` whose condition is known, those inside its branches too.

    Raises `ModelError` where a condition depends on a batch that neither the file nor `options` give.
    """
    graph = document.proto.graph
    if any(node.op_type == "If" for node in graph.node):
        nodes = list(_Inlining(document, options).nodes())
        document.put_nodes(nodes)


class _Inlining:
    """The nodes of a graph in one pass, each If in turn replaced by its branch, where that begins.

    _todo
        The nodes that are still to be looked at, the next one last.
    _names
        Every name, with the number of nodes that have it.
    """

    def __init__(self, document: Document, options: ReadOptions) -> None:
        self._document, self._options = document, options
        self._todo = [copied(node) for node in reversed(document.proto.graph.node)]
        self._kept: list[NodeProto] = []
        self._names = dict.fromkeys((*document.weights, *(info.name for info in document.proto.graph.input)), 1)
        self._numbers: dict[str, int] = {}
        self._producers: dict[str, NodeProto] = {}
        self._known: list[Ahead] | None = None
        for node in self._todo:
            self._note(node)

    def nodes(self) -> list[NodeProto]:
        """All nodes without the Ifs whose condition is known."""
        while self._todo:
            node = self._todo.pop()
            branch = self._branch(node) if _is_if(node) else None
            if branch is None:
                self._kept.append(node)
                continue
            self._count(_names(node), -1)
            spliced = self._spliced(node, branch)
            for inner in spliced:
                self._note(inner)
            self._todo += reversed(spliced)
        return self._kept

    def _count(self, names: Iterable[str], by: int) -> None:
        for name in names:
            total = self._names.get(name, 0) + by
            if total:
                self._names[name] = total
            else:
                del self._names[name]

    def _note(self, node: NodeProto) -> None:
        self._count(_names(node), 1)
        self._producers.update(dict.fromkeys(filter(None, node.output), node))

    def _branch(self, node: NodeProto) -> GraphProto | None:
        """The branch that is taken, or None where that isn't known or it can't be spliced."""
        literal = self._stored(node.input[0])
        taken = None if literal is None else _one(literal)
        if taken is None:
            if self._known is None:
                self._document.put_nodes([*self._kept, node, *reversed(self._todo)])
                self._known = ahead(self._document, self._options)
            answers = [self._condition(known, node.input[0]) for known in self._known]
            agreed = set(answers) - {None}
            taken = answers[0] if len(agreed) == 1 else None
        branch: GraphProto | None = next(
            (a.g for a in node.attribute if a.name == ("then_branch" if taken else "else_branch")), None
        )
        if taken is None or branch is None or len(branch.output) != len(node.output) or branch.sparse_initializer:
            return None
        return branch

    def _stored(self, name: str) -> Array | None:
        """The value of `name` where the file, or a branch that was spliced, stores it."""
        node = self._producers.get(name)
        return stored(self._document, name) if node is None else constant_array(node)

    def _condition(self, known: Ahead, name: str) -> bool | None:
        """The value of `name` where shapes alone decide it, else None."""
        found = known.constants.get(name) if known.reach(self._document, self._producers, name) else None
        return None if found is None else _one(found)

    def _spliced(self, node: NodeProto, branch: GraphProto) -> list[NodeProto]:
        """The nodes of `branch`, writing what `node` wrote; its own names made unique, its weights taken over."""
        document = self._document
        self._count({*node.input, *node.output}, 1)  # and what is counted here stays
        inside = [name for n in branch.node for name in n.output if name]
        own = [*(proto.name for proto in branch.initializer), *inside]
        rename: dict[str, str] = {}
        ends: list[NodeProto] = []
        for info, output in zip(branch.output, node.output, strict=True):
            if output and info.name in inside and info.name not in rename:
                rename[info.name] = output
            elif output:
                ends.append(helper.make_node("Identity", [info.name], [output], name=f"{node.name or output}.pass"))
        for name in own:
            if name not in rename:
                rename[name] = unique(name, self._names, self._numbers)
                self._count([rename[name]], 1)
        for proto in branch.initializer:
            weight = TensorProto()
            weight.CopyFrom(proto)
            weight.name = rename[proto.name]
            document.weights[weight.name] = weight
        nodes = [copied(n) for n in (*branch.node, *ends)]
        for inner in nodes[: len(branch.node)]:
            inner.output[:] = [rename.get(name, name) for name in inner.output]
        for inner in nodes:
            _rename_reads(inner, rename)
        return nodes


def _is_if(node: NodeProto) -> bool:
    return node.op_type == "If" and node.domain in ("", "ai.onnx") and bool(node.output) and len(node.input) == 1


def _one(array: Array) -> bool | None:
    return bool(array.reshape(-1)[0]) if array.size == 1 and array.dtype == np.bool_ else None


def _names(node: NodeProto) -> set[str]:
    """Every name in `node` and its subgraphs."""
    found = {*node.input, *node.output}
    for graph in subgraphs(node):
        found.update(proto.name for proto in graph.initializer)
        for inner in graph.node:
            found |= _names(inner)
    return found


def _rename_reads(node: NodeProto, rename: Mapping[str, str]) -> None:
    """New names for what `node` reads, in its subgraphs too, unless these have a tensor of that name."""
    node.input[:] = [rename.get(name, name) for name in node.input]
    for graph in subgraphs(node):
        hidden = {*(info.name for info in graph.input), *(proto.name for proto in graph.initializer)}
        hidden.update(name for inner in graph.node for name in inner.output)
        visible = {old: new for old, new in rename.items() if old not in hidden}
        for inner in graph.node:
            _rename_reads(inner, visible)
        for info in graph.output:
            info.name = visible.get(info.name, info.name)
