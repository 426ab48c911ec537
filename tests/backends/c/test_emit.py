"""What `emit` writes, and what it refuses."""

from __future__ import annotations

import json
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import poetopt as po
from poetopt.backends.c.compiler import compiler
from poetopt.backends.c.names import comment, identifier, literal
from poetopt.cli import invoke
from poetopt.errors import OutputError, UnsupportedOpError
from poetopt.plan.codec import save
from poetopt.plan.layout import lay_out
from poetopt.plan.storeall import store_all
from poetopt.runtimes.c import registry
from tests.backends.c.support import HOST, graph, needs_host, paged, tiny, unscheduled


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
    again = po.emit(paged(), folder, schedule="table")
    assert set(first.files) == set(again.files)
    assert "po_number" in (folder / "po_step.c").read_text()
    assert list(tmp_path.iterdir()) == [folder]
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputError, match="has files that weren't emitted"):
        po.emit(paged(), other)
    assert (other / "thesis.tex").read_text() == "years of work"


def test_every_byte_of_the_resident_region_is_a_tensors(tmp_path: Path) -> None:
    """Sum and alignment; the first values are the network's."""
    from poetopt.backends.c.resident import lay_out_resident

    found, flash = lay_out_resident(graph(), tiny())
    assert found.nbytes == tiny().resident_bytes
    assert flash.nbytes == tiny().flash_bytes > 0
    assert not {*found.offsets} & {*flash.offsets}
    taken = sorted((at, at + graph().tensors[name].nbytes) for name, at in found.offsets.items())
    assert all(end <= start for (_, end), (start, _) in pairwise(taken))
    for name, at in found.offsets.items():
        tensor = graph().tensors[name]
        assert at % (tensor.nbytes // max(tensor.size, 1)) == 0


def test_names_of_a_model_can_do_nothing_in_c() -> None:
    nasty = 'a*/ int x; /*"\\\n??/é'
    assert "*/" not in comment(nasty)
    assert "\n" not in comment(nasty)
    assert "\\" not in comment(nasty)
    assert literal('"\\?é') == '"\\042\\134\\077\\303\\251"'
    assert identifier("layer.1/conv") == "layer_1_conv"
