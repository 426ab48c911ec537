"""What `emit` writes and refuses, also as a package of somebody else's build and twice in one image."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import poetopt as po
from poetopt.backends.c.build import FLAGS, FORMS, STEP, build, write
from poetopt.backends.c.program import device_program
from poetopt.backends.c.targets import ZIG, compiler
from poetopt.cli.app import invoke
from poetopt.frontends.proto import model_proto
from poetopt.ops.runtimes.c import steps as registry
from poetopt.plan.assemble import store_all
from poetopt.plan.codec import save
from poetopt.plan.layout import lay_out
from poetopt.util.errors import OutputError, UnsupportedOpError
from tests.seeds import some
from tests.support.c import HOST, WARNINGS, needs_host, network, paged, paged_parameters, unscheduled


@needs_host
def test_the_folder_that_is_emitted_builds_as_its_readme_says_and_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example takes as many steps as there are batches; the weights come from storage here."""
    plan = lay_out(store_all(po.load("mlp", batch=2).differentiate(optimizer="sgd").cost("m4", runtime="c")))
    save(plan, tmp_path / "plan.json")
    folder = tmp_path / "out"
    arguments = ["emit", str(tmp_path / "plan.json"), "-o", str(folder), "--weights", "storage", "--json", "-"]
    assert invoke(arguments) == 0
    said = json.loads(capsys.readouterr().out)
    assert {path.name for path in folder.iterdir()} == set(said["files"])
    assert said["resident_bytes"] == plan.problem.resident_bytes
    (command,) = (line for line in (folder / "README.md").read_text().splitlines() if line.startswith("    cc "))
    subprocess.run([*compiler(HOST).command, *command.split()[1:]], cwd=folder, check=True)
    rng = np.random.default_rng(1)
    one = rng.standard_normal((2, 784), dtype=np.float32).tobytes() + np.array([1, 7]).tobytes()
    (folder / "batches.bin").write_bytes(5 * one)
    shutil.copy(folder / "po_weights.bin", folder / "pages.bin")
    ended = subprocess.run(["./train"], cwd=folder, check=True, capture_output=True, text=True)
    losses = [float(line.rpartition(" ")[2]) for line in ended.stdout.splitlines()]
    assert len(losses) == 5
    assert losses[-1] < losses[0]
    assert (folder / "results.bin").stat().st_size == 4 + 4 * 235_146


def test_an_operator_without_a_kernel_is_named_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {op: kernel for op, kernel in registry.kernels().items() if op[1] != "Conv"}
    monkeypatch.setattr(registry, "kernels", lambda: known)
    with pytest.raises(UnsupportedOpError, match=r"operator 'relu1', node 'conv1' \(Conv\): .* no kernel"):
        po.emit(unscheduled(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_only_a_folder_that_was_emitted_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    first = po.emit(paged(), folder)
    again = po.emit(paged(), folder, weights="storage")
    assert set(first.files) == set(again.files)
    assert (folder / "po_weights.c").read_text().count("po_read")
    assert list(tmp_path.iterdir()) == [folder]
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputError, match="has files that weren't emitted"):
        po.emit(paged(), other)
    assert (other / "thesis.tex").read_text() == "years of work"


NASTY = 'a*/ int x; /*"\\\n??/\x1b]0;owned\x07\x1b[2Jé??=\u202e$model ${model} PO_ARENA(7u) //\\'
"""Ends comments, strings and lines, is a trigraph or a template's, and writes to a terminal."""


@needs_host
def test_whatever_a_model_calls_things_its_files_are_plain_text_and_compile(tmp_path: Path) -> None:
    """Of nodes, tensors, parameters, inputs and the model; with paged parameters, so that calls name them too."""
    graph = network().graph
    proto = model_proto(graph, graph.outputs)
    proto.graph.name = NASTY
    for node in proto.graph.node:
        node.name += NASTY
    for named in (*proto.graph.initializer, *proto.graph.input):
        for node in proto.graph.node:
            node.input[:] = [name + NASTY if name == named.name else name for name in node.input]
        named.name += NASTY
    model = po.load(proto)
    assert isinstance(model, po.Model)
    problem = replace(model.differentiate(optimizer="sgd").cost("m4", parameters="paged"), model_ref=NASTY)
    plan = lay_out(store_all(problem))
    assert plan.problem.graph is not None
    program = device_program(plan, plan.problem.graph)
    write(program, HOST, tmp_path)
    build(program, HOST, tmp_path, warnings=("-Werror", "-trigraphs", "-Wtrigraphs", *WARNINGS))
    texts = [*tmp_path.glob("*.[ch]"), tmp_path / "README.md"]
    assert len(texts) > 5
    assert all(re.fullmatch("[ -~\n]*", path.read_text(encoding="utf-8")) for path in texts)


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
    return sorted(form for form in FORMS if form != "plain")


@needs_host
@pytest.mark.parametrize("form", some(packages(), 2))
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


def loss_of_zeros() -> float:
    plan = unscheduled()
    graph = plan.problem.graph
    assert graph is not None
    batch = {name: np.zeros(graph.tensors[name].shape, graph.tensors[name].dtype) for name in graph.inputs}
    return float(np.asarray(po.execute_on(plan, "host", data=batch).loss))


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
PREFIX_APP = """
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
    (tmp_path / "app.cpp").write_text(PREFIX_APP.format(calls=calls))
    cpp = ("-x", "c++", "-std=c++11", "-O1", *PEDANTIC, "-c", "app.cpp", "-o", "app.o")
    # `zig cc` comes without the headers of C++'s library, unlike others' drivers of C
    by = replace(host, command=(*host.command[:-1], "c++")) if host.name == ZIG else host
    by.run(cpp, tmp_path)
    host.run(("app.o", *objects, "-lm", "-o", "app"), tmp_path)
    ended = subprocess.run([tmp_path / "app"], cwd=tmp_path, capture_output=True, text=True, check=True)
    graph = paged().problem.graph
    assert graph is not None
    assert ended.stdout.split()[0] == graph.outputs[0]
