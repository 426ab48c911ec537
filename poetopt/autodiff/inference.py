"""A step's forward pass in inference: BatchNormalization uses its running statistics, Dropout is the identity."""

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
    """Return a step's forward operators, including the loss and the operators that only predictions need."""
    return [*(operator for operator in graph.operators if not operator.backward), *graph.aside]


def forward_nodes(graph: TrainingGraph) -> list[Node]:
    """Return the nodes of a step's forward operators (`forward_operators`)."""
    return [node for operator in forward_operators(graph) for node in operator.nodes]


def inference(graph: TrainingGraph) -> tuple[Node, ...]:
    """Return the nodes of a step's forward operators in the form that they have in inference."""
    nodes = forward_nodes(graph)
    producers = {name: node for node in nodes for name in node.outputs}
    statistics = _statistics(graph, nodes, producers)
    converted: list[Node] = []
    for node in nodes:
        if node.op_type == "BatchNormalization" and node.attributes.get("training_mode", 0) and not node.domain:
            running = tuple(statistics.get(name, "") for name in node.outputs[1:3])
            if all(running):
                attributes = {**node.attributes, "training_mode": 0}
                node = replace(
                    node, inputs=(*node.inputs[:3], *running), outputs=node.outputs[:1], attributes=attributes
                )
        elif node.op_type == "Mul" and _is_dropout(node, producers):
            inner = producers[node.inputs[0]]
            node = Node("Identity", (inner.inputs[0],), node.outputs, name=node.name)
        converted.append(node)
    return tuple(converted)


def _statistics(graph: TrainingGraph, nodes: list[Node], producers: Mapping[str, Node]) -> Mapping[str, str]:
    """Return the running statistic that each mean or variance of a batch is mixed into."""
    carried = {*graph.carried}
    mixed_into: dict[str, str] = {}
    for node in nodes:
        if node.op_type != "Add" or len(node.inputs) != 2:
            continue
        old_share, new_share = (producers.get(name) for name in node.inputs)
        if (
            old_share is not None
            and new_share is not None
            and old_share.op_type == new_share.op_type == "Mul"
            and old_share.inputs[0] in carried
        ):
            mixed_into[new_share.inputs[0]] = old_share.inputs[0]
    return mixed_into


def _is_dropout(node: Node, producers: Mapping[str, Node]) -> bool:
    """Return whether a node is the product with a Dropout's mask, (x factor) mask."""
    inner, mask = (producers.get(name) for name in node.inputs)
    while mask is not None and op_of(mask.op_type).numbers is Origin.MOVED:
        mask = producers.get(mask.inputs[0])
    drawn = None if mask is None or mask.op_type != "GreaterOrEqual" else producers.get(mask.inputs[0])
    return drawn is not None and op_of(drawn.op_type).random and inner is not None and inner.op_type == "Mul"


def needed(nodes: tuple[Node, ...], wanted: tuple[str, ...]) -> tuple[Node, ...]:
    """Return those of `nodes` that compute the tensors `wanted`."""
    names = set(wanted)
    kept: list[Node] = []
    for node in reversed(nodes):
        if names.intersection(node.outputs):
            kept.append(node)
            names.update(node.inputs)
    return tuple(reversed(kept))


def predicting(graph: TrainingGraph) -> TrainingGraph | None:
    """Return the network of a step in inference, from its inputs to the outputs of its file.

    The result is None where no operator computes an output other than the loss. An output that is an input or a stored
    tensor, or shares its bytes, is left out.

    Tensors and values are the step's. An operator that inference changes, or that writes tensors for the backward
    pass alone, is replaced by an operator for each of its nodes; the others are the step's.
    """
    if graph.forward_only and graph.loss:
        return None
    written = {name for node in forward_nodes(graph) for name in node.outputs}
    outputs = [name for name in graph.outputs if name in written and graph.root(name) != graph.root(graph.loss)]
    network = _network_to(graph, outputs)
    computed = {name for operator in network.operators if not operator.view for name in operator.outputs}
    computed_outputs = [name for name in outputs if network.root(name) in computed]
    if not computed_outputs:
        return None
    return network if computed_outputs == outputs else _network_to(graph, computed_outputs)


def forward_only(graph: Graph, output: str | None = None) -> TrainingGraph:
    """Return a network in inference, without loss and backward operators, as a graph that is scheduled like a step.

    Parameters
    ----------
    output
        The output to compute; by default all.

    Raises
    ------
    OptionError
        The model has no such output.
    ModelError
        No operator computes an output.
    """
    if output is not None and output not in graph.outputs:
        raise OptionError(
            f"--output {output}: the model has {', '.join(graph.outputs)}{closest(output, graph.outputs)}"
        )
    graph = replace(graph, trained=())
    builder = GraphBuilder(graph.tensors, graph.values, graph.opset, graph.storage)
    operators, states = prepare(graph, builder)
    graph_fields = {field.name: getattr(graph, field.name) for field in fields(Graph)}
    fields_of_step = graph_fields | {"tensors": builder.tensors, "values": builder.values, "operators": operators}
    fields_of_step |= {"outputs": graph.outputs if output is None else (output,)}
    network = predicting(TrainingGraph(**fields_of_step, loss="", loss_kind=FORWARD_ONLY, gradients={}, states=states))
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
    if left_out := [name for name in fields_of_step["outputs"] if name not in network.outputs]:
        text += f"; left out, as no operator computes it: {listed(left_out)}"
    note = Note(text, About.LOSS)
    return replace(
        network, tensors=tensors, values=values, loss=network.outputs[0], notes=(*graph.notes, note), parts=1
    )


def _network_to(graph: TrainingGraph, outputs: Sequence[str]) -> TrainingGraph:
    """Return the graph that computes these outputs in inference."""
    wanted = set(outputs)
    kept: list[Operator] = []
    nodes = list(inference(graph))
    for operator in reversed(forward_operators(graph)):
        operator_nodes = tuple(nodes[len(nodes) - len(operator.nodes) :])
        del nodes[len(nodes) - len(operator.nodes) :]
        unchanged = operator_nodes == operator.nodes and wanted.issuperset(operator.outputs)
        for part in (operator,) if unchanged else _split_operator(operator, operator_nodes, wanted):
            if wanted.intersection(part.outputs):
                kept.append(part)
                wanted.update(part.inputs)
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


def _split_operator(operator: Operator, nodes: tuple[Node, ...], wanted: Collection[str]) -> Iterator[Operator]:
    """Yield an operator for each needed one of `nodes`, the last one first, without unneeded optional outputs."""
    from onnx import defs

    nodes = needed(nodes, tuple(name for name in operator.outputs if name in wanted))
    read = {*wanted, *(name for node in nodes for name in node.inputs)}
    for k, node in reversed([*enumerate(nodes)]):
        if not node.domain:
            formal, outputs = defs.get_schema(node.op_type).outputs, node.outputs
            optional = defs.OpSchema.FormalParameterOption.Optional
            while outputs[-1] not in read and formal[min(len(outputs), len(formal)) - 1].option == optional:
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
