"""A language model from the shell: integers, LoRA's pairs, training on a file of tokens, pairs merged."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from benchmarks.language import Llama, llama
from tests.cli.support import Runner

SHAPE = Llama(1, 32, 2, 2, 32, 256)


def written(path: Path) -> Path:
    path.write_bytes(llama(SHAPE, 8, rank=0).SerializeToString())
    return path


def test_a_language_model_is_adapted_to_a_text_and_merged(run: Runner, tmp_path: Path) -> None:
    net, adapted, plan = written(tmp_path / "net.onnx"), tmp_path / "adapted.onnx", tmp_path / "plan.json"
    ended = run("lora", net, "-o", adapted, "--rank", "4", "--targets", "*q_proj")
    assert ended.code == 0
    assert "pairs beside 1 of its products, 256 numbers" in ended.out
    run("solve", adapted, "--device", "a72", "--optimizer", "adamw", "-o", plan)
    text = tmp_path / "text.txt"
    text.write_text("the same words again, and the same words again. " * 4)
    trained, merged = tmp_path / "trained.onnx", tmp_path / "merged.onnx"
    ended = run("train", plan, "--data", text, "-o", trained, "--lr", "0.05", "--epochs", "2", "--json", "-")
    first, second = ended.document["losses"]
    assert second < first
    assert run("lora", trained, "--merge", "-o", merged).code == 0
    assert not any("lora" in one.name for one in onnx.load(merged).graph.initializer)


def test_integers_are_written(run: Runner, tmp_path: Path) -> None:
    pytest.importorskip("onnx_ir")
    net, small = written(tmp_path / "net.onnx"), tmp_path / "small.onnx"
    ended = run("quantize", net, "-o", small, "--kind", "int8", "--block", "32")
    assert ended.code == 0
    assert "of int8" in ended.out
    assert small.stat().st_size < 0.5 * net.stat().st_size
    assert run("lora", small, "-o", tmp_path / "both.onnx").code == 0


def test_what_says_nothing_is_one_message(run: Runner, tmp_path: Path) -> None:
    net, out = written(tmp_path / "net.onnx"), tmp_path / "out.onnx"
    run("lora", net, "-o", out, "--targets", "*k_porj").assert_one_message("k_proj", code=2)
    run("lora", net, "-o", out, "--merge", "--rank", "2").assert_one_message("--merge, --rank", code=2)
    run("lora", net, "-o", out, "--rank", "0").assert_one_message("give a rank of 1 or more", code=2)
    run("lora", net, "-o", net).assert_one_message("is the input already", code=2)
    run("lora", tmp_path / "none.onnx", "-o", out).assert_one_message("none.onnx", code=2)
    run("quantize", net, "-o", out, "--kind", "int5").assert_one_message("must be int4 or int8", code=2)
    run("quantize", net, "-o", out, "--block", "20").assert_one_message("must be one of", code=2)
    assert not out.exists()
