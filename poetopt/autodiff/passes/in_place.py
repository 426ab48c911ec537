"""In-place operators: forward ones are joined with the operator before, backward ones overwrite an input.

Joining. If f is element-wise and is the only reader of its operand a, it can write its output over a. Then f and the
operator P that writes a become one scheduled operator: P's nodes, then f's. The runtime's workspace lets f's node
overwrite a, so that a takes no RAM beside f's output; as two operators, both are in RAM while f runs. Nodes and their
order stay, and so do all results.

No better schedule is lost. Keeping, paging or recomputing f's output takes the same bytes as doing that with a, and
saves running f. P's other outputs leave the joined operator; they must be small, as P alone could recompute them for
less. f's other inputs are needed as soon as P runs. The joined operator may therefore need no more RAM than the larger
of the two, with P's small outputs kept while f runs. A small excess (`CRUMBS`) is allowed, up to the largest working
set of the graph, so that the least RAM doesn't grow. A backward f may read only inputs of P, as its operands are
often recomputed right before it runs.

Operators that may run only once, that work in place in the resident region, or whose result the graph's user reads are
not joined.

Overwriting. A gradient dX as large as dY can be written over dY if no other operator reads dY. Both stay tensors that
are kept, paged and freed separately; they share an address while the operator runs. The runtime says whether and how
its kernels can do that (`TakesOver.taking`). Tensors between kernels prevent it, unless the kernels run slice by slice,
which takes time. Therefore only operators whose working sets would be the largest do it.

An operator that overwrites an input runs once, as a second run would need the input again. No forward operator does
so, because those are the ones that are recomputed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from poetopt.graph import TOGETHER, Operator, TrainingGraph, Whole
from poetopt.ops.runtimes.contract import Runtime, RuntimeVariant, TakesOver

SIDE = 8
"""A side output has at most 1/8 of the bytes of the largest tensor that its operator reads or writes."""


def joined(members: Sequence[Operator], graph: TrainingGraph, kept: Set[str], kind: str) -> Operator:
    """Return an operator with all nodes of `members`, which are in order, and the name of the last.

    Parameters
    ----------
    graph
        The graph of the members, which has the readers of each tensor.
    kept
        Tensors that are outputs of the joined operator in any case (`kept_tensors`).
    """
    last = members[-1]
    inside = {operator.name for operator in members}
    written = dict.fromkeys(name for operator in members for name in operator.outputs)
    read = dict.fromkeys(name for operator in members for name in operator.inputs if name not in written)

    def is_output(name: str) -> bool:
        if name in last.outputs or name in kept or graph.tensors[graph.root(name)].resident:
            return True
        return any(reader.name not in inside for reader in graph.readers.get(name, ()))

    return replace(
        last,
        kind=kind,
        nodes=tuple(node for operator in members for node in operator.nodes),
        inputs=tuple(read),
        outputs=tuple(name for name in written if is_output(name)),
        updates=tuple(pair for operator in members for pair in operator.updates),
        recomputable=all(operator.recomputable for operator in members),
        meaning=None,
        whole=tuple(_fused_ops(members)),
        members=tuple(
            name for operator in members if not operator.view for name in operator.members or (operator.name,)
        ),
    )


def _fused_ops(members: Sequence[Operator]) -> Iterator[Whole]:
    """Yield the members' fused ops, by the position of their nodes among all nodes."""
    before = 0
    for operator in members:
        yield from (replace(whole, first=before + whole.first) for whole in operator.whole)
        before += len(operator.nodes)


def kept_tensors(graph: TrainingGraph) -> frozenset[str]:
    """Return the outputs and results of a step, and the tensors whose bytes they share."""
    kept = {*graph.outputs, *graph.results}
    return frozenset({graph.root(name) for name in kept} | kept)


def working_set_bytes(operator: Operator, graph: TrainingGraph, runtime: Runtime) -> int:
    """Return the bytes of an operator's inputs, outputs and temporaries, without resident tensors."""
    roots = {graph.root(name) for name in (*operator.inputs, *operator.outputs)}
    tensor_bytes = sum(graph.tensors[root].nbytes for root in roots if not graph.tensors[root].resident)
    return tensor_bytes + runtime.workspace(operator, graph.tensors).temporaries_bytes


