"""What a file leaves open is said with --batch, --dim, --shape and --value, and the same numbers come out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import helper

from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import model_proto
from poetopt.frontends.reading import from_recipe, read_options
from poetopt.graph import Graph
from poetopt.util.errors import ModelError, OptionError
from tests.support.frontends import floats, model_of, run, text_model

if TYPE_CHECKING:
    from poetopt.graph import Array

FILTER = floats(4, 3, 3, 3)


def images(*dims: int | str | None) -> onnx.ModelProto:
    """A convolution, its mean over height and width, and a dense layer."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1]),
        helper.make_node("ReduceMean", ["h", "axes"], ["m"], keepdims=0),
        helper.make_node("Gemm", ["m", "v"], ["y"]),
    ]
    weights = {"w": FILTER, "v": floats(4, 5), "axes": np.array([2, 3])}
    return model_of(nodes, {"x": dims}, ["y"], weights)


def loaded(
    model: onnx.ModelProto,
    batch: int | None = None,
    *,
    dims: dict[str, int | str] | None = None,
    shapes: dict[str, str] | None = None,
    values: dict[str, object] | None = None,
) -> Graph:
    return load_onnx(model, read_options(batch=batch, dims=dims, shapes=shapes, values=values))


class TestSizes:
    def test_three_ways_to_say_the_same(self) -> None:
        model = images("N", 3, "height", "width")
        found = [
            loaded(model, 2, dims={"height": 8, "width": "6"}),
            loaded(model, dims={"N": 2, "width": 6, "height": 8}),
            loaded(model, shapes={"x": "2x3x8x6"}),
            loaded(model, 2, dims={"height": 8}, shapes={"x": "?,?,?,6"}),
        ]
        x = {"x": floats(2, 3, 8, 6)}
        (expected,) = run(model, x)
        for graph in found:
            assert graph.tensors["x"].shape == (2, 3, 8, 6)
            np.testing.assert_array_equal(run(model_proto(graph), x)[0], expected)

    @pytest.mark.parametrize(
        ("batch", "dims", "shapes", "message"),
        [
            (None, {}, {}, r"--shape x=1x3x\?x\?, or --batch 1 --dim height=\.\.\. --dim width=\.\.\."),
            (2, {"height": 8}, {}, r"dimension 3.*'width'.*--shape x=2x3x8x\?, or --dim width=\.\.\.$"),
            (2, {"N": 3}, {}, r"--dim N=3 contradicts --batch 2: 'N' is the batch"),
            (2, {}, {"x": "3x3x8x8"}, r"--shape x=3x3x8x8 contradicts --batch 2"),
            (None, {"width": 5}, {"x": "1x3x8x8"}, r"--shape x=1x3x8x8 contradicts --dim width=5"),
            (None, {"widht": 5}, {}, r"--dim widht: no input.*'N', 'height', 'width'"),
            (None, {}, {"image": "1x3x8x8"}, r"--shape image=1x3x8x8: no input is called 'image'. There is 'x'"),
            (None, {}, {"x": "3x8x8"}, r"4 dimensions .*not 3. Give --shape x=1x3x\?x\?"),
            (None, {}, {"x": "1x3x0x8"}, r"a size must be a whole number from 1"),
            (None, {}, {"x": "1x3x8xbig"}, r"a size must be a whole number from 1.*as in --shape x=1x3x160x160"),
            (None, {"width": "1e3"}, {}, r"--dim width=1e3: a size must be a whole number"),
            (None, {"width": "9" * 5000}, {}, r"a size must be a whole number"),
        ],
    )
    def test_refusals(
        self, batch: int | None, dims: dict[str, int | str], shapes: dict[str, str], message: str
    ) -> None:
        with pytest.raises((ModelError, OptionError), match=message):
            loaded(images("N", 3, "height", "width"), batch, dims=dims, shapes=shapes)


RATES = """
<then_branch = th () => (float[N,2] t) <float[4,2] w = {1,2,3,4,5,6,7,8}> { a = Relu (x) t = MatMul (a, w) },
 else_branch = el () => (float[N,2] e) <float[4,2] w2 = {8,7,6,5,4,3,2,1}> { a = Tanh (x) e = MatMul (a, w2) }>
"""


def by_rate() -> onnx.ModelProto:
    """Another branch at 16 kHz than at any other rate."""
    return text_model(f"""g (float[N,4] x, int64 rate) => (float[N,2] y) <int64 wide = {{16000}}> {{
        c = Equal (rate, wide)
        y = If (c) {RATES} }}""")


class TestValues:
    @pytest.mark.parametrize(("rate", "trained"), [("16000", "w"), (8000, "w2")])
    def test_the_branch_that_is_taken(self, rate: object, trained: str) -> None:
        graph = loaded(by_rate(), 3, values={"rate": rate})
        assert (graph.inputs, graph.trained) == (("x",), (trained,))
        feeds: dict[str, Array] = {"x": floats(3, 4), "rate": np.array(int(str(rate)), np.int64)}
        np.testing.assert_array_equal(run(model_proto(graph), feeds)[0], run(by_rate(), feeds)[0])
        assert any(f"fixed the input 'rate' at {rate}" in note for note in graph.notes)

    @pytest.mark.parametrize(
        ("values", "message"),
        [({"rat": 1}, "no input is called 'rat'. There is 'rate'"),
         ({"rate": 0.5}, "type int64 can't hold this value"),
         ({"rate": "fast"}, "give a number, true, false, or a list"),
         ({"rate": "[1,2]"}, r"has shape \[\], and this value \[2\]"), ({"rate": 2**70}, "int64"),
         ({"rate": "1e999"}, "give a number"), ({"rate": "[1,[2]]"}, "equally long lists"),
         ({"rate": "[" * 5000}, "give a number"), ({"rate": "9" * 5000}, "give a number"),
         ({"x": 1}, r"is open. Give its values as a list, or --shape x=\?x4 too"),
         ({"x": "[[1,2,3]]"}, r"has shape \['N', 4\], and this value \[1, 3\]"),
         ({"rate": {"a": 1}}, "finite numbers")],
    )  # fmt: skip
    def test_refusals(self, values: dict[str, object], message: str) -> None:
        with pytest.raises(OptionError, match=message):
            loaded(by_rate(), 3, values=values)


def test_a_plan_reads_its_model_again() -> None:
    """What a plan file keeps says the same; links are nobody's to allow but the user's."""
    options = read_options(
        batch=2, train=["fc.*"], dims={"K": 3}, shapes={"x": (None, 3)}, values={"v": np.eye(2)}, allow_symlinks=True
    )
    again = from_recipe(options.to_recipe())
    assert not again.allow_symlinks
    assert from_recipe(options.to_recipe(), allow_symlinks=True) == options
    assert "allow_symlinks" not in options.to_recipe()
    assert read_options(batch=2).to_recipe() == {"batch": 2, "train": None}  # as plans before had it
