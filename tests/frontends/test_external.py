"""Weights in files of their own: none is read that the model's folder doesn't hold."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from poetopt.frontends import external
from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.read import array_of, read_model
from poetopt.frontends.reading import read_options
from poetopt.util.errors import ModelError
from tests.support.cli import runner
from tests.support.frontends import floats, model_of, run

SECRET = floats(3, 2, seed=5)
LINKED = "symbolic link out of the model's folder.*--allow-symlinks"


def tensor(name: str, location: str = "w.bin") -> TensorProto:
    """Three by two floats in a file."""
    found = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[3, 2], data_location=TensorProto.EXTERNAL)
    found.external_data.add(key="location", value=location)
    return found


def as_initializer() -> onnx.ModelProto:
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [4, 3]}, ["y"])
    model.graph.initializer.append(tensor("w"))
    return model


def as_constant() -> onnx.ModelProto:
    nodes = [helper.make_node("Constant", [], ["w"], value=tensor("w")), helper.make_node("MatMul", ["x", "w"], ["y"])]
    return model_of(nodes, {"x": [4, 3]}, ["y"])


def in_branch() -> onnx.ModelProto:
    """In the branch that is taken; the other one names a file that isn't there."""
    branches = {}
    for name, location in (("then_branch", "w.bin"), ("else_branch", "none.bin")):
        nodes = [helper.make_node("MatMul", ["x", "w"], ["z"])]
        result = helper.make_tensor_value_info("z", TensorProto.FLOAT, [4, 2])
        branches[name] = helper.make_graph(nodes, name, [], [result], [tensor("w", location)])
    model = model_of([helper.make_node("If", ["c"], ["y"], **branches)], {"x": [4, 3]}, ["y"])
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "c"))
    return model


def in_function() -> onnx.ModelProto:
    nodes = [helper.make_node("Constant", [], ["w"], value=tensor("w")), helper.make_node("MatMul", ["a", "w"], ["b"])]
    imports = [helper.make_opsetid("", 18)]
    model = model_of([helper.make_node("dense", ["x"], ["y"], domain="own")], {"x": [4, 3]}, ["y"])
    model.functions.append(helper.make_function("own", "dense", ["a"], ["b"], nodes, imports))
    model.opset_import.append(helper.make_opsetid("own", 1))
    return model


def in_default() -> onnx.ModelProto:
    """The default of a function's attribute."""
    value = helper.make_node("Constant", [], ["w"])
    value.attribute.add(name="value", type=onnx.AttributeProto.TENSOR, ref_attr_name="weight")
    nodes = [value, helper.make_node("MatMul", ["a", "w"], ["b"])]
    model = model_of([helper.make_node("dense", ["x"], ["y"], domain="own")], {"x": [4, 3]}, ["y"], ir_version=9)
    function = helper.make_function("own", "dense", ["a"], ["b"], nodes, [helper.make_opsetid("", 18)])
    function.attribute_proto.append(helper.make_attribute("weight", tensor("w")))
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    return model


PLACES = [as_initializer, as_constant, in_branch, in_function, in_default]
Maker = Callable[[], onnx.ModelProto]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where models are; a secret lies beside it."""
    (tmp_path / "secret.bin").write_bytes(SECRET.tobytes())
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def saved(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("make", PLACES)
def test_a_link_out_of_the_folder(folder: Path, make: Maker) -> None:
    path = saved(make(), folder / "m.onnx")
    (folder / "w.bin").symlink_to("../secret.bin")
    with pytest.raises(ModelError, match=LINKED):
        load_onnx(path)
    allowed = load_onnx(path, read_options(allow_symlinks=True))
    assert any(np.array_equal(array, SECRET) for array in allowed.values.values())
    os.unlink(folder / "w.bin")
    shutil.copy(folder.parent / "secret.bin", folder / "w.bin")
    assert any(np.array_equal(array, SECRET) for array in load_onnx(path).values.values())


def test_other_ways_out(folder: Path) -> None:
    """A linked folder, two links in a row, an absolute link."""
    path = saved(as_initializer(), folder / "m.onnx")
    (folder / "out").symlink_to("..")
    (folder / "hop").symlink_to("out/secret.bin")
    for target in ("hop", "out/secret.bin", folder.parent / "secret.bin"):
        (folder / "w.bin").symlink_to(target)
        with pytest.raises(ModelError, match=LINKED):
            load_onnx(path)
        os.unlink(folder / "w.bin")
    model = as_initializer()
    model.graph.initializer[0].external_data[0].value = "out/secret.bin"
    with pytest.raises(ModelError, match=LINKED):
        load_onnx(saved(model, path))
    for location in ("../secret.bin", "/etc/hostname", "", "w\0.bin"):
        model.graph.initializer[0].external_data[0].value = location
        for options in (read_options(), read_options(allow_symlinks=True)):
            with pytest.raises(ModelError, match="not a path beside the model"):
                load_onnx(saved(model, path), options)


def test_a_folder_of_a_similar_name(folder: Path) -> None:
    path = saved(as_initializer(), folder / "m.onnx")
    shutil.copytree(folder, folder.parent / "models2")
    (folder.parent / "models2" / "w.bin").write_bytes(SECRET.tobytes())
    (folder / "w.bin").symlink_to("../models2/w.bin")
    with pytest.raises(ModelError, match=LINKED):
        load_onnx(path)


def test_links_that_stay_inside(folder: Path) -> None:
    """A link to a file of the folder, a folder that is a link itself, and a model that is one."""
    (folder / "data").mkdir()
    (folder / "data" / "v1.bin").write_bytes(SECRET.tobytes())
    (folder / "w.bin").symlink_to("data/v1.bin")
    path = saved(as_initializer(), folder / "m.onnx")
    (folder.parent / "current").symlink_to("models")
    (folder / "latest.onnx").symlink_to("m.onnx")
    for place in (path, folder.parent / "current" / "m.onnx", folder / "latest.onnx"):
        np.testing.assert_array_equal(load_onnx(place).values["w"], SECRET)


def test_a_cache_of_links(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Model and weights are links into a folder of blobs: allowed, which a plan doesn't grant itself."""
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "1f").write_bytes(SECRET.tobytes())
    saved(as_initializer(), blobs / "2e")
    (snapshot / "w.bin").symlink_to("../../blobs/1f")
    (snapshot / "m.onnx").symlink_to("../../blobs/2e")
    poetopt, plan = runner(capsys), folder / "plan.json"
    solve = ("solve", snapshot / "m.onnx", "--device", "a72", "-o", plan)
    poetopt(*solve).assert_one_message("w.bin", "--allow-symlinks", code=2)
    assert poetopt(*solve, "--allow-symlinks").code == 0
    for command in ("run", "verify"):
        poetopt(command, plan).assert_one_message("w.bin", "--allow-symlinks", code=2)
        assert poetopt(command, plan, "--allow-symlinks").code == 0


