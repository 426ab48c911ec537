"""Equations as MathML, which browsers draw themselves: no script, no font and no network when a page is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from docutils import nodes  # type: ignore[import-untyped]
from docutils.utils.math.latex2mathml import tex2mathml  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator


def mathml(tex: str, *, block: bool) -> str:
    """The `<math>` element of an equation. Raises docutils' MathError for TeX that it doesn't know."""
    text = tex.strip().replace(r"\textstyle", "")  # docutils takes it only at the beginning of a group
    return str(tex2mathml(text, as_block=block))


def _inline(writer: HTML5Translator, node: nodes.math) -> None:
    writer.body.append(mathml(node.astext(), block=False))
    raise nodes.SkipNode


def _block(writer: HTML5Translator, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="math">{mathml(node.astext(), block=True)}</div>')
    raise nodes.SkipNode


def _nothing(writer: HTML5Translator, node: nodes.Element) -> None:
    """Never called: the visitors skip."""


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.add_html_math_renderer("mathml", (_inline, _nothing), (_block, _nothing))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
