"""A network with BatchNormalization on every path: each optimizer, runtime, and use of what was learned."""

from __future__ import annotations

import onnx
import pytest

from benchmarks.paths import COLUMNS, OPTIMIZERS, RUNTIMES, cells
from poetopt.zoo.network import Network
from tests.seeds import turns
from tests.support.c import needs_emulator, needs_host

NEEDS = {"host": (needs_host,), "cortex-m4": (needs_emulator,)}


def normalized() -> onnx.ModelProto:
    net = Network("normalized", 3)
    x = net.conv(net.input("input", (2, 1, 8, 8)), "conv1", (1, 4), 3, pad=1)
    x = net.max_pool(net.relu(net.batch_norm(x, "bn1", 4), "relu1"), "pool1")
    return net.model(net.linear(net.add("Flatten", [x], "flatten", axis=1), "fc", 64, 5), (2, 5))


@pytest.mark.parametrize(
    ("runtime", "optimizer"),
    [
        pytest.param(runtime, optimizer, marks=NEEDS.get(runtime, ()))
        for place, runtime in enumerate(RUNTIMES)
        for optimizer in turns(place, OPTIMIZERS)
    ],
)
def test_what_was_learned_is_there_on_every_path(runtime: str, optimizer: str) -> None:
    found = cells(normalized(), optimizer, runtime)
    assert {*found} == {*COLUMNS}
    assert not [text for text in found.values() if text == "-" or text.startswith(("WRONG", "code", "no"))], found
