"""Command lines run in this process, and small problem files to run them on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from poetopt.cli.app import invoke
from poetopt.util.progress import Told, silent

REPORT_KEYS = {
    "status", "scope", "formulation", "backend", "operators", "tensors", "ram_budget_bytes", "store_all_peak_bytes",
    "resident_bytes", "peak_bytes", "arena_bytes", "baseline_energy_j", "energy_j", "overhead_j", "energy_bound_j",
    "overhead_bound_j", "gap", "overhead_gap", "makespan_s", "deadline_s", "recomputes", "page_outs", "page_ins",
    "plan_bytes", "build_s", "solve_s", "total_s",
}  # fmt: skip
"""What the specification lists for `solve --json`."""


@dataclass(frozen=True)
class Ended:
    """How a command line ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object on stdout, which must be all of it."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    def assert_one_message(self, *parts: str, code: int) -> None:
        """One message on stderr that says `parts`, nothing on stdout, and the exit code."""
        assert self.code == code, self.err
        assert self.err.startswith("poetopt: ")
        assert self.err.count("poetopt: ") == 1
        assert "Traceback" not in self.err
        assert self.out == ""
        for part in parts:
            assert part in self.err, self.err


Runner = Callable[..., Ended]


def in_this_process(_what: str, function: Callable[..., object], *arguments: object, told: Told = silent) -> object:
    """What `poetopt.util.process.call` does, without the second that another process takes to begin."""
    return function(*arguments, told=told)


def runner(capsys: pytest.CaptureFixture[str]) -> Runner:
    """A function that runs one command line."""

    def run(*arguments: object) -> Ended:
        capsys.readouterr()
        with patch("poetopt.util.process.call", in_this_process):
            code = invoke([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return run


def chain(layers: int = 4, nbytes: int = 1000) -> dict[str, Any]:
    """A problem file's content: a forward chain, and a backward operator for each layer that reads its activation."""
    nodes = [{"name": "x", "bytes": nbytes, "backward": False}]
    nodes += [{"name": f"f{k}", "bytes": nbytes, "backward": False} for k in range(layers)]
    nodes += [{"name": f"b{k}", "bytes": nbytes, "backward": True} for k in reversed(range(layers))]
    edges = [[k, k + 1] for k in range(2 * layers)]
    edges += [[k, 2 * layers + 1 - k] for k in range(1, layers)]
    n = len(nodes)
    table = {
        "compute_s": [0.0] + [0.1] * (n - 1), "compute_j": [0.0] + [0.1] * (n - 1), "page_in_s": [0.01] * n,
        "page_in_j": [0.03] * n, "page_out_s": [0.01] * n, "page_out_j": [0.03] * n,
    }  # fmt: skip
    return {"name": "chain", "nodes": nodes, "edges": sorted(edges), "costs": {"a72": table, "m4": table}}


def write_problem(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
