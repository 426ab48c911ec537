"""A step's forward pass as it is in inference: BatchNormalization by its running statistics, Dropout passes on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace

from poetopt.autodiff.emit import GraphBuilder
from poetopt.autodiff.forward import prepare
from poetopt.graph import FORWARD_ONLY, VIEW_OPS, Graph, Node, Operator, Role, TrainingGraph
from poetopt.ops.op import Origin, op_of
from poetopt.util.errors import ModelError, OptionError
from poetopt.util.notes import About, Note, listed
from poetopt.util.text import closest


def forward_operators(graph: TrainingGraph) -> list[Operator]:
    """The forward operators of a step, the loss included, and those that predictions alone need."""
    return [*(operator for operator in graph.operators if not operator.backward), *graph.aside]


def forward_nodes(graph: TrainingGraph) -> list[Node]:
    """Their nodes."""
    return [node for operator in forward_operators(graph) for node in operator.nodes]


def inference(graph: TrainingGraph) -> tuple[Node, ...]:
    """The same, each as it is in inference."""
    nodes = forward_nodes(graph)
    producers = {name: node for node in nodes for name in node.outputs}
    statistics = _statistics(graph, nodes, producers)
    found: list[Node] = []
    for node in nodes:
        if node.op_type == "BatchNormalization" and node.attributes.get("training_mode", 0) and not node.domain:
            running = tuple(statistics.get(name, "") for name in node.outputs[1:3])
            if all(running):
                attributes = {**node.attributes, "training_mode": 0}
                node = replace(
                    node, inputs=(*node.inputs[:3], *running), outputs=node.outputs[:1], attributes=attributes
                )
        elif node.op_type == "Mul" and _drops(node, producers):
            inner = producers[node.inputs[0]]
            node = Node("Identity", (inner.inputs[0],), node.outputs, name=node.name)
        found.append(node)
    return tuple(found)


def _statistics(graph: TrainingGraph, nodes: list[Node], producers: Mapping[str, Node]) -> Mapping[str, str]:
    """For the mean or variance of a batch, the running statistic that it is mixed into."""
    changing = {*graph.carried}
    found: dict[str, str] = {}
    for node in nodes:
        if node.op_type != "Add" or len(node.inputs) != 2:
            continue
        kept, fresh = (producers.get(name) for name in node.inputs)
        if (
            kept is not None
            and fresh is not None
            and kept.op_type == fresh.op_type == "Mul"
            and kept.inputs[0] in changing
        ):
            found[fresh.inputs[0]] = kept.inputs[0]
    return found


def _drops(node: Node, producers: Mapping[str, Node]) -> bool:
    """Says whether it is the product with a Dropout's mask: (x factor) mask."""
    inner, mask = (producers.get(name) for name in node.inputs)
    while mask is not None and op_of(mask.op_type).numbers is Origin.MOVED:
        mask = producers.get(mask.inputs[0])
    drawn = None if mask is None or mask.op_type != "GreaterOrEqual" else producers.get(mask.inputs[0])
    return drawn is not None and op_of(drawn.op_type).random and inner is not None and inner.op_type == "Mul"


def needed(nodes: tuple[Node, ...], wanted: tuple[str, ...]) -> tuple[Node, ...]:
    """Those of `nodes` that tensors are computed by."""
    names = set(wanted)
    kept: list[Node] = []
    for node in reversed(nodes):
        if names.intersection(node.outputs):
            kept.append(node)
            names.update(node.inputs)
    return tuple(reversed(kept))


def predicting(graph: TrainingGraph) -> TrainingGraph | None:
    """The network of a step as it is used: from its inputs to the outputs of its file; None where the loss is all, or
    there is none.

    An output that is an input or a stored tensor, or has the bytes of one, is none of its own: nothing computes it.

    Its tensors and values are the step's. An operator that inference changes, or that writes what only the backward
    pass reads, is one for each of its nodes; the others are the step's own.
    """
    if graph.forward_only and graph.loss:
        return None
    made = {name for node in forward_nodes(graph) for name in node.outputs}
    outputs = [name for name in graph.outputs if name in made and graph.root(name) != graph.root(graph.loss)]
    whole = _toward(graph, outputs)
    computed = {name for operator in whole.operators if not operator.view for name in operator.outputs}
    own = [name for name in outputs if whole.root(name) in computed]
    if not own:
        return None
    return whole if own == outputs else _toward(graph, own)


