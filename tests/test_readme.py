"""The README's Python works as it stands, its commands exist, and what it shows was really printed."""

from __future__ import annotations

import re
from pathlib import Path

from poetopt.cli.app import invoke

PAGE = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


def test_python() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert "nothing to save" not in str(names["report"])
    assert getattr(names["execution"], "bit_identical", False)


def test_commands_exist() -> None:
    for command in sorted(set(re.findall(r"(?:`|\$ |, )poetopt ([a-z-]+)\b", PAGE))):
        assert invoke([command, "--help"]) == 0, command
    shown = re.findall(r"<!-- output: poetopt (\w+) .*? -->\n```\n\$ poetopt \1", PAGE)
    assert shown == ["solve", "run"]


def test_paths_exist() -> None:
    root = Path(__file__).resolve().parents[1]
    for name in ("CONTRIBUTING.md", "docs/ops.md", "docs/limits.md"):
        assert name in PAGE
        assert (root / name).exists()