def test_what_is_no_file(folder: Path) -> None:
    """A pipe that nobody writes to, a folder, a device: refused at once, links allowed or not."""
    path = saved(as_initializer(), folder / "m.onnx")
    made: list[Callable[[Path], None]] = [os.mkfifo, Path.mkdir, lambda place: place.symlink_to("/dev/zero")]
    for make in made:
        make(folder / "w.bin")
        for allow in (False, True):
            with pytest.raises(ModelError, match=r"w\.bin' is not a file"):
                load_onnx(path, read_options(allow_symlinks=allow))
        (folder / "w.bin").rmdir() if (folder / "w.bin").is_dir() else (folder / "w.bin").unlink()


def test_a_system_that_tells_no_paths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path is followed again there, with the same answers."""
    monkeypatch.setattr(external, "_path_of", lambda descriptor: None)
    path = saved(as_initializer(), folder / "m.onnx")
    (folder / "w.bin").symlink_to("../secret.bin")
    with pytest.raises(ModelError, match=LINKED):
        load_onnx(path)
    os.unlink(folder / "w.bin")
    (folder / "w.bin").write_bytes(SECRET.tobytes())
    np.testing.assert_array_equal(load_onnx(path).values["w"], SECRET)


@pytest.mark.skipif(sys.platform != "linux", reason="links are exchanged atomically by renaming")
def test_exchanging_the_link_meanwhile(folder: Path) -> None:
    """A link that points inside and outside in turn: what is read is never the secret."""
    path = saved(as_initializer(), folder / "m.onnx")
    (folder / "own.bin").write_bytes(bytes(24))
    (folder / "w.bin").symlink_to("own.bin")
    ended = threading.Event()

    def exchange() -> None:
        turn = 0
        while not ended.is_set():
            turn += 1
            (folder / "next").symlink_to(("own.bin", "../secret.bin")[turn % 2])
            os.rename(folder / "next", folder / "w.bin")

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for _ in range(60):
            try:
                found = load_onnx(path).values["w"]
            except ModelError:
                continue
            assert not found.any()
    finally:
        ended.set()
        thread.join()


def test_the_numbers_are_those_of_the_file(folder: Path) -> None:
    path = saved(in_branch(), folder / "m.onnx")
    (folder / "w.bin").write_bytes(SECRET.tobytes())
    x = floats(4, 3)
    graph = load_onnx(path)
    np.testing.assert_array_equal(graph.values["w"], SECRET)
    inline = onnx.load(path, load_external_data=False)
    for attribute in inline.graph.node[0].attribute:
        attribute.g.initializer[0].CopyFrom(numpy_helper.from_array(SECRET, "w"))
    from poetopt.frontends.proto import model_proto

    np.testing.assert_array_equal(run(model_proto(graph), {"x": x})[0], run(inline, {"x": x})[0])


def test_a_folder_that_is_exchanged_once_the_model_is_read(folder: Path) -> None:
    """The link to the model's folder, and then the folder itself, lead to another one that has a file of that name."""
    secret = folder.parent / "other"
    secret.mkdir()
    floats(3, 2, seed=9).tofile(secret / "w.bin")
    mine = floats(3, 2, seed=8)
    mine.tofile(folder / "w.bin")
    saved(as_initializer(), folder / "m.onnx")
    way = folder.parent / "way"
    way.symlink_to(folder.name)
    document = read_model(way / "m.onnx")
    way.unlink()
    way.symlink_to(secret.name)
    assert np.array_equal(array_of(document, "w"), mine)
    folder.rename(folder.parent / "gone")
    folder.symlink_to(secret.name)
    with pytest.raises(ModelError, match="a symbolic link out of the model's folder"):
        array_of(document, "w")