CRUMBS = 32
"""Excess that is allowed, as a divisor of the operand's bytes: BatchNormalization's temporaries are some 100 bytes."""


MOST_JOINED = 8
"""Most operators in a joined one, as each costs a search with all before it. Networks of the zoo join three."""


def in_place(graph: TrainingGraph, runtime: Runtime) -> TrainingGraph:
    """Return `graph` with each in-place operator joined with the operator before, under the name of the former.

    A chain like BatchNormalization, Add and Relu becomes one operator. Its `kind` is their kinds with `+` between, its
    `members` are their names. The result is `graph` itself where nothing joins.

    Raises
    ------
    ModelError
        A node names a tensor that the graph lacks.
    """
    search = _InPlaceSearch(graph, runtime)
    groups: list[list[Operator]] = []
    views: list[Operator] = []
    for operator in graph.operators:
        if operator.view:
            views.append(operator)
            continue
        if groups and len(groups[-1]) < MOST_JOINED and search.can_join(groups[-1], views, operator):
            groups[-1] += [*views, operator]
        else:
            groups += [[view] for view in views]
            groups.append([operator])
        views = []
    groups += [[view] for view in views]
    count = sum(not operator.view for group in groups for operator in group[1:])
    if not count:
        return graph
    note = f"in place: {count} operators overwrite the result of the operator before, and are scheduled as one with it"
    operators = tuple(search.join(group) for group in groups)
    return replace(graph, operators=operators, notes=(*graph.notes, note))


class _InPlaceSearch:
    """Search for operators that join the group of operators before them."""

    def __init__(self, graph: TrainingGraph, runtime: Runtime) -> None:
        self.graph = graph
        self.runtime = runtime
        self.kept = kept_tensors(graph)
        self.readers: dict[str, list[Operator]] = {}
        for operator in graph.operators:
            for name in dict.fromkeys(map(graph.root, operator.inputs)):
                self.readers.setdefault(name, []).append(operator)
        working_sets = (
            working_set_bytes(operator, graph, runtime) for operator in graph.operators if not operator.view
        )
        self.room = max(working_sets, default=0)

    def join(self, group: Sequence[Operator]) -> Operator:
        """Return the joined operator of a group."""
        if len(group) == 1:
            return group[0]
        kinds = [operator.kind for operator in group if not operator.view]
        return joined(group, self.graph, self.kept, TOGETHER.join(kinds))

    def can_join(self, group: Sequence[Operator], views: Sequence[Operator], operator: Operator) -> bool:
        """Return whether `operator` can overwrite a result of `group`; `views` are the operators between them."""
        before = group[-1]
        if before.view or before.backward != operator.backward:
            return False
        if any(not one.recomputable or one.over for one in (before, operator)):
            return False
        graph = self.graph
        between = {view.name for view in views}
        for name in before.outputs:
            readers = [reader.name for reader in self.readers.get(name, ()) if reader.name not in between]
            if readers != [operator.name] or name in self.kept or graph.tensors[name].resident:
                continue
            if all(graph.root(view.inputs[0]) == name for view in views):
                return self._fits_in_ram(group, views, operator, name)
        return False

    def _fits_in_ram(self, group: Sequence[Operator], views: Sequence[Operator], operator: Operator, name: str) -> bool:
        """Return whether the joined operator's output overwrites `name`, and it needs no more RAM than its parts."""
        graph, tensors, runtime = self.graph, self.graph.tensors, self.runtime
        writer, joined_operator = self.join(group), self.join([*group, *views, operator])
        layout = runtime.workspace(joined_operator, tensors)
        output = layout.storage.get(name, "")
        if output not in operator.outputs or tensors[output].nbytes != tensors[name].nbytes:
            return False
        if layout.temporaries_bytes > max(runtime.workspace(o, tensors).temporaries_bytes for o in (writer, operator)):
            return False
        if operator.backward and self._storages(operator) - {name} - self._storages(writer):
            return False
        side_outputs = [n for n in joined_operator.outputs if n != output and not tensors[graph.root(n)].resident]
        if any(tensors[n].nbytes * SIDE > tensors[name].nbytes for n in side_outputs):
            return False
        kept_bytes = sum(tensors[n].nbytes for n in side_outputs if n not in operator.outputs)
        separate_bytes = max(
            working_set_bytes(writer, graph, runtime), working_set_bytes(operator, graph, runtime) + kept_bytes
        )
        return working_set_bytes(joined_operator, graph, runtime) <= min(
            separate_bytes + tensors[name].nbytes // CRUMBS, self.room
        )

    def _storages(self, operator: Operator) -> set[str]:
        """Return the storages that an operator reads and that are not resident."""
        roots = {self.graph.root(name) for name in operator.inputs}
        return {root for root in roots if not self.graph.tensors[root].resident}


