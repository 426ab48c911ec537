"""A network that onnxruntime can't load is refused before it is planned for, and no other is."""

from __future__ import annotations

import onnxruntime as ort
import pytest

import poetopt as po
from poetopt.backends.onnxruntime.sessions import runtime_errors
from poetopt.util.errors import UnsupportedOpError
from tests.support.frontends import text_model

NODES = {
    "float[2, 4] x, uint8[2, 4] k": "h = Pow (x, k)",
    "float[2, 4] x, int32[2, 4] k": "h = Pow (x, k)",
    "int64[2, 4] k": "r = Relu (k) h = Cast <to = 1> (r)",
    "uint16[2, 4] k": 'r = BitShift <direction = "LEFT"> (k, k) h = Cast <to = 1> (r)',
    "uint8[2, 4] k": 'r = BitShift <direction = "LEFT"> (k, k) h = Cast <to = 1> (r)',
    "bool[2, 4] k": "r = Where (k, k, k) h = Cast <to = 1> (r)",
    "float16[2, 4] k": "r = Atan (k) h = Cast <to = 1> (r)",
}


def test_what_onnxruntime_can_not_load_is_not_planned_for() -> None:
    loaded = []
    for inputs, nodes in NODES.items():
        model = text_model(
            f"g ({inputs}) => (float[2, 3] y) <float[4, 3] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}}>"
            f" {{ {nodes} y = MatMul (h, w) }}"
        )
        try:
            ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        except runtime_errors():
            with pytest.raises(UnsupportedOpError, match="its inputs are"):
                po.solve(model, device="a72")
        else:
            loaded.append(inputs)
            assert po.solve(model, device="a72").plan is not None
    assert 3 <= len(loaded) <= len(NODES) - 3
