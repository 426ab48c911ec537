"""Operators that work in place: what joins and what doesn't, that nothing is lost by it, and that results stay."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import poetopt as po
from poetopt.autodiff import differentiate
from poetopt.autodiff.passes.in_place import in_place, working_set_bytes
from poetopt.devices import device
from poetopt.devices.cost import cost
from poetopt.graph import Graph, Operator, TrainingGraph
from poetopt.ops.runtimes.onnxruntime import runtime
from tests.seeds import some
from tests.support.autodiff.build import graph as graph_of

Array = NDArray[Any]
A72 = device("a72")
NETWORKS = ("lenet", "resnet18-cifar", "bert-tiny")
RNG = np.random.default_rng(0)


def weight(*shape: int) -> Array:
    return RNG.standard_normal(shape, np.float32)


def convolutions(lines: str, *, channels: int = 8, size: int = 16, outputs: Sequence[str] = ("y",)) -> TrainingGraph:
    """The training step of lines over x, [2, channels, size, size], with weights w and v and a normalization's."""
    weights = {"w": weight(channels, channels, 3, 3), "v": weight(channels, channels, 3, 3)}
    weights |= {name: weight(channels) for name in ("scale", "bias", "mean")} | {"var": np.ones(channels, np.float32)}
    weights |= {name: np.array(value, np.float32) for name, value in (("half", 0.5), ("root", 0.5**0.5), ("one", 1.0))}
    read = {name.strip() for line in lines.splitlines() for name in line.rpartition("(")[2].rstrip(")").split(",")}
    used = {name: value for name, value in weights.items() if name in read}
    found = graph_of(lines, {"x": [2, channels, size, size]}, used, outputs)
    return differentiate(found, loss="mse", output="y")


def joined(graph: TrainingGraph, *, backward: bool = False) -> list[tuple[str, ...]]:
    """The kinds of what is scheduled as one."""
    found = [operator for operator in in_place(graph, runtime).operators if operator.members]
    return [tuple(operator.kind.split("+")) for operator in found if operator.backward == backward]


CONV = "Conv<pads=[1 1 1 1]>"
NORM = "BatchNormalization<training_mode=1>"


def test_a_chain_joins_what_it_writes_over() -> None:
    lines = f"a = {CONV}(x, w)\nb, m, n = {NORM}(a, scale, bias, mean, var)\nc = Relu(b)\nd = {CONV}(c, v)\ny = Relu(d)"
    graph = convolutions(lines)
    assert joined(graph) == [("BatchNormalization", "Relu"), ("Conv", "Relu")]
    operator = next(operator for operator in in_place(graph, runtime).operators if operator.members)
    assert operator.name == operator.members[-1]
    assert [_of(graph, member).kind for member in operator.members] == ["BatchNormalization", "Relu"]
    assert {"b", "c"}.intersection(operator.outputs) == {"c"}
    assert {"b.mean", "b.variance"} <= {*operator.outputs}, "backward reads the batch's statistics"


@pytest.mark.parametrize(
    "rest",
    [
        "b = Relu(a)\nc = Erf(x)\ny = Mul(b, a)",  # the operand is read elsewhere
        f"b = Erf(a)\ny = {CONV}(b, v)",  # its gradient reads the operand
        f"h = Mul(a, half)\ns = Mul(a, root)\ne = Erf(s)\no = Add(e, one)\nb = Mul(h, o)\ny = {CONV}(b, v)",  # Gelu
        f"b = Softsign(a)\ny = {CONV}(b, v)",  # not known to write over it
        "p = MaxPool<kernel_shape=[2 2]>(x)\nc = Relu(a)\nd = GlobalMaxPool(p)\ny = Mul(c, d)",  # not neighbours
        "g = GlobalAveragePool(a)\ny = Mul(x, g)",  # broadcast: the output is larger
    ],
)
def test_what_stays_apart(rest: str) -> None:
    kinds = joined(convolutions(f"a = {CONV}(x, w)\n{rest}"))
    assert [found for found in kinds if found[0] in ("Conv", "GlobalAveragePool")] == []


