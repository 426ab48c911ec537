"""Each way a model can be bad ends in one message: what, where, and the remedy; so do damaged files."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from benchmarks.fuzz import DEFECT, tried
from poetopt.frontends.onnx_file import load_onnx
from poetopt.util.errors import ModelError, PoetError, UnsupportedOpError
from tests.frontends.support import F32, floats, model_of, text_model
from tests.seeds import seeds

if TYPE_CHECKING:
    from poetopt.graph import Array

relu = helper.make_node("Relu", ["x"], ["y"], "relu")


def small(opset: int = 18) -> onnx.ModelProto:
    """A Conv, a Reshape and a Gemm, with a constant shape."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", kernel_shape=[3, 3]),
        helper.make_node("Reshape", ["c", "shape"], ["f"], "reshape"),
        helper.make_node("Gemm", ["f", "v"], ["y"], "gemm"),
    ]
    weights: dict[str, Array] = {"w": floats(2, 1, 3, 3), "shape": np.array([2, -1], dtype=np.int64), "v": floats(8, 3)}
    return model_of(nodes, {"x": [2, 1, 4, 4]}, ["y"], weights, opset=opset)


class TestFiles:
    def _load(self, folder: Path, content: bytes) -> None:
        path = folder / "m.onnx"
        path.write_bytes(content)
        load_onnx(path)

    @pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
    def test_truncated(self, tmp_path: Path, share: float) -> None:
        content = small().SerializeToString()
        with pytest.raises(ModelError, match=r"m\.onnx: .*(truncated|incomplete|no graph)"):
            self._load(tmp_path, content[: int(len(content) * share)])

    def test_some_other_protobuf(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="not an ONNX model"):
            self._load(tmp_path, relu.SerializeToString() + b"\0\1\2")


class TestStructure:
    def test_an_opset_from_the_future(self) -> None:
        model = small()
        model.opset_import[0].version = 99
        with pytest.raises(ModelError, match="opset 99 is newer than the installed onnx"):
            load_onnx(model)

    def test_a_missing_input(self) -> None:
        nodes = [helper.make_node("MatMul", ["x", "wieght"], ["y"], "mm")]
        model = model_of(nodes, {"x": [2, 2]}, ["y"], {"weight": floats(2, 2)})
        with pytest.raises(ModelError, match=r"'mm' \(MatMul, opset 18\): reads 'wieght'.*closest names are weight"):
            load_onnx(model)

    def test_a_cycle(self) -> None:
        nodes = [
            helper.make_node("Add", ["x", "b"], ["a"], "first"),
            helper.make_node("Relu", ["a"], ["b"], "second"),
            helper.make_node("Relu", ["b"], ["y"], "third"),
        ]
        with pytest.raises(ModelError, match=r"node 'first' \(Add, opset 18\): on or behind a cycle.*'second'"):
            load_onnx(model_of(nodes, {"x": [1]}, ["y"]))

    @pytest.mark.parametrize("name", ["x", "w", "y"])
    def test_names_written_twice(self, name: str) -> None:
        nodes = [relu, helper.make_node("Tanh", ["x"], [name], "again")]
        with pytest.raises(ModelError, match=f"node 'again' .*writes '{name}'"):
            load_onnx(model_of(nodes, {"x": [1]}, ["y"], {"w": floats(1)}))

    def test_initializers_of_one_name(self) -> None:
        model = small()
        model.graph.initializer.append(model.graph.initializer[0])
        with pytest.raises(ModelError, match="two initializers are called 'w'"):
            load_onnx(model)


class TestOperators:
    def test_an_unknown_operator(self) -> None:
        node = helper.make_node("Rellu", ["x"], ["y"], "r")
        with pytest.raises(UnsupportedOpError, match=r"\(Rellu, opset 18\): no such operator.*Relu"):
            load_onnx(model_of([node], {"x": [1]}, ["y"]))

    def test_a_choice_that_the_data_make(self) -> None:
        branch = helper.make_graph([helper.make_node("Relu", ["x"], ["b"])], "b", [], [onnx.ValueInfoProto(name="b")])
        nodes = [
            helper.make_node("Cast", ["x"], ["c"], to=onnx.TensorProto.BOOL),
            helper.make_node("If", ["c"], ["y"], "choice", then_branch=branch, else_branch=branch),
        ]
        model = model_of(nodes, {"x": [1]}, ["y"])
        with pytest.raises(UnsupportedOpError, match=r"node 'choice' \(If, opset 18\): its condition 'c' isn't known"):
            load_onnx(model)

    def test_dropout_decided_at_run_time(self) -> None:
        model = text_model("g (float[2] x, bool t) => (float[2] y) { y = Dropout (x, , t) }")
        with pytest.raises(UnsupportedOpError, match=r"training_mode .*is not constant"):
            load_onnx(model)


