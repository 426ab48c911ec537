"""An optimizer's update operators behind the gradients of a training step."""

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
"""The kinds of both operators; the first is an op of our own, too."""
TERMS = 8
"""So many numbers are added by one node."""


def squares_of(builder: GraphBuilder, name: str, gradient: Tensor) -> Operator:
    """The operator that writes the sum of the squares of a gradient, which is that of parameter `name`.

    Rows first, then their sums: one float32 sum of 20 million numbers is 0.3 % off.
    """
    draft = builder.operator(f"{name}.squares", SQUARES, recomputable=False, role=Role.HYPERPARAMETER)
    read = draft.cast(gradient, "float32" if gradient.dtype in HALF else gradient.dtype)
    long = [axis for axis, length in enumerate(read.shape) if length > 1]
    if not long:
        made = draft.reshape(draft.mul(read, read), ())
    elif len(long) == 1:
        made = _reduced(draft, read, 0)
    else:
        made = draft.reduce_sum(_reduced(draft, read, long[0] + 1), range(long[0] + 1), keepdims=False)
    if read is gradient:
        draft.amounts_to(SQUARES, [gradient], [made])
    return finish(draft, [made.name], {})


def scale_of(
    builder: GraphBuilder, squares: Sequence[Tensor], clip_norm: Tensor, types: Iterable[str]
) -> tuple[dict[str, Tensor], Operator]:
    """Gives what all gradients are multiplied with, in each of `types`, and the operator that writes it."""
    draft = builder.operator(SCALE, SCALE, recomputable=False, role=Role.HYPERPARAMETER)
    dtype = "float64" if any(found.dtype == "float64" for found in squares) else "float32"
    added = [draft.cast(found, dtype) for found in squares]
    while len(added) > 1:
        added = [draft.node("Sum", added[k : k + TERMS], (), dtype) for k in range(0, len(added), TERMS)]
    norm = draft.unary("Sqrt", draft.cast(added[0], "float64"))
    # what torch adds to the norm
    most = draft.div(clip_norm, draft.add(norm, builder.scalar(1e-6, "float64")))
    found = {dtype: draft.binary("Min", draft.cast(most, dtype), builder.scalar(1.0, dtype)) for dtype in types}
    return found, finish(draft, [tensor.name for tensor in found.values()], {})


def _reduced(draft: OperatorBuilder, x: Tensor, first: int) -> Tensor:
    """The sum of squares over the axes from `first` on."""
    axes, shape = range(first, len(x.shape)), x.shape[:first]
    if draft.graph.opset >= 18:
        return draft.node("ReduceSumSquare", [x, draft.graph.ints(axes)], shape, x.dtype, keepdims=0)
    return draft.node("ReduceSumSquare", [x], shape, x.dtype, axes=list(axes), keepdims=0)


ACCUMULATE = "Add.accumulate"


