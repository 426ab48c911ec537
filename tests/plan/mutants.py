"""One mistake in a plan of tensors with homes: a step that can't be repeated, or that reads what is old.

A mutant need not be wrong: what is left out may have been idle. Two simulators have to agree on each.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from poetopt.graph.problem import Home
from poetopt.plan.instructions import Action, Instruction, Plan


def _places(plan: Plan, action: Action, tensors: set[int]) -> list[int]:
    return [k for k, step in enumerate(plan.instructions) if step.action is action and step.target in tensors]


def _at_home(plan: Plan) -> set[int]:
    """What no operator computes."""
    return {i for i, held in enumerate(plan.problem.tensors) if not held.computed}


def _updated(plan: Plan) -> dict[int, int]:
    """Tensor -> the place of its update in the plan."""
    first = {step.target: k for k, step in reversed([*enumerate(plan.instructions)]) if step.action is Action.COMPUTE}
    return {i: first[held.updated_by] for i, held in enumerate(plan.problem.tensors) if held.updated}


def _with(plan: Plan, *steps: Instruction, at: int) -> Plan:
    return replace(plan, instructions=(*plan.instructions[:at], *steps, *plan.instructions[at:]), offsets=())


def _without(plan: Plan, places: list[int], rng: random.Random) -> Plan | None:
    if not places:
        return None
    at = rng.choice(places)
    return replace(plan, instructions=(*plan.instructions[:at], *plan.instructions[at + 1 :]), offsets=())


def dropped_write_back(plan: Plan, rng: random.Random) -> Plan | None:
    """What is updated isn't written to storage again."""
    return _without(plan, _places(plan, Action.PAGE_OUT, set(_updated(plan))), rng)


def dropped_page_in(plan: Plan, rng: random.Random) -> Plan | None:
    """What lies on storage isn't read from there."""
    return _without(plan, _places(plan, Action.PAGE_IN, _at_home(plan)), rng)


def early_write_back(plan: Plan, rng: random.Random) -> Plan | None:
    """The write-back comes before the update: storage keeps what the step began with."""
    updated = _updated(plan)
    places = _places(plan, Action.PAGE_OUT, set(updated))
    if not places:
        return None
    at = rng.choice(places)
    step = plan.instructions[at]
    left = _without(plan, [at], rng)
    assert left is not None
    return _with(left, step, at=rng.randint(max(0, updated[step.target] - 2), updated[step.target]))


def stale_read(plan: Plan, rng: random.Random) -> Plan | None:
    """After its update the tensor leaves RAM, and what storage holds comes back."""
    updated = _updated(plan)
    if not updated:
        return None
    i = rng.choice(sorted(updated))
    steps = [Instruction(Action.FREE, i), Instruction(Action.PAGE_IN, i)]
    if rng.random() < 0.3:
        steps.insert(0, Instruction(Action.PAGE_OUT, i))  # no mistake, unless it isn't there
    return _with(plan, *steps, at=updated[i] + 1)


def late_recompute(plan: Plan, rng: random.Random) -> Plan | None:
    """A reader runs again after, or right before, the update of what it reads."""
    updated = _updated(plan)
    if not updated:
        return None
    i = rng.choice(sorted(updated))
    reader = rng.choice(plan.problem.readers[i])
    return _with(
        plan, Instruction(Action.COMPUTE, reader), at=min(len(plan.instructions), updated[i] + rng.randint(0, 3))
    )


def early_free(plan: Plan, rng: random.Random) -> Plan | None:
    """A tensor is released some instructions before its turn."""
    places = _places(plan, Action.FREE, set(range(len(plan.problem.tensors))))
    at = rng.choice(places) if places else 0
    if not at:
        return None
    steps = list(plan.instructions)
    steps.insert(rng.randint(max(0, at - 4), at), steps.pop(at))
    return replace(plan, instructions=tuple(steps), offsets=())


def other_homes(plan: Plan, rng: random.Random) -> Plan | None:
    """The plan begins with another tensor in RAM, or with one less."""
    problem = plan.problem
    able = [i for i, held in enumerate(problem.tensors) if held.carried and held.home in (Home.RAM, Home.STORAGE)]
    if not able:
        return None
    i = rng.choice(able)
    if problem.tensors[i].home is Home.STORAGE:
        return replace(plan, problem=problem.keeping([i]), offsets=())
    held = replace(problem.tensors[i], home=Home.STORAGE, backed=False)
    tensors = (*problem.tensors[:i], held, *problem.tensors[i + 1 :])
    return replace(plan, problem=replace(problem, tensors=tensors), offsets=())


def moved_offset(plan: Plan, rng: random.Random) -> Plan | None:
    """A buffer lies elsewhere: one of what is in RAM as the step begins, or any."""
    if not plan.offsets:
        return None
    begins = len(plan.problem.at_start)
    k = rng.randrange(begins if begins and rng.random() < 0.5 else len(plan.offsets))
    by = rng.choice((-2, -1, 1, 2, 1000)) * plan.problem.alignment
    return replace(plan, offsets=(*plan.offsets[:k], plan.offsets[k] + by, *plan.offsets[k + 1 :]))


KINDS: tuple[Callable[[Plan, random.Random], Plan | None], ...] = (
    dropped_write_back,
    dropped_page_in,
    early_write_back,
    stale_read,
    late_recompute,
    early_free,
    other_homes,
    moved_offset,
)
