"""Random calls of LSTM, GRU and RNN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from poetopt.graph import OWN_DOMAIN
from tests.support.contract.kernel import Case, node_case
from tests.support.draws.pieces import Draw, Random, network, normal, onnx_node
from tests.support.draws.steps import step_cases

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _size(random: Random) -> int:
    """States of a layer; often so many that sums over its gates have several parts."""
    return int(random.integers(1, 7)) * (1 if random.random() < 0.6 else int(random.choice([8, 24])))


def recurrent(op_type: str) -> Draw:
    """One layer."""

    def draw(random: Random) -> list[Case]:
        steps, batch, ins = (int(n) for n in random.integers(1, 7, 3))
        size = _size(random)
        direction = str(random.choice(["forward", "reverse", "bidirectional"]))
        many, gates = 1 + (direction == "bidirectional"), GATES[op_type] * size
        weights = [normal(random, (many, gates, width)) for width in (ins, size)]
        bias = normal(random, (many, 2 * gates)) if random.random() < 0.7 else None
        states = [normal(random, (many, batch, size)) for _ in range(2 if op_type == "LSTM" else 1)]
        firsts = (None, *states) if random.random() < 0.5 else ()
        chosen: dict[str, Any] = {"hidden_size": size, "direction": direction}
        if op_type == "GRU":
            chosen["linear_before_reset"] = int(random.random() < 0.5)
        if op_type == "RNN" and random.random() < 0.5:
            chosen["activations"] = ["Relu"] * many
        wanted = ["float32"] * (1 + len(states))
        if random.random() < 0.3:
            wanted[0] = ""
        x = np.asarray(normal(random, (steps, batch, ins)))
        return [node_case(op_type, x, *weights, bias, *firsts, outputs=wanted, attributes=chosen)]

    return draw


def gradient(op_type: str) -> Draw:
    """What a training step has of one layer."""

    def draw(random: Random) -> list[Case]:
        steps, batch, ins = (int(n) for n in random.integers(1, 5, 3))
        size = _size(random)
        direction = str(random.choice(["forward", "reverse", "bidirectional"]))
        many, gates = 1 + (direction == "bidirectional"), GATES[op_type] * size
        values = {"w": normal(random, (many, gates, ins)), "r": normal(random, (many, gates, size))}
        if random.random() < 0.7:
            values["b"] = normal(random, (many, 2 * gates))
        inputs = ["h", "w", "r", "b" if "b" in values else ""]
        if random.random() < 0.5:
            firsts = ["first", "cell"][: 2 if op_type == "LSTM" else 1]
            values.update((name, normal(random, (many, batch, size))) for name in firsts)
            inputs += ["", *firsts]
        chosen: dict[str, Any] = {"hidden_size": size, "direction": direction}
        if op_type == "GRU":
            chosen["linear_before_reset"] = int(random.random() < 0.5)
        if op_type == "RNN" and random.random() < 0.5:
            chosen["activations"] = ["Relu"] * many
        node = onnx_node(op_type, inputs, attributes=chosen)
        return step_cases(network(random, (steps, batch, ins), [node], values), f"{op_type}.gradient", random)

    return draw


DRAWS: Mapping[tuple[str, str], Draw] = {
    **{("", op): recurrent(op) for op in GATES},
    **{(OWN_DOMAIN, f"{op}.gradient"): gradient(op) for op in GATES},
}
