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

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"none\.onnx: can't be read \(No such file"):
            load_onnx(tmp_path / "none.onnx")

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="can't be read"):
            load_onnx(tmp_path)

    def test_empty(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="file is empty"):
            self._load(tmp_path, b"")

    def test_text(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="a text file, not an ONNX model"):
            self._load(tmp_path, b"Sorry, the page you were looking for was not found.\n")

    @pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
    def test_truncated(self, tmp_path: Path, share: float) -> None:
        content = small().SerializeToString()
        with pytest.raises(ModelError, match=r"m\.onnx: .*(truncated|incomplete|no graph)"):
            self._load(tmp_path, content[: int(len(content) * share)])

    def test_some_other_protobuf(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="not an ONNX model"):
            self._load(tmp_path, relu.SerializeToString() + b"\0\1\2")

    def test_a_picture(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="not an ONNX model"):
            self._load(tmp_path, b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06")


class TestStructure:
    def test_no_graph(self) -> None:
        with pytest.raises(ModelError, match="no graph"):
            load_onnx(onnx.ModelProto(ir_version=8))

    def test_an_empty_graph(self) -> None:
        with pytest.raises(ModelError, match="graph is empty"):
            load_onnx(model_of([], {}, []))

    def test_no_outputs(self) -> None:
        with pytest.raises(ModelError, match="no outputs"):
            load_onnx(model_of([relu], {"x": [1]}, []))

    def test_an_output_that_is_an_input(self) -> None:
        with pytest.raises(ModelError, match="no node leads to an output"):
            load_onnx(model_of([relu], {"x": [1]}, ["x"]))

    def test_everything_is_constant(self) -> None:
        nodes = [helper.make_node("Shape", ["x"], ["y"])]
        with pytest.raises(ModelError, match="every output is constant"):
            load_onnx(model_of(nodes, {"x": [2, 3]}, ["y"]))

    def test_no_opset(self) -> None:
        model = small()
        del model.opset_import[:]
        with pytest.raises(ModelError, match="no opset"):
            load_onnx(model)

    def test_an_opset_from_the_future(self) -> None:
        model = small()
        model.opset_import[0].version = 99
        with pytest.raises(ModelError, match="opset 99 is newer than the installed onnx"):
            load_onnx(model)

    @pytest.mark.parametrize("version", [-(2**63), -(2**31), -1, 2**31, 2**40, 2**63 - 1])
    @pytest.mark.parametrize("opset", [11, 18])
    def test_versions_beyond_any(self, version: int, opset: int) -> None:
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

    def test_a_missing_input(self) -> None:
        nodes = [helper.make_node("MatMul", ["x", "wieght"], ["y"], "mm")]
        model = model_of(nodes, {"x": [2, 2]}, ["y"], {"weight": floats(2, 2)})
        with pytest.raises(ModelError, match=r"'mm' \(MatMul, opset 18\): reads 'wieght'.*closest names are weight"):
            load_onnx(model)

    def test_a_missing_output(self) -> None:
        with pytest.raises(ModelError, match="output 'z' is written by no node"):
            load_onnx(model_of([relu], {"x": [1]}, ["z"]))

    def test_an_output_listed_twice(self) -> None:
        with pytest.raises(ModelError, match="'y' is listed twice"):
            load_onnx(model_of([relu], {"x": [1]}, ["y", "y"]))

    def test_a_cycle(self) -> None:
        nodes = [
            helper.make_node("Add", ["x", "b"], ["a"], "first"),
            helper.make_node("Relu", ["a"], ["b"], "second"),
            helper.make_node("Relu", ["b"], ["y"], "third"),
        ]
        with pytest.raises(ModelError, match=r"node 'first' \(Add, opset 18\): on or after a cycle.*'second'"):
            load_onnx(model_of(nodes, {"x": [1]}, ["y"]))

    def test_a_node_that_reads_itself(self) -> None:
        with pytest.raises(ModelError, match="cycle"):
            load_onnx(model_of([helper.make_node("Relu", ["y"], ["y"])], {"x": [1]}, ["y"]))

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

    def test_inputs_of_one_name(self) -> None:
        model = small()
        model.graph.input.append(model.graph.input[0])
        with pytest.raises(ModelError, match="two inputs are called 'x'"):
            load_onnx(model)

    def test_a_sparse_initializer(self) -> None:
        model = small()
        model.graph.sparse_initializer.append(onnx.SparseTensorProto())
        with pytest.raises(ModelError, match="sparse"):
            load_onnx(model)

    @pytest.mark.parametrize("opset", [12, 18])
    def test_a_sparse_constant(self, opset: int) -> None:
        values = numpy_helper.from_array(floats(2), "v")
        sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1, 5])), [2, 3])
        nodes = [
            helper.make_node("Constant", [], ["w"], "thin", sparse_value=sparse),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ]
        with pytest.raises(UnsupportedOpError, match=rf"'thin' \(Constant, opset {opset}\): its value is sparse"):
            load_onnx(model_of(nodes, {"x": [4, 2]}, ["y"], opset=opset))


