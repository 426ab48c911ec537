"""Random calls of LSTM, GRU and RNN."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from poetopt.graph import OWN_DOMAIN
from tests.support.contract.kernel import Case, node_case
from tests.support.draws.pieces import Draw, Random, network, normal, onnx_node
from tests.support.draws.steps import step_cases

if TYPE_CHECKING:
    from poetopt.graph import Array

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _size(random: Random) -> int:
    """States of a layer; often so many that sums over its gates have several parts."""
    return int(random.integers(1, 7)) * (1 if random.random() < 0.6 else int(random.choice([8, 24])))


def _layer(random: Random, op_type: str, longest: int) -> tuple[list[int], dict[str, Array], dict[str, Any]]:
    """Steps, batch and inputs; the weights, now and then with biases and first states; the attributes."""
    sizes = [int(n) for n in random.integers(1, longest, 3)]
    size = _size(random)
    direction = str(random.choice(["forward", "reverse", "bidirectional"]))
    many, gates = 1 + (direction == "bidirectional"), GATES[op_type] * size
    values = {"w": normal(random, (many, gates, sizes[2])), "r": normal(random, (many, gates, size))}
    if random.random() < 0.7:
        values["b"] = normal(random, (many, 2 * gates))
    if random.random() < 0.5:
        firsts = ("first", "cell")[: 2 if op_type == "LSTM" else 1]
        values |= {name: normal(random, (many, sizes[1], size)) for name in firsts}
    chosen: dict[str, Any] = {"hidden_size": size, "direction": direction}
    if op_type == "GRU":
        chosen["linear_before_reset"] = int(random.random() < 0.5)
    if op_type == "RNN" and random.random() < 0.5:
        chosen["activations"] = ["Relu"] * many
    return sizes, values, chosen


def recurrent(op_type: str, random: Random) -> list[Case]:
    """One layer."""
    sizes, values, chosen = _layer(random, op_type, 7)
    wanted = ["float32"] * (3 if op_type == "LSTM" else 2)
    if random.random() < 0.3:
        wanted[0] = ""
    given = [normal(random, sizes), *(values.get(name) for name in ("w", "r", "b"))]
    firsts = [values[name] for name in ("first", "cell") if name in values]
    return [node_case(op_type, *given, *([None, *firsts] if firsts else []), outputs=wanted, attributes=chosen)]


def gradient(op_type: str, random: Random) -> list[Case]:
    """What a training step has of one layer."""
    sizes, values, chosen = _layer(random, op_type, 5)
    firsts = [name for name in ("first", "cell") if name in values]
    inputs = ["h", "w", "r", "b" if "b" in values else "", *(["", *firsts] if firsts else [])]
    node = onnx_node(op_type, inputs, attributes=chosen)
    return step_cases(network(random, sizes, [node], values), f"{op_type}.gradient", random)


DRAWS: Mapping[tuple[str, str], Draw] = {
    **{("", op): partial(recurrent, op) for op in GATES},
    **{(OWN_DOMAIN, f"{op}.gradient"): partial(gradient, op) for op in GATES},
}