@dataclass(frozen=True)
class Taking:
    """An output that overwrites an input.

    Attributes
    ----------
    input, output
        Names of both.
    way
        The runtime's variant of the operator.
    """

    input: str
    output: str
    way: RuntimeVariant


@dataclass(frozen=True)
class Takings:
    """The overwrites that lower the floor, by operator, and the floor: the largest working set then, in bytes."""

    by_operator: Mapping[str, Taking]
    floor_bytes: int


def takings(graph: TrainingGraph, runtime: Runtime, without: Collection[str] = ()) -> Takings:
    """Return the operators of `graph` that overwrite an input.

    Parameters
    ----------
    without
        Kinds of operators to ignore.
    """
    operators = [o for o in graph.operators if not o.view and o.kind not in without]
    needs = [working_set_bytes(operator, graph, runtime) for operator in operators]
    if not isinstance(runtime, TakesOver):
        return Takings({}, max(needs, default=0))
    search = _OverwriteSearch(graph, runtime, runtime)
    overwrites: dict[str, tuple[int, Taking]] = {}
    floor = 0
    for k in sorted(range(len(operators)), key=lambda k: -needs[k]):
        if needs[k] <= floor:
            break
        smaller = search.best(operators[k], needs[k])
        if smaller is None:
            floor = needs[k]
            break
        floor = max(floor, smaller[0])
        overwrites[operators[k].name] = needs[k], smaller[1]
    return Takings({name: taking for name, (need, taking) in overwrites.items() if need > floor}, floor)


class _OverwriteSearch:
    """Search for the input that an operator can overwrite at the least working set."""

    def __init__(self, graph: TrainingGraph, runtime: Runtime, kernels: TakesOver) -> None:
        self.graph, self.runtime, self.over = graph, runtime, kernels
        self.kept = kept_tensors(graph)
        self.values = graph.constants
        self.readers: dict[str, list[str]] = {}
        for operator in graph.operators:
            if not operator.view:
                for root in dict.fromkeys(map(graph.root, operator.inputs)):
                    self.readers.setdefault(root, []).append(operator.name)

    def best(self, operator: Operator, need: int) -> tuple[int, Taking] | None:
        """Return the least working set in bytes and its overwrite, or None where that isn't below `need`."""
        graph, tensors = self.graph, self.graph.tensors
        plain = self.runtime.workspace(operator, tensors).temporaries_bytes
        overwrites: list[tuple[int, Taking]] = []
        for input_name, output_name in self._pairs(operator):
            variant = self.over.taking(operator, tensors, takes=(input_name, output_name), values=self.values)
            if variant is not None:
                saved_bytes = plain + tensors[graph.root(input_name)].nbytes - variant.workspace.temporaries_bytes
                overwrites.append((need - saved_bytes, Taking(input_name, output_name, variant)))
        least = min(overwrites, key=lambda one: one[0], default=None)
        return least if least is not None and least[0] < need else None

    def _pairs(self, operator: Operator) -> Iterator[tuple[str, str]]:
        """Yield each input that no other operator reads, with an output of its size."""
        graph, tensors = self.graph, self.graph.tensors
        if not operator.backward or operator.over:
            return
        for input_name in operator.inputs:
            root = graph.root(input_name)
            if root in self.kept or tensors[root].resident or self.readers[root] != [operator.name]:
                continue
            if root not in graph.producers or sum(graph.root(name) == root for name in operator.inputs) > 1:
                continue
            for output_name in operator.outputs:
                output = tensors[output_name]
                if (
                    graph.root(output_name) == output_name
                    and not output.resident
                    and output.nbytes == tensors[root].nbytes
                ):
                    yield input_name, output_name
