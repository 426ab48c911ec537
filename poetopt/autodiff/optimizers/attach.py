"""An optimizer's update operators for the gradients of a training step."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from poetopt.autodiff.emit import GraphBuilder, OperatorBuilder, finish
from poetopt.autodiff.losses import HALF
from poetopt.autodiff.optimizers import CLIP, NAMES
from poetopt.autodiff.optimizers.rules import OPTIMIZERS, Optimizer, Scalars, updated_in_place
from poetopt.autodiff.passes.blocks import low_memory_order
from poetopt.autodiff.passes.in_place import joined, kept_tensors
from poetopt.graph import TOGETHER, Operator, Role, Tensor, TrainingGraph
from poetopt.util.errors import ModelError, OptionError
from poetopt.util.notes import Note, listed
from poetopt.util.numbers import read_float32
from poetopt.util.text import closest

SQUARES, SCALE = "Gradient.squares", "Gradient.scale"
"""Kinds of both operators of gradient clipping; the first is also a fused op of poetopt's domain."""
TERMS = 8
"""Numbers that one node adds."""


def squares_of(builder: GraphBuilder, name: str, gradient: Tensor) -> Operator:
    """Return the operator that writes the sum of squares of the gradient of parameter `name`.

    It adds up rows first, then their sums, as one float32 sum of 20 million numbers is wrong by 0.3 %.
    """
    draft = builder.operator(f"{name}.squares", SQUARES, recomputable=False, role=Role.HYPERPARAMETER)
    read = draft.cast(gradient, "float32" if gradient.dtype in HALF else gradient.dtype)
    long_axes = [axis for axis, length in enumerate(read.shape) if length > 1]
    if not long_axes:
        total = draft.reshape(draft.mul(read, read), ())
    elif len(long_axes) == 1:
        total = _sum_of_squares(draft, read, 0)
    else:
        total = draft.reduce_sum(
            _sum_of_squares(draft, read, long_axes[0] + 1), range(long_axes[0] + 1), keepdims=False
        )
    if read is gradient:
        draft.amounts_to(SQUARES, [gradient], [total])
    return finish(draft, [total.name], {})


def scale_of(
    builder: GraphBuilder, squares: Sequence[Tensor], clip_norm: Tensor, types: Iterable[str]
) -> tuple[dict[str, Tensor], Operator]:
    """Return the common factor of all gradients, in each of `types`, and the operator that writes it."""
    draft = builder.operator(SCALE, SCALE, recomputable=False, role=Role.HYPERPARAMETER)
    dtype = "float64" if any(one.dtype == "float64" for one in squares) else "float32"
    partial_sums = [draft.cast(one, dtype) for one in squares]
    while len(partial_sums) > 1:
        partial_sums = [
            draft.node("Sum", partial_sums[k : k + TERMS], (), dtype) for k in range(0, len(partial_sums), TERMS)
        ]
    norm = draft.unary("Sqrt", draft.cast(partial_sums[0], "float64"))
    # torch adds 1e-6 to the norm
    largest_scale = draft.div(clip_norm, draft.add(norm, builder.scalar(1e-6, "float64")))
    scales = {
        dtype: draft.binary("Min", draft.cast(largest_scale, dtype), builder.scalar(1.0, dtype)) for dtype in types
    }
    return scales, finish(draft, [tensor.name for tensor in scales.values()], {})


def _sum_of_squares(draft: OperatorBuilder, x: Tensor, first: int) -> Tensor:
    """Write the sum of squares over the axes from `first` on."""
    axes, shape = range(first, len(x.shape)), x.shape[:first]
    if draft.graph.opset >= 18:
        return draft.node("ReduceSumSquare", [x, draft.graph.ints(axes)], shape, x.dtype, keepdims=0)
    return draft.node("ReduceSumSquare", [x], shape, x.dtype, axes=list(axes), keepdims=0)


ACCUMULATE = "Add.accumulate"


def fused(graph: TrainingGraph, gradients: Mapping[str, str]) -> TrainingGraph:
    """Return `graph` with each update joined with the operators that compute its gradient.

    The joined operator has the update's name and position.

    Parameters
    ----------
    gradients
        The gradient that the update of each trained parameter reads.
    """
    groups = _Fusion(graph).groups(gradients)
    kept = kept_tensors(graph)
    operators: list[Operator] = []
    for k, operator in enumerate(graph.operators):
        members = groups.get(k, [k])
        if k != members[-1]:
            continue
        if len(members) == 1:
            operators.append(operator)
            continue
        group = [graph.operators[m] for m in members]
        kinds = [member.kind for member in group if not member.view]
        operators.append(joined(group, graph, kept, TOGETHER.join(kinds)))
    return replace(graph, operators=tuple(operators))


