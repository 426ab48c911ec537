"""What each mechanism of the search is worth: switches that leave one out, for `benchmarks.solve --without NAME`.

    .venv/bin/python -m benchmarks.solve --json BASE.json
    .venv/bin/python -m benchmarks.solve --without NAME --json WITHOUT.json
    .venv/bin/python -m benchmarks.ablation BASE.json WITHOUT.json [--output FILE.md]

A switch changes one process alone: it replaces the function through which the mechanism is entered, so that the search
goes on as if the mechanism had found nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.output import put


def _replays() -> None:
    from poetopt.search.replays import Replays

    Replays.follow = lambda *_: False  # type: ignore[method-assign]


def _cut_pool() -> None:
    from poetopt.formulations.language import Formulation

    Formulation.revive = lambda *_: []  # type: ignore[method-assign]


def _scope_difference() -> None:
    from poetopt.formulations import retention

    object.__setattr__(retention.retention.search, "scope_difference", None)


def _pressure() -> None:
    from poetopt.formulations.retention.chain_cuts import Pressure

    Pressure.learn_from_point = lambda *_: None  # type: ignore[method-assign]
    Pressure.learn_from_cut = lambda *_: None  # type: ignore[method-assign]


def _separator(name: str) -> Callable[[], None]:
    def switch() -> None:
        from poetopt.formulations import retention

        for block in retention.retention.blocks:
            if block.name == name:
                object.__setattr__(block, "separator", None)

    return switch


MECHANISMS: Mapping[str, Callable[[], None]] = {
    "replays": _replays,
    "cut-pool": _cut_pool,
    "scope-difference": _scope_difference,
    "pressure": _pressure,
    "rounding": _separator("rounding"),
    "chain-cuts": _separator("chain_cuts"),
}
"""By name: what leaves a mechanism out."""


def table(base: Path, without: Path) -> Iterator[str]:
    """Cells side by side: with everything, and without what the row names; of several runs the quickest."""
    whole = {_cell(row): row for row in sorted(_rows(base), key=lambda row: -float(row["total_s"]))}
    yield "| without | cell | gap | total s | with it | total s | worse |"
    yield "|---|---|---|---|---|---|---|"
    for row in sorted(_rows(without), key=lambda row: (row["without"], row["name"])):
        other = whole.get(_cell(row))
        if other is None:
            continue
        worse = [] if row["verdict"] == "ok" else [str(row["verdict"])]
        if row["total_s"] > max(3.0, 1.25 * other["total_s"]):
            worse.append("slower")
        figures = (_gap(row), f"{row['total_s']:.1f}", _gap(other), f"{other['total_s']:.1f}", ", ".join(worse))
        yield f"| {', '.join(row['without'])} | {_cell(row)} | {' | '.join(figures)} |"


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if "total_s" in row]


def _cell(row: Mapping[str, Any]) -> str:
    cell = row["cell"]
    deadline = "" if cell["deadline"] is None else f" {cell['deadline']}x"
    return f"{cell['group']} {cell['problem']} {cell['device']} {cell['ram']:.0%}{deadline} {cell['scope']}"


def _gap(row: Mapping[str, Any]) -> str:
    return "-" if row["overhead_gap"] is None else f"{row['overhead_gap']:.3%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("without", type=Path)
    parser.add_argument("--output", type=Path, help="write the table here (Markdown)")
    arguments = parser.parse_args()
    put(list(table(arguments.base, arguments.without)), arguments.output)


if __name__ == "__main__":
    main()
