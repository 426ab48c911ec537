"""What `emit` writes, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import poetopt as po
from poetopt.backends.c.build import build, write
from poetopt.backends.c.operators import comment, identifier, literal
from poetopt.backends.c.program import device_program
from poetopt.backends.c.targets import compiler
from poetopt.cli.app import invoke
from poetopt.frontends.proto import model_proto
from poetopt.ops.runtimes.c import steps as registry
from poetopt.plan.assemble import store_all
from poetopt.plan.codec import save
from poetopt.plan.layout import lay_out
from poetopt.util.errors import OutputError, PlanError, UnsupportedOpError
from poetopt.zoo.network import Network
from tests.backends.c.support import HOST, WARNINGS, graph, needs_host, network, paged, tiny, unscheduled


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
    if not shutil.which("cc"):
        pytest.skip("the README's compiler isn't here")
    subprocess.run(command.split(), cwd=folder, check=True)
    rng = np.random.default_rng(1)
    one = rng.standard_normal((2, 784), dtype=np.float32).tobytes() + np.array([1, 7]).tobytes()
    (folder / "batches.bin").write_bytes(5 * one)
    shutil.copy(folder / "po_weights.bin", folder / "pages.bin")
    ended = subprocess.run(["./train"], cwd=folder, check=True, capture_output=True, text=True)
    losses = [float(line.rpartition(" ")[2]) for line in ended.stdout.splitlines()]
    assert len(losses) == 5
    assert losses[-1] < losses[0]
    assert (folder / "results.bin").stat().st_size == 4 + 4 * 235_146


@needs_host
def test_compilers_assume_no_more_of_the_ram_than_that_it_begins_at_a_multiple_of_8(tmp_path: Path) -> None:
    """clang takes arrays of 16 bytes and more for aligned to 16 on x86-64, unless their declaration says less."""
    po.emit(paged(), tmp_path / "out")
    seen = tmp_path / "out" / "seen.c"
    wanted = "".join(f'_Static_assert(__alignof__({name}) == 8, "{name}");\n' for name in ("po_arena", "po_resident"))
    seen.write_text(f'#include "po.h"\n{wanted}')
    compiler(HOST).run(("-std=c11", "-c", seen), tmp_path)


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


def test_every_byte_of_the_resident_region_is_a_tensors(tmp_path: Path) -> None:
    """Sum and alignment; the first values are the network's."""
    from poetopt.backends.c.operators import lay_out_resident

    found, flash = lay_out_resident(graph(), tiny())
    assert found.nbytes == tiny().resident_bytes
    assert flash.nbytes == tiny().flash_bytes > 0
    assert not {*found.offsets} & {*flash.offsets}
    taken = sorted((at, at + graph().tensors[name].nbytes) for name, at in found.offsets.items())
    assert all(end <= start for (_, end), (start, _) in pairwise(taken))
    for name, at in found.offsets.items():
        tensor = graph().tensors[name]
        assert at % (tensor.nbytes // max(tensor.size, 1)) == 0


NASTY = 'a*/ int x; /*"\\\n??/\x1b]0;owned\x07\x1b[2Jé??=\u202e$model ${model} PO_ARENA(7u) //\\'
"""Ends comments, strings and lines, is a trigraph or a template's, and writes to a terminal."""


def test_names_of_a_model_can_do_nothing_in_c() -> None:
    assert re.fullmatch("[ -~]*", comment(NASTY))
    assert not any(piece in comment(NASTY) for piece in ("*/", "/*", "\\", "??"))
    assert literal('"\\?é') == '"\\042\\134\\077\\303\\251"'
    assert literal("\x1b1") == '"\\0331"'
    assert identifier("layer.1/conv") == "layer_1_conv"


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


def test_what_no_loop_counts_and_no_linker_places_is_refused(tmp_path: Path) -> None:
    """From 2^31 bytes on: by `solve`, that of a tensor; by `emit`, that of arena and resident region."""
    net = Network("wide", 1)
    x = net.relu(net.linear(net.input("x", (1, 8)), "first", 8, 64), "relu")
    model = net.model(net.linear(x, "second", 64, 2), (1, 2))
    huge = replace(po.devices.device("a72"), ram_bytes=2**40)
    with pytest.raises(UnsupportedOpError, match=r"tensor '.*' has 2,147,483,648 B, and loops .* smaller --batch"):
        po.solve(po.load(model, batch=2**23), device=huge, runtime="c")
    plan = po.solve(po.load(model, batch=2**22), device=huge, runtime="c").plan
    assert plan is not None
    with pytest.raises(PlanError, match=r"a program in C links less than 2,147,483,648"):
        po.emit(plan, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