class _Fusion:
    """Search for the groups of operators to join, as positions in the graph."""

    def __init__(self, graph: TrainingGraph) -> None:
        self.graph = graph
        self.operators = graph.operators
        self.kept = kept_tensors(graph)
        self.writer = {name: k for k, operator in enumerate(self.operators) for name in operator.outputs}
        self.updater = {old: k for k, operator in enumerate(self.operators) for old, _ in operator.updates}
        self.readers: dict[str, list[int]] = {}
        for k, operator in enumerate(self.operators):
            for name in operator.inputs:
                self.readers.setdefault(name, []).append(k)
        self.group: dict[int, list[int]] = {}

    def groups(self, gradients: Mapping[str, str]) -> Mapping[int, Sequence[int]]:
        """Return the group of each operator that is in one, ascending."""
        for name, gradient in gradients.items():
            chain = list(self._gradient_chain(gradient, self.updater[name]))
            together = sorted({self.updater[name]}.union(*(self.group.get(k, (k,)) for k in chain)))
            if any(not self.operators[k].view for k in chain) and not self._has_cycle(together):
                self.group.update(dict.fromkeys(together, together))
        return self.group

    def _gradient_chain(self, name: str, reader: int) -> Iterator[int]:
        """Yield the operators that only the gradient `name` depends on, starting at the one that writes it."""
        while name in self.writer and self.readers[name] == [reader]:
            reader = self.writer[name]
            operator = self.operators[reader]
            if not operator.backward or not operator.recomputable or name in self.kept:
                return
            yield reader
            if operator.view:
                name = operator.inputs[0]
            elif operator.kind == ACCUMULATE:
                name = max(operator.inputs, key=lambda read: self.writer.get(read, -1))
            else:
                return

    def _has_cycle(self, together: Sequence[int]) -> bool:
        """Return whether some operator must run both after and before the operators `together`."""
        pending = list(together)
        seen: set[int] = set()
        while pending:
            k = pending.pop()
            for follower in self._followers(k):
                if follower in together:
                    if k not in together:
                        return True
                elif follower not in seen:
                    group = self.group.get(follower, (follower,))
                    seen.update(group)
                    pending.extend(group)
        return False

    def _followers(self, k: int) -> Iterator[int]:
        """Yield the operators that must run after operator k: readers of its outputs, and updates of its inputs."""
        operator = self.operators[k]
        for name in operator.outputs:
            yield from self.readers.get(name, ())
        for name in operator.inputs:
            updater = self.updater.get(self.graph.root(name))
            if updater is not None:
                yield updater


COPY = "Identity.copy"
"""Kind of the operator that copies a gradient, so that a result of the step shares no bytes."""


def with_updates(
    graph: TrainingGraph,
    optimizer: str,
    *,
    fuse: bool = True,
    clip: bool = False,
    rates: Mapping[str, float] | None = None,
) -> TrainingGraph:
    """Return `graph`, a step from autodiff, with operators that update its parameters and running statistics in place.

    The new value of `p` is the tensor `p.new`; that of a statistic likewise. Arithmetic is in the parameter's type, for
    half precision in float32 with states of half precision.

    Parameters
    ----------
    optimizer
        One of `NAMES`; with `none`, the result is `graph`.
    fuse
        Whether an update is one operator with the gradient that it alone reads, so that no full gradient outlives that
        operator. Otherwise gradients are tensors like those of activations.
    clip
        Whether all gradients are scaled so that their common norm is at most `clip_norm`, another hyperparameter. Then
        nothing is fused, as each update waits for all gradients.
    rates
        Pattern of parameters -> factor of their learning rate; the first match counts.

    Raises
    ------
    OptionError
        The optimizer is unknown, `clip` or `rates` come without one, or a pattern matches no parameter.
    ModelError
        The model has a tensor of a new name.
    """
    if optimizer not in NAMES:
        raise OptionError(
            f"--optimizer {optimizer}: unknown{closest(str(optimizer), NAMES)}; choose one of {', '.join(NAMES)}"
        )
    if clip and optimizer == "none":
        raise OptionError(
            "--clip-norm: the step ends with gradients and has no update, so clipping has no effect; choose an "
            "optimizer with --optimizer"
        )
    factors = _factors(graph.trained, rates or {})
    if rates and optimizer == "none":
        raise OptionError(
            "--rates: the step ends with gradients and has no update with a learning rate; choose an optimizer "
            "with --optimizer"
        )
    if graph.parts > 1:
        from poetopt.autodiff.optimizers.sums import with_sums

        return with_sums(graph, optimizer, fuse=fuse, clip=clip, factors=factors)
    if optimizer == "none":
        return graph
    return Attachment(graph, optimizer, clip=clip, factors=factors).graph(fuse=fuse and not clip)


