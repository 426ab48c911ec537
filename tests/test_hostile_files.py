"""Files that other commands than `inspect` read: what it refuses, they do, and what they write, it reads."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import poetopt as po
from benchmarks.damage import adaptable
from poetopt.api.sweeps import evaluate, opened, put, read_sweep
from poetopt.devices.meters import open_meter
from poetopt.util.errors import ModelError, OptionError
from tests.support.cli import Runner
from tests.support.frontends import model_of


def _without_operand(name: str) -> Callable[[onnx.ModelProto], None]:
    def damage(model: onnx.ModelProto) -> None:
        node = next(node for node in model.graph.node if node.name == name)
        del node.input[-1]

    return damage


def _short(model: onnx.ModelProto) -> None:
    weight = next(one for one in model.graph.initializer if one.name == "q_proj.bias")
    weight.raw_data = weight.raw_data[:-3]


def _elsewhere(model: onnx.ModelProto) -> None:
    idle = model.graph.initializer.add(name="idle", data_type=TensorProto.FLOAT, dims=[1])
    idle.data_location = TensorProto.EXTERNAL
    idle.external_data.add(key="location", value="w.bin\0")


DAMAGED = [
    (("quantize", "--kind", "int8", "--block", "16"), _without_operand("q_proj/MatMul")),
    (("quantize",), _short),
    (("lora", "--targets", "*"), _elsewhere),
    (("lora",), _without_operand("v_proj/Transpose")),
    (("lora", "--merge"), _without_operand("q_proj/Add")),
]


@pytest.mark.parametrize(("command", "damage"), DAMAGED)
def test_what_inspect_refuses_is_not_written_anew(
    command: tuple[str, ...], damage: Callable[[onnx.ModelProto], None], tmp_path: Path, run: Runner
) -> None:
    model = po.lora(adaptable(), 2, "*") if "--merge" in command else adaptable()
    damage(model)
    onnx.save(model, tmp_path / "net.onnx")
    told = run("inspect", tmp_path / "net.onnx")
    told.assert_one_message(code=2)
    ended = run(command[0], tmp_path / "net.onnx", *command[1:], "-o", tmp_path / "out.onnx")
    ended.assert_one_message(told.err.strip(), code=2)
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_what_lora_writes_is_read(dtype: type[np.generic], tmp_path: Path, run: Runner) -> None:
    """Nodes of one name, and weights of other types than float32."""
    nodes = [helper.make_node("MatMul", [x, w], [y], name="layer") for x, w, y in (("x", "w", "h"), ("h", "v", "y"))]
    model = model_of(nodes, {"x": [2, 16]}, ["y"], {"w": np.ones((16, 48), dtype), "v": np.ones((48, 16), dtype)})
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.elem_type = elem
    onnx.save(model, tmp_path / "net.onnx")
    assert run("lora", tmp_path / "net.onnx", "--targets", "*", "--alpha", 3, "-o", tmp_path / "out.onnx").code == 0
    graph = po.load(tmp_path / "out.onnx").graph  # type: ignore[union-attr]
    assert [graph.tensors[name].shape for name in graph.trained] == [(16, 8), (8, 48), (48, 8), (8, 16)]


def test_pairs_that_fit_no_weight_are_not_merged() -> None:
    """The file leaves a size open, so that nothing infers its shapes."""
    model = po.lora(adaptable(), 2, "o*")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    one = next(one for one in model.graph.initializer if one.name == "o.lora_B.weight")
    one.CopyFrom(numpy_helper.from_array(np.ones((2, 7), np.float32), one.name))
    with pytest.raises(ModelError, match="the adapter of"):
        po.merge_lora(model)


def test_a_table_in_another_shape_that_it_hasnt(tmp_path: Path, run: Runner) -> None:
    model = po.quantize(adaptable(), block=16)
    reshape = next(node for node in model.graph.node if node.op_type == "Reshape")
    shape = next(one for one in model.graph.initializer if one.name == reshape.input[1])
    shape.CopyFrom(numpy_helper.from_array(np.array([-1, -1]), shape.name))
    onnx.save(model, tmp_path / "net.onnx")
    run("inspect", tmp_path / "net.onnx").assert_one_message("can't have its shape", code=2)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_storage_that_never_ends(tmp_path: Path, run: Runner) -> None:
    plan = tmp_path / "plan.json"
    onnx.save(adaptable(), tmp_path / "net.onnx")
    assert run("solve", tmp_path / "net.onnx", "--device", "m4", "--optimizer", "sgd", "-o", plan).code == 0
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", "/dev/zero"):
        run("restore", plan, place, "-o", tmp_path / "out.onnx").assert_one_message("a pipe or a device", code=2)


@pytest.mark.parametrize("power", ["-5", "1e308", "nan", "1_0"])
def test_powers_that_no_board_has(power: str, tmp_path: Path) -> None:
    table = tmp_path / "supply.csv"
    table.write_text(f"time,power\n0,5\n1e12,{power}\n", encoding="utf-8")
    with pytest.raises(ModelError, match="no table of readings"):
        open_meter(str(table))


def test_words_of_a_report_that_nothing_says(tmp_path: Path, run: Runner) -> None:
    plan = tmp_path / "plan.json"
    assert run("solve", "mlp", "--device", "a72", "-o", plan).code == 0
    text = plan.read_text(encoding="utf-8")
    assert text.count('"about": "loss"') == text.count('"asks": []') == 1
    for was, nonsense in (('"about": "loss"', '"about": "nonsense"'), ('"asks": []', '"asks": 7')):
        plan.write_text(text.replace(was, nonsense), encoding="utf-8")
        run("show", plan, "-o", "-", "--format", "txt").assert_one_message("The file is damaged", code=2)


VIEW = "DROP TABLE rows; CREATE VIEW rows AS WITH RECURSIVE c(key) AS (VALUES(1) UNION ALL SELECT key + 1 FROM c) "
CHANGES = {
    "endless": f"{VIEW} SELECT * FROM c",
    "trigger": "CREATE TRIGGER t AFTER INSERT ON rows BEGIN DELETE FROM rows; END",
    "blob": "UPDATE rows SET model = x'ff00'",
    "infinite": "UPDATE rows SET energy_j = 9e999",
    "columns": "ALTER TABLE rows ADD COLUMN more",
}


def test_results_that_no_sweep_wrote(tmp_path: Path) -> None:
    sweep, path = tmp_path / "s.toml", tmp_path / "r.sqlite"
    sweep.write_text('models = ["mlp"]\ndevices = ["a72"]\nram = "100%"\n', encoding="utf-8")
    points = read_sweep(sweep)
    with opened(path, points) as store:
        put(store, points[0], evaluate(points[0]))
    sound = path.read_bytes()
    for change in CHANGES.values():
        path.write_bytes(sound)
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(change)
        with pytest.raises(OptionError, match=r"r\.sqlite"), opened(path, points):
            pass
    path.unlink()
    path.symlink_to("/dev/null")
    with pytest.raises(OptionError, match="not a regular file"), opened(path, points):
        pass
