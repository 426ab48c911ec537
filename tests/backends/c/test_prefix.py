"""Two steps in one image, called from C++, each by its own prefix."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import poetopt as po
from poetopt.backends.c.build import FLAGS, STEP
from poetopt.backends.c.targets import compiler
from poetopt.util.errors import OptionError, OutputError
from tests.backends.c.support import HOST, WARNINGS, needs_host, paged, paged_parameters

PEDANTIC = ("-Werror", *WARNINGS, "-Wpedantic")
CALLS = """
int {0}_read(uint32_t block, void *address, uint32_t bytes)
{{
    return std::memcpy(address, {0}_pages + block * {1}_BLOCK_BYTES, bytes) == nullptr;
}}
int {0}_write(uint32_t block, const void *address, uint32_t bytes)
{{
    return std::memcpy({0}_pages + block * {1}_BLOCK_BYTES, address, bytes) == nullptr;
}}
"""
APP = """
#include <cstdint>
#include <cstdio>
#include <cstring>
#include "first/first.h"
#include "second/second.h"

static unsigned char first_pages[FIRST_BLOCKS * FIRST_BLOCK_BYTES];
static unsigned char second_pages[SECOND_BLOCKS * SECOND_BLOCK_BYTES];
{calls}
int main()
{{
    std::FILE *file = std::fopen("second/second_storage.bin", "rb");
    if (file == nullptr || std::fread(second_pages, 1, sizeof second_pages, file) == 0) {{
        return 1;
    }}
    (void)std::fclose(file);
    if (first_load() != FIRST_DONE || second_load() != SECOND_DONE) {{
        return 2;
    }}
    for (std::uint32_t k = 0; k < FIRST_INPUTS; k++) {{
        (void)std::memset(first_inputs[k].address, 0, first_inputs[k].bytes);
    }}
    for (std::uint32_t k = 0; k < SECOND_INPUTS; k++) {{
        if (second_inputs[k].address != nullptr) {{
            (void)std::memset(second_inputs[k].address, 0, second_inputs[k].bytes);
        }}
    }}
    if (first_step() != FIRST_DONE || second_step() != SECOND_DONE || first_predict() != FIRST_DONE) {{
        return 3;
    }}
    (void)std::printf("%s %s\\n", first_outputs[0].name, second_results[0].name);
    return 0;
}}
"""


@needs_host
def test_two_steps_in_one_image_of_an_application_in_cpp(tmp_path: Path) -> None:
    objects = []
    host = compiler(HOST)
    for name, plan in (("first", paged()), ("second", paged_parameters())):
        po.emit(plan, tmp_path / name, prefix=name)
        assert not [file.name for file in (tmp_path / name).iterdir() if file.name.startswith("po")]
        for source in STEP:
            made = source.replace("po_", f"{name}_")
            host.run((*FLAGS, *PEDANTIC, "-c", made, "-o", f"{made}.o"), tmp_path / name)
            objects.append(f"{name}/{made}.o")
    calls = "".join(CALLS.format(name, name.upper()) for name in ("first", "second"))
    (tmp_path / "app.cpp").write_text(APP.format(calls=calls))
    cpp = ("-x", "c++", "-std=c++11", "-O1", *PEDANTIC, "-c", "app.cpp", "-o", "app.o")
    host.run(cpp, tmp_path)
    host.run(("app.o", *objects, "-lm", "-o", "app"), tmp_path)
    ended = subprocess.run([tmp_path / "app"], cwd=tmp_path, capture_output=True, text=True, check=True)
    graph = paged().problem.graph
    assert graph is not None
    assert ended.stdout.split()[0] == graph.outputs[0]


def test_a_prefix_is_a_word_of_c(tmp_path: Path) -> None:
    for wrong in ("", "1st", "a b", "a-b", "../a"):
        with pytest.raises(OptionError, match="must be a word of letters, digits and _"):
            po.emit(paged(), tmp_path / "c", prefix=wrong)
    assert not (tmp_path / "c").exists()


def test_a_folder_of_another_prefix_is_replaced_and_a_strange_one_is_not(tmp_path: Path) -> None:
    po.emit(paged(), tmp_path / "c", prefix="kws")
    po.emit(paged(), tmp_path / "c")
    assert (tmp_path / "c" / "po.h").exists()
    assert not (tmp_path / "c" / "kws.h").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="has files that weren't emitted"):
        po.emit(paged(), tmp_path / "mine", prefix="kws")
