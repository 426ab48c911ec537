"""A small file can't ask for gigabytes or minutes: what is cost too much to compute ahead stays or is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import model_proto
from tests.support.frontends import floats, run, text_model

LIMIT_BYTES = 4 * 10**9
CPU_S = 60

_WEIGHT = ", ".join(f"{(7 * k % 13 - 6) / 10}" for k in range(48))


def network(ahead: str, weights: str = "", functions: str = "") -> onnx.ModelProto:
    """A layer of 6 outputs, to which the constant `m` is added that `ahead` computes; `one` is 1.0."""
    return text_model(
        f"""g (float[4, 8] x) => (float[4, 6] y)
        <float[8, 6] w = {{{_WEIGHT}}}, float[1] one = {{1.0}}, int64[1] zero = {{0}}{weights}>
        {{ a = MatMul(x, w)  {ahead}  y = Add(a, m) }}{functions}"""
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
    "range": _greatest("t = Range(b, e, d)", ", int64 b = {0}, int64 e = {1500000000}, int64 d = {2}"),
    "doubled": _greatest(
        "c0 = Neg(one)  " + "".join(f"c{k + 1} = Concat <axis = 0> (c{k}, c{k})  " for k in range(31)) + "t = Abs(c31)"
    ),
    "einsum": _shaped('t = Einsum <equation = "i,j,k->i"> (e, e, e)', 3_000),
    "pooled": _shaped("t = AveragePool <kernel_shape = [7, 7]> (e)", 1, 6, 200, 200),
    "regions": _greatest(
        "e = Expand(one, s)  r = Expand(one, p)  i = Expand(zero, q)  "
        "t = RoiAlign <output_height = 50, output_width = 50> (e, r, i)",
        ", int64[4] s = {1, 24, 48, 48}, int64[2] p = {40, 4}, int64[1] q = {40}",
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
    assert any("cost too much to compute ahead" in note for note in expand["notes"])


def test_what_stays_computes_the_same() -> None:
    """Half of a chain is folded, the rest left to the step: no bit changes."""
    model = _greatest(
        "c = Tile(v, s)  d = Tile(c, s)  t = CumSum(d, zero)", ", float[3] v = {0.1, 0.7, -0.3}, int64[1] s = {2500}"
    )
    graph = load_onnx(model, train="w")
    assert [operator.kind for operator in graph.operators] == ["MatMul", "Tile", "CumSum", "Identity", "ReduceMax",
                                                               "Add"]  # fmt: skip
    x = floats(4, 8)
    np.testing.assert_array_equal(run(model_proto(graph), {"x": x})[0], run(model, {"x": x})[0])
