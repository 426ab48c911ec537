"""What can be said of a block without solving anything: its words, and what it puts on a model."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pyomo.environ as pyo

from poetopt.formulations.block import Block
from poetopt.formulations.goal import ENERGY
from poetopt.formulations.language import Formulation
from poetopt.formulations.mathematics import mathematics, symbols
from poetopt.formulations.rows import Terms
from poetopt.graph.problem import Problem
from poetopt.testing.block_cases import scope_of
from poetopt.testing.contract import ContractError, require
from poetopt.util.errors import FormulationError

CONTRIBUTIONS = ("energy_j", "compute_s", "transfer_s", "written_bytes", "late_s")
TOLERANCE = 1e-6


def check_words(block: Block) -> None:
    where = f"block '{block.name}'"
    require(block.name.isidentifier(), f"{where}: its name is an attribute of the model; make it a Python identifier")
    text = mathematics(block)
    require(text, f"{where}: neither its file nor its build function has a docstring; write the mathematics there")
    for symbol in symbols(block):
        require(symbol.unit, f"{where}: symbol {symbol.symbol} has no unit in its table; '-' where there is none")
        require(symbol.meaning, f"{where}: symbol {symbol.symbol} has no meaning in its table")
    require(
        block.refuses is not None or not block.restricts,
        f"{where}: nobody can tell which plans it forbids; give it `refuses`, or restricts=False where it forbids none",
    )
    require(
        (block.adds_j is None) == (block.base_j is None),
        f"{where}: adds_j and base_j belong together: joules above one pass, and joules of one pass",
    )
    try:
        pickle.dumps(block)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        require(False, f"{where}: it doesn't pickle ({error}); put its rules at module level, functools.partial binds")


def check_build(block: Block, together: Formulation, problem: Problem, ram_bytes: int) -> None:
    where = f"block '{block.name}'"
    try:
        model = together.build(problem, ram_bytes=ram_bytes, scope=scope_of(together, problem, ram_bytes))
    except FormulationError as error:
        raise ContractError(str(error)) from error
    if block.name not in model.block_names:
        return
    built = model.component(block.name)
    for symbol in symbols(block):
        if symbol.attribute not in ("", "-"):
            require(
                hasattr(built, symbol.attribute),
                f"{where}: its table says that {symbol.symbol} is `{symbol.attribute}`, which it doesn't set",
            )
    known = {id(item) for item in model.component_data_objects(pyo.Var)}
    for attribute in CONTRIBUTIONS:
        if hasattr(built, attribute):
            _check_terms(f"{where}: {attribute}", getattr(built, attribute), known)
            judged = attribute == ENERGY.attribute or (block.goal is not None and attribute == block.goal.attribute)
            require(
                judged,
                f"{where}: the model counts its {attribute}, and no judgement of a plan does: leave that out, or say "
                "in joules what it costs (`energy_j` and adds_j)",
            )
    place = together.blocks.index(block)
    if not block.collects:
        gives = [name for name in CONTRIBUTIONS if hasattr(built, name)]
        late = [other.name for other in together.blocks[:place] if other.collects]
        require(not (gives and late), f"{where}: it contributes {', '.join(gives)} behind {', '.join(late)}")
    require(
        together.goal is ENERGY or any(hasattr(model.component(b), together.goal.attribute) for b in model.block_names),
        f"{where}: it minimises {together.goal.name}, and no block contributes `{together.goal.attribute}`",
    )


def _check_terms(where: str, found: Any, known: set[int]) -> None:
    require(isinstance(found, Terms), f"{where}: must be made by `terms`, and is a {type(found).__name__}")
    require(
        len(found.variables) == len(found.coefficients),
        f"{where}: {len(found.variables)} variables and {len(found.coefficients)} coefficients",
    )
    require(all(math.isfinite(c) for c in found.coefficients), f"{where}: a coefficient is not finite")
    require(all(id(v) in known for v in found.variables), f"{where}: a variable is not one of the model's")