class TestShapes:
    def test_operands_that_do_not_fit(self) -> None:
        node = helper.make_node("MatMul", ["x", "w"], ["y"], "mm")
        with pytest.raises(ModelError, match=r"\(MatMul, opset 18\): its inputs don't fit \(x \[2, 3\], w \[4, 5\]"):
            load_onnx(model_of([node], {"x": [2, 3]}, ["y"], {"w": floats(4, 5)}))

    def test_shapes_that_depend_on_data(self) -> None:
        nodes = [helper.make_node("NonZero", ["x"], ["n"], "nz"), helper.make_node("Cast", ["n"], ["y"], to=F32)]
        with pytest.raises(ModelError, match=r"node 'nz' \(NonZero.*shape of its output 'n' is unknown"):
            load_onnx(model_of(nodes, {"x": [2, 3]}, ["y"]))

    @pytest.mark.parametrize("shape", [[2**40, 2**40], [2**62, 4], [2**31, 2**31, 2**31]])
    def test_hostile_inputs(self, shape: list[int]) -> None:
        with pytest.raises(ModelError, match=r"input 'x' has shape .*TiB"):
            load_onnx(model_of([relu], {"x": shape}, ["y"]))

    def test_data_that_does_not_fit_its_shape(self) -> None:
        model = small()
        model.graph.initializer[0].raw_data = b"1234"
        with pytest.raises(ModelError, match="initializer 'w': its data does not fit"):
            load_onnx(model)


def _flip(rng: random.Random, content: bytearray) -> None:
    for _ in range(rng.randint(1, 4)):
        content[rng.randrange(len(content))] = rng.randrange(256)


def _cut(rng: random.Random, content: bytearray) -> None:
    start = rng.randrange(len(content))
    del content[start : start + rng.randint(1, 40)]


def _double(rng: random.Random, content: bytearray) -> None:
    start = rng.randrange(len(content))
    content[start:start] = content[start : start + rng.randint(1, 40)]


@pytest.mark.parametrize("mutate", [_flip, _cut, _double])
@pytest.mark.parametrize("opset", [11, 18])
def test_damaged_files_end_in_our_errors(
    mutate: Callable[[random.Random, bytearray], None], opset: int, tmp_path: Path
) -> None:
    """Whatever the bytes, a graph or a PoetError: nothing else escapes."""
    model = small(opset)
    model.graph.node.append(helper.make_node("Dropout", ["y"], ["z"], "drop"))
    model.graph.node.append(
        helper.make_node("Constant", [], ["two"], value=numpy_helper.from_array(np.full(3, 2, np.float32)))
    )
    model.graph.node.append(helper.make_node("Pow", ["z", "two"], ["p"], "pow"))
    model.graph.output[0].name = "p"
    original = model.SerializeToString()
    path = tmp_path / "m.onnx"
    rng = random.Random(f"{mutate.__name__}{opset}")
    messages = []
    for _ in range(150):
        content = bytearray(original)
        mutate(rng, content)
        path.write_bytes(content)
        try:
            load_onnx(path)
        except PoetError as error:
            messages.append(str(error))
    assert messages
    assert all("m.onnx" in message for message in messages)


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each file has a process of its own, made by fork")
def test_hostile_inputs() -> None:
    count = len(seeds(100))
    command = [sys.executable, "-m", "benchmarks.fuzz", "--count", str(count), "--seed", "7"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} inputs" in done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each file has a process of its own, made by fork")
def test_a_defect_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(arguments: list[str]) -> int:
        raise KeyError(arguments[0])

    monkeypatch.setattr("poetopt.cli.app.invoke", broken)
    outcome = tried(tmp_path / "none.onnx")
    assert outcome.code == DEFECT
    assert "KeyError" in outcome.message
    assert outcome.failure == "a traceback"
