"""Reverse-mode differentiation of a graph.

The reverse loop visits the forward operators from the last to the first. It calls each operator's rule with the
gradients of the outputs, and collects the gradients of the inputs. For all rules it sums gradients over broadcast axes,
and adds up the contributions of several readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from poetopt.autodiff import quantization
from poetopt.autodiff.alternatives import floor_bytes
from poetopt.autodiff.behind import Behind, has_pole
from poetopt.autodiff.emit import OLDEST_OPSET, GraphBuilder, OperatorBuilder, finish
from poetopt.autodiff.forward import one_value_note, prepare
from poetopt.autodiff.inference import forward_only
from poetopt.autodiff.linear_loss import apart
from poetopt.autodiff.losses import Attached, attach
from poetopt.autodiff.passes.blocks import low_memory_order
from poetopt.autodiff.regions import compose
from poetopt.autodiff.registry import (
    Cotangents,
    Primal,
    blocked_inputs,
    downstream,
    find_rule,
    missing_inputs,
    principal,
    rule_of,
)
from poetopt.graph import FORWARD_ONLY, Graph, LabelRule, Operator, Role, Tensor, TrainingGraph
from poetopt.util.errors import MissingVjpError, ModelError, PoetError
from poetopt.util.notes import Note, listed


def differentiate(
    graph: Graph,
    *,
    loss: str = "auto",
    output: str | None = None,
    straight_through: bool = False,
    maxima: bool = True,
    over: bool = True,
    label_rule: LabelRule | None = None,
) -> TrainingGraph:
    """Return one training step of `graph`: forward, loss and backward operators, without the update.

    The gradient of parameter `p` is the tensor `p.grad`. Training-mode BatchNormalization and Dropout are rewritten so
    that a recompute changes nothing. Ops that an exporter wrote out in several nodes become one operator each
    (`poetopt.autodiff.regions`).

    Parameters
    ----------
    loss
        `cross-entropy`, `bce`, `mse`, `none` (the model's output is a scalar loss), or `auto`, which chooses by the
        output and notes its choice in `notes`; see `poetopt.autodiff.losses`. `forward-only` is the network in
        inference, without loss and backward operators.
    output
        Name of the output that the loss is on; required where several outputs could have it.
    straight_through
        Whether gradients pass pairs of QuantizeLinear and DequantizeLinear, where nothing is clipped.
    maxima
        Whether the gradient of an activation that only MaxPool reads may be computed at the maxima alone.
    over
        Whether gradients may overwrite the operands that they are computed from, which lowers the RAM floor.
    label_rule
        Ignored labels, class weights and smoothing of a cross-entropy; by default all labels count alike.

    Raises
    ------
    ModelError
        No parameter can be trained, a named parameter is before a quantizer, or the loss doesn't fit the output.
    MissingVjpError
        A gradient would have to flow through an operator without a rule.
    """
    if graph.opset < OLDEST_OPSET:
        raise ModelError(f"{graph.name}: opset {graph.opset} is older than {OLDEST_OPSET}; convert the model first")
    if loss == FORWARD_ONLY:
        return forward_only(compose(graph), output)
    if not graph.trained:
        raise ModelError(f"{graph.name}: no parameter is trained; name some with --train PATTERN")
    graph = compose(quantization.straight_through(graph) if straight_through else graph)
    rule, needed = label_rule or LabelRule(), frozenset[str]()
    sweep = partial(_sweep, graph, loss, output, rule, maxima=maxima, over=over)
    step = partial(_step, graph, rule, straight_through=straight_through)
    swept = sweep(needed, None)
    if swept.builder.is_queried:
        needed = swept.builder.required()
        swept = sweep(needed, None)
    training_step = step(swept)
    floor = floor_bytes(training_step, swept.builder.choices, over=over)
    return training_step if floor is None else step(sweep(needed, floor))


def _step(graph: Graph, label_rule: LabelRule, swept: _SweepResult, *, straight_through: bool) -> TrainingGraph:
    """Return the step with the operators that a sweep wrote."""
    builder, forward, states, attached, totals = swept
    gradients = {name: totals[name] for name in graph.trained if name in totals}
    stopped = quantization.stopped(
        graph, {n for o in attached.operators for n in o.inputs} or {attached.loss.name}, gradients
    )
    if stopped.untrained and (graph.named or not gradients):
        name, quantizer = next(iter(stopped.untrained.items()))
        raise ModelError(f"{graph.name}: {quantization.refusal(graph, name, quantizer, asked=straight_through)}")
    if not gradients:
        names_text = ", ".join(graph.trained[:5]) + (", ..." if len(graph.trained) > 5 else "")
        raise ModelError(
            f"{graph.name}: no trained parameter ({names_text}) reaches the loss {attached.loss.name!r}"
            f"{_empty_remark(graph)}"
        )
    notes = [*graph.notes, *filter(None, (attached.note, attached.renamed))]
    notes += stopped.notes(asked=straight_through)
    if missing := [name for name in graph.trained if name not in gradients and name not in stopped.untrained]:
        text = (
            "these parameters get no gradient: they don't reach the loss, or only by an input without a gradient rule"
        )
        text += _empty_remark(graph)
        notes.append(Note(f"{text}: {', '.join(missing)}", short=f"{text}: {listed(missing)}"))
    notes += one_value_note(graph, gradients)
    rename = _name_gradients(builder, gradients, totals)
    backward = tuple(_needed_operators(builder, rename, {f"{name}.grad" for name in gradients}))
    tensors = {
        rename.get(name, name): replace(tensor, name=rename[name]) if name in rename else tensor
        for name, tensor in builder.tensors.items()
    }
    run, aside = apart(forward, attached.operators, attached.aside)
    operators = low_memory_order((*run, *attached.operators, *backward), tensors)
    used_names = {name for o in (*operators, *aside) for node in o.nodes for name in (*node.inputs, *node.outputs)}
    weight_inputs = (attached.label_weight,) if attached.label_weight else ()
    used_names.update(graph.tensors.keys() - {*attached.gone}, attached.inputs)
    return TrainingGraph(
        name=graph.name,
        tensors={name: tensor for name, tensor in tensors.items() if name in used_names},
        operators=operators,
        inputs=(*graph.inputs, *attached.inputs, *weight_inputs),
        outputs=graph.outputs,
        values={name: value for name, value in builder.values.items() if name in used_names},
        trained=tuple(gradients),
        opset=graph.opset,
        source=graph.source,
        content_hash=graph.content_hash,
        structure_hash=graph.structure_hash,
        notes=tuple(notes),
        loss=attached.loss.name,
        loss_kind=attached.kind,
        gradients={name: f"{name}.grad" for name in gradients},
        states=states,
        added_inputs=attached.inputs,
        compared=attached.compared,
        aside=aside,
        label_rule=label_rule,
        label_weight=attached.label_weight,
        parts=graph.parts,
        split=(*graph.split, *attached.inputs) if graph.parts > 1 else (),
    )


def _empty_remark(graph: Graph) -> str:
    """Return a remark on the network's first empty tensor, through which no gradient flows, or ""."""
    written = (graph.tensors[name] for operator in graph.operators for name in operator.outputs)
    empty = next((tensor for tensor in written if not tensor.size), None)
    return "" if empty is None else f" (no gradient passes {empty.name!r} of shape {list(empty.shape)}, which is empty)"


class _SweepResult(NamedTuple):
    """Results of the reverse loop; `totals` are the gradients of all tensors on which the loss depends."""

    builder: GraphBuilder
    forward: tuple[Operator, ...]
    states: Mapping[str, str]
    attached: Attached
    totals: dict[str, Tensor]


def _sweep(
    graph: Graph, loss: str, output: str | None, label_rule: LabelRule, needed: frozenset[str], floor: int | None, *,
    maxima: bool, over: bool,
) -> _SweepResult:  # fmt: skip
    """Run the reverse loop over `graph`.

    Parameters
    ----------
    needed
        Storages that the backward pass reads whatever its rules choose.
    floor
        RAM in bytes that the step needs whichever construction is chosen; None where it isn't known yet.
    """
    builder = GraphBuilder(
        graph.tensors, graph.values, graph.opset, graph.storage, needed, floor, maxima=maxima, over=over,
        label_rule=label_rule,
    )  # fmt: skip
    for name in graph.trained:
        if builder.unique(f"{name}.grad") != f"{name}.grad":
            raise ModelError(f"{graph.name}: a tensor is named {name + '.grad'!r} already; rename it in the model")
    forward, states = prepare(graph, builder)
    attached = attach(graph, forward, builder, loss, output)
    sweep = _ReverseLoop(builder, (*forward, *attached.operators), graph.trained)
    return _SweepResult(builder, forward, states, attached, sweep.run(attached.loss, 1 / graph.parts))


def unsupported(graph: Graph, *, straight_through: bool = False) -> list[tuple[str, str]]:
    """Return name and op of each operator without a gradient rule between a trained parameter and an output."""
    graph = quantization.straight_through(graph) if straight_through else graph
    live = downstream(graph.tensors, graph.operators, graph.trained)
    wanted = {name for name in graph.outputs if name in live}
    without_rule: list[tuple[str, str]] = []
    for operator in reversed(graph.operators):
        blocked = blocked_inputs(operator)
        if blocked is None or not wanted.intersection(operator.outputs):
            continue
        wanted.update(n for k, n in enumerate(principal(operator).inputs) if n in live and k not in blocked)
        if find_rule(operator, graph.opset) is None and live.intersection(operator.inputs):
            without_rule.append((operator.name, operator.nodes[0].op_type))
    return without_rule[::-1]


class _ReverseLoop:
    """The reverse loop, and the gradients that it has collected so far."""

    def __init__(self, builder: GraphBuilder, operators: tuple[Operator, ...], trained: tuple[str, ...]) -> None:
        self.builder = builder
        self.operators = operators
        self.trained = frozenset(trained)
        self.live = downstream(builder.tensors, operators, trained)
        self.producers = Behind(operators, builder.tensors, builder.values)
        self.contributions: dict[str, list[Tensor]] = {}
        self.totals: dict[str, Tensor] = {}

    def run(self, loss: Tensor, share: float) -> dict[str, Tensor]:
        """Return the gradient of `share` times `loss` by every tensor on which it depends."""
        self.contributions[loss.name] = [self.builder.constant(np.full(loss.shape, share, loss.dtype))]
        reached = {loss.name}
        for operator in reversed(self.operators):
            if reached.isdisjoint(operator.outputs):
                continue
            reached.update(operator.inputs)
            self.require_rules(operator)
            cotangents = [self.total_gradient(name) for name in _outputs(operator)]
            names = principal(operator).inputs
            blocked = blocked_inputs(operator)
            needs = tuple(
                blocked is not None and n in self.live and k not in blocked and self.builder.tensors[n].size > 0
                for k, n in enumerate(names)
            )
            if not any(needs) or all(cotangent is None for cotangent in cotangents):
                continue
            first = len(self.builder.drafts)
            known = self.builder.infinite
            self.builder.flowing = any(c is not None and c.name in known for c in cotangents)
            infinite = self.builder.flowing or has_pole(principal(operator), self.producers)
            primal = Primal(operator, principal(operator), *self.signature(operator), needs, self.builder)
            for name, summed in self.input_gradients(primal, tuple(cotangents), names, first):
                self.contributions.setdefault(name, []).append(summed)
                if infinite:
                    known.add(summed.name)
        for name in list(self.contributions):
            self.total_gradient(name)
        return self.totals

    def require_rules(self, operator: Operator) -> None:
        """Raise MissingVjpError where trained parameters change an input whose gradient has no rule.

        A parameter that is such an input itself gets no gradient; a note of the step names it.
        """
        node = principal(operator)
        for k in sorted(missing_inputs(operator)):
            name = node.inputs[k] if k < len(node.inputs) else ""
            if name in self.live and name not in self.trained:
                raise MissingVjpError(
                    f"node {operator.name!r} ({node.op_type}): there is no gradient rule for its input {k} ({name!r}), "
                    "which depends on trained parameters; train others (--train), or make it a constant"
                )

    def input_gradients(
        self, primal: Primal, cotangents: Cotangents, names: Sequence[str], first: int
    ) -> list[tuple[str, Tensor]]:
        """Return the gradient by each of the inputs `names` that needs one, in its shape, from the operator's rule.

        Raises ModelError where shapes of operands don't fit.
        """
        try:
            gradients = rule_of(primal.operator, self.builder.opset)(primal, cotangents)
            return [
                (name, self.unbroadcast(part, self.builder.tensors[name], primal, first))
                for name, needed, part in zip(names, primal.needs, gradients, strict=False)
                if needed and part is not None
            ]
        except PoetError:
            raise
        except (ValueError, IndexError) as error:
            raise ModelError(
                f"{primal.where}: its gradient can't be computed: {error}; check the shapes of its operands, and "
                "report a bug if they fit"
            ) from error

    def signature(self, operator: Operator) -> tuple[tuple[Tensor | None, ...], tuple[Tensor | None, ...]]:
        """Return input and output tensors by position."""
        tensors = self.builder.tensors
        inputs = tuple(tensors[name] if name else None for name in principal(operator).inputs)
        return inputs, tuple(tensors[name] if name else None for name in _outputs(operator))

    def total_gradient(self, name: str) -> Tensor | None:
        """Return the sum of all contributions to the gradient of `name`, or None where there are none."""
        parts = self.contributions.pop(name, [])
        if not parts:
            return self.totals.get(name)
        adders = self.builder.adders
        total, *rest = sorted(parts, key=lambda part: part.name in adders)
        for part in rest:
            draft = self.builder.operator(f"{name}.grad.accumulate", "Add.accumulate")
            if name in self.trained:
                self.add_in_place(draft, total)
            mixed = not self.builder.infinite.isdisjoint((total.name, part.name))
            total = adders[part.name](draft, total) if part.name in adders else draft.add(total, part)
            if mixed:
                self.builder.infinite.add(total.name)
        self.totals[name] = total
        return total

    def add_in_place(self, draft: OperatorBuilder, total: Tensor) -> None:
        """Let `draft` add to a parameter's gradient in place, if the tensor that it adds to has no other reader."""
        writer = self.builder.writer(total)
        if writer is None or not (writer.over or writer.kind.endswith(".grad_weight")):
            return
        writer.recomputable = draft.recomputable = False
        draft.over = total.name
        self.builder.tensors[total.name] = replace(total, role=Role.PARAMETER_GRADIENT)

    def unbroadcast(self, part: Tensor, like: Tensor, primal: Primal, first: int) -> Tensor:
        """Return `part` summed to the shape of `like`, if possible inside the operator that has just written it."""
        if part.shape == like.shape:
            return part
        draft = self.builder.writer(part)
        is_current = draft is not None and not draft.view and any(draft is d for d in self.builder.drafts[first:])
        return (draft if is_current and draft is not None else primal.emit("sum")).sum_to(part, like.shape)


def _outputs(operator: Operator) -> tuple[str, ...]:
    """Return the outputs for the rule: by position for one node, else all outputs of the operator."""
    if operator.meaning is not None or len(operator.nodes) == 1:
        return principal(operator).outputs
    return operator.outputs


def _storage(builder: GraphBuilder, tensor: Tensor) -> Tensor:
    """Return the tensor whose bytes `tensor` shares, through backward operators that are views or in place."""
    draft = builder.writer(tensor)
    while draft is not None and (draft.view or draft.over):
        tensor = builder.tensors[draft.over or draft.nodes[0].inputs[0]]
        draft = builder.writer(tensor)
    return tensor


def _name_gradients(
    builder: GraphBuilder, gradients: Mapping[str, Tensor], totals: Mapping[str, Tensor]
) -> dict[str, str]:
    """Return new names of gradients, old -> new; make those of parameters resident, without shared bytes."""
    rename: dict[str, str] = {}
    claimed: set[str] = set()
    for name, gradient in gradients.items():
        root = _storage(builder, gradient)
        draft = builder.writer(root)
        if draft is None or not draft.backward or root.name in claimed:
            copy = builder.operator(f"{name}.grad.copy", "Identity.copy")
            gradient = root = copy.node("Identity", [gradient], gradient.shape, gradient.dtype)
        claimed.add(root.name)
        for tensor in (root, gradient):
            builder.tensors[tensor.name] = replace(tensor, role=Role.PARAMETER_GRADIENT)
        rename[gradient.name] = f"{name}.grad"
    for name, gradient in totals.items():
        draft = builder.writer(gradient)
        if gradient.name not in rename and draft is not None and draft.backward:
            rename[gradient.name] = builder.unique(f"{name}.grad")
    return rename


def _needed_operators(builder: GraphBuilder, rename: Mapping[str, str], results: set[str]) -> Iterator[Operator]:
    """Yield the backward operators on which `results` depend, in the order of emission."""
    wanted = {old for old, new in rename.items() if new in results}
    kept: list[tuple[OperatorBuilder, list[str]]] = []
    for draft in reversed(builder.drafts):
        written = [name for node in draft.nodes for name in node.outputs if name]
        outputs = [name for name in written if name in wanted]
        if draft.backward and outputs:
            kept.append((draft, outputs))
            inner = set(written)
            wanted.update(name for node in draft.nodes for name in node.inputs if name not in inner)
    for draft, outputs in reversed(kept):
        yield finish(draft, outputs, rename)
