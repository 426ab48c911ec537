"""Executes the notebooks and writes them with their outputs as plain Markdown, for reading without a build.

    python docs/render.py [NAME ...]

Each `docs/notebooks/NAME.md` becomes `docs/rendered/NAME.md`: prose, code, and under each cell what it printed. A test
compares the digest in a rendered page's first line with its notebook's: who changes a notebook renders it again.
"""

from __future__ import annotations

import atexit
import base64
import hashlib
import importlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
NOTEBOOKS, RENDERED = DOCS / "notebooks", DOCS / "rendered"
TEXT_FIRST = """
import poetopt as po
from IPython import get_ipython

plain = get_ipython().display_formatter.formatters["text/plain"]
plain.for_type(po.Report, lambda report, p, cycle: p.text(str(report)))
"""
"""A report prints as the command line has it; its HTML needs a browser."""


def digest(notebook: Path) -> str:
    """What a rendered page says of the notebook that it is of."""
    return hashlib.sha256(notebook.read_bytes()).hexdigest()[:16]


def head(notebook: Path) -> str:
    """The first line of a rendered page."""
    return f"<!-- docs/notebooks/{notebook.name} {digest(notebook)}, executed by docs/render.py -->"


def render(notebook: Path) -> None:
    """Execute one notebook in a folder of its own and write its page. Raises what a failing cell raises."""
    import nbformat
    from myst_nb.core.read import read_myst_markdown_notebook  # type: ignore[import-untyped]
    from nbclient import NotebookClient

    sys.path.insert(0, str(DOCS))
    conf = importlib.import_module("conf")  # its kernel, and its `%%sh`

    atexit.register(shutil.rmtree, conf._PLACE, ignore_errors=True)
    book = read_myst_markdown_notebook(notebook.read_text(encoding="utf-8"), path=notebook)
    book.cells.insert(0, nbformat.v4.new_code_cell(TEXT_FIRST))  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as place:
        NotebookClient(book, timeout=600, kernel_name="python3", resources={"metadata": {"path": place}}).execute()
    text = "\n\n".join(_parts(notebook, book.cells[1:]))
    RENDERED.mkdir(exist_ok=True)
    (RENDERED / notebook.name).write_text(f"{head(notebook)}\n\n{text}\n", encoding="utf-8")


def _parts(notebook: Path, cells: list[Any]) -> Iterator[str]:
    for index, cell in enumerate(cells):
        if cell.cell_type != "code":
            yield _linked(cell.source.strip())
            continue
        tags = cell.metadata.get("tags", [])
        if "remove-cell" in tags:
            continue
        shell = cell.source.startswith("%%sh")
        if "remove-input" not in tags:
            yield _fenced(cell.source.removeprefix("%%sh").strip(), "sh" if shell else "python")
        streams = "".join(output.text for output in cell.outputs if output.output_type == "stream")
        if streams.strip():
            yield _fenced(streams.rstrip(), "text")
        for output in cell.outputs:
            if output.output_type in ("execute_result", "display_data"):
                yield _shown(notebook, index, output.data)


def _shown(notebook: Path, index: int, data: Mapping[str, Any]) -> str:
    """A result: its Markdown, its picture, or its text."""
    if "text/markdown" in data:
        return str(data["text/markdown"])
    if "image/png" in data:
        picture = RENDERED / f"{notebook.stem}-{index}.png"
        picture.write_bytes(base64.b64decode(data["image/png"]))
        return f"![output]({picture.name})"
    return _fenced(str(data.get("text/plain", "")).rstrip(), "text")


def _fenced(text: str, language: str) -> str:
    return f"```{language}\n{text}\n```"


def _linked(text: str) -> str:
    """Links without words get the heading of the page that they lead to."""

    def words(match: re.Match[str]) -> str:
        page = (NOTEBOOKS / match[1].split("#")[0]).resolve()
        title = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        return f"[{title[1] if title else page.stem}]({match[1]})"

    return re.sub(r"(?<!!)\[\]\(([^)]+)\)", words, text)


if __name__ == "__main__":
    wanted = sys.argv[1:] or sorted(path.stem for path in NOTEBOOKS.glob("*.md"))
    for name in wanted:
        print(f"{name} ...", file=sys.stderr)  # noqa: T201
        render(NOTEBOOKS / f"{name}.md")
