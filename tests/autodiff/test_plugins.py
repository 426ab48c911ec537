"""Gradient rules of other packages, and rules for a while."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from poetopt.autodiff import registry
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp, trial_rules
from poetopt.util.errors import ModelError

MODULE = """
from poetopt.autodiff.registry import register_vjp

@register_vjp("OfAnotherPackage", since=1)
def rule(op, cotangents):
    return (None,)
"""


def nothing(op: Primal, cotangents: Cotangents) -> Gradients:
    return (None,)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with an entry point for the module `their_rules`; rules are looked for anew."""
    registry.load_rules()
    before = registry._snapshot()
    folder = tmp_path / "theirs-2.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 2.0\n", encoding="utf-8")
    (folder / "entry_points.txt").write_text("[poetopt.rules]\nany = their_rules\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_LOADED", [])
    yield tmp_path / "their_rules.py"
    registry._restore(before)


def test_rules_of_other_packages_are_found(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package.write_text(MODULE, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "their_rules", raising=False)
    assert registry.registered()["", "OfAnotherPackage"][1].__module__ == "their_rules"


def test_a_package_that_fails_is_named_each_time(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package.write_text(MODULE + "\n1 / 0\n", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "their_rules", raising=False)
    for _ in range(2):
        with pytest.raises(
            ModelError, match=r"package theirs 2\.0, entry point poetopt\.rules: any.*ZeroDivisionError"
        ):
            registry.load_rules()
    package.write_text(MODULE.replace("OfAnotherPackage", "Relu").replace("since=1", "since=6"), encoding="utf-8")
    with pytest.raises(ModelError, match=r"Relu .* is registered already"):
        registry.load_rules()


def test_rules_for_a_while() -> None:
    built_in = registry.registered()["", "Neg"]
    since = next(iter(built_in))
    with trial_rules():
        register_vjp("Neg", since=since)(nothing)
        assert registry.registered()["", "Neg"] == {since: nothing}
        with pytest.raises(ModelError, match="registered already"):
            register_vjp("Neg", since=since)(nothing)
    assert registry.registered()["", "Neg"] == built_in
