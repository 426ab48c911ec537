"""The trained file is the original with other numbers in what was trained, whatever way the original stores them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import poetopt as po
from poetopt.graph import Graph, Tensor
from poetopt.training.export import BuiltIn, export
from poetopt.util.errors import ModelError
from poetopt.zoo.network import Network
from tests.support.backends import residual

Values = dict[str, Any]


def fresh(graph: Mapping[str, Tensor], names: list[str]) -> Values:
    rng = np.random.default_rng(5)
    return {name: rng.random(graph[name].shape, np.float32) for name in names}


def loaded(source: Any) -> tuple[Graph, list[str]]:
    """The graph, and the names of what changes in it."""
    model = po.load(source)
    assert isinstance(model, po.Model)
    step = model.differentiate(optimizer="sgd").graph
    return model.graph, list(step.carried)


def ran(source: Any, batch: Any) -> Any:
    path = source if isinstance(source, bytes) else str(source)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: batch})[0]


def blanked(model: ModelProto, names: list[str]) -> bytes:
    """A model without the bytes of some tensors."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for proto in copy.graph.initializer:
        if proto.name in names:
            proto.ClearField("raw_data")
            proto.ClearField("float_data")
    return bytes(copy.SerializeToString(deterministic=True))


def in_floats(model: ModelProto) -> ModelProto:
    for proto in model.graph.initializer:
        if proto.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(proto).reshape(-1)
            proto.ClearField("raw_data")
            proto.float_data.extend(values.tolist())
    return model


@pytest.mark.parametrize("form", [lambda model: model, in_floats], ids=["raw", "float_data"])
def test_all_but_the_trained_bytes_is_the_same(form: Callable[[ModelProto], ModelProto], tmp_path: Path) -> None:
    model = form(residual())
    model.graph.doc_string = "kept"
    source, out = tmp_path / "net.onnx", tmp_path / "trained.onnx"
    onnx.save(model, source)
    graph, names = loaded(source)
    values = fresh(graph.tensors, names)
    export(source, names, values, out, known=graph.tensors)
    before, after = source.read_bytes(), out.read_bytes()
    assert len(before) == len(after)
    assert sum(a != b for a, b in zip(before, after, strict=True)) <= sum(v.nbytes for v in values.values())
    written = onnx.load(out)
    assert blanked(written, names) == blanked(model, names)
    again, _ = loaded(out)
    for name, value in values.items():
        np.testing.assert_array_equal(again.values[name], value)
    assert {path.name for path in tmp_path.iterdir()} == {"net.onnx", "trained.onnx"}
    assert onnx.load(source) == model


def test_a_model_in_memory(tmp_path: Path) -> None:
    model = po.zoo.build("mlp", 2)
    graph, names = loaded(model)
    before = model.SerializeToString()
    values = fresh(graph.tensors, names)
    export(model, names, values, tmp_path / "trained.onnx", known=graph.tensors)
    assert model.SerializeToString() == before
    again, _ = loaded(tmp_path / "trained.onnx")
    for name, value in values.items():
        np.testing.assert_array_equal(again.values[name], value)


@pytest.mark.parametrize("name", ["bert-tiny", "lenet", "resnet8"])
def test_a_built_in_network_is_built_elsewhere_to_the_same_bytes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = po.zoo.build(name, 2)
    graph, names = loaded(model)
    values = fresh(graph.tensors, names)
    export(model, names, values, tmp_path / "wanted.onnx", known=graph.tensors)
    with monkeypatch.context() as here:
        here.setattr("poetopt.zoo.build", None)  # never in this process
        export(BuiltIn(name, 2), names, values, tmp_path / "trained.onnx", known=graph.tensors)
    assert (tmp_path / "trained.onnx").read_bytes() == (tmp_path / "wanted.onnx").read_bytes()


