"""Writes the lists of docs/decisions/index.md and docs/experiments/index.md anew: `python docs/records.py`.

A list begins behind the mark in its page; all above it is written by hand. `tests/test_records.py` holds that
the lists are those of the files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
MARK = "<!-- The list below is written by docs/records.py. -->\n"
AREAS = {
    "01": "The package, its interface, its errors",
    "02": "Reading models",
    "03": "Gradients and graph passes",
    "04": "Devices, runtimes, profiles and timing",
    "05": "Plans, simulation and execution",
    "06": "The problem and its formulations",
    "07": "Pyomo models and backends",
    "08": "The engine",
    "09": "Proofs and reports",
    "10": "Orders, comparisons and sweeps",
    "11": "Documentation and tests",
}
"""What the first two digits of a decision's number say."""
DECISION = re.compile(r"(\d{4})-[a-z0-9-]+\.md")
EXPERIMENT = re.compile(r"(\d{4}-\d{2}-\d{2})-[a-z0-9-]+\.md")
STATUS = re.compile(r"accepted|dropped|superseded by \[(\d{4})\]\((\d{4}-[a-z0-9-]+\.md)\)")


@dataclass(frozen=True)
class Record:
    """One file: its name, its first line and the `- Key: value` lines below that."""

    name: str
    title: str
    fields: dict[str, str]


def record(path: Path) -> Record:
    """Read a file's head. Raises ValueError where its first line is no title."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or not lines[0].startswith("# "):
        raise ValueError(f"{path.name}: the first line is no '# Title'")
    fields = {}
    for line in lines[1:]:
        found = re.fullmatch(r"- (\w+): (.+)", line)
        if found:
            fields[found[1]] = found[2]
        elif line:
            break
    return Record(path.name, lines[0][2:], fields)


def decisions(folder: Path = HERE / "decisions") -> list[Record]:
    """All decisions, by number."""
    return [record(path) for path in sorted(folder.glob("[0-9]*.md"))]


def experiments(folder: Path = HERE / "experiments") -> list[Record]:
    """All experiments, the oldest first."""
    return [record(path) for path in sorted(folder.glob("[0-9]*.md"))]


def list_of_decisions(found: list[Record]) -> str:
    """A heading for each area that has decisions, and a row for each of them."""
    parts = []
    for digits, area in AREAS.items():
        rows = [
            f"| [{each.name[:4]}]({each.name}) | {each.title} | {each.fields['Date']} | {each.fields['Status']} |\n"
            for each in found
            if each.name.startswith(digits)
        ]
        if rows:
            parts.append(f"\n## {area}\n\n| | decision | date | status |\n|---|---|---|---|\n{''.join(rows)}")
    return "".join(parts)


def list_of_experiments(found: list[Record]) -> str:
    """A row for each."""
    rows = [f"| [{each.title}]({each.name}) | {each.fields['Date']} | {each.fields['Commit']} |\n" for each in found]
    return "\n| experiment | date | commit |\n|---|---|---|\n" + "".join(rows)


def with_list(page: Path, written: str) -> str:
    """The page's text with the list behind its mark replaced. Raises ValueError where the mark is missing."""
    above, mark, _ = page.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise ValueError(f"{page.name}: the line {MARK.strip()!r} is missing")
    return above + mark + written


def pages() -> dict[Path, str]:
    """Both pages as they should be."""
    first, second = HERE / "decisions" / "index.md", HERE / "experiments" / "index.md"
    return {
        first: with_list(first, list_of_decisions(decisions())),
        second: with_list(second, list_of_experiments(experiments())),
    }


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