class TestOperators:
    def test_another_domain(self) -> None:
        node = helper.make_node("FusedConv", ["x"], ["y"], "fused", domain="com.mine")
        with pytest.raises(UnsupportedOpError, match=r"'fused' \(com.mine.FusedConv, opset 18\).*standard"):
            load_onnx(model_of([node], {"x": [1]}, ["y"]))

    @pytest.mark.parametrize(("op", "domain"), [("FusedConv", "com.microsoft"), ("FusedMatMul", "com.microsoft")])
    def test_what_onnxruntime_optimised(self, op: str, domain: str) -> None:
        node = helper.make_node(op, ["x"], ["y"], "fused", domain=domain)
        with pytest.raises(
            UnsupportedOpError, match=rf"'fused' .*{op}, opset 18\).*give the file from before .*'basic'"
        ):
            load_onnx(model_of([node], {"x": [1]}, ["y"]))

    def test_an_unknown_operator(self) -> None:
        node = helper.make_node("Rellu", ["x"], ["y"], "r")
        with pytest.raises(UnsupportedOpError, match=r"\(Rellu, opset 18\): no such operator.*Relu"):
            load_onnx(model_of([node], {"x": [1]}, ["y"]))

    def test_an_operator_of_a_newer_opset(self) -> None:
        node = helper.make_node("Gelu", ["x"], ["y"], "g")
        with pytest.raises(UnsupportedOpError, match=r"\(Gelu, opset 13\): no such operator in this opset; opset 20"):
            load_onnx(model_of([node], {"x": [1]}, ["y"], opset=13))

    def test_a_choice_that_the_data_make(self) -> None:
        branch = helper.make_graph([helper.make_node("Relu", ["x"], ["b"])], "b", [], [onnx.ValueInfoProto(name="b")])
        nodes = [
            helper.make_node("Cast", ["x"], ["c"], to=onnx.TensorProto.BOOL),
            helper.make_node("If", ["c"], ["y"], "choice", then_branch=branch, else_branch=branch),
        ]
        model = model_of(nodes, {"x": [1]}, ["y"])
        with pytest.raises(UnsupportedOpError, match=r"node 'choice' \(If, opset 18\): its condition 'c' isn't known"):
            load_onnx(model)

    def test_sequences(self) -> None:
        nodes = [
            helper.make_node("SequenceConstruct", ["x"], ["s"], "seq"),
            helper.make_node("SequenceErase", ["s"], ["t"]),
            helper.make_node("ConcatFromSequence", ["t"], ["y"], axis=0),
        ]
        with pytest.raises(UnsupportedOpError, match=r"sequences"):
            load_onnx(model_of(nodes, {"x": [1]}, ["y"]))

    def test_an_attribute_that_the_operator_lacks(self) -> None:
        node = helper.make_node("Relu", ["x"], ["y"], "r", slope=0.5)
        with pytest.raises(ModelError, match=r"node 'r' \(Relu, opset 18\): .*slope"):
            load_onnx(model_of([node], {"x": [1]}, ["y"]))

    def test_dropout_decided_at_run_time(self) -> None:
        model = text_model("g (float[2] x, bool t) => (float[2] y) { y = Dropout (x, , t) }")
        with pytest.raises(UnsupportedOpError, match=r"training_mode .*is not constant"):
            load_onnx(model)