@pytest.mark.parametrize("beside", [True, False])
def test_data_in_a_file_of_its_own(beside: bool, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    out = (tmp_path / "in" if beside else tmp_path) / "trained.onnx"
    source = tmp_path / "in" / "net.onnx"
    model = residual()
    onnx.save(model, source, save_as_external_data=True, location="net.bin", size_threshold=100)
    data = (tmp_path / "in" / "net.bin").read_bytes()
    graph, names = loaded(source)
    values = fresh(graph.tensors, names)
    export(source, names, values, out, known=graph.tensors)
    again, _ = loaded(out)
    for name, value in graph.values.items():
        np.testing.assert_array_equal(again.values[name], values.get(name, value))
    assert (tmp_path / "in" / "net.bin").read_bytes() == data
    assert len((out.parent / "trained.onnx.data").read_bytes()) == len(data)
    structure = onnx.load(source, load_external_data=False)
    written = onnx.load(out, load_external_data=False)
    assert written.graph.node == structure.graph.node
    assert [p.name for p in written.graph.initializer] == [p.name for p in structure.graph.initializer]


def tied() -> ModelProto:
    """An embedding whose table is the output layer's matrix too, transposed, as exporters store it."""
    net = Network("tied", 3)
    ids = net.input("ids", (4,), TensorProto.INT64)
    table = np.random.default_rng(0).standard_normal((11, 6)).astype(np.float32)
    x = net.add("Gather", [net.weight("table", table), ids], "gather", axis=0)
    x = net.relu(net.linear(x, "fc", 6, 6), "relu")
    model = net.model(net.add("MatMul", [x, net.weight("onnx::MatMul_9", table.T.copy())], "head"), (4, 11))
    del model.metadata_props[:]  # which call each of its tensors a parameter
    return model


def merged() -> ModelProto:
    """A BatchNormalization whose fresh statistics are its fresh bias and scale, as an exporter merges them."""
    model = residual()
    equal = {"bn1.running_mean": "bn1.bias", "bn1.running_var": "bn1.weight"}
    for node in model.graph.node:
        for k, name in enumerate(node.input):
            if name in equal:
                node.input[k] = equal[name]
    kept = [proto for proto in model.graph.initializer if proto.name not in equal]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return model


def by_identity() -> ModelProto:
    """The same, as an exporter writes it that says so by nodes."""
    model = merged()
    node = next(node for node in model.graph.node if node.op_type == "BatchNormalization")
    nodes = [helper.make_node("Identity", [node.input[k]], [name]) for k, name in ((3, "mean1"), (4, "var1"))]
    node.input[3], node.input[4] = "mean1", "var1"
    whole = [*nodes, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(whole)
    return model


def in_nodes() -> ModelProto:
    """Weights as constants of nodes."""
    model = po.zoo.build("mlp", 2)
    nodes = [helper.make_node("Constant", [], [proto.name], value=proto) for proto in model.graph.initializer]
    del model.graph.initializer[:]
    whole = [*nodes, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(whole)
    return model


def fresh_layers() -> ModelProto:
    """Scales and biases of two normalizations that an exporter merged, and a third that has none of its own."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        net (float[2, 4] x) => (float[2, 4] y) {
          a = LayerNormalization (x, scale, shift)
          b = MatMul (a, w)
          c = LayerNormalization (b, scale, shift)
          d = LayerNormalization (c, scale)
          y = Gemm (d, w)
        }""")
    for name, value in {
        "scale": np.ones(4),
        "shift": np.zeros(4),
        "w": np.random.default_rng(1).normal(size=(4, 4)),
    }.items():
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    said = ["%p_0_s, %p_0_b", "%p_w", "%p_1_s, %p_1_b", "None", "%p_w, %p_c"]
    for node, args in zip(model.graph.node, said, strict=True):
        node.name = f"node_{node.output[0]}"
        node.metadata_props.add(key="pkg.torch.onnx.fx_node", value=f"%{node.output[0]} : [args = (%x, {args})")
    model.graph.node[4].metadata_props.add(key="pkg.onnxscript.rewriter.rule_name", value="RemoveOptionalBiasFromGemm")
    names = {"p_0_s": "scale", "p_0_b": "shift", "p_1_s": "1.scale", "p_1_b": "1.shift", "p_w": "w", "p_c": "c.bias"}
    text = "\n".join(f"{held}: PARAMETER target='{name}'" for held, name in names.items())
    model.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value=text)
    return model


def test_parameters_that_were_merged_are_those_of_the_module(tmp_path: Path) -> None:
    onnx.save(fresh_layers(), tmp_path / "net.onnx")
    graph, _ = loaded(tmp_path / "net.onnx")
    assert set(graph.trained) == {"scale", "shift", "1.scale", "1.shift", "w", "c.bias"}


@pytest.mark.parametrize("network", [tied, merged, by_identity, in_nodes, fresh_layers])
def test_tensors_that_the_frontend_told_apart_or_joined(network: Callable[[], ModelProto], tmp_path: Path) -> None:
    """The written file computes what the graph computes with those values."""
    source, out = tmp_path / "net.onnx", tmp_path / "trained.onnx"
    onnx.save(network(), source)
    graph, names = loaded(source)
    values = fresh(graph.tensors, names)
    export(source, names, values, out, known=graph.tensors)
    again, same = loaded(out)
    assert same == names
    for name, value in values.items():
        np.testing.assert_array_equal(again.values[name], value)
    onnx.checker.check_model(onnx.load(out), full_check=True)
    (first,) = graph.inputs
    batch = np.zeros(graph.tensors[first].shape, graph.tensors[first].dtype)
    assert not np.array_equal(ran(source, batch), ran(out, batch))
    if network is tied:
        held = {proto.name: numpy_helper.to_array(proto) for proto in onnx.load(out).graph.initializer}
        np.testing.assert_array_equal(held["onnx::MatMul_9"], values["table"].T)


def test_what_can_t_be_written_is_said(tmp_path: Path) -> None:
    source = tmp_path / "net.onnx"
    onnx.save(po.zoo.build("mlp", 2), source, save_as_external_data=True, location="net.bin")
    graph, names = loaded(source)
    export(source, names, fresh(graph.tensors, names), None, known=graph.tensors)
    (tmp_path / "net.bin").rename(tmp_path / "moved")
    with pytest.raises(ModelError, match=r"external data file .*net\.bin' is missing"):
        export(source, names, fresh(graph.tensors, names), None, known=graph.tensors)
    (tmp_path / "moved").unlink()
    onnx.save(po.zoo.build("mlp", 2), source)
    graph, names = loaded(source)
    values = fresh(graph.tensors, names)
    known = {**graph.tensors, "other": graph.tensors[names[0]]}
    with pytest.raises(ModelError, match="no tensor 'other' to write"):
        export(source, [*names, "other"], {**values, "other": values[names[0]]}, None, known=known)
    values[names[0]] = values[names[0]][:1]
    with pytest.raises(ModelError, match="The file is another network's"):
        export(source, names, values, tmp_path / "out.onnx", known=graph.tensors)
    source.write_bytes(source.read_bytes()[:5000])
    with pytest.raises(ModelError, match=r"net\.onnx: the file is cut short"):
        export(source, names, values, tmp_path / "out.onnx", known=graph.tensors)
    with pytest.raises(ModelError, match=r"can't read .*gone\.onnx"):
        export(tmp_path / "gone.onnx", names, values, tmp_path / "out.onnx", known=graph.tensors)
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]
