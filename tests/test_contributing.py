"""The recipes of CONTRIBUTING.md work as they stand."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import poetopt as po
from poetopt.autodiff import registry
from poetopt.comparison.baselines import METHODS
from poetopt.util.errors import NoScheduleError

PAGE = Path(__file__).resolve().parents[1] / "CONTRIBUTING.md"


def blocks(section: str, language: str) -> list[str]:
    """The code blocks of one section."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(f"\n## {section}\n")
    text = rest.partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def run(section: str) -> dict[str, Any]:
    """Execute a section's Python; the names that it defines."""
    (code,) = blocks(section, "python")
    names: dict[str, Any] = {}
    exec(compile(code, f"CONTRIBUTING.md: {section}", "exec"), names)
    return names


@pytest.fixture
def softsign() -> Iterator[Any]:
    """The recipe's rule in the place of the one that is built in."""
    with registry.trial_rules():
        yield run("An operator")["softsign"]


def test_an_operator(softsign: Any) -> None:
    from tests.support.autodiff.errors import TOLERANCE, finite_difference_error
    from tests.support.autodiff.specs import Spec, normal

    assert registry.registered()["", "Softsign"] == {1: softsign}
    assert finite_difference_error(Spec("Softsign", (normal(3, 4),))) <= TOLERANCE


def test_a_frontend(tmp_path: Path) -> None:
    read = run("A frontend")["read"]
    path = tmp_path / "net.onnxtxt"
    path.write_text(
        '<ir_version: 8, opset_import: ["" : 18]> net (float[N,3] x) => (float[N,2] y) '
        "<float[3,2] w = {1,2,3,4,5,6}> { y = MatMul(x, w) }"
    )
    graph = read(path, batch=4, train=None)
    assert graph.tensors["y"].shape == (4, 2)
    assert graph.trained == ("w",)
    path.write_text("nothing")
    with pytest.raises(po.PoetError, match=r"net\.onnxtxt: not ONNX's text form"):
        read(path, batch=None, train=None)


def test_a_block() -> None:
    from poetopt.backends.solvers.highs import backend

    names = run("A block")
    problem = po.load("vgg16-cifar").differentiate().cost("m4")
    budget = po.store_all_peak_bytes(problem) * 9 // 10
    model = names["sparing"].build(problem, ram_bytes=budget, scope="depth:4")
    point = backend.open(model, threads=1, scale=1e4).relax(30.0).point
    assert point is not None
    assert point[model.paging.p].sum() <= names["READS"] * (1 + 1e-6)
    assert "few_reads" in model.block_names
    # exec gives its functions no module to be pickled from
    names["few_reads"].build.__module__ = names["_too_many"].__module__ = __name__
    globals().update({name: names[name] for name in ("_few_reads", "_too_many")})
    assert po.testing.check_block(names["few_reads"], problems=4).problems == 4


def test_a_backend() -> None:
    names = run("A backend")
    problem = po.load("vgg16-cifar").differentiate().cost("a72")
    budget = po.store_all_peak_bytes(problem) * 9 // 10
    model = po.formulations.retention.build(problem, ram_bytes=budget, scope="depth:4")
    session = names["backend"].open(model, threads=0, scale=1e4)
    relaxed = session.relax(30.0)
    found = session.search(time_limit_s=30, gap=0.5, start=None, on_point=lambda _: None, on_bound=lambda _: None)
    assert found.point is not None
    assert found.objective >= relaxed.objective * (1 - 1e-6)


def test_a_baseline() -> None:
    from poetopt.comparison.baselines.acceptance import Settings
    from tests.support.every_plan import least_overhead_j
    from tests.support.problems import random_tight

    names = run("A baseline")
    assert names["dearest"].name not in METHODS
    rng = random.Random(11)
    plans = 0
    for _ in range(12):
        problem, ram = random_tight(rng, operators=6, training=True)
        try:
            plan = names["schedule"](problem, ram, Settings())
        except NoScheduleError:
            continue
        least = least_overhead_j(problem, ram, paging=False)
        assert least is not None
        assert po.simulate(plan, ram_bytes=ram).overhead_j >= least - 1e-9
        plans += 1
    assert plans


def test_a_runtime() -> None:
    from poetopt.devices import cost
    from tests.support.contract.runtime import check_runtime

    bare = run("A runtime")["runtime"]
    assert check_runtime(bare).in_place
    step = po.load("lenet").differentiate()
    assert isinstance(step, po.Training)
    assert step.derived is not None
    problem = cost(step.derived, po.device("m4"), bare)
    assert (problem.alignment, problem.reserve_bytes) == (8, 0)


def test_a_kernel() -> None:
    from poetopt.backends.c.targets import LINUX, TARGETS, compilers
    from tests.support.contract.kernel import check_kernel

    names = run("A kernel in C")
    if not [*compilers(TARGETS[LINUX])]:
        pytest.skip("no C compiler for this machine")
    found = check_kernel(names["thresholded_relu"], names["cases"], optimize="-O0")
    assert (found.cases, found.in_place, found.deviation) == (1, 1, 0.0)


def test_a_field_of_a_tensor() -> None:
    names = run("A field of a tensor")
    assert names["row"]["bits"] == 8
    assert names["again"] == names["Rated"]("y", 20, 0, bits=8)
    assert "bits" not in names["table"](names["Rated"]).row(names["Rated"]("y", 20, 0))


def test_a_device(tmp_path: Path) -> None:
    (text,) = blocks("A device", "toml")
    path = tmp_path / "board.toml"
    path.write_text(text, encoding="utf-8")
    found = po.device(str(path))
    assert (found.name, found.ram_bytes) == ("board", 320 * 1024)
    problem = po.load("lenet").differentiate().cost(found)
    assert problem.paging
    assert not problem.dma


@pytest.mark.parametrize("section", ["An operator", "A frontend", "A block", "A backend", "A runtime"])
def test_entry_points_are_those_that_are_looked_up(section: str) -> None:
    (text,) = blocks(section, "toml")
    (group,) = tomllib.loads(text)["project"]["entry-points"]
    package = PAGE.parent / "poetopt"
    wanted = {f'entry_points(group="{group}")', f'ENTRY_POINTS = "{group}"'}
    assert any(text in path.read_text(encoding="utf-8") for path in package.rglob("*.py") for text in wanted)