def forward_only(graph: Graph, output: str | None = None) -> TrainingGraph:
    """A network as it is used, without loss and backward operators, as a graph that is scheduled like a step.

    output
        The one that is wanted; by default all.

    Raises OptionError for an unknown output, ModelError where no operator computes any.
    """
    if output is not None and output not in graph.outputs:
        raise OptionError(
            f"--output {output}: the model has {', '.join(graph.outputs)}{closest(output, graph.outputs)}"
        )
    graph = replace(graph, trained=())
    builder = GraphBuilder(graph.tensors, graph.values, graph.opset, graph.storage)
    operators, states = prepare(graph, builder)
    of_graph = {field.name: getattr(graph, field.name) for field in fields(Graph)}
    given = of_graph | {"tensors": builder.tensors, "values": builder.values, "operators": operators}
    given |= {"outputs": graph.outputs if output is None else (output,)}
    network = predicting(TrainingGraph(**given, loss="", loss_kind=FORWARD_ONLY, gradients={}, states=states))
    if network is None:
        raise ModelError(f"{graph.name}: no operator computes an output, so there is nothing to schedule")
    roots = {network.root(name) for name in network.outputs}
    used = {name for one in network.operators for node in one.nodes for name in (*node.inputs, *node.outputs)}
    tensors = {
        name: replace(tensor, role=Role.LOSS) if name in roots or name in network.outputs else tensor
        for name, tensor in network.tensors.items()
        if name in used or name in network.inputs
    }
    values = {name: value for name, value in network.values.items() if name in used}
    text = f"no loss: the network alone, for {listed(network.outputs)}"
    if gone := [name for name in given["outputs"] if name not in network.outputs]:
        text += f"; left out, as no operator computes it: {listed(gone)}"
    note = Note(text, About.LOSS)
    return replace(
        network, tensors=tensors, values=values, loss=network.outputs[0], notes=(*graph.notes, note), parts=1
    )


def _toward(graph: TrainingGraph, outputs: Sequence[str]) -> TrainingGraph:
    """All that these outputs are computed by in inference."""
    wanted = set(outputs)
    kept: list[Operator] = []
    nodes = list(inference(graph))
    for operator in reversed(forward_operators(graph)):
        own = tuple(nodes[len(nodes) - len(operator.nodes) :])
        del nodes[len(nodes) - len(operator.nodes) :]
        alike = own == operator.nodes and wanted.issuperset(operator.outputs)
        for one in (operator,) if alike else _apart(operator, own, wanted):
            if wanted.intersection(one.outputs):
                kept.append(one)
                wanted.update(one.inputs)
    return replace(
        graph,
        operators=tuple(reversed(kept)),
        inputs=tuple(name for name in graph.inputs if name in wanted),
        outputs=tuple(outputs),
        trained=(),
        loss="",
        gradients={},
        states={},
        optimizer="none",
        optimizer_states=(),
        hyperparameters={},
        sums={},
        closing=None,
        aside=(),
        parts=1,
        split=(),
    )


def _apart(operator: Operator, nodes: tuple[Node, ...], wanted: Collection[str]) -> Iterator[Operator]:
    """An operator for each of `nodes` that is needed, the last one first, without optional outputs that aren't."""
    from onnx import defs

    nodes = needed(nodes, tuple(name for name in operator.outputs if name in wanted))
    read = {*wanted, *(name for node in nodes for name in node.inputs)}
    for k, node in reversed([*enumerate(nodes)]):
        if not node.domain:
            said, outputs = defs.get_schema(node.op_type).outputs, node.outputs
            optional = defs.OpSchema.FormalParameterOption.Optional
            while outputs[-1] not in read and said[min(len(outputs), len(said)) - 1].option == optional:
                outputs = outputs[:-1]
            node = replace(node, outputs=outputs)
        yield Operator(
            name=operator.name if k == len(nodes) - 1 else f"{operator.name}/{node.outputs[0]}",
            kind=node.op_type,
            nodes=(node,),
            inputs=tuple(dict.fromkeys(filter(None, node.inputs))),
            outputs=tuple(filter(None, node.outputs)),
            view=node.op_type in VIEW_OPS and not node.domain,
        )