@pytest.mark.parametrize("name", NETWORKS)
def test_what_joins_works_in_place_and_needs_no_more(name: str) -> None:
    step, found = both(name)
    assert [node for o in step.operators for node in o.nodes] == [node for o in found.operators for node in o.nodes]
    assert in_place(found, runtime).operators == found.operators
    room = max(working_set_bytes(operator, step, runtime) for operator in step.operators if not operator.view)
    count = 0
    for operator in found.operators:
        members = [_of(step, member) for member in operator.members]
        if not members:
            continue
        count += 1
        layout = runtime.workspace(operator, step.tensors)
        inside = {n for member in members[:-1] for n in member.outputs} - {*operator.outputs}
        large = [n for n in inside if layout.storage.get(n) in members[-1].outputs]
        assert len(large) >= len(members) - 1, "what is written over lies where the output does"
        assert layout.temporaries_bytes <= max(
            runtime.workspace(member, step.tensors).temporaries_bytes for member in members
        )
        assert working_set_bytes(operator, step, runtime) <= room
        assert {member.backward for member in members} == {operator.backward}
    assert count
    apart, together = cost(step, A72), cost(found, A72)
    assert together.least_ram_bytes <= apart.least_ram_bytes
    assert po.store_all_peak_bytes(together) <= po.store_all_peak_bytes(apart)
    assert together.baseline_energy_j == pytest.approx(apart.baseline_energy_j, rel=1e-12)
    assert together.resident_bytes == apart.resident_bytes


@pytest.mark.parametrize("scope", ["forward", "full"])
def test_the_optimum_is_never_above_that_of_single_operators(scope: str) -> None:
    """Random networks: what is proven with operators joined is at most what is proven without, in the same bytes.

    Of operators that write over what they read afterwards, none is here: what joins needs more at once than they do.
    """
    compared, chosen = 0, some(range(24), 12)
    for seed in chosen:
        rng = random.Random(seed)
        step = differentiate(random_network(rng), loss="mse")
        found = in_place(step, runtime)
        apart, together = (cost(graph, device(("a72", "m4")[seed % 2]), over=False) for graph in (step, found))
        least, most = apart.least_ram_bytes, po.store_all_peak_bytes(apart)
        assert together.least_ram_bytes <= least
        assert po.store_all_peak_bytes(together) <= most
        options: dict[str, Any] = {"ram": least + (most - least) // 5, "scope": scope, "gap": 1e-6, "threads": 1}
        first = _overhead(apart, options)
        if found is step or first is None:
            continue
        second = _overhead(together, options)
        assert second is not None
        assert second <= first * (1 + 1e-6) + 1e-12, seed
        compared += 1
    assert compared >= len(chosen) / 3


def _overhead(problem: Any, options: Mapping[str, Any]) -> float | None:
    try:
        found = po.solve(problem, time_limit="10s", **options).to_dict()
    except po.util.errors.PoetError:
        return None
    overhead = found["overhead_j"]
    return float(str(overhead)) if found["status"] == "optimal" else None


def random_network(rng: random.Random) -> Graph:
    """Three to six operators over a small image, each of the last two tensors or of one like it."""
    lines: list[str] = []
    weights: dict[str, Array] = {}
    made = [("x", 3)]

    def drawn(name: str, *shape: int) -> str:
        weights[name] = np.random.default_rng(len(weights)).standard_normal(shape).astype(np.float32)
        return name

    for k in range(rng.randint(3, 6)):
        name, channels = rng.choice(made[-2:])
        op = rng.choice(["Conv", "Conv", "Relu", "Relu", "Sigmoid", "Add", "Add", "Mul", "BatchNormalization"])
        like = [other for other, wide in made if wide == channels and other != name]
        y = f"t{k}"
        if name == "x" or op == "Conv":
            wide = rng.choice([2, 3, 4])
            lines.append(f"{y} = {CONV}({name}, {drawn(f'w{k}', wide, channels, 3, 3)})")
            channels = wide
        elif op == "BatchNormalization":
            given = ", ".join(drawn(f"p{k}{i}", channels) for i in range(3))
            weights[f"v{k}"] = np.ones(channels, np.float32)
            lines.append(f"{y}, m{k}, n{k} = {NORM}({name}, {given}, v{k})")
        elif op in ("Add", "Mul"):
            other = rng.choice(like) if like else drawn(f"b{k}", channels, 1, 1)
            lines.append(f"{y} = {op}({name}, {other})")
        else:
            lines.append(f"{y} = {op}({name})")
        made.append((y, channels))
    return graph_of("\n".join(lines), {"x": [1, 3, rng.choice([4, 8]), 8]}, weights, [made[-1][0]])


def both(name: str) -> tuple[TrainingGraph, TrainingGraph]:
    """A network's training step with single operators, and as it is scheduled."""
    model = po.load(name)
    assert isinstance(model, po.Model)
    return model.training_graph(), model.differentiate().graph


def _of(graph: TrainingGraph, name: str) -> Operator:
    return next(operator for operator in graph.operators if operator.name == name)
