"""Gradient accumulation: each micro-batch adds its gradients to sums, and updates follow the last micro-batch.

The sum of parameter `p` is the tensor `p.grad.sum`, zero before the first micro-batch; `p.grad.sum.new` shares its
bytes. The addition is one operator with the gradient that it reads, so that no second full gradient outlives it. Each
micro-batch's loss counts by its share of the batch (`Graph.parts`), so that the sum is the gradient of the whole
batch's mean. Updates are a separate graph, which runs once. The caller sets the sums to zero before each step.
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
"""Kind of the operator that adds a micro-batch's gradient to the sum."""


def with_sums(
    graph: TrainingGraph,
    optimizer: str,
    *,
    fuse: bool = True,
    clip: bool = False,
    factors: Mapping[str, float] | None = None,
) -> TrainingGraph:
    """Return `graph`, a micro-batch's step from autodiff, with sums of its gradients and with updates by these.

    Parameters
    ----------
    optimizer
        Name of the optimizer; with `none`, the sums are the step's gradients, and there are no updates.
    fuse
        Whether an addition to a sum is one operator with the gradient that it reads.
    clip
        Whether updates clip the sums by the norm of all of them.
    factors
        Factors of the learning rate by parameter.

    Raises
    ------
    ModelError
        The model has a tensor of a sum's name.
    """
    return _Summing(graph, optimizer, clip=clip, factors=factors or {}).split(fuse=fuse)


class _Summing(Attachment):
    """Builder of the graph of a micro-batch and the graph of the updates."""

    def split(self, *, fuse: bool) -> TrainingGraph:
        """Return the graph of a micro-batch, which refers to that of the updates (see `with_sums`)."""
        source = self.source
        statistics = {old: self.carried(source.tensors[old], new_name) for old, new_name in source.states.items()}
        operators = self.transient(list(updated_in_place(source, statistics)))
        sums = {name: self._sum(name) for name in source.trained}
        adding = {name: self._addition(name, sums[name]) for name in source.trained}
        after: dict[str, list[Operator]] = {}
        for name in source.trained:
            after.setdefault(self.gradients[name], []).append(adding[name])
        gradients = {sums[name]: self.gradients[name] for name in source.trained}
        outputs = {source.states[old]: new for old, new in statistics.items()}
        part = replace(
            source,
            tensors=self.builder.tensors,
            operators=tuple(behind(operators, [], after)),
            outputs=tuple(outputs.get(name, name) for name in source.outputs),
            gradients={name: operator.outputs[0] for name, operator in adding.items()},
            states=statistics,
            sums=sums,
        )
        part = fused(part, gradients) if fuse else part
        part = replace(part, operators=low_memory_order(part.operators, part.tensors))
        if self.optimizer != "none":
            update_graph = self._update_graph(part, sums)
            part = replace(
                part,
                gradients={},
                optimizer=self.optimizer,
                optimizer_states=update_graph.optimizer_states,
                hyperparameters=update_graph.hyperparameters,
                closing=update_graph,
                rates=self.factors,
                notes=(*part.notes, *rate_notes(self.factors)),
            )
        return self.cut(part, (*source.values, *sums.values()), source.inputs)

    def _update_graph(self, part: TrainingGraph, sums: Mapping[str, str]) -> TrainingGraph:
        """Return the graph of the updates by the sums."""
        self.gradients = dict(sums)
        hyperparameters = self.hyperparameters()
        scalars, first = self.scalars(hyperparameters)
        squares, scale = self.clipping(hyperparameters)
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
            hyperparameters=hyperparameters,
            parts=1,
            split=(),
            rows={},
        )
        return self.cut(graph, (*self.source.trained, *sums.values(), *self.states, *hyperparameters.values()))

    def _sum(self, name: str) -> str:
        """Add the tensor for the sum of a parameter's gradients, zero before the first step."""
        builder, like = self.builder, self.builder.tensors[name]
        name_of_sum = f"{name}.grad.sum"
        if builder.unique(name_of_sum) != name_of_sum:
            raise ModelError(f"{self.source.name}: a tensor is named {name_of_sum!r} already; rename it in the model")
        return builder.valued(name_of_sum, np.zeros(like.shape, like.dtype), Role.GRADIENT_SUM).name

    def _addition(self, name: str, total: str) -> Operator:
        """Return the operator that adds a micro-batch's gradient to the sum."""
        builder = self.builder
        old, part = builder.tensors[total], builder.tensors[self.gradients[name]]
        draft = builder.operator(f"{name}.grad.add", SUM, recomputable=False)
        new_sum = draft.add(old, draft.cast(part, old.dtype))
        new = self.carried(old, new_sum.name)
        return replace(finish(draft, [new_sum.name], {new_sum.name: new}), updates=((total, new),))
