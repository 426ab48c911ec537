"""A step as a package of somebody else's build."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import poetopt as po
from poetopt.backends.c.build import FLAGS, FORMS
from poetopt.backends.c.targets import compiler
from poetopt.util.errors import OptionError
from tests.backends.c.support import HOST, WARNINGS, needs_host, unscheduled

APP = """
#include <stdio.h>
#include "kws.h"
int kws_read(uint32_t block, void *address, uint32_t bytes) { (void)block; (void)address; return bytes != 0u; }
int kws_write(uint32_t block, const void *address, uint32_t bytes) { (void)block; (void)address; return bytes != 0u; }
int main(void)
{
    int code = kws_load();
    for (uint32_t k = 0; k < KWS_INPUTS; k++) {
        for (uint32_t at = 0; at < kws_inputs[k].bytes; at++) {
            ((unsigned char *)kws_inputs[k].address)[at] = 0;
        }
    }
    code = code != KWS_DONE ? code : kws_step();
    printf("%d %g\\n", code, (double)*(const float *)kws_results[0].address);
    return code;
}
"""


def packages() -> list[str]:
    return [form for form in FORMS if form != "plain"]


@needs_host
@pytest.mark.parametrize("form", packages())
def test_its_sources_build_from_anywhere(form: str, tmp_path: Path) -> None:
    """By the list that the build is given; the loss is that of a batch of zeros, by parameters out of the arrays."""
    folder = tmp_path / "kws"
    po.emit(unscheduled(), folder, prefix="kws", form=form)
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert not {name for name in there if "main" in name or "startup" in name}
    sources = sorted(name for name in there if name.endswith(".c"))
    if "CMakeLists.txt" in there:
        assert re.findall(r"^ +(\w+\.c)$", (folder / "CMakeLists.txt").read_text(), re.MULTILINE) == sources
    if "library.json" in there:
        json.loads((folder / "library.json").read_text())
    readme = (folder / "README.md").read_text()
    assert "-ffast-math" in readme
    assert "main.c" not in readme.split("## Call")[0]
    (tmp_path / "app.c").write_text(APP)
    include = f"-I{folder / 'src' if form == 'arduino' else folder}"
    made = [str(folder / name) for name in sources]
    compiler(HOST).run((*FLAGS, "-Werror", *WARNINGS, include, *made, "app.c", "-lm", "-o", "app"), tmp_path)
    code, loss = subprocess.run([tmp_path / "app"], capture_output=True, text=True, check=True).stdout.split()
    assert code == "0"
    assert float(loss) == pytest.approx(loss_of_zeros(), rel=1e-5)


def test_weights_on_storage_are_no_array(tmp_path: Path) -> None:
    po.emit(unscheduled(), tmp_path / "kws", prefix="kws", form="cmake", weights="storage")
    assert "unsigned char kws_weights" not in (tmp_path / "kws" / "kws_weights.c").read_text()
    assert (tmp_path / "kws" / "kws_storage.bin").stat().st_size > 0


def loss_of_zeros() -> float:
    plan = unscheduled()
    graph = plan.problem.graph
    assert graph is not None
    batch = {name: np.zeros(graph.tensors[name].shape, graph.tensors[name].dtype) for name in graph.inputs}
    return float(np.asarray(po.execute_on(plan, "host", data=batch).loss))


@needs_host
@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake")
def test_cmake_builds_it(tmp_path: Path) -> None:
    po.emit(unscheduled(), tmp_path / "kws", prefix="kws", form="cmake")
    (tmp_path / "app.c").write_text(APP)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.13)\nproject(app LANGUAGES C)\nadd_subdirectory(kws)\n"
        "add_executable(app app.c)\ntarget_link_libraries(app PRIVATE kws)\n"
    )
    for command in (["cmake", "-S", ".", "-B", "made"], ["cmake", "--build", "made"]):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    ended = subprocess.run([tmp_path / "made" / "app"], capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("0 ")


@needs_host
def test_fast_math_is_refused(tmp_path: Path) -> None:
    from poetopt.util.errors import ExecutionError

    po.emit(unscheduled(), tmp_path / "c")
    with pytest.raises(ExecutionError, match="fast-math gives other sums"):
        compiler(HOST).run(("-ffast-math", "-c", "po_step.c", "-o", "po_step.o"), tmp_path / "c")


def test_another_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--as make: must be plain, cmake"):
        po.emit(unscheduled(), tmp_path / "c", form="make")
    assert not (tmp_path / "c").exists()
