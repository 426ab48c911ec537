"""Installed formulations and blocks, and their mathematics, for people and programs."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from poetopt import formulations
from poetopt.formulations import options
from poetopt.formulations.block import Block
from poetopt.formulations.language import Formulation
from poetopt.formulations.mathematics import mathematics, symbols, title
from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.report.layout import table
from poetopt.util.errors import FormulationError, OptionError
from poetopt.util.figures import figures

_EXAMPLE = Problem(
    "example",
    "example",
    (
        ProblemOperator("forward", (0,), (1,), time_s=1.0, energy_j=1.0),
        ProblemOperator("backward", (0, 1), (2,), time_s=1.0, energy_j=1.0, backward=True),
    ),
    tuple(
        ProblemTensor(name, 1, producer, Transfers(1.0, 1.0, 1.0, 1.0))
        for producer, name in ((-1, "x"), (0, "y"), (1, "dx"))
    ),
)
"""Problem for a block of which only the words matter."""
OWN_OPTION = ("energy-limit",)
"""Blocks with an option of their own on the command line."""
_TEX = (
    (r"\sum", "∑"), (r"\le", "≤"), (r"\ge", "≥"), (r"\in", "∈"), (r"\Phi", "Φ"), (r"\Psi", "Ψ"), (r"\mu", "μ"),
    (r"\min", "min"), (r"\max", "max"), (r"\cdot", "·"), (r"\times", "×"), (r"\notin", "∉"), (r"\cup", "∪"),
)  # fmt: skip
_FRAMES = ("$$", r"\begin{aligned}", r"\end{aligned}", r"\textstyle", "&&", "&", r"\\", r"\,", r"\;", r"\ ", r"\:")


@dataclass(frozen=True)
class CatalogueEntry:
    """A formulation, or a block that `--block` adds to one.

    Attributes
    ----------
    option
        Spelling on the command line.
    """

    name: str
    kind: str
    about: str
    option: str
    blocks: tuple[Block, ...]
    minimises: str
    doc: str

    def to_dict(self) -> dict[str, object]:
        """Return plain data for JSON, with TeX as in the docstrings."""
        return {
            **figures(self, ("name", "kind", "about", "option", "minimises", "doc")),
            "blocks": [_block_document(block) for block in self.blocks],
        }


def catalogue(name: str | None = None) -> list[CatalogueEntry]:
    """Return the installed formulations and blocks, formulations first; or only the one called `name`.

    Raises
    ------
    FormulationError
        There is no such name, or its entry point can't be loaded.
    """
    if name is None:
        entries = [_or_broken(_formulation, known, "formulation") for known in formulations.names()]
        return [*entries, *(_or_broken(_option, known, "block") for known in options.names())]
    spelled = {_alike(known): known for known in (*formulations.names(), *options.names())}
    spelled |= {_alike(block.name): block.name for known in formulations.NAMES for block in _blocks(known)}
    name = spelled.get(_alike(name), name)
    if name in options.names():
        return [_option(name)]
    by_block = {_alike(_example(known).name): known for known in options.HOMES}
    if _alike(name) in by_block:
        return [_option(by_block[_alike(name)])]
    for known in formulations.NAMES:
        for block in _blocks(known):
            if block.name == name:
                return [CatalogueEntry(name, "block", title(block), f"a part of {known}", (block,), "", "")]
    if name not in formulations.names():
        raise FormulationError(
            f"unknown formulation or block '{name}'. There are {', '.join([*formulations.names(), *options.names()])}."
        )
    return [_formulation(name)]


def _alike(name: str) -> str:
    """Return a name for comparing: `flash-wear` of options equals `flash_wear` of Python."""
    return name.replace("-", "_")


def _blocks(name: str) -> tuple[Block, ...]:
    return formulations.formulation(name).blocks


def _or_broken(make: Callable[[str], CatalogueEntry], name: str, kind: str) -> CatalogueEntry:
    """Return the entry of a name; of a broken package one that says so, so that the others are listed."""
    try:
        return make(name)
    except (FormulationError, OptionError) as error:
        return CatalogueEntry(name, kind, f"can't be used: {error}", "", (), "", "")


def _formulation(name: str) -> CatalogueEntry:
    chosen: Formulation = formulations.formulation(name)
    doc = inspect.cleandoc(chosen.doc or "")
    about = re.sub(r"^`[^`]+`:\s*", "", doc.partition("\n\n")[0].replace("\n", " ")).rstrip(".")
    minimises = f"{chosen.goal.name} ({chosen.goal.unit})"
    return CatalogueEntry(name, "formulation", about, f"--formulation {name}", chosen.blocks, minimises, doc)


def _example(name: str) -> Block:
    return options.made(name, options.option(name).example, _EXAMPLE, 1)


def _option(name: str) -> CatalogueEntry:
    entry = options.option(name)
    block = _example(name)
    spelling = f"--{name} {entry.metavar}" if name in OWN_OPTION else f"--block {name}"
    spelling += f"={entry.metavar}" if entry.metavar and name not in OWN_OPTION else ""
    minimises = f"{block.goal.name} ({block.goal.unit})" if block.goal is not None else ""
    return CatalogueEntry(name, "block", title(block), spelling, (block,), minimises, "")


def listing(entries: list[CatalogueEntry]) -> str:
    """Return a paragraph for each entry: its summary, its option, its blocks."""
    parts = []
    for entry in entries:
        rows = [("ask with", entry.option)] if entry.option else []
        if entry.minimises:
            rows.append(("minimises", entry.minimises))
        if entry.kind == "formulation":
            rows += [(block.name, title(block)) for block in entry.blocks]
        elif entry.blocks and entry.blocks[0].requires:
            rows.append(("requires", ", ".join(entry.blocks[0].requires)))
        parts.append(table(f"{entry.kind} {entry.name}: {entry.about}", rows))
    return "\n\n".join([*parts, "poetopt formulations --show NAME has the mathematics."])


def page(entry: CatalogueEntry) -> str:
    """Return one entry in full: the mathematics of each of its blocks as text."""
    heading = f"{entry.kind} {entry.name}: {entry.about}\n{entry.option}"
    parts = [heading]
    rest = entry.doc.partition("\n\n")[2]
    if rest:
        parts.append(readable(rest))
    for block in entry.blocks:
        needs = f"requires {', '.join(block.requires)}" if block.requires else "requires no other block"
        parts.append(f"--- {block.name} ({needs}) ---\n{readable(mathematics(block)) or 'no docstring'}")
    return "\n\n".join(parts)


def readable(doc: str) -> str:
    """Return a docstring with its TeX as plain text: `r_{j,t} ≤ 1`."""
    lines = []
    for line in doc.splitlines():
        text = line
        if not text.lstrip().startswith("|"):
            text = re.sub(r"\\q?quad(?![A-Za-z]) *", "   ", text)
            for frame in _FRAMES:
                text = text.replace(frame, " " if frame in ("&&", r"\ ") else "")
        text = re.sub(r"\\(?:text|mathrm)\{([^}]*)\}", r"\1", text.replace("$", ""))
        for tex, plain in sorted(_TEX, key=lambda pair: -len(pair[0])):
            text = re.sub(re.escape(tex) + r"(?![A-Za-z])", plain, text)
        text = re.sub(r"([_^])\{([^{}]*)\}", r"\1\2", text)
        if text.strip() or not line.strip():
            lines.append(text.rstrip())
    return textwrap.dedent("\n".join(lines)).strip()


def _block_document(block: Block) -> dict[str, object]:
    return {
        "name": block.name,
        "about": title(block),
        "requires": list(block.requires),
        "symbols": [symbol._asdict() for symbol in symbols(block)],
        "mathematics": mathematics(block),
    }
