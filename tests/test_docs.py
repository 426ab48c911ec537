"""The pages: links lead somewhere, commands and options exist, and what they tell people to type works.

Notebooks are executed by `make docs`; here it is held that they have nothing else to type.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import poetopt as po
from poetopt.cli.app import invoke
from tests.support.each import each

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.md"))
EXTENSION = ROOT / "docs" / "examples" / "extension"
PAGES = [
    ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")), *NOTEBOOKS,
    *sorted((ROOT / "docs" / "api").glob("*.md")), EXTENSION / "README.md",
]  # fmt: skip
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
TYPED = [page for page in PAGES if page not in NOTEBOOKS]

ELSEWHERE = {
    "poetopt solve resnet18-cifar --device a72 --ram 40% --deadline 1.5x -o plan.json": "make tour",
    "poetopt run plan.json": "make tour",
    "make demo": "the first two commands of the tour, through make",
    "make test": "this is it",
    "make docs": "what builds the pages",
    "pip install poetopt": "make installs it",
    "pip install 'poetopt[dask]'": "make test installs that extra",
    "poetopt sweep sweep.toml": "minutes; tests/api runs small files",
    "poetopt sweep sweep.toml --scheduler tcp://10.0.0.5:8786": "takes a cluster; benchmarks/sweep_kill.py has its own",
    "python docs/examples/train_batchnorm.py net.onnx train.onnx": "tests/test_from_pytorch.py",
    "poetopt quantize net.onnx -o small.onnx --kind int8": "tests/cli/test_commands.py",
    "poetopt lora small.onnx -o adapted.onnx --targets '*q_proj,*v_proj'": "tests/cli/test_commands.py",
    "poetopt solve adapted.onnx --device a72 --total-ram 128MB --optimizer adamw -o plan.json": (
        "tests/cli/test_commands.py"
    ),
    "poetopt train plan.json --data ids.npy --validate held.npy --metrics perplexity -o trained.onnx": (
        "tests/cli/test_commands.py"
    ),
    "poetopt inspect net.onnx": "tests/training/test_page.py",
    "poetopt solve net.onnx --device a72 --ram 60% --optimizer adam -o plan.json": "tests/training/test_page.py",
    "poetopt train plan.json --data train.npz --epochs 3 --lr 0.003 --validate test.npz --checkpoint kept --resume -o out.onnx": (  # noqa: E501
        "tests/training/test_page.py"
    ),
    "python docs/examples/pretrained.py digits": "a minute; tests/torch has the wines",
    "python -m benchmarks.paper.measure": "three quarters of an hour; the rows are compare's: tests/comparison",
    "python -m benchmarks.paper.draw": "writes the pictures of docs/paper.md",
    "pip install .": "make extension",
    "poetopt formulations --show wakeups": "make extension",
    "poetopt solve resnet18-cifar --device a72 --ram 50% --block wakeups=4 --backend highs-single": "make extension",
    "python -m pytest": "make extension",
}
"""What is typed on a page and not executed here, and where it is."""


def named(page: Path) -> str:
    """For pytest's output."""
    return page.relative_to(ROOT).as_posix()


def text(page: Path) -> str:
    """What is in it."""
    return page.read_text(encoding="utf-8")


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", text(page), flags=re.DOTALL | re.MULTILINE)


