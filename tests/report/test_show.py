"""`poetopt show`: which form, where to, and who is told."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from poetopt.plan.codec import save
from poetopt.report.show import SUFFIXES, Form, form_of, show
from poetopt.util.errors import BackendUnavailableError, OptionError
from tests.cli.support import Runner, runner
from tests.report.views import random_view


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Runner:
    return runner(capsys)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    view = random_view(6)
    save(view.plan, tmp_path / "net.json", view.report, ram_bytes=view.ram_bytes, deadline_s=view.deadline_s)
    return tmp_path / "net.json"


@pytest.mark.parametrize("suffix", [suffix for suffix, form in SUFFIXES.items() if form not in (Form.PNG, Form.SVG)])
def test_the_suffix_names_the_form(run: Runner, plan: Path, suffix: str) -> None:
    target = plan.with_name(f"shown{suffix}")
    ended = run("show", plan, "-o", target)
    assert ended.code == 0, ended.err
    assert str(target) in ended.out
    text = target.read_text(encoding="utf-8")
    if SUFFIXES[suffix] is Form.HTML:
        assert text.startswith("<!doctype html>")
    else:
        assert "Recomputed: " in text


def test_without_an_output_the_page_lies_beside_the_plan(run: Runner, plan: Path) -> None:
    before = plan.read_bytes()
    document = run("show", plan, "--json", "-").document
    assert document["format"] == "html"
    assert Path(document["path"]) == plan.with_name("net.schedule.html")
    assert Path(document["path"]).stat().st_size == document["bytes"]
    assert plan.read_bytes() == before


def test_without_an_output_the_text_is_printed(run: Runner, plan: Path) -> None:
    ended = run("show", plan, "--format", "txt")
    assert ended.code == 0
    assert "Paged: " in ended.out
    assert sorted(path.name for path in plan.parent.iterdir()) == ["net.json"]


def test_a_folder_that_is_not_there_means_a_temporary_file(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(plan.parent / "temporary"))
    (plan.parent / "temporary").mkdir()
    # What would be the page is a folder here, so that even root can't write it.
    plan.with_name("net.schedule.html").mkdir()
    found = show(str(plan)).path
    assert found is not None
    assert found.is_relative_to(plan.parent / "temporary")
    assert found.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_options_that_mean_nothing(run: Runner, plan: Path) -> None:
    run("show", plan, "-o", plan.with_name("x.bmp")).assert_one_message("x.bmp", "--format", code=2)
    run("show", plan, "--format", "gif").assert_one_message("gif", "html, png, svg, txt", code=2)
    run("show", plan, "-o", plan).assert_one_message("is the input", code=2)
    run("show", plan.with_name("none.json")).assert_one_message("none.json", code=2)
    assert form_of("x.bmp", "svg") is Form.SVG
    with pytest.raises(OptionError, match="suffix"):
        form_of("x", None)


def test_a_picture_without_matplotlib_says_how_to_get_it(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BackendUnavailableError, match=r"poetopt\[plot\]") as caught:
        show(str(plan), form="png")
    assert caught.value.exit_code == 6
    assert not list(plan.parent.glob("*.png"))
