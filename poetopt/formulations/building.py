"""Build a Pyomo model from a formulation: blocks on an AbstractModel, the instance, and checks of its components."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import pyomo.core as pyo
from pyomo.core.expr.numeric_expr import LinearExpression

from poetopt.formulations.block import SETS, Block, Space, contributions, declare
from poetopt.formulations.callbacks import answer, fill, told_once
from poetopt.formulations.goal import ENERGY
from poetopt.formulations.mathematics import symbols, title
from poetopt.formulations.rows import linear
from poetopt.graph.problem import Problem
from poetopt.util.errors import FormulationError
from poetopt.util.process import building

if TYPE_CHECKING:
    from poetopt.formulations.language import Formulation


REMEDIES = {
    "Objective": "a model has one: contribute joules as `energy_j = terms(...)`, or set the block's `goal`",
    "SOSConstraint": "backends accept only rows: use binaries",
    "Disjunction": "backends accept only rows: end the block's build with "
    "TransformationFactory('gdp.bigm').apply_to(block)",
    "LogicalConstraint": "backends accept only rows: use binaries, or end the block's build with "
    "TransformationFactory('core.logical_to_linear').apply_to(block)",
}
"""Components that a finished block must not have, each with the remedy."""


def finish(model: Any, blocks: Iterable[Block]) -> None:
    """Document and check the components of a model that `create_instance` has returned.

    Raises
    ------
    FormulationError
        A block has a component that no backend would see.
    """
    for block in blocks:
        if block.name not in model.block_names:
            continue
        component = model.component(block.name)
        heading, meanings = _describe(block)
        component.doc = component.doc or heading
        for part in list(component.component_objects(descend_into=(pyo.Block,))):
            kind = part.ctype.__name__
            if kind in REMEDIES and part.active:
                raise FormulationError(f"block '{block.name}': {part.name} is of the kind {kind}; {REMEDIES[kind]}")
            part.doc = part.doc or meanings.get(part.local_name)
            if part.ctype is pyo.Constraint:
                if not part.is_indexed() and not part:
                    part.parent_block().del_component(
                        part
                    )  # its row was skipped, and Pyomo's own tools fail on the empty rest
                part._rule = None  # no longer needed, and nested functions don't pickle


def _describe(block: Block) -> tuple[str, dict[str, str]]:
    """Return the title in the block's docstring, and the meaning of each symbol by its attribute."""
    try:
        return _read_description(block)
    except TypeError:  # a block with a list in it isn't hashable
        return _read_description.__wrapped__(block)


@functools.lru_cache(maxsize=256)
def _read_description(block: Block) -> tuple[str, dict[str, str]]:
    return title(block), {
        symbol.attribute: symbol.meaning + (f" [{symbol.unit}]" if symbol.unit.strip("-") else "")
        for symbol in symbols(block)
    }


def abstract(chosen: Formulation, space: Space) -> pyo.AbstractModel:
    """Return the abstract model of `chosen` (`Formulation.abstract`)."""
    model = pyo.AbstractModel(name=chosen.name)
    enter(chosen, model, space)
    if space.limits.open:
        from poetopt.formulations import parameters  # units take Pyomo half a second

        declare(model, SETS)
        parameters.declare(model)
    put(chosen, model, model.block_names)
    return model


def enter(chosen: Formulation, model: Any, space: Space) -> None:
    """Give a model its space and the attributes that follow from it.

    Raises
    ------
    FormulationError
        A block that another block requires is missing or comes later, or a block can't be in this model.
    """
    model.space = space
    model.formulation = chosen
    present: list[str] = []
    for block in chosen.blocks:
        if block.when is not None and not answer(block, "when", space):
            continue
        missing = [name for name in block.requires if name not in present]
        if missing:
            raise FormulationError(
                f"formulation '{chosen.name}': block '{block.name}' requires {', '.join(missing)}, which "
                f"must come before it; present so far: {', '.join(present) or 'none'}"
            )
        if block.name in present:
            raise FormulationError(f"formulation '{chosen.name}': two blocks are called '{block.name}'")
        if space.limits.open and (
            block.name in chosen.fixed_costs or block.goal is not None or block.adds_j is not None
        ):
            raise FormulationError(
                f"block '{block.name}' holds budget, deadline or costs as numbers; build without mutable=True"
            )
        present.append(block.name)
    model.block_names = tuple(present)
    model.goal = chosen.goal
    model.baselines_j, model.baseline_j = chosen.baselines_j(space.problem)
    model.reserved_bytes = chosen.reserve_bytes(space.problem)


