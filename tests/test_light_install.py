"""Without Pyomo, SciPy and HiGHS a plan is executed, written and trained with; what solves says how to get them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import poetopt as po
from poetopt.util.imports import INSTALL, PACKAGES

ABSENT = f"import sys; sys.modules.update(dict.fromkeys({PACKAGES!r})); "
"""As if they weren't installed: importing one of them fails."""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan that recomputes or pages, and the data beside it."""
    folder = tmp_path_factory.mktemp("light")
    po.solve("lenet", device="a72", batch=2, ram=150_000, gap=1.0, time_limit=20).save(folder / "plan.json")
    rng = np.random.default_rng(0)
    images, labels = rng.standard_normal((6, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, 6)
    np.savez(folder / "data.npz", input=images, labels=labels)
    return folder / "plan.json"


EXECUTES = [
    ("run", "plan.json"),
    ("train", "plan.json", "--data", "data.npz", "--epochs", "1", "--lr", "0.01", "-o", "trained.onnx"),
    ("grad", "lenet", "-o", "grad.onnx"),
    ("devices",),
]
SOLVES = [
    ("solve", "lenet", "--device", "a72"),
    ("compare", "lenet", "--device", "a72", "--ram", "50%"),
    ("pareto", "lenet", "--device", "a72"),
    ("inspect", "lenet"),
]


def test_a_board_executes_and_what_solves_says_how_to_get_it(plan: Path) -> None:
    code = ABSENT + (
        "import io, contextlib\nfrom poetopt.cli.app import invoke\n"
        f"for command in {[*EXECUTES, *SOLVES]!r}:\n"
        "    out, err = io.StringIO(), io.StringIO()\n"
        "    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):\n"
        "        code = invoke(list(command))\n"
        "    print(repr((code, out.getvalue(), err.getvalue())))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=plan.parent, capture_output=True, text=True, check=True)
    found = [ast.literal_eval(line) for line in ended.stdout.splitlines()]
    assert len(found) == len(EXECUTES) + len(SOLVES)
    for command, (code, _, err) in zip(EXECUTES, found, strict=False):
        assert code == 0, (command, err)
    for command, (code, out, err) in zip(SOLVES, found[len(EXECUTES) :], strict=True):
        assert (code, out) == (6, ""), (command, err)
        assert err.startswith("poetopt: ")
        assert err.count("\n") == 1
        assert INSTALL in err