def typed(page: Path) -> list[str]:
    """The commands of a page's indented and fenced blocks, without comments."""
    found = re.findall(r"^(?: {4}|\$ )((?:poetopt|python|make|pip) [^\n]*)", text(page), flags=re.MULTILINE)
    return [shlex.join(shlex.split(line, comments=True)) for line in found]


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and MyST make it."""
    kept = re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).strip().lower())
    return kept.replace(" ", "-")


def broken(page: Path) -> list[str]:
    """The relative links of a page that lead nowhere."""
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        headings = re.findall(r"^#+ (.+)$", prose(file), flags=re.MULTILINE) if anchor and file.exists() else []
        if not file.exists() or (anchor and anchor not in map(slug, headings)):
            wrong.append(target)
    return wrong


@each("page", [*PAGES, *DECISIONS])
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


@each("page", [*PAGES, *DECISIONS])
def test_lines_of_prose_are_short(page: Path) -> None:
    """At most 90 characters, tables, headings, equations, comments and code aside."""
    kept = re.sub(r"\$\$.*?\$\$", "", prose(page), flags=re.DOTALL)
    other = ("|", "#", "!", "<!--", "    ")
    assert [line for line in kept.splitlines() if len(line) > 90 and not line.startswith(other)] == []


@each("page", [*PAGES, *DECISIONS])
def test_paths_that_are_named_exist(page: Path) -> None:
    for name in re.findall(r"`((?:docs|tests|benchmarks|poetopt)/[\w./-]+)`", prose(page)):
        assert any((place / name).exists() for place in (ROOT, EXTENSION)), name


@each("page", PAGES)
def test_commands_and_options_that_are_named_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offered: dict[str, str] = {}
    fenced = "\n".join(re.findall(r"^```.*?^```", text(page), flags=re.DOTALL | re.MULTILINE))
    lines = re.findall(r"^poetopt ([a-z-]+)([^`\n]*)", fenced, flags=re.MULTILINE)
    lines += re.findall(r"(?:`|^ {4}|^\$ )poetopt ([a-z-]+)([^`\n]*)", text(page), flags=re.MULTILINE)
    for command, rest in lines:
        if command not in offered:
            assert invoke([command, "--help"]) == 0, command
            offered[command] = capsys.readouterr().out
        for option in re.findall(r"(?<!\w)--[a-z-]+", rest.partition("#")[0]):
            assert option in offered[command], f"{command} {option}"


@pytest.mark.parametrize("page", TYPED, ids=named)
def test_what_is_typed_works(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = [command for command in typed(page) if command not in ELSEWHERE]
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```csv\n(operator,.*?)```", text(page), flags=re.DOTALL):
        Path("board.csv").write_text(block, encoding="utf-8")
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "poetopt", f"{page.name}: nothing runs `{command}`: run it here, or say where it is"
        assert invoke(arguments) == 0, command


@each("page", NOTEBOOKS)
def test_notebooks_are_executed_as_a_whole(page: Path) -> None:
    content = text(page)
    assert content.startswith("---\njupytext:\n")
    assert "```{code-cell} ipython3\n" in content
    assert typed(page) == []
    marked = re.findall(r"^```(\S+)", content, flags=re.MULTILINE)
    assert set(marked) <= {"{code-cell}"}
    for cell in re.findall(r"^```{code-cell} ipython3\n(.*?)^```$", content, flags=re.DOTALL | re.MULTILINE):
        code = re.sub(r"^:tags:.*\n+", "", cell)
        if not code.startswith("%%"):
            compile(code, page.name, "exec")


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("page", "file"), [("your-model", "net.onnx"), ("cortex-m4", "words.onnx")])
def test_the_export_from_torch_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, file: str) -> None:
    pytest.importorskip("torch")
    content = text(ROOT / f"docs/notebooks/{page}.md")
    code = re.findall(r"^```{code-cell} ipython3\n(.*?)^```", content, re.DOTALL | re.MULTILINE)[0]
    monkeypatch.chdir(tmp_path)
    exec(compile(code, f"{page}.md", "exec"), {})
    loaded = po.load(file)
    assert isinstance(loaded, po.Model)
    problem = loaded.differentiate(loss="cross-entropy").cost("rpi5")
    assert po.execute(po.solve(problem, ram="100%")).bit_identical


@pytest.mark.torch
def test_the_way_from_pytorch_and_back_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's program, from its first block to its last, and what it compares."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    blocks = re.findall(r"^```python\n(.*?)^```", text(ROOT / "docs/from-pytorch.md"), re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    exec(compile("\n".join(blocks), "from-pytorch.md", "exec"), names)
    assert names["ended"].bit_identical
    weight, step = names["net"][0].weight, names["step"]
    assert step["0.weight.grad"] == pytest.approx(weight.grad.numpy(), abs=1e-6)
