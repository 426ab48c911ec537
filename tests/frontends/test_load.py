"""One function loads everything, and says what it would have understood."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from poetopt import frontends, zoo
from poetopt.frontends import load
from poetopt.frontends.proto import save_model
from poetopt.graph import Graph
from poetopt.util.errors import ModelError, OptionError


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
    with pytest.raises(OptionError, match=r"frontend 'net' .*takes only --batch and --train. Leave --dim and --value"):
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


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        (lambda g: {"values": {n: v for n, v in g.values.items() if n != g.trained[0]}}, "reads .*: no input, no init"),
        (lambda g: {"operators": g.operators[1:]}, "reads .*: no input, no initializer, and not written before"),
        (lambda g: {"operators": (*g.operators, g.operators[0])}, "two operators are called"),
        (lambda g: {"outputs": ("nothing",)}, "its output 'nothing' is written by no operator"),
        (lambda g: {"trained": ("nothing",)}, "it trains 'nothing', which is no initializer"),
        (lambda g: {"tensors": {}}, "isn't one of its tensors"),
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
    with pytest.raises(ModelError, match=f"an incomplete graph: .*{missing}.*. Tell its authors"):
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
