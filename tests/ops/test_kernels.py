"""What kernels allocate, against the peak of a process that runs them on onnxruntime.

The process is told to take every block of 64 KB or more from the system and to give it back at once, so that
the high-water mark of its resident memory during one run is what the kernel held. Cases are made large
enough that a few pages more or less don't matter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from poetopt.graph import Node, Role, Tensor
from poetopt.ops.runtimes.onnxruntime.kernels import kernel_bytes

SLACK = 400_000
"""Bytes that a run may take for itself: pages of code and of onnxruntime's own small objects."""

PROGRAM = """
import json, sys
import numpy as np, onnxruntime as ort
from onnx import helper

def high_water():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

def peak(case):
    rng = np.random.default_rng(0)
    arrays = {}
    for k, (shape, dtype, most) in enumerate(case["inputs"]):
        drawn = rng.random(shape) * most if dtype != "float32" else rng.standard_normal(shape)
        drawn = np.full(shape, -most) if most < 0 else drawn
        arrays[f"i{k}"] = np.asarray(drawn).astype(dtype)
    types = {name: helper.np_dtype_to_tensor_dtype(a.dtype) for name, a in arrays.items()}
    outputs = [np.empty(shape, dtype) for shape, dtype in case["outputs"]]
    for out in outputs:
        out.fill(0)
    node = helper.make_node(case["op"], list(arrays), [f"o{k}" for k in range(len(outputs))], **case["attributes"])
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info(n, types[n], a.shape) for n, a in arrays.items()],
        [helper.make_tensor_value_info(f"o{k}", helper.np_dtype_to_tensor_dtype(o.dtype), o.shape)
         for k, o in enumerate(outputs)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    values = [ort.OrtValue.ortvalue_from_numpy(a) for a in (*arrays.values(), *outputs)]
    for name, value in zip(arrays, values):
        binding.bind_ortvalue_input(name, value)
    for k, value in enumerate(values[len(arrays):]):
        binding.bind_ortvalue_output(f"o{k}", value)
    session.run_with_iobinding(binding)
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")
    before = high_water()
    session.run_with_iobinding(binding)
    return high_water() - before

print(json.dumps([peak(case) for case in json.load(sys.stdin)]))
"""

F, H, L, B = "float32", "float16", "int64", "bool"


@dataclass(frozen=True)
class Case:
    """One kernel: inputs as (shape, dtype, upper end of random integers), outputs as (shape, dtype).

    A negative upper end is the value itself, negated: for shapes.
    """

    op: str
    inputs: Sequence[tuple[Sequence[int], str, int]]
    outputs: Sequence[tuple[Sequence[int], str]]
    attributes: Mapping[str, object] = field(default_factory=dict)

    @property
    def expected(self) -> int:
        """The formula's bytes."""
        reads = [Tensor(f"i{k}", tuple(s), d, Role.ACTIVATION) for k, (s, d, _) in enumerate(self.inputs)]
        writes = [Tensor(f"o{k}", tuple(s), d, Role.ACTIVATION) for k, (s, d) in enumerate(self.outputs)]
        node = Node(self.op, tuple(t.name for t in reads), tuple(t.name for t in writes), self.attributes)
        return kernel_bytes(node, reads, writes)


def floats(*shapes: Sequence[int]) -> list[tuple[Sequence[int], str, int]]:
    return [(shape, F, 1) for shape in shapes]


def halves(*shapes: Sequence[int]) -> list[tuple[Sequence[int], str, int]]:
    return [(shape, H, 1) for shape in shapes]