class TestShapes:
    def test_operands_that_do_not_fit(self) -> None:
        node = helper.make_node("MatMul", ["x", "w"], ["y"], "mm")
        with pytest.raises(ModelError, match=r"\(MatMul, opset 18\): its inputs don't fit \(x \[2, 3\], w \[4, 5\]"):
            load_onnx(model_of([node], {"x": [2, 3]}, ["y"], {"w": floats(4, 5)}))

    def test_a_reshape_that_loses_elements(self) -> None:
        node = helper.make_node("Reshape", ["x", "s"], ["y"], "r")
        model = model_of([node], {"x": [2, 3]}, ["y"], {"s": np.array([2, 2], dtype=np.int64)})
        with pytest.raises(ModelError, match=r"node 'r' .*can't turn shape \[2, 3\] into \[2, 2\]"):
            load_onnx(model)

    def test_shapes_that_depend_on_data(self) -> None:
        nodes = [helper.make_node("NonZero", ["x"], ["n"], "nz"), helper.make_node("Cast", ["n"], ["y"], to=F32)]
        with pytest.raises(ModelError, match=r"node 'nz' \(NonZero.*shape of its output 'n' is unknown"):
            load_onnx(model_of(nodes, {"x": [2, 3]}, ["y"]))

    def test_an_input_without_shape(self) -> None:
        model = model_of([relu], {"x": [1]}, ["y"])
        model.graph.input[0].type.tensor_type.ClearField("shape")
        with pytest.raises(ModelError, match="input 'x' has no shape"):
            load_onnx(model)

    def test_a_negative_dimension(self) -> None:
        with pytest.raises(ModelError, match="dimension 1 is -7, negative"):
            load_onnx(model_of([relu], {"x": [1, -7]}, ["y"]))

    @pytest.mark.parametrize("shape", [[2**40, 2**40], [2**62, 4], [2**31, 2**31, 2**31]])
    def test_hostile_inputs(self, shape: list[int]) -> None:
        with pytest.raises(ModelError, match=r"input 'x' has shape .*TiB"):
            load_onnx(model_of([relu], {"x": shape}, ["y"]))

    @pytest.mark.parametrize("dims", [[-3, -4], [2**40, 2**40]])
    def test_hostile_initializers(self, dims: list[int]) -> None:
        model = small()
        model.graph.initializer[2].dims[:] = dims
        with pytest.raises(ModelError, match=r"initializer 'v' has .*(negative|TiB)"):
            load_onnx(model)

    @pytest.mark.parametrize("op", ["Expand", "Tile", "ConstantOfShape", "Range"])
    def test_hostile_results(self, op: str) -> None:
        mul = helper.make_node("Mul", ["x", "c"], ["y"])
        nodes = {
            "Expand": [helper.make_node("Expand", ["x", "n"], ["y"])],
            "Tile": [helper.make_node("Tile", ["x", "n"], ["y"])],
            "ConstantOfShape": [helper.make_node("ConstantOfShape", ["n"], ["c"]), mul],
            "Range": [helper.make_node("Range", ["a", "b", "d"], ["c"]), mul],
        }[op]
        weights: dict[str, Array] = {
            "n": np.array([2**31, 2**31], dtype=np.int64),
            "a": np.array(0, np.float32),
            "b": np.array(1e15, np.float32),
            "d": np.array(1, np.float32),
        }
        model = model_of(nodes, {"x": [1, 1]}, ["y"], weights)
        with pytest.raises(ModelError, match="TiB"):
            load_onnx(model)

    def test_data_that_does_not_fit_its_shape(self) -> None:
        model = small()
        model.graph.initializer[0].raw_data = b"1234"
        with pytest.raises(ModelError, match="initializer 'w': its data does not fit"):
            load_onnx(model)

    def test_an_element_type_that_can_not_be_computed_with(self) -> None:
        model = model_of([helper.make_node("Identity", ["x"], ["y"])], {"x": [1]}, ["y"])
        model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.STRING
        with pytest.raises(ModelError, match="input 'x': element type STRING"):
            load_onnx(model)

    def test_an_input_that_is_a_sequence(self) -> None:
        model = model_of([relu], {"x": [1]}, ["y"])
        model.graph.input[0].type.sequence_type.elem_type.tensor_type.elem_type = F32
        with pytest.raises(UnsupportedOpError, match="input 'x' is a sequence"):
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


