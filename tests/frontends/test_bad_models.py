"""Each way a model can be bad ends in one message: what, where, and the remedy."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from poetopt.frontends.onnx_file import load_onnx
from poetopt.util.errors import ModelError, PoetError, UnsupportedOpError
from tests.support.frontends import F32, floats, model_of, text_model

if TYPE_CHECKING:
    from poetopt.graph import Array

I64, F64 = onnx.TensorProto.INT64, onnx.TensorProto.DOUBLE


def node(op: str, read: str, written: str = "y", name: str = "", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, read.split(), written.split(), name, **attributes)


relu = node("Relu", "x", "y", "relu")


def small(opset: int = 18) -> onnx.ModelProto:
    """A Conv, a Reshape and a Gemm, with a constant shape."""
    nodes = [node("Conv", "x w", "c", kernel_shape=[3, 3]), node("Reshape", "c shape", "f"), node("Gemm", "f v")]
    weights: dict[str, Array] = {"w": floats(2, 1, 3, 3), "shape": np.array([2, -1], dtype=np.int64), "v": floats(8, 3)}
    return model_of(nodes, {"x": [2, 1, 4, 4]}, ["y"], weights, opset=opset)


def changed(change: Callable[[onnx.ModelProto], object], model: onnx.ModelProto | None = None) -> onnx.ModelProto:
    """A small model after a change."""
    model = small() if model is None else model
    change(model)
    return model


def alone(
    *nodes: onnx.NodeProto, x: Sequence[int] = (1,), y: str = "y", opset: int = 18, **weights: Array
) -> onnx.ModelProto:
    """A model of these nodes, from x to y."""
    return model_of(nodes, {"x": list(x)}, [y], weights, opset=opset)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


BYTES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "file is empty"),
    "text": (b"Sorry, the page you were looking for was not found.\n", "a text file, not an ONNX model"),
    "another protobuf": (relu.SerializeToString() + b"\0\1\2", "not an ONNX model"),
    "a picture": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06", "not an ONNX model"),
    **{
        f"{share} of it": (
            small().SerializeToString()[: int(len(small().SerializeToString()) * share)],
            r"m\.onnx: .*(truncated|incomplete|no graph)",
        )
        for share in (0.1, 0.5, 0.9, 0.999)
    },
}


@pytest.mark.parametrize("what", BYTES)
def test_a_file_that_is_none(what: str, tmp_path: Path) -> None:
    content, told = BYTES[what]
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=told):
        load_onnx(tmp_path / "m.onnx")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.onnx: can't be read \(No such file"):
        load_onnx(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="can't be read"):
        load_onnx(tmp_path)


CYCLE = [node("Add", "x b", "a", "first"), node("Relu", "a", "b", "second"), node("Relu", "b", "y", "third")]
STRUCTURE: dict[str, tuple[onnx.ModelProto, str]] = {
    "no graph": (onnx.ModelProto(ir_version=8), "no graph"),
    "an empty graph": (model_of([], {}, []), "graph is empty"),
    "no outputs": (model_of([relu], {"x": [1]}, []), "no outputs"),
    "an output that is an input": (alone(relu, y="x"), "no node leads to an output"),
    "all is constant": (alone(node("Shape", "x"), x=(2, 3)), "every output is constant"),
    "no opset": (changed(lambda m: m.ClearField("opset_import")), "no opset"),
    "an opset from the future": (
        changed(lambda m: setattr(m.opset_import[0], "version", 99)),
        "opset 99 is newer than the installed onnx",
    ),
    "a missing input": (
        alone(node("MatMul", "x wieght", name="mm"), x=(2, 2), weight=floats(2, 2)),
        r"'mm' \(MatMul, opset 18\): reads 'wieght'.*closest names are weight",
    ),
    "a missing output": (alone(relu, y="z"), "output 'z' is written by no node"),
    "an output listed twice": (model_of([relu], {"x": [1]}, ["y", "y"]), "'y' is listed twice"),
    "a cycle": (alone(*CYCLE), r"node 'first' \(Add, opset 18\): on or after a cycle.*'second'"),
    "a node that reads itself": (alone(node("Relu", "y")), "cycle"),
    **{
        f"{name} written twice": (alone(relu, node("Tanh", "x", name, "again"), w=floats(1)), f"'again' .*es '{name}'")
        for name in "xwy"
    },
    "two initializers": (
        changed(lambda m: m.graph.initializer.append(m.graph.initializer[0])),
        "initializers are .*'w'",
    ),
    "two inputs": (changed(lambda m: m.graph.input.append(m.graph.input[0])), "two inputs are called 'x'"),
    "a sparse initializer": (changed(lambda m: m.graph.sparse_initializer.append(onnx.SparseTensorProto())), "sparse"),
    "an attribute that the operator lacks": (
        alone(node("Relu", "x", name="r", slope=0.5)),
        r"node 'r' \(Relu, opset 18\): .*slope",
    ),
}
SHAPES: dict[str, tuple[onnx.ModelProto, str]] = {
    "operands that don't fit": (
        alone(node("MatMul", "x w"), x=(2, 3), w=floats(4, 5)),
        r"\(MatMul, opset 18\): its inputs don't fit \(x \[2, 3\], w \[4, 5\]",
    ),
    "a reshape that loses elements": (
        alone(node("Reshape", "x s", name="r"), x=(2, 3), s=ints(2, 2)),
        r"node 'r' .*can't turn shape \[2, 3\] into \[2, 2\]",
    ),
    "of data": (
        alone(node("NonZero", "x", "n", "nz"), node("Cast", "n", to=F32), x=(2, 3)),
        r"node 'nz' \(NonZero.*shape of its output 'n' is unknown",
    ),
    "an input without shape": (
        changed(lambda m: m.graph.input[0].type.tensor_type.ClearField("shape"), alone(relu)),
        "input 'x' has no shape",
    ),
    "negative": (alone(relu, x=(1, -7)), "dimension 1 is -7, negative"),
    **{
        f"an input of {shape}": (alone(relu, x=shape), r"input 'x' has shape .*TiB")
        for shape in ((2**40, 2**40), (2**62, 4), (2**31, 2**31, 2**31))
    },
    **{
        f"weights of {dims}": (
            changed(lambda m, dims=dims: m.graph.initializer[2].dims.__setitem__(slice(None), dims)),  # type: ignore[misc]
            r"initializer 'v' has .*(negative|TiB)",
        )
        for dims in ([-3, -4], [2**40, 2**40])
    },
    **{
        f"{nodes[0].op_type} of terabytes": (
            alone(*nodes, x=(1, 1), n=ints(2**31, 2**31), a=np.float32(0), b=np.float32(1e15), d=np.float32(1)),  # type: ignore[arg-type]
            "TiB",
        )
        for nodes in (
            [node("Expand", "x n")],
            [node("Tile", "x n")],
            [node("ConstantOfShape", "n", "c"), node("Mul", "x c")],
            [node("Range", "a b d", "c"), node("Mul", "x c")],
        )
    },
    "data of another shape": (
        changed(lambda m: setattr(m.graph.initializer[0], "raw_data", b"1234")),
        "initializer 'w': its data does not fit",
    ),
    "strings": (
        changed(lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 8), alone(node("Identity", "x"))),
        "input 'x': element type STRING",
    ),
}
THEN = helper.make_graph([node("Relu", "x", "b")], "b", [], [onnx.ValueInfoProto(name="b")])
SPARSE = helper.make_sparse_tensor(numpy_helper.from_array(floats(2), "v"), numpy_helper.from_array(ints(1, 5)), [2, 3])
UNSUPPORTED: dict[str, tuple[onnx.ModelProto, str]] = {
    **{
        f"a sparse constant at {opset}": (
            alone(node("Constant", "", "w", "thin", sparse_value=SPARSE), node("MatMul", "x w"), x=(4, 2), opset=opset),
            rf"'thin' \(Constant, opset {opset}\): its value is sparse",
        )
        for opset in (12, 18)
    },
    "another domain": (
        alone(node("FusedConv", "x", name="fused", domain="com.mine")),
        r"'fused' \(com.mine.FusedConv, opset 18\).*standard",
    ),
    **{
        f"onnxruntime's {op}": (
            alone(node(op, "x", name="fused", domain="com.microsoft")),
            rf"'fused' .*{op}, opset 18\).*give the file from before .*'basic'",
        )
        for op in ("FusedConv", "FusedMatMul")
    },
    "an unknown operator": (alone(node("Rellu", "x")), r"\(Rellu, opset 18\): no such operator.*Relu"),
    "one of a newer opset": (
        alone(node("Gelu", "x"), opset=13),
        r"\(Gelu, opset 13\): no such operator in this opset; opset 20",
    ),
    "a choice that the data make": (
        alone(node("Cast", "x", "c", to=9), node("If", "c", "y", "choice", then_branch=THEN, else_branch=THEN)),
        r"node 'choice' \(If, opset 18\): its condition 'c' isn't known",
    ),
    "sequences": (
        alone(
            node("SequenceConstruct", "x", "s"),
            node("SequenceErase", "s", "t"),
            node("ConcatFromSequence", "t", axis=0),
        ),
        "sequences",
    ),
    "dropout decided at run time": (
        text_model("g (float[2] x, bool t) => (float[2] y) { y = Dropout (x, , t) }"),
        "training_mode .*is not constant",
    ),
    "an input that is a sequence": (
        changed(
            lambda m: setattr(m.graph.input[0].type.sequence_type.elem_type.tensor_type, "elem_type", F32), alone(relu)
        ),
        "input 'x' is a sequence",
    ),
}


@pytest.mark.parametrize(("model", "told"), [*STRUCTURE.values(), *SHAPES.values()], ids=[*STRUCTURE, *SHAPES])
def test_a_model_that_is_bad(model: onnx.ModelProto, told: str) -> None:
    with pytest.raises(ModelError, match=told):
        load_onnx(model)


@pytest.mark.parametrize("what", UNSUPPORTED)
def test_a_model_that_is_not_supported(what: str) -> None:
    model, told = UNSUPPORTED[what]
    with pytest.raises(UnsupportedOpError, match=told):
        load_onnx(model)


@pytest.mark.parametrize("version", [-(2**63), -(2**31), -1, 2**31, 2**40, 2**63 - 1])
@pytest.mark.parametrize("opset", [11, 18])
def test_versions_beyond_any(version: int, opset: int) -> None:
    model = small(opset)
    model.ir_version = version
    with pytest.raises(ModelError, match=f"states version {version} of ONNX's format"):
        load_onnx(model)
    model = small(opset)
    model.model_version = version
    model.opset_import.add(domain="other", version=version)
    assert load_onnx(model).operators
    model.opset_import[0].version = version
    with pytest.raises(ModelError, match=r"opset \d+ is newer|states no opset"):
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
    two = numpy_helper.from_array(np.full(3, 2, np.float32))
    model.graph.node.extend(
        [node("Dropout", "y", "z"), node("Constant", "", "two", value=two), node("Pow", "z two", "p")]
    )
    model.graph.output[0].name = "p"
    original, rng, messages = model.SerializeToString(), random.Random(f"{mutate.__name__}{opset}"), []
    for _ in range(150):
        content = bytearray(original)
        mutate(rng, content)
        (tmp_path / "m.onnx").write_bytes(content)
        try:
            load_onnx(tmp_path / "m.onnx")
        except PoetError as error:
            messages.append(str(error))
    assert messages
    assert all("m.onnx" in message for message in messages)


def typed(
    node: onnx.NodeProto, *types: tuple[int, Sequence[int]], opset: int = 20, of: Sequence[int] | None = None
) -> onnx.ModelProto:
    """A model of one node, whose inputs are the graph's, and whose outputs have a shape that it may state."""
    infos = [helper.make_tensor_value_info(n, *of) for n, of in zip(node.input, types, strict=True)]
    results = [helper.make_tensor_value_info(name, F32, of) for name in node.output]
    graph = helper.make_graph([node], "g", infos, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


EQUATIONS = ["a.b->ab", "..", "i" + "." * 2000, "i...j...->ij", "ij->jk", "i,j->ij", "i>j"]
FAR = -(2**31)
ASKED: list[tuple[onnx.ModelProto, str]] = [
    *(
        (typed(node("Einsum", "x", equation=e), (F32, [2, 3]), opset=k), "equation")
        for e in EQUATIONS
        for k in (12, 18)
    ),
    *((typed(node("Split", "x", "y z", num_outputs=k), (F32, [4]), opset=18), "num_outputs") for k in (1, 3, 10**9)),
    *(
        (typed(node(op, "x s"), (F32, [2]), (I64, [count]), opset=k), "axes")
        for op, count in (("Expand", 2**31 - 1), ("Expand", 2**20), ("Tile", 2**31 - 1))
        for k in (12, 18)
    ),
    (typed(node("GatherND", "x i", batch_dims=FAR), (F32, [2, 3]), (I64, [2]), opset=12), "batch_dims|axis"),
    (typed(node("LayerNormalization", "x i", "y m", axis=FAR), (F32, [2, 3]), (F32, [3]), opset=17), "batch_dims|axis"),
]
"""Each of these makes ONNX's own inference loop for ever, take gigabytes or crash, at some opset."""
TYPES = [  # the files state the shape, so that inference, which refuses the types, is not needed
    typed(node("Gather", "a b"), (F32, [4, 2]), (F32, [3]), of=[3, 2]),
    typed(node("Add", "a b"), (F32, [3]), (I64, [3]), of=[3]),
    typed(node("Add", "a b"), (F32, [3]), (F64, [3]), of=[3]),
    typed(node("Concat", "a b", axis=0), (F32, [3]), (I64, [3]), of=[6]),
    typed(node("Sigmoid", "a"), (I64, [3]), of=[3]),
    typed(node("Where", "a b c"), (F32, [3]), (F32, [3]), (F32, [3]), of=[3]),
]


def inside_a_function() -> onnx.ModelProto:
    function = helper.make_function(
        "own", "f", ["x", "i"], ["y"], [node("Gather", "x i")], [helper.make_opsetid("", 20)]
    )
    model = typed(node("f", "x i", domain="own"), (F32, [4, 2]), (F32, [3]), of=[3, 2])
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    return model


@pytest.mark.parametrize(("model", "told"), [*ASKED, *((one, "type") for one in (*TYPES, inside_a_function()))])
def test_what_inference_is_not_asked(model: onnx.ModelProto, told: str) -> None:
    with pytest.raises(ModelError, match=told):
        load_onnx(model)


def test_masks_of_dropout_take_no_memory() -> None:
    load_onnx(typed(node("Dropout", "x", "y mask"), (F32, [2**20, 2**17]), opset=18))


def test_a_converted_expand_and_norm_are_the_same() -> None:
    model = text_model(
        """g (float[2, 3] x) => (float[4, 2, 3] y) <float[3] s = {1, 2, 3}> {
            n = LayerNormalization (x, s)
            r = Shape (n)
            f = Constant <value_ints = [4]> ()
            t = Concat <axis = 0> (f, r)
            y = Expand (n, t)
        }""",
        opset=17,
    )
    graph = load_onnx(model)
    assert [o.kind for o in graph.operators] == ["LayerNormalization", "Expand"]
    assert (graph.tensors["y"].shape, graph.opset) == ((4, 2, 3), 18)


ENDS: list[tuple[str, int, list[int], dict[str, Any], str]] = [
    ("GatherND", F32, [4, 6], {"i": ints(1, -7)[None]}, "index -7 of an axis of 6"),
    ("GatherND", F32, [4, 6], {"i": ints(4)[None]}, "index 4 of an axis of 4"),
    ("ScatterND", F32, [4, 6], {"i": ints(2**62, 0)[None], "u": np.ones(1, np.float32)}, "axis of 4"),
    ("Mod", I64, [3], {"i": ints(2, 0, 1)}, "divides integers by 0"),
    ("Div", I64, [3], {"i": np.array(0)}, "divides integers by 0"),
    ("QuantizeLinear", F32, [2, 3], {"s": np.ones(3, np.float32), "z": np.zeros(3, np.int8)}, "axis"),
]
"""Indices outside of an axis, whole numbers divided by 0, scales along an axis that isn't there: they end a runtime."""


@pytest.mark.parametrize(("op", "kind", "shape", "values", "told"), ENDS)
def test_operands_that_end_a_runtime(op: str, kind: int, shape: list[int], values: dict[str, Any], told: str) -> None:
    model = typed(node(op, "x0", axis=99) if op == "QuantizeLinear" else node(op, "x0"), (kind, shape))
    model.graph.node[0].input.extend(values)
    model.graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in values.items())
    with pytest.raises(ModelError, match=told):
        load_onnx(model)