def parse_rates(rates: Mapping[str, float] | str | Sequence[str] | None) -> dict[str, float]:
    """Return the factors of the learning rate by pattern, also from an option's text; raise OptionError otherwise."""
    texts = [rates] if isinstance(rates, str) else rates or ()
    if not isinstance(texts, Mapping):
        parts = [one.strip().rpartition("=") for text in texts for one in text.split(",")]
        texts = {pattern.strip(): factor for pattern, _, factor in parts}  # type: ignore[misc]
    factors: dict[str, float] = {}
    for pattern, factor in texts.items():
        try:
            factors[pattern] = read_float32(factor)
        except ValueError:
            factors[pattern] = math.nan
        if not pattern or not factors[pattern] >= 0:
            raise OptionError(
                f"--rates {f'{pattern}=' * bool(pattern)}{factor}: must be a pattern of parameters and a factor "
                "of their learning rate, 0 or more, as in --rates features.*=0.1"
            )
    return factors


def _factors(trained: Sequence[str], rates: Mapping[str, float]) -> dict[str, float]:
    """Return the factor of each parameter that a pattern matches; raise OptionError for a pattern without a match."""
    factors: dict[str, float] = {}
    for pattern, factor in rates.items():
        matched = fnmatch.filter(trained, pattern)
        if not matched:
            raise OptionError(
                f"--rates {pattern}={factor:g}: no trained parameter matches{closest(pattern, trained)}; "
                f"there are {listed(trained)}"
            )
        factors = {**dict.fromkeys(matched, factor), **factors}
    return {name: factors[name] for name in trained if name in factors}


def rate_notes(factors: Mapping[str, float]) -> Iterator[Note]:
    """Yield a note for each factor of the learning rate."""
    for factor in dict.fromkeys(factors.values()):
        names = [name for name, other in factors.items() if other == factor]
        text = f"rate: {factor:g} times lr for"
        yield Note(f"{text} {', '.join(names)}", short=f"{text} {listed(names)}")