def fused(graph: TrainingGraph, gradients: Mapping[str, str]) -> TrainingGraph:
    """`graph` with each update joined with what its gradient comes of, under the update's name and at its place.

    gradients
        For each trained parameter, the name of the gradient that its update reads.
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
    """Says which operators go together, by their places."""

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
        """For each operator of a group, all of the group, ascending."""
        for name, gradient in gradients.items():
            chain = list(self._chain(gradient, self.updater[name]))
            together = sorted({self.updater[name]}.union(*(self.group.get(k, (k,)) for k in chain)))
            if any(not self.operators[k].view for k in chain) and not self._waits_for_itself(together):
                self.group.update(dict.fromkeys(together, together))
        return self.group

    def _chain(self, name: str, reader: int) -> Iterator[int]:
        """Gives what leads to the gradient `name` and to nothing else, from the operator that writes it upwards."""
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

    def _waits_for_itself(self, together: Sequence[int]) -> bool:
        """Says whether something must run after `together`, and before it too."""
        ahead = list(together)
        seen: set[int] = set()
        while ahead:
            k = ahead.pop()
            for follower in self._followers(k):
                if follower in together:
                    if k not in together:
                        return True
                elif follower not in seen:
                    found = self.group.get(follower, (follower,))
                    seen.update(found)
                    ahead.extend(found)
        return False

    def _followers(self, k: int) -> Iterator[int]:
        """Gives what may run only after operator k: what reads what it writes, and what updates what it reads."""
        operator = self.operators[k]
        for name in operator.outputs:
            yield from self.readers.get(name, ())
        for name in operator.inputs:
            updater = self.updater.get(self.graph.root(name))
            if updater is not None:
                yield updater


COPY = "Identity.copy"
"""The kind of what copies a gradient, so that it has bytes of its own as a result of the step."""


def with_updates(
    graph: TrainingGraph,
    optimizer: str,
    *,
    fuse: bool = True,
    clip: bool = False,
    rates: Mapping[str, float] | None = None,
) -> TrainingGraph:
    """`graph`, as autodiff left it, with operators that update its parameters and running statistics in place.

    optimizer
        One of `NAMES`; with `none`, the graph is returned as it is.
    fuse
        Whether an update is one operator with the gradient that it alone reads, so that no whole gradient outlives that
        operator. Otherwise gradients are tensors like those of activations.
    clip
        Whether all gradients are scaled, so that the norm of all of them is `clip_norm` at most, which is one more
        hyperparameter (`poetopt.autodiff.optimizers.attach`). Then nothing is fused, as each update waits for all
        gradients.
    rates
        Pattern of parameters -> what their learning rate is multiplied with; the first that matches counts.

    The new value of `p` is the tensor `p.new`; that of a statistic likewise. Arithmetic is in the parameter's type, for
    half precision in float32 with states of half precision.

    Raises OptionError for an unknown optimizer, to clip or to change rates without one, and for a pattern that nothing
    matches, ModelError where the model has a tensor of such a name.
    """
    if optimizer not in NAMES:
        raise OptionError(
            f"--optimizer {optimizer}: unknown{closest(str(optimizer), NAMES)}; choose of {', '.join(NAMES)}"
        )
    if clip and optimizer == "none":
        raise OptionError(
            "--with clip-norm: the step ends with gradients, and has no update to clip them for; name one with "
            "--optimizer"
        )
    factors = _factors(graph.trained, rates or {})
    if rates and optimizer == "none":
        raise OptionError(
            "--with rates: the step ends with gradients, and has no update to have a rate; name one with --optimizer"
        )
    if graph.parts > 1:
        from poetopt.autodiff.optimizers.sums import with_sums

        return with_sums(graph, optimizer, fuse=fuse, clip=clip, factors=factors)
    if optimizer == "none":
        return graph
    return Attachment(graph, optimizer, clip=clip, factors=factors).graph(fuse=fuse and not clip)


def parse_rates(rates: Mapping[str, float] | str | Sequence[str] | None) -> dict[str, float]:
    """Factors of the learning rate by pattern, of the options' words too. Raises OptionError."""
    texts = [rates] if isinstance(rates, str) else rates or ()
    if not isinstance(texts, Mapping):
        parts = [one.strip().rpartition("=") for text in texts for one in text.split(",")]
        texts = {pattern.strip(): factor for pattern, _, factor in parts}  # type: ignore[misc]
    found: dict[str, float] = {}
    for pattern, factor in texts.items():
        try:
            found[pattern] = read_float32(factor)
        except ValueError:
            found[pattern] = math.nan
        if not pattern or not found[pattern] >= 0:
            raise OptionError(
                f"--with rates={f'{pattern}=' * bool(pattern)}{factor}: say a pattern of parameters and what their "
                "learning rate is multiplied with, as in --with rates=features.*=0.1"
            )
    return found


def _factors(trained: Sequence[str], rates: Mapping[str, float]) -> dict[str, float]:
    """For each parameter that a pattern matches, its factor. Raises OptionError."""
    found: dict[str, float] = {}
    for pattern, factor in rates.items():
        matched = fnmatch.filter(trained, pattern)
        if not matched:
            raise OptionError(
                f"--with rates={pattern}={factor:g}: no trained parameter is called so{closest(pattern, trained)}; "
                f"there are {listed(trained)}"
            )
        found = {**dict.fromkeys(matched, factor), **found}
    return {name: found[name] for name in trained if name in found}


def rate_notes(factors: Mapping[str, float]) -> Iterator[Note]:
    """Gives a line for each factor of the learning rate."""
    for factor in dict.fromkeys(factors.values()):
        names = [name for name, own in factors.items() if own == factor]
        text = f"rate: {factor:g} times lr for"
        yield Note(f"{text} {', '.join(names)}", short=f"{text} {listed(names)}")


