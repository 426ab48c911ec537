"""A small file can't ask for gigabytes or minutes: what is too dear to compute ahead stays or is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from poetopt.frontends.draft import NODE_BYTES, PER_BYTE_READ, TOTAL_BYTES, FoldingBudget, work
from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import model_proto
from poetopt.util.errors import ModelError
from tests.frontends.support import floats, run, text_model

LIMIT_BYTES = 4 * 10**9
CPU_S = 60

_WEIGHT = ", ".join(f"{(7 * k % 13 - 6) / 10}" for k in range(48))


def network(ahead: str, weights: str = "", functions: str = "") -> onnx.ModelProto:
    """A layer of 6 outputs, to which the constant `m` is added that `ahead` computes; `one` is 1.0."""
    return text_model(
        f"""g (float[4, 8] x) => (float[4, 6] y)
        <float[8, 6] w = {{{_WEIGHT}}}, float[1] one = {{1.0}}, int64[1] zero = {{0}}{weights}>
        {{ a = MatMul(x, w)  {ahead}  y = Add(a, m) }}{functions}""",
    )


def _greatest(ahead: str, weights: str = "") -> onnx.ModelProto:
    return network(f"{ahead}  u = Cast <to = 1> (t)  m = ReduceMax <keepdims = 0> (u)", weights)


def _shaped(op: str, *shape: int) -> onnx.ModelProto:
    return _greatest(f"e = Expand(one, s)  {op}", f", int64[{len(shape)}] s = {{{', '.join(map(str, shape))}}}")


BOMBS = {
    "expand": _shaped("t = Neg(e)", 900_000_000),
    "many": network(
        "".join(f"e{k} = Expand(one, s)  r{k} = ReduceSum <keepdims = 0> (e{k})  " for k in range(12))
        + f"m = Sum({', '.join(f'r{k}' for k in range(12))})",
        ", int64[1] s = {16000000}",
    ),
    "tile": _greatest("t = Tile(one, s)", ", int64[1] s = {700000000}"),
    "one_hot": _greatest("t = OneHot(zero, d, v)", ", int64 d = {600000000}, float[2] v = {0.0, 1.0}"),
    "pad": _greatest("t = Pad(one, s)", ", int64[2] s = {3, 600000000}"),
    "range": _greatest("t = Range(b, e, d)", ", int64 b = {0}, int64 e = {1500000000}, int64 d = {2}"),
    "upsampled": _greatest(
        'f = Expand(one, t4)  t = Resize <mode = "linear"> (f, , , s)',
        ", int64[4] t4 = {1, 1, 2, 2}, int64[4] s = {1, 1, 25000, 25000}",
    ),
    "doubled": _greatest(
        "c0 = Neg(one)  " + "".join(f"c{k + 1} = Concat <axis = 0> (c{k}, c{k})  " for k in range(31)) + "t = Abs(c31)"
    ),
    "outer": _shaped("f = Transpose(e)  t = MatMul(e, f)", 45_000, 1),
    "product": _shaped("t = MatMul(e, e)", 3_500, 3_500),
    "einsum": _shaped('t = Einsum <equation = "i,j,k->i"> (e, e, e)', 3_000),
    "window": _shaped("t = LpPool <kernel_shape = [70, 70]> (e)", 1, 4, 250, 250),
    "pooled": _shaped("t = AveragePool <kernel_shape = [7, 7]> (e)", 1, 6, 200, 200),
    "norm": _shaped("t = LRN <size = 21> (e)", 1, 48, 200, 200),
    "regions": _greatest(
        "e = Expand(one, s)  r = Expand(one, p)  i = Expand(zero, q)  "
        "t = RoiAlign <output_height = 50, output_width = 50> (e, r, i)",
        ", int64[4] s = {1, 24, 48, 48}, int64[2] p = {40, 4}, int64[1] q = {40}",
    ),
    "sampled": _greatest(
        "e = Expand(one, s)  g = Expand(one, p)  t = GridSample(e, g)",
        ", int64[4] s = {1, 8, 150, 150}, int64[4] p = {1, 400, 400, 2}",
    ),
    "scattered": _greatest(
        "e = Expand(one, s)  i = Expand(zero, p)  t = ScatterND(e, i, e)",
        ", int64[1] s = {2500000}, int64[2] p = {2500000, 1}",
    ),
    "recurrent": _greatest(
        "e = Expand(one, s)  k = Expand(one, p)  t, h = RNN <hidden_size = 16> (e, k, k)",
        ", int64[3] s = {60000, 2, 16}, int64[3] p = {1, 16, 16}",
    ),
    "function": network(
        "m = own.bomb(s)",
        ", int64[1] s = {650000000}",
        '\n<domain: "own", opset_import: ["" : 18]> bomb (q) => (r) '
        "{ t = ConstantOfShape(q)  r = ReduceMax <keepdims = 0> (t) }",
    ),
    "unstored": text_model(
        """g (float[4, 8] x) => (float[4, 6] y) <int64[2] s = {8, 300000000}, int64[2] p = {300000000, 6}>
        { w = ConstantOfShape <value = float[1] {0.1}> (s)  v = ConstantOfShape(p)
          a = MatMul(x, w)  y = MatMul(a, v) }"""
    ),
}
"""Files of at most some kilobytes whose constants take gigabytes or minutes."""
BOMBS["function"].opset_import.add(domain="own", version=1)

REFUSED = {
    "count": (_greatest("t = Range(b, e, d)", ", float b = {0.0}, float e = {3.0}, float d = {1e-37}"), "1 TiB"),
    "endless": (
        _greatest("t = Range(b, e, d)", ", double b = {0.0}, double e = {1e300}, double d = {1e-300}"),
        "no finite number",
    ),
    "still": (
        _greatest("t = Range(b, e, d)", ", float b = {0.0}, float e = {3.0}, float d = {0.0}"),
        "no finite number",
    ),
    "chosen": (_shaped("t = NonZero(e)", 250, 250, 250), "'t' is not computed ahead: it would write 375 MB"),
    "suppressed": (
        _greatest(
            "e = Expand(one, s)  f = Expand(one, p)  t = NonMaxSuppression(e, f, k)",
            ", int64[3] s = {1, 15000, 4}, int64[3] p = {1, 1, 15000}, int64[1] k = {90000}",
        ),
        "'t' is not computed ahead: its work can't be told",
    ),
    "a shape": (
        network(
            "e = Expand(shape, s)  f = Slice(e, zero, two)  b = Reshape(x, f)  m = ReduceMax <keepdims = 0> (b)",
            ", int64[1] shape = {8}, int64[1] s = {90000000}, int64[1] two = {2}",
        ),
        "'f' is not computed ahead: it would write 720 MB",
    ),
    "a condition": (
        network(
            "e = Expand(one, s)  r = ReduceMax <keepdims = 0> (e)  c = Cast <to = 9> (r)  "
            "m = If (c) <then_branch = p () => (float t) { t = Constant <value = float {1.0}> () }, "
            "else_branch = q () => (float f) { f = Constant <value = float {2.0}> () }>",
            ", int64[1] s = {800000000}",
        ),
        "its condition 'c' isn't known",
    ),
    "a loop": (
        network(
            "m = Loop (n, , one) <body = b (int64 i, bool go, float[1] v) => (bool on, float[1] w2) "
            "{ on = Identity(go)  w2 = Add(v, v) }>",
            ", int64 n = {2000000000}",
        ),
        "control flow",
    ),
}
"""What can't stay an operator, and what the message says."""

