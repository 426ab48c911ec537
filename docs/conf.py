"""Sphinx's configuration: `make docs` builds these pages into build/docs, with every notebook executed.

Nothing is fetched, neither when they are built nor when they are read: there are no inventories of other
projects, and equations are MathML.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pygments.lexers.special import TextLexer  # type: ignore[import-untyped]

import poetopt

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).resolve().parent))

project = "poetopt"
author = "the poetopt contributors"
version = release = poetopt.__version__
extensions = ["sphinx.ext.autodoc", "myst_nb", "mathml"]
exclude_patterns = ["examples", "images/README.md"]
default_role = "literal"
nitpicky = True
# Annotations name classes of other packages, and of modules that have no page of their own.
nitpick_ignore_regex = [(r"py:(class|obj|data|exc|func|meth|attr)", r".*")]

myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
nb_render_markdown_format = "myst"
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
add_module_names = False
python_maximum_signature_line_length = 88

html_math_renderer = "mathml"
html_theme = "alabaster"
html_title = "poetopt"
html_static_path = ["_static"]
html_css_files = ["poetopt.css"]
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {
    "description": "Training on devices with too little RAM: planned, proven, executed",
    "page_width": "1180px",
    "sidebar_width": "230px",
    "fixed_sidebar": True,
    "font_family": "system-ui, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif",
    "head_font_family": "system-ui, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif",
    "code_font_size": "0.82em",
    "show_relbars": True,
}
html_sidebars = {"**": ["about.html", "searchfield.html", "navigation.html"]}


_SHELL = """
import subprocess
from IPython.core.magic import register_cell_magic

@register_cell_magic
def sh(line, cell):
    # IPython's own prints what comes in pieces of 100 bytes, and the pages would have lines that end there.
    ended = subprocess.run(["sh", "-ec", cell], capture_output=True, text=True)
    print(ended.stdout + ended.stderr, end="")
    ended.check_returncode()
"""


def _own_kernel() -> Path:
    """Let notebooks run on the interpreter that builds the pages, whatever kernels are installed on this machine.

    All that Jupyter and IPython write goes into a folder of this build's own, which is returned.
    """
    place = Path(tempfile.mkdtemp(prefix="poetopt-docs-"))
    kernel = place / "kernels" / "python3"
    kernel.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--IPKernelApp.log_level=ERROR"]
    (kernel / "kernel.json").write_text(
        json.dumps({"argv": command, "display_name": "Python 3", "language": "python"}), encoding="utf-8"
    )
    startup = place / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "shell.py").write_text(_SHELL, encoding="utf-8")
    os.environ.update(
        JUPYTER_PATH=str(place),
        JUPYTER_DATA_DIR=str(place / "data"),
        JUPYTER_RUNTIME_DIR=str(place / "runtime"),
        JUPYTER_CONFIG_DIR=str(place / "config"),
        IPYTHONDIR=str(place / "ipython"),
        POETOPT_ROOT=str(ROOT),
        PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    )
    return place


def _listed(rows: list[str], indent: str) -> list[str]:
    """A Markdown table as reStructuredText has it."""
    done = [f"{indent}.. list-table::", f"{indent}   :header-rows: 1", ""]
    for row in rows:
        cells = [re.sub(r"\$([^$]+)\$", r":math:`\1`", cell.strip()) for cell in row.strip().strip("|").split("|")]
        if all(set(cell) <= {"-", ":"} for cell in cells):
            continue
        done += [f"{indent}   {'* ' if k == 0 else '  '}- {cell}" for k, cell in enumerate(cells)]
    return [*done, ""]


_SECTIONS = ("Parameters", "Attributes", "Returns", "Yields", "Raises", "Notes")
_TERM = re.compile(r"^(\*{0,2}[a-z_]\w*(?:, \*{0,2}[a-z_]\w*)*)$")


def _as_written(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Read docstrings as they are written here: sections, `name` above an indented text, and indented code."""
    if lines and lines[0].startswith("Alias for field number"):
        lines[:] = []
    done: list[str] = []
    table: list[str] = []
    last = ""
    for k, line in enumerate(lines):
        if line.lstrip().startswith("|"):
            table.append(line)
            if k + 1 == len(lines) or not lines[k + 1].lstrip().startswith("|"):
                done += _listed(table, line[: len(line) - len(line.lstrip())])
                table = []
            continue
        following = lines[k + 1] if k + 1 < len(lines) else ""
        if line in _SECTIONS and set(following) == {"-"}:
            line = f"**{line}**"
        elif k and lines[k - 1] in _SECTIONS and set(line) == {"-"}:
            line = ""  # an underline would make it a title, which a docstring can't have
        indent = len(line) - len(line.lstrip())
        if _TERM.match(line) and following.startswith("    "):
            line = ", ".join(f"``{word}``" for word in line.split(", "))
        elif line and not lines[k - 1] and last and indent >= len(last) - len(last.lstrip()) + 4:
            done += [" " * (indent - 4) + "::", ""]
        done.append(line)
        last = line or last
    lines[:] = done


_OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#]+)\)")


def _downloads(app: Sphinx, name: str, source: list[str]) -> None:
    """Files of the repository that are no page here become downloads."""

    def link(match: re.Match[str]) -> str:
        target = (Path(app.srcdir) / name).parent / match[2]
        outside = not target.resolve().is_relative_to(Path(app.srcdir).resolve()) or target.suffix != ".md"
        return f"{{download}}`{match[1].strip('`')} <{match[2]}>`" if outside else match[0]

    source[0] = _OUTSIDE.sub(link, source[0])


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.add_lexer("csv", TextLexer)
    app.connect("source-read", _downloads)
    app.connect("autodoc-process-docstring", _as_written)
    app.connect("build-finished", lambda app, error: shutil.rmtree(_PLACE, ignore_errors=True))


_PLACE = _own_kernel()
