"""The order of operators: valid, deterministic, and low in memory; and what training needs at least."""

from __future__ import annotations

import random

import pytest

from poetopt.autodiff import differentiate
from poetopt.autodiff.passes.blocks import low_memory_order
from poetopt.autodiff.passes.in_place import working_set_bytes
from poetopt.frontends import load
from poetopt.graph import Graph, Node, Operator, Role, Tensor
from poetopt.ops.runtimes.onnxruntime import runtime


def peak(operators: tuple[Operator, ...], sizes: dict[str, int]) -> int:
    """Highest sum of live bytes."""
    last = {name: k for k, o in enumerate(operators) for name in (*o.inputs, *o.outputs)}
    live, highest = 0, 0
    for k, operator in enumerate(operators):
        live += sum(sizes[name] for name in operator.outputs)
        highest = max(highest, live)
        live -= sum(sizes[name] for name in {*operator.inputs, *operator.outputs} if last[name] == k)
    return highest


def chain(length: int) -> tuple[list[Operator], dict[str, Tensor]]:
    """A deep net whose emitted order computes all input gradients before any weight gradient."""
    tensors: dict[str, Tensor] = {}
    forward, back, weights = [], [], []

    def make(name: str, reads: tuple[str, ...], role: Role, *, backward: bool) -> Operator:
        tensors[name] = Tensor(name, (8,), "float32", role)
        return Operator(f"make {name}", "Op", (Node("Op", reads, (name,)),), reads, (name,), backward=backward)

    for k in range(length):
        reads = (f"a{k - 1}",) if k else ()
        forward.append(make(f"a{k}", reads, Role.ACTIVATION, backward=False))
    for k in reversed(range(length)):
        above = (f"g{k + 1}",) if k + 1 < length else (f"a{k}",)
        back.append(make(f"g{k}", above, Role.GRADIENT, backward=True))
        weights.append(make(f"w{k}", (f"a{k}", f"g{k}"), Role.PARAMETER_GRADIENT, backward=True))
    return [*forward, *back, *weights], tensors


def test_a_weight_gradient_runs_as_soon_as_its_activation_can_go() -> None:
    operators, tensors = chain(40)
    order = low_memory_order(operators, tensors)
    sizes = {name: 0 if t.resident else t.nbytes for name, t in tensors.items()}
    assert sorted(o.name for o in order) == sorted(o.name for o in operators)
    at = {name: k for k, o in enumerate(order) for name in o.outputs}
    assert all(at[name] < k for k, o in enumerate(order) for name in o.inputs)
    assert peak(tuple(order), sizes) <= 42 * 32 < peak(tuple(operators), sizes)
    assert low_memory_order(operators, tensors) == order


def test_any_order_of_emission_gives_a_valid_order() -> None:
    operators, tensors = chain(12)
    rng = random.Random(4)
    backward = [o for o in operators if o.backward]
    for _ in range(20):
        rng.shuffle(backward)
        order = low_memory_order([*(o for o in operators if not o.backward), *backward], tensors)
        at = {name: k for k, o in enumerate(order) for name in o.outputs}
        assert len(order) == len(operators)
        assert all(at[name] < k for k, o in enumerate(order) for name in o.inputs)


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