_CHILD = """
import json, resource, sys
from poetopt.cli.app import invoke
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
resource.setrlimit(resource.RLIMIT_CPU, ({cpu}, {cpu}))
for path in sys.argv[1:]:
    print(json.dumps([path, invoke(["inspect", path, "--device", "a72", "--train", "w", "--json", path + ".json"])]))
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps(["peak", int(peak.split()[1]) * 1024]))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the peak is read from /proc")
def test_bombs_stay_operators(tmp_path: Path) -> None:
    """All of them in one process, which may take 4 GB and a minute, and takes a fraction."""
    paths = [tmp_path / f"{name}.onnx" for name in BOMBS]
    for path, model in zip(paths, BOMBS.values(), strict=True):
        path.write_bytes(model.SerializeToString())
    child = _CHILD.format(limit=LIMIT_BYTES, cpu=CPU_S)
    done = subprocess.run(
        [sys.executable, "-c", child, *map(str, paths)], capture_output=True, text=True, timeout=600, check=False
    )
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert told[:-1] == [[str(path), 0] for path in paths], done.stderr
    name, peak = told[-1]
    assert name == "peak"
    assert peak < 10**9
    expand = json.loads((tmp_path / "expand.onnx.json").read_text(encoding="utf-8"))
    assert expand["training"]["store_all_peak_bytes"] >= 3_600_000_000  # the step computes it, and the answer says so
    assert any("too dear to compute ahead" in note for note in expand["notes"])


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_stay_is_refused_by_name(name: str) -> None:
    model, message = REFUSED[name]
    with pytest.raises(ModelError) as caught:
        load_onnx(model, train="w")
    assert message in str(caught.value)
    assert ";" in str(caught.value)


def test_what_stays_computes_the_same() -> None:
    """Half of a chain is folded, the rest left to the step: no bit changes."""
    model = _greatest(
        "c = Tile(v, s)  d = Tile(c, s)  t = CumSum(d, zero)", ", float[3] v = {0.1, 0.7, -0.3}, int64[1] s = {2500}"
    )
    graph = load_onnx(model, train="w")
    assert [operator.kind for operator in graph.operators] == [
        "MatMul",
        "Tile",
        "CumSum",
        "Identity",
        "ReduceMax",
        "Add",
    ]
    x = floats(4, 8)
    np.testing.assert_array_equal(run(model_proto(graph), {"x": x})[0], run(model, {"x": x})[0])


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool", "LpPool"])
def test_heavy_kernels_are_folded_by_onnxruntime(kind: str) -> None:
    model = network(
        f"e = Reshape(v, s)  p = {kind} <kernel_shape = [3, 3]> (e)  q = Flatten(p)  m = Slice(q, zero, six, o)",
        f", float[64] v = {{{', '.join(str(k * 37 % 29 / 7) for k in range(64))}}}, int64[4] s = {{1, 1, 8, 8}}, "
        "int64[1] six = {6}, int64[1] o = {1}",
    )
    graph = load_onnx(model, train="w")
    assert [operator.kind for operator in graph.operators] == ["MatMul", "Add"]
    x = floats(4, 8, seed=5)
    np.testing.assert_array_equal(run(model_proto(graph), {"x": x})[0], run(model, {"x": x})[0])


def test_constants_that_nothing_reads_give_their_bytes_back() -> None:
    """Ten times 48 MB, one after the other, are within 256; the same held at once are not."""
    weights = ", int64[1] s = {12000000}"
    turns = "".join(f"e{k} = Expand(one, s)  r{k} = ReduceMax <keepdims = 0> (e{k})  " for k in range(10))
    graph = load_onnx(network(f"{turns} m = Sum({', '.join(f'r{k}' for k in range(10))})", weights), train="w")
    assert [operator.kind for operator in graph.operators] == ["MatMul", "Add"]
    beside = "".join(f"e{k} = Expand(one, s)  " for k in range(10))
    held = network(
        f"{beside} t = Max({', '.join(f'e{k}' for k in range(10))})  m = ReduceMax <keepdims = 0> (t)", weights
    )
    kinds = [operator.kind for operator in load_onnx(held, train="w").operators]
    assert 0 < kinds.count("Expand") < 10


def test_stored_weights_raise_the_budget() -> None:
    small, large = FoldingBudget(), FoldingBudget(stored_bytes=10**9)
    assert "are allowed" in small.excess(NODE_BYTES + 1, 0, 1)
    assert not small.excess(NODE_BYTES + 400, 100, 1)
    small.take(TOTAL_BYTES, 1)
    large.take(TOTAL_BYTES, 1)
    assert "constants would take" in small.excess(1, 0, 1)
    assert not large.excess(1, 0, 1)
    large.take(PER_BYTE_READ * 10**9, 1)
    assert "constants would take" in large.excess(1, 0, 1)
    large.give_back(1)
    assert not large.excess(1, 0, 1)


def test_work_counts_elements_and_flops() -> None:
    nodes = network(
        't = MatMul(v, v)  e = Einsum <equation = "ij,jk->ik"> (v, v)  m = ReduceMax(t)',
        ", float[2,2] v = {1.0, 2.0, 3.0, 4.0}",
    ).graph.node
    product = next(node for node in nodes if node.op_type == "MatMul" and node.input[0] == "v")
    einsum = next(node for node in nodes if node.op_type == "Einsum")
    assert work(product, [(20, 30), (30, 50)], [(20, 50)]) == 600 + 1500 + 1000 + 2 * 20 * 30 * 50
    assert work(einsum, [(20, 30), (30, 50)], [(20, 50)]) == 600 + 1500 + 1000 + 2 * 20 * 30 * 50