class Attachment:
    """Builder of a step with updates."""

    def __init__(self, graph: TrainingGraph, optimizer: str, *, clip: bool, factors: Mapping[str, float]) -> None:
        self.source = graph
        self.optimizer = optimizer
        self.clip = clip
        self.factors = factors
        self.builder = GraphBuilder(graph.tensors, graph.values, graph.opset)
        self.states: list[str] = []
        self.scales: Mapping[str, Tensor] = {}
        self.gradients = dict(graph.gradients)

    @property
    def rule(self) -> Optimizer:
        """The optimizer's rule."""
        return OPTIMIZERS[self.optimizer]

    def graph(self, *, fuse: bool) -> TrainingGraph:
        """Return the step with updates (see `with_updates`)."""
        graph = self.source
        statistics = {old: self.carried(graph.tensors[old], new_name) for old, new_name in graph.states.items()}
        operators = self.transient(list(updated_in_place(graph, statistics)))
        hyperparameters = self.hyperparameters()
        scalars, first = self.scalars(hyperparameters)
        squares, scale = self.clipping(hyperparameters)
        updates = {name: self.update(name, scalars[self.factors.get(name, 1.0)]) for name in graph.trained}
        after: dict[str, list[Operator]] = {}
        for name, operator in (squares or updates).items():
            after.setdefault(self.gradients[name], []).append(operator)
        operators = behind(operators, [first], after)
        if scale is not None:
            operators += [scale, *updates.values()]
        outputs = {graph.states[old]: new for old, new in statistics.items()}
        step = replace(
            graph,
            operators=tuple(operators),
            outputs=tuple(outputs.get(name, name) for name in graph.outputs),
            gradients={},
            states=statistics,
            optimizer=self.optimizer,
            optimizer_states=tuple(self.states),
            hyperparameters=hyperparameters,
            rates=self.factors,
            notes=(*graph.notes, *rate_notes(self.factors)),
        )
        step = self.cut(step, (*graph.values, *hyperparameters.values()), graph.inputs)
        step = fused(step, self.gradients) if fuse else step
        return replace(step, operators=low_memory_order(step.operators, step.tensors))

    def cut(self, graph: TrainingGraph, values: Iterable[str], inputs: Iterable[str] = ()) -> TrainingGraph:
        """Return `graph` with only the tensors that its operators use, its inputs, and `values`."""
        operators = (*graph.operators, *graph.aside)
        used = {name for o in operators for node in o.nodes for name in (*node.inputs, *node.outputs)}
        used.update(inputs, values)
        return replace(
            graph,
            tensors={name: tensor for name, tensor in self.builder.tensors.items() if name in used},
            values={name: value for name, value in self.builder.values.items() if name in used},
        )

    def carried(self, old: Tensor, current_name: str) -> str:
        """Rename the tensor `current_name`, the new value of `old`, whose bytes and role it takes; return its name."""
        name = f"{old.name}.new"
        if name != current_name and self.builder.unique(name) != name:
            raise ModelError(f"{self.source.name}: a tensor is named {name!r} already; rename it in the model")
        del self.builder.tensors[current_name]
        return self.builder.add_tensor(name, old.shape, old.dtype, old.role).name

    def transient(self, operators: list[Operator]) -> list[Operator]:
        """Return operators whose gradients are no results of the step: without copies and additions in place."""
        kept: list[Operator] = []
        rerunnable: set[str] = set()
        parameter_of = {gradient: name for name, gradient in self.gradients.items()}
        for operator in operators:
            if operator.kind == COPY and operator.outputs[0] in parameter_of:
                self.gradients[parameter_of[operator.outputs[0]]] = operator.inputs[0]
                continue
            if operator.over:
                rerunnable.update((operator.name, operator.over))
            kept.append(replace(operator, over=""))
        tensors = self.builder.tensors
        for name, tensor in tensors.items():
            if tensor.role is Role.PARAMETER_GRADIENT:
                tensors[name] = replace(tensor, role=Role.GRADIENT)
        return [replace(o, recomputable=True) if rerunnable.intersection((o.name, *o.outputs)) else o for o in kept]

    def hyperparameters(self) -> Mapping[str, str]:
        """Add a scalar for each hyperparameter, with its default as its value."""
        names: dict[str, str] = {}
        # 1.0 is the default of the clip norm
        for name, default in {**self.rule.hyperparameters, **({CLIP: 1.0} if self.clip else {})}.items():
            dtype = "int64" if name == "step" else "float64"
            names[name] = self.builder.unique(name)
            self.builder.valued(names[name], np.array(default, dtype), Role.HYPERPARAMETER)
        return names

    def scalars(self, hyperparameters: Mapping[str, str]) -> tuple[Mapping[float, Mapping[str, Scalars]], Operator]:
        """Return the scalars that updates derive from the hyperparameters, and the operator that writes them.

        The scalars are by factor of the learning rate and by type of the updates' arithmetic. A scalar that doesn't
        depend on the learning rate is shared by all factors.
        """
        builder = self.builder
        kind = f"{self.optimizer}.scalars"
        draft = builder.operator(kind, kind, recomputable=False, role=Role.HYPERPARAMETER)
        values = {name: builder.tensors[tensor] for name, tensor in hyperparameters.items()}
        by_factor: dict[float, dict[str, Scalars]] = {}
        shared: dict[tuple[str, str, object], Tensor] = {}
        for factor in dict.fromkeys((1.0, *self.factors.values())):
            with_rate = {**values, "lr": draft.mul(values["lr"], factor)}
            results = self.rule.scalars(draft, with_rate)
            rate_dependent = _dependents(draft, with_rate["lr"])
            by_factor[factor] = {
                dtype: {
                    name: shared[key]
                    if (key := (name, dtype, factor if value.name in rate_dependent else None)) in shared
                    else shared.setdefault(key, draft.cast(value, dtype))
                    for name, value in results.items()
                }
                for dtype in self._types()
            }
        used = {t.name for by_type in by_factor.values() for by_name in by_type.values() for t in by_name.values()}
        for node in reversed(draft.nodes[:]):
            if used.isdisjoint(node.outputs):
                draft.nodes.remove(node)
            used.update(node.inputs if not used.isdisjoint(node.outputs) else ())
        inner = {name for node in draft.nodes for name in node.outputs}
        written = dict.fromkeys(
            t.name
            for by_type in by_factor.values()
            for by_name in by_type.values()
            for t in by_name.values()
            if t.name in inner
        )
        return by_factor, finish(draft, tuple(written), {})

    def _types(self) -> tuple[str, ...]:
        """Return the types of the updates' arithmetic."""
        return tuple(dict.fromkeys(_arithmetic_type(self.builder.tensors[name]) for name in self.source.trained))

    def clipping(self, hyperparameters: Mapping[str, str]) -> tuple[Mapping[str, Operator], Operator | None]:
        """Return the operator of each gradient's sum of squares, and the operator of the common scale.

        Both are empty where the step doesn't clip.
        """
        if not self.clip:
            return {}, None
        builder = self.builder
        squares = {n: squares_of(builder, n, builder.tensors[self.gradients[n]]) for n in self.source.trained}
        sums = [builder.tensors[operator.outputs[0]] for operator in squares.values()]
        self.scales, scale = scale_of(builder, sums, builder.tensors[hyperparameters[CLIP]], self._types())
        return squares, scale

    def update(self, name: str, scalars: Mapping[str, Scalars]) -> Operator:
        """Return the operator that writes the new values of parameter `name` and its states."""
        builder = self.builder
        p, g = builder.tensors[name], builder.tensors[self.gradients[name]]
        dtype = _arithmetic_type(p)
        states = [self._state(p, what) for what in self.rule.states]
        draft = builder.operator(f"{name}.update", f"{self.optimizer}.update", recomputable=False)
        operands = [draft.cast(tensor, dtype) for tensor in (p, g, *states)]
        scale = [self.scales[dtype]] if self.clip else []
        gradient = draft.mul(operands[1], scale[0]) if scale else operands[1]
        results = [
            draft.cast(t, p.dtype) for t in self.rule.update(draft, operands[0], gradient, operands[2:], scalars[dtype])
        ]
        if p.dtype == dtype:
            draft.amounts_to(draft.kind, [p, g, *states, *scalars[dtype].values(), *scale], results)
        pairs = [(old.name, self.carried(old, new.name)) for old, new in zip((p, *states), results, strict=True)]
        rename = {tensor.name: new for tensor, (_, new) in zip(results, pairs, strict=True)}
        return replace(finish(draft, [tensor.name for tensor in results], rename), updates=tuple(pairs))

    def _state(self, parameter: Tensor, what: str) -> Tensor:
        """Add a state of `parameter`, zero before the first step."""
        name = self.builder.unique(f"{parameter.name}.{what}")
        self.states.append(name)
        return self.builder.valued(name, np.zeros(parameter.shape, parameter.dtype), Role.OPTIMIZER_STATE)


def _dependents(draft: OperatorBuilder, tensor: Tensor) -> set[str]:
    """Return `tensor` and the operator's tensors that depend on it."""
    found = {tensor.name}
    for node in draft.nodes:
        if not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return found


def _arithmetic_type(tensor: Tensor) -> str:
    """Return the type of the arithmetic of an update of `tensor`."""
    return "float32" if tensor.dtype in HALF else tensor.dtype


def behind(operators: list[Operator], first: list[Operator], updates: Mapping[str, list[Operator]]) -> list[Operator]:
    """Return `operators` with `first` before the backward ones, and each update after the operator of its gradient."""
    pending = dict(updates)
    written = {name for operator in operators for name in operator.outputs}
    leading = [o for gradient in list(pending) if gradient not in written for o in pending.pop(gradient)]
    ordered: list[Operator] = []
    start = next(k for k, operator in enumerate(operators) if operator.backward)
    for k, operator in enumerate(operators):
        if k == start:
            ordered += [*first, *leading]
        ordered.append(operator)
        ordered += [update for name in operator.outputs for update in pending.pop(name, ())]
    return ordered
