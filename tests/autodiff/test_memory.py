"""Lean constructions: what training needs at least."""

from __future__ import annotations

import pytest

from poetopt.autodiff import differentiate
from poetopt.autodiff.passes.in_place import working_set_bytes
from poetopt.frontends import load
from poetopt.graph import Graph, Operator, TrainingGraph
from poetopt.ops.runtimes.onnxruntime import runtime


def working_set(step: TrainingGraph, operator: Operator) -> int:
    """Bytes while one operator runs: what it reads, writes, and its workspace."""
    held = dict.fromkeys(step.root(name) for name in (*operator.inputs, *operator.outputs))
    outside = sum(step.tensors[name].nbytes for name in held if not step.tensors[name].resident)
    return outside + runtime.workspace(operator, step.tensors).total_bytes


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", ["resnet18-cifar", "vgg16-cifar"])
def test_no_operator_needs_more_than_four_of_the_largest_tensor(name: str, batch: int) -> None:
    graph = load(name, batch=batch)
    assert isinstance(graph, Graph)
    step = differentiate(graph)
    largest = max(t.nbytes for t in graph.tensors.values() if not t.resident)
    needs = {o.name: working_set(step, o) for o in step.operators if not o.view}
    worst = max(needs, key=lambda operator: needs[operator])
    assert needs[worst] <= 4.1 * largest, worst


@pytest.mark.parametrize(("name", "tensors"), [("lenet", 2), ("resnet18-cifar", 3)])
def test_the_floor_is_a_few_tensors_of_the_largest_size(name: str, tensors: int) -> None:
    """What is read and written, beside a batch's statistics: no temporary of that size, nor a convolution's columns.

    LeNet's first Relu is read by a MaxPool alone: the floor is that one, whose places are twice as wide meanwhile.
    """
    graph = load(name, batch=8)
    assert isinstance(graph, Graph)
    step = differentiate(graph)
    largest = max(t.nbytes for t in graph.tensors.values() if not t.resident)
    needs = {o.name: working_set_bytes(o, step, runtime) for o in step.operators if not o.view}
    worst = max(needs, key=lambda operator: needs[operator])
    assert needs[worst] <= tensors * largest + 4096, worst
    apart = differentiate(graph, maxima=False)
    most = max(working_set_bytes(o, apart, runtime) for o in apart.operators if not o.view)
    assert most >= 3 * largest