def put(chosen: Formulation, model: Any, names: Iterable[str]) -> None:
    """Put Sets, the blocks of these names and the objective on an abstract model. Pyomo builds them with the space."""
    declare(model, {**SETS, **chosen.sets})
    for block in chosen.blocks:
        if block.name in names:
            model.add_component(block.name, pyo.Block(rule=partial(fill, block)))
    model.overhead_j = pyo.Objective(
        rule=_objective,
        sense=pyo.minimize,
        doc=f"{chosen.goal.name} above one compute of each operator [{chosen.goal.unit}]",
    )


def instance(chosen: Formulation, space: Space) -> Any:
    """Return the model of a space, which the caller may change. Raises the errors of `Formulation.build`."""
    with building(), told_once():
        model = abstract(chosen, space).create_instance()
    complete(model)
    return model


def complete(model: Any) -> None:
    """Check and document a model that Pyomo has constructed. Raises FormulationError for an invalid component."""
    chosen: Formulation = model.formulation
    for block in chosen.blocks:
        if block.name not in model.block_names and model.component(block.name) is not None:
            model.del_component(block.name)
    finish(model, chosen.blocks)
    _check_prices(chosen, model)
    if model.space.limits.open:
        _add_sums(model)


def _add_sums(model: Any) -> None:
    """Add the sums of the step as Expressions in the Params."""
    from poetopt.formulations.parameters import BYTE

    sums = {name: linear(contributions(model, name)) for name in ("energy_j", "compute_s", "transfer_s")}
    one_pass_j, one_pass_s = (sum(model.component(name).values()) for name in ("compute_j", "compute_s"))
    model.energy_j = pyo.Expression(expr=one_pass_j + sums["energy_j"], doc="joules of the step")
    model.compute_time_s = pyo.Expression(expr=one_pass_s + sums["compute_s"], doc="seconds of all computes")
    model.transfer_time_s = pyo.Expression(expr=sums["transfer_s"], doc="seconds on the transfer channel")
    rows = model.memory.component("stage") or model.memory.within
    unit = model.space.memory_unit * BYTE
    used = {index: model.ram_bytes - unit * (row.upper - row.body) for index, row in rows.items()}
    model.bytes_used = pyo.Expression(
        list(used), initialize=used, doc=f"bytes in RAM, of all that the rows of {rows.name} count"
    )


def check_stages(chosen: Formulation, problem: Problem) -> None:
    """Raise FormulationError if a block may depend on the stages in which parameters move: they are no decisions."""
    stored = [tensor.name for tensor in problem.tensors if tensor.stored]
    caring = [block.name for block in chosen.blocks if block.depends_on_stages and block.name not in chosen.simulated]
    if stored and caring:
        raise FormulationError(
            f"block '{caring[0]}' may depend on the stages of transfers, which are no decisions for tensors whose home "
            f"is storage, such as {stored[0]!r}. Set transfer_times=False if the block doesn't depend on them, or keep "
            "parameters in RAM (--parameters resident)"
        )


def _check_prices(chosen: Formulation, model: Any) -> None:
    """Raise FormulationError for a block whose joules the model counts, but no evaluation of a plan does."""
    for block in chosen.blocks:
        if block.name in chosen.simulated or block.adds_j is not None or block.name not in model.block_names:
            continue
        if getattr(model.component(block.name), ENERGY.attribute, None) is not None:
            raise FormulationError(
                f"block '{block.name}' adds {ENERGY.attribute} to the model, but nothing to simulated plans, so no "
                "proof would hold. Give the block adds_j"
            )


def _objective(model: Any) -> LinearExpression:
    return linear(contributions(model, model.goal.attribute))
