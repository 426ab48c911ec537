"""One function loads everything, and says what it would have understood."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

from poetopt import frontends, zoo
from poetopt.frontends import load
from poetopt.frontends.proto import save_model
from poetopt.frontends.summary import summary
from poetopt.graph import Graph
from poetopt.util.errors import ModelError, OptionError
from tests.frontends.support import floats, model_of


def test_zoo_names() -> None:
    graph = load("mlp", batch=3, train="fc3.*")
    assert isinstance(graph, Graph)
    assert graph.source == "mlp"
    assert graph.trained == ("fc3.weight", "fc3.bias")
    assert graph.tensors["input"].shape == (3, 784)


def test_files_and_models(tmp_path: Path) -> None:
    graph = load("lenet")
    assert isinstance(graph, Graph)
    path = tmp_path / "net.onnx"
    save_model(graph, path)
    again = load(path)
    assert isinstance(again, Graph)
    assert again.source == str(path)
    in_memory = load(zoo.build("lenet"))
    assert isinstance(in_memory, Graph)
    assert in_memory.content_hash == graph.content_hash


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "resnet18",
            r"resnet18: neither a file nor a network of the zoo; closest: resnet18-cifar or resnet\d+;.*`poetopt zoo`",
        ),
        ("quux", r"quux: neither a file nor a network of the zoo.*\.onnx file"),
        ("missing.onnx", r"missing\.onnx: no such file.*a network: autoencoder, bert-base"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load(name)


def test_close_file_names(tmp_path: Path) -> None:
    (tmp_path / "network.onnx").write_bytes(b"")
    with pytest.raises(ModelError, match=r"did you mean .*network\.onnx"):
        load(tmp_path / "netwrok.onnx")


def test_problem_files_have_no_batch(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text("{}")
    with pytest.raises(ModelError, match="leave --batch and --train out"):
        load(path, batch=2)
    with pytest.raises(OptionError, match="leave --shape out"):
        frontends.load_model(path, frontends.read_options(shapes={"x": "2x3"}))


def test_other_packages_register_endings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*, group: str) -> list[EntryPoint]:
        return [
            EntryPoint("net", "tests.frontends.test_load:read_net", group),
            EntryPoint("broken", "tests.frontends.no_such_module:read", group),
            EntryPoint("odd", "tests.frontends.test_load:read_odd", group),
        ]

    monkeypatch.setattr(frontends, "entry_points", found)
    for ending in ("net", "broken", "odd"):
        (tmp_path / f"a.{ending}").write_text(ending)
    graph = load(tmp_path / "a.net", batch=5)
    assert isinstance(graph, Graph)
    assert graph.tensors["input"].shape == (5, 784)
    assert graph.source == str(tmp_path / "a.net")  # where a plan looks for it, whatever the frontend says
    assert graph.content_hash
    with pytest.raises(OptionError, match=r"frontend 'net' .*takes --batch and --train alone; leave --dim and --value"):
        frontends.load_model(tmp_path / "a.net", frontends.read_options(dims={"K": 3}, values={"s": 1}))
    with pytest.raises(ModelError, match=r"frontend 'broken' .*can't be loaded"):
        load(tmp_path / "a.broken")
    with pytest.raises(ModelError, match=r"a\.odd: frontend 'odd' \(entry point .*returned a int, not a Graph"):
        load(tmp_path / "a.odd")
    (tmp_path / "a.odd").write_text("raise")
    with pytest.raises(ModelError, match=r"frontend 'odd' .* failed: KeyError: 'weights' \(test_load\.py:\d+\)"):
        load(tmp_path / "a.odd")
    with pytest.raises(ModelError, match=r"b\.net: no such file"):
        load(tmp_path / "b.net")


def test_endings_that_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*, group: str) -> list[EntryPoint]:
        return [EntryPoint(name, f"tests.frontends.test_load:{what}", group)
                for name, what in (("onnx", "read_net"), ("net", "read_net"), ("NET", "read_odd"))]  # fmt: skip

    monkeypatch.setattr(frontends, "entry_points", found)
    for ending, message in (
        ("onnx", r"\.onnx files are read by poetopt itself, and by entry point .*; uninstall that"),
        ("net", r"\.net files are read by entry point .*read_odd and entry point .*read_net; uninstall one of them"),
    ):
        (tmp_path / f"a.{ending}").write_text("net")
        with pytest.raises(ModelError, match=message):
            load(tmp_path / f"a.{ending}")


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        (lambda g: {"values": {n: v for n, v in g.values.items() if n != g.trained[0]}}, "reads .*: no input, no init"),
        (lambda g: {"operators": g.operators[1:]}, "reads .*: no input, no initializer, and not written before"),
        (lambda g: {"operators": (*g.operators, g.operators[0])}, "two operators are called"),
        (lambda g: {"outputs": ("nothing",)}, "its output 'nothing' is written by no operator"),
        (lambda g: {"trained": ("nothing",)}, "it trains 'nothing', which is no initializer"),
        (lambda g: {"tensors": {}}, "none of its tensors"),
    ],
)
def test_graphs_of_other_packages_are_whole(
    change: Callable[[Graph], dict[str, Any]], missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path, **_: object) -> Graph:
        graph = load("mlp")
        assert isinstance(graph, Graph)
        return replace(graph, **change(graph))

    point = EntryPoint("net", "tests.frontends.test_load:read_net", "poetopt.frontends")
    monkeypatch.setattr(frontends, "entry_points", lambda *, group: [point])
    monkeypatch.setattr("tests.frontends.test_load.read_net", read)
    (tmp_path / "a.net").write_text("net")
    with pytest.raises(ModelError, match=f"a graph that isn't whole: .*{missing}.*; tell its authors"):
        load(tmp_path / "a.net")


def read_odd(path: Path, *, batch: int | None, train: str | None) -> int:
    """A frontend that doesn't keep the contract."""
    if path.read_text() == "raise":
        raise KeyError("weights")
    return 3


