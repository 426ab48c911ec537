"""What people get wrong at first: one message each, with what is wrong and the remedy, and no traceback."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import poetopt as po
from poetopt.util.errors import PoetError
from tests.support.cli import Runner
from tests.support.each import each

SOLVE = "solve net.onnx --device a72"
MISTAKES = [
    # command line, exit code, what is said of the mistake, the remedy
    (f"{SOLVE} --ram 40", 3, "the budget of 40 bytes (40% would be a share", "(--ram "),
    (f"{SOLVE} --ram 0.4", 2, "--ram 0.4: a bare number is bytes", "Did you mean 40%"),
    ("run plan.json --data other.npz", 2, "lacks 'input' (float32, shape [2, 784])", "numpy.savez(path, input=..."),
    ("run plan.json --data other.npz", 2, "it has 'image' (float64, shape [2, 3])", "labels=..."),
    ("solve net.onnx --device board.tml", 2, "board.tml: no such file", "did you mean board.toml"),
    ("solve resnet --device a72", 2, "resnet: neither a file nor a network", "closest: resnet8 or resnet50"),
    ("run net.onnx", 2, "net.onnx is not a plan file", "poetopt solve net.onnx --device a72 -o plan.json"),
    (f"{SOLVE} --deadline 1us", 3, "shorter than one pass over all operators, ", "That long is enough (--deadline 0."),
    (f"{SOLVE} --ram 5kB", 3, "budget of 5,000 bytes is below", "(--ram "),
    ("solve net.onnx --device pi6", 2, "unknown device 'pi6'", "Did you mean"),
    (f"{SOLVE} --ram 40 %", 2, "--ram 40 %: write it without a space", "--ram 40%"),
    ("solve a72 --device net.onnx", 2, "a72: a device, not a model", "poetopt solve net.onnx --device a72"),
    ("solve net.onnx --device net.onnx", 2, "net.onnx: a model, not a device", "net.onnx --device a72"),
    ("solve plan.json --device a72", 2, "plan.json: a plan, not a model", "poetopt run plan.json"),
    ("show net.onnx", 2, "net.onnx is not a plan file", "poetopt solve net.onnx"),
    (f"{SOLVE} --ram 40,5%", 2, "--ram 40,5%: decimals have a point", "Did you mean 40.5%?"),
    ("run plan.json --steps 3 --lr 0,1", 2, "--lr 0,1: must be a number", "Did you mean 0.1?"),
    (f"{SOLVE} --backend HiGHS", 6, "unknown backend 'HiGHS'", "closest: highs"),
    (f"{SOLVE} --scope depth4", 2, "--scope depth4: must be auto, depth:D", "Did you mean depth:4?"),
    ("show plan.json --format htlm", 2, "--format htlm: not a format", "closest: html"),
    (f"{SOLVE} --ram -40%", 2, "--ram -40%: must not be negative", "40% of"),
    (f"{SOLVE} --gap 200%", 2, "--gap 200%: is more than 100%", "0.1%"),
    (f"{SOLVE} -o nowhere/plan.json", 2, "can't write nowhere/plan.json: there is no folder", "Create it, or give"),
    ("solve folder --device a72", 2, "folder: it is a folder", "in it: folder/inner.onnx"),
    ("run plan.json --data table.csv", 2, "table.csv is no .npz file", "numpy.savez"),
    ("inspect net.onnx --batch 0", 2, "--batch 0:", "must be at least 1"),
    (f"{SOLVE} --time-limit 60m", 2, "'m' is ambiguous", "60min or 60ms"),
    (f"{SOLVE} --json - -o -", 2, "goes to the standard output too", "Give a file for one"),
    ("solve net.onnx", 2, "missing option '--device'", "--device a72"),
    ("sovle net.onnx", 2, "no such command 'sovle'", "Did you mean 'solve'"),
    ("net.onnx", 2, "no such command 'net.onnx'", "poetopt solve net.onnx --device a72"),
    (f"{SOLVE} --devise m4", 2, "no such option: --devise", "--device"),
    ("devices m4", 2, "unexpected: m4", "--show m4"),
    (f"{SOLVE} --train fc1.weight fc1.bias fc2.bias", 2, "unexpected: fc1.bias fc2.bias", "quotes"),
    ("compare net.onnx --device a72 --ram 20%-100%", 2, "--ram 20%-100%", "20%..100%/9"),
    ("compare net.onnx --device a72 --methods chekmate", 2, "there is no method 'chekmate'", "Did you mean checkmate"),
    (f"{SOLVE} --steps 3", 2, "--steps 3 divides a total deadline", "--deadline"),
]


TRAIN = "train plan.json -o out.onnx --data"
MISTAKES += [
    (f"{SOLVE} --lr 0.1", 2, "--lr: it belongs to training", "poetopt train PLAN --data train.npz --lr 0.001"),
    (f"{SOLVE} --loss CrossEntropyLoss", 2, "unknown loss 'CrossEntropyLoss'", "closest: cross-entropy"),
    (f"{SOLVE} --class-weights 1,2", 2, "2 weights for the 10 classes", "give one for each"),
    (f"{SOLVE} --optimizer sgd --rates head.*=10", 2, "--rates head.*=10: no trained parameter", "there are fc1"),
    (f"{SOLVE} --rates fc1.*=0.1", 2, "--rates: the step ends with gradients", "--optimizer"),
    ("train net.onnx -o out.onnx --data right.npz", 2, "net.onnx is not a plan file", "poetopt solve net.onnx"),
    ("train plan.json --data right.npz", 2, "missing option '-o'", "-o FILE"),
    (f"{TRAIN} other.npz", 2, "lacks 'input'", "numpy.savez(path, input=..., labels=...)"),
    (f"{TRAIN} one.npz", 2, "'labels' holds the label 10", "classes count from 0: subtract 1"),
    (f"{TRAIN} none.npz", 2, "'labels' holds the label -100", "solve with --ignore-index -100"),
    (f"{TRAIN} hot.npz", 2, "'labels' has shape [4, 10]", "Pass one-hot rows as .argmax(1)"),
    (f"{TRAIN} bytes.npz", 2, "'input' has type uint8", ".astype('float32') and scale it"),
    (f"{TRAIN} right.npz --metrics f1", 2, "metrics: metrics need validation data", "--validate"),
    (
        f"{TRAIN} right.npz --validate right.npz --metrics accuracy",
        2,
        "accuracy: it is always reported",
        "cross-entropy: top5",
    ),
    (f"{TRAIN} right.npz --augment flip", 2, "it needs one input of images", "fit(..., augment=function)"),
    (f"{TRAIN} right.npz --resume", 2, "--resume: there is no folder of checkpoints", "--checkpoint FOLDER"),
]

X: Any = np.zeros((4, 784), np.float32)
Y: Any = np.zeros(4, np.int64)
IN_PYTHON: list[tuple[Callable[[], object], str, str]] = [
    # what is called, what is said of the mistake, the remedy
    (lambda: po.solve(Module(), device="a72"), "not a Module: a torch module", "po.torch.export(module, example, "),  # type: ignore[arg-type]
    (lambda: po.Trainer(Module()), "a plan, .* is needed, not Module: a torch", "po.fit(module, data, device="),  # type: ignore[arg-type]
    (lambda: po.Trainer(po.load("net.onnx")), "a plan, .* is needed, not Model", 'po.solve(model, device="a72")'),  # type: ignore[arg-type]
    (lambda: po.Trainer("net.onnx"), "net.onnx is not a plan file", "poetopt solve net.onnx"),
    (lambda: po.solve("net.onnx"), "device: none is given", 'device="a72"'),
    (lambda: po.solve("net.onnx", device=3), "device=3: must be", 'device="a72"'),  # type: ignore[arg-type]
    (lambda: po.solve("net.onnx", device="a72", lr=0.1), "unknown option 'lr'", "po.Trainer(report, lr=...)"),  # type: ignore[call-arg]
    (lambda: po.solve("net.onnx", device="a72", batch="32"), "batch='32': must be", "a whole number"),
    (lambda: po.solve("net.onnx", device="a72", optimizer=print), "optimizer=.*a text", "po.Trainer(report, lr"),  # type: ignore[arg-type]
    (lambda: fit((X, Y)), "the data is a tuple of arrays", '{"input": ..., "labels": ...}'),
    (lambda: fit({"x": X, "y": Y}), "the data lacks 'input'", "numpy.savez(path, input=..., labels=...)"),
    (lambda: fit({"input": X, "labels": Y[:, None]}), "'labels' has shape [4, 1]", "Pass a column as .reshape(-1)"),
    (lambda: fit({"input": X, "labels": Y.astype(np.float32)}), "'labels' has type float32", ".astype('int64')"),
    (lambda: fit({"input": X, "labels": Y[:3]}), "'input' has 4 rows, and 'labels' 3", "shorten the longer"),
    (lambda: fit({"input": X[:1], "labels": Y[:1]}), "it has 1 rows, and a batch of this plan has 2", "--batch 1"),
]


class Module:
    """What is taken for one of torch."""

    forward = state_dict = named_parameters = None


def fit(data: Any) -> object:
    with po.Trainer("plan.json") as trainer:
        return trainer.fit(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its plan, and files that are neither."""
    import onnx

    place = tmp_path_factory.mktemp("mistakes")
    (place / "folder").mkdir()
    onnx.save(po.zoo.build("mlp", 2), place / "net.onnx")
    onnx.save(po.zoo.build("mlp", 2), place / "folder" / "inner.onnx")
    np.savez(place / "other.npz", image=np.zeros((2, 3)), label=np.zeros(2, np.int64))
    (place / "board.toml").write_text('base = "a72"\n', encoding="utf-8")
    (place / "table.csv").write_text("a,b\n", encoding="utf-8")
    rows: dict[str, dict[str, Any]] = {
        "right": {}, "one": {"labels": Y + 10}, "none": {"labels": Y - 100}, "hot": {"labels": np.zeros((4, 10))},
    }  # fmt: skip
    for name, changed in {**rows, "bytes": {"input": X.astype(np.uint8)}}.items():
        np.savez(place / f"{name}.npz", **{"input": X, "labels": Y, **changed})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        po.solve("net.onnx", device="a72").save("plan.json")
    return place