PADS = {"pads": [1, 1, 1, 1]}
BIG = (8, 64, 64, 64)
MANY = 1 << 18
CASES = [
    Case("Conv", floats((2, 512, 16, 16), (512, 512, 3, 3)), [((2, 512, 16, 16), F)], PADS),
    Case("Conv", floats(BIG, (128, 64, 1, 1)), [((8, 128, 64, 64), F)]),
    Case("Conv", floats(BIG, (64, 1, 3, 3)), [(BIG, F)], {**PADS, "group": 64}),
    Case("ConvTranspose", floats((4, 64, 64, 64), (64, 32, 3, 3)), [((4, 32, 64, 64), F)], PADS),
    Case("Col2Im", [*floats((32, 512 * 9, 16)), ((2,), L, -4), ((2,), L, -3)], [((32, 512, 4, 4), F)], PADS),
    Case("SoftmaxCrossEntropyLoss", [*floats((512, 4000)), ((512,), L, 4000)], [((), F), ((512, 4000), F)]),
    Case(
        "ScatterElements",
        [*floats((4096, 256)), ((4096, 256), L, 4096), *floats((4096, 256))],
        [((4096, 256), F)],
        {"axis": 0, "reduction": "add"},
    ),
    Case("Where", [(BIG, B, 2), *floats(BIG, BIG)], [(BIG, F)]),
    Case("Where", [(BIG, B, 2), *floats(BIG, (1,))], [(BIG, F)]), Case("Softmax", floats(BIG), [(BIG, F)], {"axis": 1}),
    Case("Softmax", floats(BIG), [(BIG, F)], {"axis": 3}), Case("LogSoftmax", floats(BIG), [(BIG, F)], {"axis": 0}),
    *(
        Case(op, [*floats(BIG), ((1,), L, 1)], [((1, *BIG[1:]), F)], {"keepdims": 1})
        for op in ("ReduceSum", "ReduceMean", "ReduceMax")
    ),
    Case("LayerNormalization", floats((4096, 512), (512,), (512,)), [((4096, 512), F), ((4096, 1), F), ((4096, 1), F)]),
    Case(
        "BatchNormalization",
        floats(BIG, (64,), (64,), (64,), (64,)),
        [(BIG, F), ((64,), F), ((64,), F)],
        {"training_mode": 1},
    ),
    Case("BatchNormalization", floats(BIG, (64,), (64,), (64,), (64,)), [(BIG, F)]),
    Case(
        "BatchNormalization",
        floats((2, MANY, 2), (MANY,), (MANY,), (MANY,), (MANY,)),
        [((2, MANY, 2), F), ((MANY,), F), ((MANY,), F)],
        {"training_mode": 1},
    ),
    Case(
        "MaxPool",
        floats(BIG),
        [((8, 64, 32, 32), F), ((8, 64, 32, 32), L)],
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    Case("GlobalAveragePool", floats(BIG), [((8, 64, 1, 1), F)]),
    Case("Gemm", floats((1024, 2048), (2048, 1024), (1024,)), [((1024, 1024), F)]),
    Case("MatMul", floats((64, 128, 128), (64, 128, 128)), [((64, 128, 128), F)]),
    Case("Concat", floats(BIG, BIG), [((8, 128, 64, 64), F)], {"axis": 1}),
    Case("Transpose", floats(BIG), [((8, 64, 64, 64), F)], {"perm": [0, 2, 3, 1]}),
    Case("Add", floats(BIG, (64, 1, 1)), [(BIG, F)]), Case("Sum", floats(BIG, BIG, BIG), [(BIG, F)]),
    Case("Erf", floats(BIG), [(BIG, F)]), Case("Dropout", floats(BIG), [(BIG, F)]),
    Case("Gelu", floats(BIG), [(BIG, F)]), Case("Gelu", floats(BIG), [(BIG, F)], {"approximate": "tanh"}),
    Case("Swish", floats(BIG), [(BIG, F)]),
    Case("Attention", floats(*[(2, 8, 512, 64)] * 3), [((2, 8, 512, 64), F)], {"is_causal": 1}),
    Case(
        "LSTM",
        floats((64, 32, 256), (1, 1024, 256), (1, 1024, 256), (1, 2048)),
        [((64, 1, 32, 256), F), ((1, 32, 256), F), ((1, 32, 256), F)],
        {"hidden_size": 256},
    ),
    Case(
        "GRU",
        floats((64, 32, 256), (2, 768, 256), (2, 768, 256), (2, 1536)),
        [((64, 2, 32, 256), F), ((2, 32, 256), F)],
        {"hidden_size": 256, "direction": "bidirectional", "linear_before_reset": 1},
    ),
    Case(
        "RNN",
        [*floats((64, 32, 64), (2, 512, 64), (2, 512, 512), (2, 1024)), ((32,), "int32", 64)],
        [((64, 2, 32, 512), F), ((2, 32, 512), F)],
        {"hidden_size": 512, "direction": "bidirectional"},
    ),
    Case("Gather", [*floats((30_000, 256)), ((4096,), L, 30_000)], [((4096, 256), F)]),
    Case("RMSNormalization", floats((4096, 512), (512,)), [((4096, 512), F)]),
    Case("GridSample", floats(BIG, (8, 64, 64, 2)), [(BIG, F)], {"mode": "cubic"}),
    Case("LpPool", floats(BIG), [((8, 64, 32, 32), F)], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    Case("DFT", [*floats((2, 2**18, 1)), ((), L, -(2**18)), ((), L, -1)], [((2, 2**18, 2), F)]),
    Case(
        "DFT",
        [*floats((1, 90_001, 2)), ((), L, -180_001), ((), L, -1)],
        [((1, 180_001, 1), F)],
        {"onesided": 1, "inverse": 1},
    ),
    Case("Conv", halves((2, 64, 64, 64), (32, 64, 3, 3)), [((2, 32, 64, 64), H)], PADS),
    *(Case(op, halves(BIG), [(BIG, H)]) for op in ("Softmax", "Erf", "Gelu")),
    *(Case(op, halves(BIG, BIG), [(BIG, H)]) for op in ("Add", "Mul", "Div")),
]  # fmt: skip


@pytest.fixture(scope="module")
def measured() -> list[int]:
    """The peak of each case, measured in one process of its own."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("resident memory can't be measured here")
    cases = [{"op": c.op, "inputs": c.inputs, "outputs": c.outputs, "attributes": c.attributes} for c in CASES]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(cases), capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("index", range(len(CASES)), ids=[f"{k}-{c.op}" for k, c in enumerate(CASES)])
def test_formulas_bound_what_kernels_hold(measured: list[int], index: int) -> None:
    expected = CASES[index].expected
    assert measured[index] <= expected + SLACK
    assert expected <= 2 * measured[index] + SLACK


def test_the_large_ones_are_not_all_slack() -> None:
    assert sum(case.expected > 4 * SLACK for case in CASES) >= 10