def one_node(node: onnx.NodeProto, types: Sequence[tuple[int, Sequence[int]]], opset: int) -> onnx.ModelProto:
    """A model of one node, whose inputs are the graph's."""
    infos = [helper.make_tensor_value_info(n, *of) for n, of in zip(node.input, types, strict=True)]
    results = [helper.make_tensor_value_info(name, F32, None) for name in node.output]
    graph = helper.make_graph([node], "g", infos, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


class TestWhatInferenceIsAsked:
    """Each of these makes ONNX's own inference loop for ever, take gigabytes or crash, at some opset."""

    @pytest.mark.parametrize("opset", [12, 18])
    @pytest.mark.parametrize(
        "equation", ["a.b->ab", "..", "i" + "." * 2000, "i...j...->ij", "ij->jk", "i,j->ij", "i>j"]
    )
    def test_equations(self, equation: str, opset: int) -> None:
        node = helper.make_node("Einsum", ["x"], ["y"], equation=equation)
        with pytest.raises(ModelError, match="equation"):
            load_onnx(one_node(node, [(F32, [2, 3])], opset))

    @pytest.mark.parametrize("count", [1, 3, 10**9])
    def test_parts_of_a_split(self, count: int) -> None:
        with pytest.raises(ModelError, match="num_outputs"):
            load_onnx(one_node(helper.make_node("Split", ["x"], ["y", "z"], num_outputs=count), [(F32, [4])], 18))

    @pytest.mark.parametrize("opset", [12, 18])
    @pytest.mark.parametrize(("count", "node"), [(2**31 - 1, "Expand"), (2**20, "Expand"), (2**31 - 1, "Tile")])
    def test_axes_as_many_as_elements(self, node: str, count: int, opset: int) -> None:
        types = [(F32, [2]), (onnx.TensorProto.INT64, [count])]
        with pytest.raises(ModelError, match="axes"):
            load_onnx(one_node(helper.make_node(node, ["x", "s"], ["y"]), types, opset))

    def test_settings_that_only_the_converter_sees(self) -> None:
        gather = helper.make_node("GatherND", ["x", "i"], ["y"], batch_dims=-(2**31))
        norm = helper.make_node("LayerNormalization", ["x", "i"], ["y", "m"], axis=-(2**31))
        for node, types, opset in (
            (gather, [(F32, [2, 3]), (onnx.TensorProto.INT64, [2])], 12),
            (norm, [(F32, [2, 3]), (F32, [3])], 17),
        ):
            with pytest.raises(ModelError, match=r"batch_dims|axis"):
                load_onnx(one_node(node, types, opset))

    def test_masks_of_dropout_take_no_memory(self) -> None:
        node = helper.make_node("Dropout", ["x"], ["y", "mask"])
        load_onnx(one_node(node, [(F32, [2**20, 2**17])], 18))

    def test_a_converted_expand_and_norm_are_the_same(self) -> None:
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
        assert graph.tensors["y"].shape == (4, 2, 3)
        assert graph.opset == 18


class TestTypes:
    def test_what_an_operator_does_not_take(self) -> None:
        i64, f64 = onnx.TensorProto.INT64, onnx.TensorProto.DOUBLE
        for op, types in (
            ("Gather", [(F32, [4, 2]), (F32, [3])]),
            ("Add", [(F32, [3]), (i64, [3])]),
            ("Add", [(F32, [3]), (f64, [3])]),
            ("Concat", [(F32, [3]), (i64, [3])]),
            ("Sigmoid", [(i64, [3])]),
            ("Where", [(F32, [3]), (F32, [3]), (F32, [3])]),
        ):
            node = helper.make_node(op, [f"x{k}" for k in range(len(types))], ["y"])
            if op == "Concat":
                node.attribute.append(helper.make_attribute("axis", 0))
            with pytest.raises(ModelError, match="type"):
                load_onnx(one_node(node, types, 20))

    def test_operands_that_end_a_runtime(self) -> None:
        """Indices outside of an axis, whole numbers divided by 0, scales along an axis that isn't there."""
        i64 = onnx.TensorProto.INT64
        cases: list[tuple[str, list[tuple[int, list[int]]], dict[str, Any], str]] = [
            ("GatherND", [(F32, [4, 6])], {"i": np.array([[1, -7]])}, "index -7 of an axis of 6"),
            ("GatherND", [(F32, [4, 6])], {"i": np.array([[4]])}, "index 4 of an axis of 4"),
            ("ScatterND", [(F32, [4, 6])], {"i": np.array([[2**62, 0]]), "u": np.ones(1, np.float32)}, "axis of 4"),
            ("Mod", [(i64, [3])], {"i": np.array([2, 0, 1])}, "divides whole numbers by 0"),
            ("Div", [(i64, [3])], {"i": np.array(0)}, "divides whole numbers by 0"),
            ("QuantizeLinear", [(F32, [2, 3])], {"s": np.ones(3, np.float32), "z": np.zeros(3, np.int8)}, "axis"),
        ]
        for op, types, values, told in cases:
            node = helper.make_node(op, ["x0"], ["y"])
            if op == "QuantizeLinear":
                node.attribute.append(helper.make_attribute("axis", 99))
            model = one_node(node, types, 20)
            model.graph.node[0].input.extend(values)
            model.graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in values.items())
            with pytest.raises(ModelError, match=told):
                load_onnx(model)

    def test_inside_a_function(self) -> None:
        function = helper.make_function(
            "own",
            "f",
            ["x", "i"],
            ["y"],
            [helper.make_node("Gather", ["x", "i"], ["y"])],
            [helper.make_opsetid("", 20)],
        )
        model = one_node(helper.make_node("f", ["x", "i"], ["y"], domain="own"), [(F32, [4, 2]), (F32, [3])], 20)
        model.functions.append(function)
        model.opset_import.append(helper.make_opsetid("own", 1))
        with pytest.raises(ModelError, match="type"):
            load_onnx(model)