@each(("line", "code", "what", "remedy"), MISTAKES)
def test_a_mistake_is_one_message_with_the_remedy(
    run: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch, line: str, code: int, what: str, remedy: str
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    ended = run(*line.split())
    ended.assert_one_message(what, remedy, code=code)
    assert len(ended.err.splitlines()) == 1
    assert len(ended.err) < 420
    assert sorted(folder.rglob("*")) == before, "nothing is written"


@pytest.mark.parametrize(("act", "what", "remedy"), IN_PYTHON, ids=[what for _, what, _ in IN_PYTHON])
def test_a_mistake_in_python_is_one_message_with_the_remedy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], what: str, remedy: str
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises((PoetError, TypeError)) as caught:
        act()
    text = str(caught.value)
    assert re.search(what.replace("[", r"\["), text), text
    assert remedy in text
    assert "\n" not in text


def test_the_remedies_of_a_refusal_work(run: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for asked, option in (("--deadline 1us", "--deadline"), ("--ram 5kB", "--ram")):
        refused = run(*SOLVE.split(), *asked.split())
        value = refused.err.partition(f"({option} ")[2].partition(")")[0]
        assert run(*SOLVE.split(), option, value, "--gap", "1").code == 0, refused.err


def test_help_has_what_most_people_need_first(run: Runner) -> None:
    """At most 14 options before the panel *Advanced*, beside --help and --verbose; nothing is behind another option."""
    first, others = run("solve", "--help").out.split("Advanced:")
    options = {line.split()[0] for line in first.splitlines() if line.startswith("  -")} - {"-h,", "-v,"}
    assert len(options) <= 14
    assert "--with" not in first + others
    for option in ("--block", "--allow-symlinks", "--lazy-tables", "--ignore-index", "--solver-option"):
        assert option in others


def test_options_of_earlier_versions_still_work(run: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    once = [*SOLVE.split(), "--json", "-"]
    old = ("--with", "granularity=block", "--with=minimize=ram", "--with", "allow-symlinks")
    now = ("--granularity", "block", "--minimize", "ram", "--allow-symlinks")
    assert run(*once, *old).document["ram_budget_bytes"] == run(*once, *now).document["ram_budget_bytes"]
    power = [run(*once, option, "static-power=1W").document["asks"] for option in ("--with", "--block")]
    assert power[0] == power[1] != []
    for wrong, told in (("log", "its value is missing"), ("clip-norm=1", "takes no value; write --clip-norm")):
        run(*once, "--with", wrong).assert_one_message(told, code=2)
    run("run", "plan.json", "--with", "logs=1").assert_one_message("this command has no such option", code=2)
    run("emit", "plan.json", "-o", "c", "--as", "cmake").assert_one_message("--runtime c", code=2)
    run("train", "plan.json", "--keep-training-form").assert_one_message("missing option", code=2)