def read_net(path: Path, *, batch: int | None, train: str | None) -> Graph:
    """A frontend of another package."""
    assert path.read_text() == "net"
    graph = load("mlp", batch=batch, train=train)
    assert isinstance(graph, Graph)
    return graph


def test_summary() -> None:
    graph = load("resnet18-cifar", batch=2, train="layer4.*")
    assert isinstance(graph, Graph)
    found = summary(graph)
    assert found["operators_by_type"] == {
        "BatchNormalization": 20, "Conv": 20, "Relu": 17, "Add": 8, "Flatten": 1, "Gemm": 1, "GlobalAveragePool": 1,
    }  # fmt: skip
    assert found["inputs"] == [{"name": "input", "shape": [2, 3, 32, 32], "dtype": "float32", "bytes": 24576}]
    trained, frozen = found["trained"], found["frozen"]
    assert isinstance(trained, dict)
    assert isinstance(frozen, dict)
    assert trained["tensors"] == len(graph.trained) == 15
    assert trained["tensors"] + frozen["tensors"] == 102
    assert trained["bytes"] == 4 * trained["elements"]


def test_importing_is_light() -> None:
    code = "import sys, poetopt.frontends; sys.exit('onnx' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


PEAK = """
import sys
import onnx
from poetopt.frontends import load

def high_water():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

load("mlp")  # whatever is imported, is now
before = high_water()
load(onnx.load(sys.argv[2]) if sys.argv[1] == "memory" else sys.argv[2])
print(high_water() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks of memory are read from /proc")
@pytest.mark.parametrize("source", ["memory", "file"])
def test_large_weights_are_not_copied_about(source: str, tmp_path: Path) -> None:
    """There is what was parsed and, before it, the file's bytes, and after it the graph's own values."""
    weight = floats(4_000, 4_000)
    path = tmp_path / "m.onnx"
    onnx.save(
        model_of([helper.make_node("MatMul", ["x", "w"], ["y"], "fc")], {"x": (2, 4_000)}, ["y"], {"w": weight}), path
    )
    command = [sys.executable, "-c", PEAK, source, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2.5 * weight.nbytes


def test_a_model_in_memory_stays_as_it_was() -> None:
    given = zoo.build("lenet")
    before = given.SerializeToString(deterministic=True)
    assert isinstance(load(given), Graph)
    assert given.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("own", ["main_graph", "torch_jit", "tf2onnx", "Main_Graph", "LeNet"])
def test_a_network_that_its_exporter_named_has_its_files_name(own: str, tmp_path: Path) -> None:
    model = zoo.build("mlp", 2)
    model.graph.name = own
    onnx.save(model, tmp_path / "keyword-spotter.onnx")
    named = own if own == "LeNet" else "keyword-spotter"
    loaded = load(tmp_path / "keyword-spotter.onnx")
    assert isinstance(loaded, Graph)
    assert loaded.name == named
    in_memory = load(model)
    assert isinstance(in_memory, Graph)
    assert in_memory.name == own
