"""A batch in parts: what each part gives of a gradient is added to a sum, and updates follow the last part.

The sum of parameter `p` is the tensor `p.grad.sum`, zero before the first part; `p.grad.sum.new` lies over it. It
is one operator with the gradient that it takes in, so that no second whole gradient outlives that. Each part's loss
counts by its share of the batch (`Graph.parts`), so that the sum is the gradient of the whole batch's mean. Updates are
a graph of their own, which runs once. Who runs a step begins it with sums that are zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from poetopt.autodiff.emit import finish
from poetopt.autodiff.optimizers.attach import Attachment, behind, fused, rate_notes
from poetopt.autodiff.optimizers.rules import updated_in_place
from poetopt.autodiff.passes.blocks import low_memory_order
from poetopt.graph import Operator, Role, TrainingGraph
from poetopt.util.errors import ModelError

SUM = "Gradient.sum"
"""The kind of what adds a part's gradient to the sum."""


def with_sums(
    graph: TrainingGraph,
    optimizer: str,
    *,
    fuse: bool = True,
    clip: bool = False,
    factors: Mapping[str, float] | None = None,
) -> TrainingGraph:
    """`graph`, one part of a batch as autodiff left it, with sums of its gradients, and updates behind the last part.

    optimizer
        Whose updates; with `none`, the sums are the step's gradients, and nothing follows.
    fuse
        Whether a sum is one operator with the gradient that it takes in.
    clip
        Whether updates clip the sums by the norm of all of them.
    factors
        For some parameters, what their learning rate is multiplied with.

    Raises ModelError where the model has a tensor of a sum's name.
    """
    return _Summing(graph, optimizer, clip=clip, factors=factors or {}).split(fuse=fuse)


class _Summing(Attachment):
    """The graph of a part, and the one of the updates."""

    def split(self, *, fuse: bool) -> TrainingGraph:
        """See `with_sums`."""
        source = self.source
        statistics = {old: self.carried(source.tensors[old], made) for old, made in source.states.items()}
        operators = self.transient(list(updated_in_place(source, statistics)))
        of = {name: self._sum(name) for name in source.trained}
        adding = {name: self._adding(name, of[name]) for name in source.trained}
        after: dict[str, list[Operator]] = {}
        for name in source.trained:
            after.setdefault(self.gradients[name], []).append(adding[name])
        gradients = {of[name]: self.gradients[name] for name in source.trained}
        outputs = {source.states[old]: new for old, new in statistics.items()}
        part = replace(
            source,
            tensors=self.builder.tensors,
            operators=tuple(behind(operators, [], after)),
            outputs=tuple(outputs.get(name, name) for name in source.outputs),
            gradients={name: operator.outputs[0] for name, operator in adding.items()},
            states=statistics,
            sums=of,
        )
        part = fused(part, gradients) if fuse else part
        part = replace(part, operators=low_memory_order(part.operators, part.tensors))
        if self.optimizer != "none":
            closing = self._closing(part, of)
            part = replace(
                part,
                gradients={},
                optimizer=self.optimizer,
                optimizer_states=closing.optimizer_states,
                hyperparameters=closing.hyperparameters,
                closing=closing,
                rates=self.factors,
                notes=(*part.notes, *rate_notes(self.factors)),
            )
        return self.cut(part, (*source.values, *of.values()), source.inputs)

    def _closing(self, part: TrainingGraph, of: Mapping[str, str]) -> TrainingGraph:
        """The updates by the sums, as a graph."""
        self.gradients = dict(of)
        given = self.hyperparameters()
        scalars, first = self.scalars(given)
        squares, scale = self.clipping(given)
        norm = () if scale is None else (*squares.values(), scale)
        updates = [self.update(name, scalars[self.factors.get(name, 1.0)]) for name in self.source.trained]
        graph = replace(
            part,
            operators=(first, *norm, *updates),
            inputs=(),
            outputs=(),
            gradients={},
            states={},
            sums={},
            optimizer=self.optimizer,
            optimizer_states=tuple(self.states),
            hyperparameters=given,
            parts=1,
            split=(),
            rows={},
        )
        return self.cut(graph, (*self.source.trained, *of.values(), *self.states, *given.values()))

    def _sum(self, name: str) -> str:
        """A new tensor for the sum of a parameter's gradients, zero before the first step."""
        builder, like = self.builder, self.builder.tensors[name]
        wanted = f"{name}.grad.sum"
        if builder.unique(wanted) != wanted:
            raise ModelError(f"{self.source.name}: a tensor is named {wanted!r} already; rename it in the model")
        return builder.valued(wanted, np.zeros(like.shape, like.dtype), Role.GRADIENT_SUM).name

    def _adding(self, name: str, total: str) -> Operator:
        """The operator that adds a part's gradient to the sum."""
        builder = self.builder
        old, part = builder.tensors[total], builder.tensors[self.gradients[name]]
        draft = builder.operator(f"{name}.grad.add", SUM, recomputable=False)
        made = draft.add(old, draft.cast(part, old.dtype))
        new = self.carried(old, made.name)
        return replace(finish(draft, [made.name], {made.name: new}), updates=((total, new),))
