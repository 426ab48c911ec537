"""Kernels that may write over an operand give the same bits as with an output of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from poetopt.ops.runtimes.onnxruntime import IN_PLACE

Array = NDArray[np.float32]
RNG = np.random.default_rng(0)


def _floats(*shape: int) -> Array:
    return np.asarray(np.abs(RNG.standard_normal(shape, np.float32)) + np.float32(0.1))


def _operands(op: str, rows: int, columns: int) -> list[list[Any]]:
    """Cases: operands of which one of the size of the output may be written over."""
    x = _floats(rows, columns)
    if op == "BatchNormalization":
        return [[x[None], *(_floats(rows) for _ in range(4))], [x.reshape(1, 1, -1), *(_floats(1) for _ in range(4))]]
    if op == "ScatterElements":
        return [[x, RNG.integers(0, rows, (rows, columns)), _floats(rows, columns)]]
    if op == "ScatterND":
        return [[x, np.arange(rows, dtype=np.int64)[:, None], _floats(rows, columns)]]
    if op == "Clip":
        return [[x, np.float32(0.3).reshape(()), np.float32(0.9).reshape(())]]
    if op == "Gemm":
        return [[_floats(rows, 5), _floats(5, columns), x]]
    if len(IN_PLACE[op]) == 1:
        return [[x]]
    others = [_floats(*shape) for shape in ((rows, columns), (rows, 1), (columns,), ())]
    return [pair for other in others for pair in ([x, other], [other, x])]


@pytest.mark.parametrize("op", IN_PLACE)
def test_the_same_bits(op: str) -> None:
    for rows, columns in ((1, 1), (1, 7), (7, 1), (33, 65), (64, 1000)):
        for operands in _operands(op, rows, columns):
            feeds = {f"i{k}": np.ascontiguousarray(a) for k, a in enumerate(operands)}
            settings: dict[str, Any] = {"axis": 0, "reduction": "add"} if op == "ScatterElements" else {}
            node = onnx.helper.make_node(op, list(feeds), ["y"], **settings)
            infos = [
                onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                for n, a in feeds.items()
            ]
            body = onnx.helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name="y")])
            model = onnx.helper.make_model(body, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
            session = ort.InferenceSession(model.SerializeToString())
            (wanted,) = session.run(None, feeds)
            array_of = list(feeds.values())
            for index in IN_PLACE[op]:
                if index >= len(operands) or array_of[index].nbytes != wanted.nbytes:
                    continue
                target = np.array(array_of[index])
                binding = session.io_binding()
                for k, (name, array) in enumerate(feeds.items()):
                    binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(target if k == index else array))
                binding.bind_output("y", "cpu", 0, np.float32, wanted.shape, target.ctypes.data)
                session.run_with_iobinding(binding)
                assert np.array_equal(target.reshape(wanted.shape), wanted), (rows, columns, index)
