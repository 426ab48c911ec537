"""From a formulation to a Pyomo model: its blocks on an AbstractModel, the instance, and what may not be in one."""

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


REFUSED = {
    "Objective": "a model has one: contribute joules as `energy_j = terms(...)`, or say with `goal` what is minimised",
    "SOSConstraint": "backends take rows alone: say it with binaries",
    "Disjunction": "backends take rows alone: end the block's build with "
    "TransformationFactory('gdp.bigm').apply_to(block)",
    "LogicalConstraint": "backends take rows alone: say it with binaries, or end the block's build with "
    "TransformationFactory('core.logical_to_linear').apply_to(block)",
}
"""Components that a block may not leave behind, each with the remedy."""


def finish(model: Any, blocks: Iterable[Block]) -> None:
    """Go through the blocks of a model that `create_instance` has returned.

    Raises FormulationError for a component that no backend would see.
    """
    for block in blocks:
        if block.name not in model.block_names:
            continue
        component = model.component(block.name)
        heading, meanings = _words(block)
        component.doc = component.doc or heading
        for part in list(component.component_objects(descend_into=(pyo.Block,))):
            kind = part.ctype.__name__
            if kind in REFUSED and part.active:
                raise FormulationError(f"block '{block.name}': {part.name} is of the kind {kind}; {REFUSED[kind]}")
            part.doc = part.doc or meanings.get(part.local_name)
            if part.ctype is pyo.Constraint:
                if not part.is_indexed() and not part:
                    part.parent_block().del_component(part)  # skipped: Pyomo's own tools stumble over its rest
                part._rule = None  # done with; and functions inside functions don't pickle


def _words(block: Block) -> tuple[str, dict[str, str]]:
    """The title in the block's docstring, and the meaning of each symbol by its attribute."""
    try:
        return _read(block)
    except TypeError:  # a block with a list in it can't be remembered
        return _read.__wrapped__(block)


@functools.lru_cache(maxsize=256)
def _read(block: Block) -> tuple[str, dict[str, str]]:
    return title(block), {
        symbol.attribute: symbol.meaning + (f" [{symbol.unit}]" if symbol.unit.strip("-") else "")
        for symbol in symbols(block)
    }


def abstract(chosen: Formulation, space: Space) -> pyo.AbstractModel:
    """See `Formulation.abstract`."""
    model = pyo.AbstractModel(name=chosen.name)
    enter(chosen, model, space)
    if space.limits.open:
        from poetopt.formulations import parameters  # units take Pyomo half a second

        declare(model, SETS)
        parameters.declare(model)
    put(chosen, model, model.block_names)
    return model


def enter(chosen: Formulation, model: Any, space: Space) -> None:
    """Give a model its space, and what is plain then.

    Raises FormulationError where a block's requirement is missing or comes later, and for blocks that can't be there.
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
                f"must stand before it; present so far: {', '.join(present) or 'none'}"
            )
        if block.name in present:
            raise FormulationError(f"formulation '{chosen.name}': two blocks are called '{block.name}'")
        if space.limits.open and (block.name in chosen.numbers or block.goal is not None or block.adds_j is not None):
            raise FormulationError(
                f"block '{block.name}' holds budget, deadline or costs as numbers; build without mutable=True"
            )
        present.append(block.name)
    model.block_names = tuple(present)
    model.goal = chosen.goal
    model.baselines_j, model.baseline_j = chosen.baselines_j(space.problem)
    model.reserved_bytes = chosen.reserve_bytes(space.problem)


def put(chosen: Formulation, model: Any, names: Iterable[str]) -> None:
    """Put Sets, the blocks of these names and the objective on an abstract model, each built once there is a space."""
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
    """The model of a space, for the caller to change. Raises as `Formulation.build` does."""
    with building(), told_once():
        model = abstract(chosen, space).create_instance()
    complete(model)
    return model


def complete(model: Any) -> None:
    """Look at a model that has been constructed, and say what its components mean. Raises FormulationError."""
    chosen: Formulation = model.formulation
    for block in chosen.blocks:
        if block.name not in model.block_names and model.component(block.name) is not None:
            model.del_component(block.name)
    finish(model, chosen.blocks)
    _check_judged(chosen, model)
    if model.space.limits.open:
        _express(model)


def _express(model: Any) -> None:
    """Add the sums of the step, in the Params."""
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
    """Raises FormulationError for a block that may care in which stage parameters move: that is no decision."""
    stored = [tensor.name for tensor in problem.tensors if tensor.stored]
    caring = [block.name for block in chosen.blocks if block.cares_when and block.name not in chosen.simulated]
    if stored and caring:
        raise FormulationError(
            f"block '{caring[0]}' may care in which stage a tensor is moved, and of what lies on storage from step "
            f"to step, such as {stored[0]!r}, that is no decision; say transfer_times=False where it doesn't care, "
            "or keep parameters in RAM (--parameters resident)"
        )


def _check_judged(chosen: Formulation, model: Any) -> None:
    """Raises FormulationError for a block whose joules the model counts, and no judgement of a plan does."""
    for block in chosen.blocks:
        if block.name in chosen.simulated or block.adds_j is not None or block.name not in model.block_names:
            continue
        if getattr(model.component(block.name), ENERGY.attribute, None) is not None:
            raise FormulationError(
                f"block '{block.name}' adds {ENERGY.attribute} to the model, and nothing to the plans that are "
                "compared with it, so that no proof would hold; give it adds_j"
            )


def _objective(model: Any) -> LinearExpression:
    return linear(contributions(model, model.goal.attribute))