class Attachment:
    """The graph that grows."""

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
        """Gives what the optimizer computes."""
        return OPTIMIZERS[self.optimizer]

    def graph(self, *, fuse: bool) -> TrainingGraph:
        """See `with_updates`."""
        graph = self.source
        statistics = {old: self.carried(graph.tensors[old], made) for old, made in graph.states.items()}
        operators = self.transient(list(updated_in_place(graph, statistics)))
        given = self.hyperparameters()
        scalars, first = self.scalars(given)
        squares, scale = self.clipping(given)
        updates = {name: self.update(name, scalars[self.factors.get(name, 1.0)]) for name in graph.trained}
        after: dict[str, list[Operator]] = {}
        for name, operator in (squares or updates).items():
            after.setdefault(self.gradients[name], []).append(operator)
        operators = behind(operators, [first], after)
        if scale is not None:
            operators += [scale, *updates.values()]
        outputs = {graph.states[old]: new for old, new in statistics.items()}
        made = replace(
            graph,
            operators=tuple(operators),
            outputs=tuple(outputs.get(name, name) for name in graph.outputs),
            gradients={},
            states=statistics,
            optimizer=self.optimizer,
            optimizer_states=tuple(self.states),
            hyperparameters=given,
            rates=self.factors,
            notes=(*graph.notes, *rate_notes(self.factors)),
        )
        made = self.cut(made, (*graph.values, *given.values()), graph.inputs)
        made = fused(made, self.gradients) if fuse else made
        return replace(made, operators=low_memory_order(made.operators, made.tensors))

    def cut(self, graph: TrainingGraph, values: Iterable[str], inputs: Iterable[str] = ()) -> TrainingGraph:
        """`graph` with the tensors that its operators name, its inputs, and `values` alone."""
        operators = (*graph.operators, *graph.aside)
        used = {name for o in operators for node in o.nodes for name in (*node.inputs, *node.outputs)}
        used.update(inputs, values)
        return replace(
            graph,
            tensors={name: tensor for name, tensor in self.builder.tensors.items() if name in used},
            values={name: value for name, value in self.builder.values.items() if name in used},
        )

    def carried(self, old: Tensor, made: str) -> str:
        """The name of what follows `old`, whose bytes and role it takes over: so far it is called `made`."""
        name = f"{old.name}.new"
        if name != made and self.builder.unique(name) != name:
            raise ModelError(f"{self.source.name}: a tensor is named {name!r} already; rename it in the model")
        del self.builder.tensors[made]
        return self.builder.tensor(name, old.shape, old.dtype, old.role).name

    def transient(self, operators: list[Operator]) -> list[Operator]:
        """Gradients as tensors that nobody wants after the step: no copies of them, none added to in place."""
        kept: list[Operator] = []
        once: set[str] = set()
        of = {gradient: name for name, gradient in self.gradients.items()}
        for operator in operators:
            if operator.kind == COPY and operator.outputs[0] in of:
                self.gradients[of[operator.outputs[0]]] = operator.inputs[0]
                continue
            if operator.over:
                once.update((operator.name, operator.over))
            kept.append(replace(operator, over=""))
        tensors = self.builder.tensors
        for name, tensor in tensors.items():
            if tensor.role is Role.PARAMETER_GRADIENT:
                tensors[name] = replace(tensor, role=Role.GRADIENT)
        return [replace(o, recomputable=True) if once.intersection((o.name, *o.outputs)) else o for o in kept]

    def hyperparameters(self) -> Mapping[str, str]:
        """A scalar for each hyperparameter, with its default as its value."""
        found: dict[str, str] = {}
        # of the hyperparameter: what it is where a step is told nothing
        for name, default in {**self.rule.hyperparameters, **({CLIP: 1.0} if self.clip else {})}.items():
            dtype = "int64" if name == "step" else "float64"
            found[name] = self.builder.unique(name)
            self.builder.valued(found[name], np.array(default, dtype), Role.HYPERPARAMETER)
        return found

    def scalars(self, given: Mapping[str, str]) -> tuple[Mapping[float, Mapping[str, Scalars]], Operator]:
        """Scalars that updates read of the hyperparameters, and their operator.

        By what the learning rate is multiplied with, and for each type that updates compute in. What doesn't depend on
        the rate is there once.
        """
        builder = self.builder
        kind = f"{self.optimizer}.scalars"
        draft = builder.operator(kind, kind, recomputable=False, role=Role.HYPERPARAMETER)
        values = {name: builder.tensors[tensor] for name, tensor in given.items()}
        found: dict[float, dict[str, Scalars]] = {}
        known: dict[tuple[str, str, object], Tensor] = {}
        for factor in dict.fromkeys((1.0, *self.factors.values())):
            rated = {**values, "lr": draft.mul(values["lr"], factor)}
            made = self.rule.scalars(draft, rated)
            moved = _reached(draft, rated["lr"])
            found[factor] = {
                dtype: {
                    name: known[key]
                    if (key := (name, dtype, factor if value.name in moved else None)) in known
                    else known.setdefault(key, draft.cast(value, dtype))
                    for name, value in made.items()
                }
                for dtype in self._types()
            }
        used = {t.name for of in found.values() for by in of.values() for t in by.values()}
        for node in reversed(draft.nodes[:]):
            if used.isdisjoint(node.outputs):
                draft.nodes.remove(node)
            used.update(node.inputs if not used.isdisjoint(node.outputs) else ())
        inner = {name for node in draft.nodes for name in node.outputs}
        written = dict.fromkeys(
            t.name for of in found.values() for by in of.values() for t in by.values() if t.name in inner
        )
        return found, finish(draft, tuple(written), {})

    def _types(self) -> tuple[str, ...]:
        """The types that updates compute in."""
        return tuple(dict.fromkeys(_computing(self.builder.tensors[name]) for name in self.source.trained))

    def clipping(self, given: Mapping[str, str]) -> tuple[Mapping[str, Operator], Operator | None]:
        """For each parameter, what adds up its gradient's squares; and what makes the scale of those, for updates.

        Nothing where the step doesn't clip.
        """
        if not self.clip:
            return {}, None
        builder = self.builder
        squares = {n: squares_of(builder, n, builder.tensors[self.gradients[n]]) for n in self.source.trained}
        sums = [builder.tensors[operator.outputs[0]] for operator in squares.values()]
        self.scales, scale = scale_of(builder, sums, builder.tensors[given[CLIP]], self._types())
        return squares, scale

    def update(self, name: str, scalars: Mapping[str, Scalars]) -> Operator:
        """The operator that writes parameter `name` and its states anew."""
        builder = self.builder
        p, g = builder.tensors[name], builder.tensors[self.gradients[name]]
        dtype = _computing(p)
        states = [self._state(p, what) for what in self.rule.states]
        draft = builder.operator(f"{name}.update", f"{self.optimizer}.update", recomputable=False)
        read = [draft.cast(tensor, dtype) for tensor in (p, g, *states)]
        scale = [self.scales[dtype]] if self.clip else []
        slope = draft.mul(read[1], scale[0]) if scale else read[1]
        made = [draft.cast(t, p.dtype) for t in self.rule.update(draft, read[0], slope, read[2:], scalars[dtype])]
        if p.dtype == dtype:
            draft.amounts_to(draft.kind, [p, g, *states, *scalars[dtype].values(), *scale], made)
        pairs = [(old.name, self.carried(old, new.name)) for old, new in zip((p, *states), made, strict=True)]
        rename = {tensor.name: new for tensor, (_, new) in zip(made, pairs, strict=True)}
        return replace(finish(draft, [tensor.name for tensor in made], rename), updates=tuple(pairs))

    def _state(self, parameter: Tensor, what: str) -> Tensor:
        """A new state of `parameter`, zero before the first step."""
        name = self.builder.unique(f"{parameter.name}.{what}")
        self.states.append(name)
        return self.builder.valued(name, np.zeros(parameter.shape, parameter.dtype), Role.OPTIMIZER_STATE)


def _reached(draft: OperatorBuilder, tensor: Tensor) -> set[str]:
    """`tensor`, and what nodes of the operator make of it."""
    found = {tensor.name}
    for node in draft.nodes:
        if not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return found


def _computing(tensor: Tensor) -> str:
    """The type that an update of `tensor` computes in."""
    return "float32" if tensor.dtype in HALF else tensor.dtype


def behind(operators: list[Operator], first: list[Operator], updates: Mapping[str, list[Operator]]) -> list[Operator]:
    """`operators` with `first` before all backward ones, and each update behind what its gradient comes of."""
    waiting = dict(updates)
    written = {name for operator in operators for name in operator.outputs}
    early = [o for gradient in list(waiting) if gradient not in written for o in waiting.pop(gradient)]
    found: list[Operator] = []
    start = next(k for k, operator in enumerate(operators) if operator.backward)
    for k, operator in enumerate(operators):
        if k == start:
            found += [*first, *early]
        found.append(operator)
        found += [update for name in operator.outputs for update in waiting.pop(name, ())]
    return found
