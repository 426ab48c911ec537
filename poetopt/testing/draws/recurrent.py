"""Random calls of LSTM, GRU and RNN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from poetopt.testing.draws.pieces import Random, normal
from poetopt.testing.kernel_cases import Case, Draw, node_case

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(op_type: str) -> Draw:
    """One layer."""

    def draw(random: Random) -> list[Case]:
        steps, batch, ins, size = (int(n) for n in random.integers(1, 7, 4))
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


DRAWS: Mapping[tuple[str, str], Draw] = {("", op): recurrent(op) for op in GATES}
