"""The forward pass of a step in inference, as a plan of its own that goes into the same arena.

It finds what the step leaves: what is resident, what lasts in the arena from step to step, at its place there, and what
is on storage. It changes none of it. Operators run in their order; what there is no room for is paged, or streamed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from poetopt.autodiff.inference import predicting
from poetopt.autodiff.passes.in_place import in_place
from poetopt.backends.step.parted import scheduled_names
from poetopt.backends.step.places import graph_of
from poetopt.devices import device
from poetopt.devices.cost import STREAM, Homes, cost, in_flash
from poetopt.graph import TrainingGraph
from poetopt.graph.problem import Home, Problem
from poetopt.ops.nodes import resident_storages
from poetopt.ops.runtimes import runtime as runtime_of
from poetopt.plan.assemble import everything, plan_of
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.layout import arena_bytes, lasting_at, lay_out_around
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.search.heuristics.greedy import greedy
from poetopt.search.heuristics.ways import Ways
from poetopt.util.errors import PlanError
from poetopt.util.work import OutOfWorkError, Work

SHARES = (1.0, 0.9, 0.8, 0.65, 0.5)
"""Of the arena: what a replay aims at, as a layout takes more."""
WORK = 20_000_000
"""Of a replay."""
COSTS = "a72"
"""The device whose joules choose between ways of running: its storage's, which all have in common to be dear."""


def prediction_of(plan: Plan, graph: TrainingGraph) -> Plan | None:
    """A plan of the network's outputs within the arena of `plan`, which is laid out; its problem has the graph.

    None where the network has no outputs beside its loss, where rows of its tables are moved one by one, or where no
    plan was found that has room.
    """
    network = predicting(graph)
    if network is None or not network.inputs or graph.joint.rows:
        return None
    sums = {*graph.sums.values()}
    lasting = {name: place for name, place in lasting_at(plan).items() if name not in sums}
    joined = in_place(network, runtime_of(plan.problem.runtime))
    tries = [(one, STREAM[1], False) for one in (joined, network)]
    if plan.problem.paging:
        tries += [(one, STREAM[0], away) for away in (False, True) for one in (joined, network)]
    found = (_within(plan, one, lasting, stream=stream, away=away) for one, stream, away in tries)
    return next(filter(None, found), None)


def _within(
    plan: Plan, network: TrainingGraph, lasting: Mapping[str, tuple[int, int]], *, stream: str, away: bool
) -> Plan | None:
    """The same of one network.

    stream
        Whether its operators may stream, and large inputs begin on storage.
    away
        Whether what lasts in the arena is written to storage first, and comes back to its place last: where it stands
        in the way.
    """
    problem, room = prediction_problem(plan, network, lasting, stream), arena_bytes(plan)
    inside = prediction_problem(plan, network, lasting, stream, there=False) if away else problem
    begun = [i for i, held in enumerate(problem.tensors) if held.name in lasting]
    for schedule in _schedules(inside, room):
        made = plan_of(inside, schedule)
        if away:
            before = [Instruction(action, i) for i in begun for action in (Action.PAGE_OUT, Action.FREE)]
            after = [Instruction(Action.PAGE_IN, i) for i in begun]
            made = Plan(problem, (*before, *made.instructions, *after))
        try:
            simulate(made)
        except PlanError:  # a replay aims, and may miss
            continue
        found = lay_out_around(made, lasting)
        if arena_bytes(found) <= room:
            return found
    return None


def prediction_problem(
    plan: Plan, network: TrainingGraph, lasting: Collection[str], stream: str, *, there: bool = True
) -> Problem:
    """The problem of `network`, which finds what the step of `plan` leaves.

    lasting
        What of that is in the arena, by name; read or not, it has to be there in the end.
    there
        False: it is on storage.
    """
    step = plan.problem
    read = {network.root(name) for operator in network.operators for name in operator.inputs}
    still = {n: role for n, role in resident_storages(network).items() if n in read or n in lasting}
    flash = in_flash(graph_of(plan).joint, step.flash_bytes)
    names = scheduled_names(step)
    where = Homes(
        ram={name: role for name, role in still.items() if name not in names and name not in flash},
        storage={name: "" for name in still if name in names},
        flash={name: role for name, role in still.items() if name in flash},
    )
    takes = runtime_of(step.runtime)
    costs = device(COSTS)
    assert costs.storage is not None
    costs = replace(costs, storage=replace(costs.storage, block_bytes=step.storage_block_bytes))
    made = cost(network, costs, takes, stream=stream, where=where)
    outputs = {network.root(name) for name in network.outputs}
    tensors = []
    for held in made.tensors:
        if held.name in where.storage:
            lasts = there and held.name in lasting
            held = replace(held, home=Home.RAM if lasts else Home.STORAGE, carried=lasts)
        tensors.append(replace(held, result=True) if held.name in outputs else held)
    return replace(made, tensors=tuple(tensors), paging=step.paging)


def _schedules(problem: Problem, room: int) -> Iterator[Schedule]:
    """Schedules that may have room, the plainest first."""
    yield everything(problem)
    every = Ways(problem)
    for share in SHARES:
        aim = int(share * room) + problem.reserve_bytes
        for ways in every.within(aim):
            try:
                found = greedy(problem, aim, paging=problem.paging, remat=False, work=Work(WORK), ways=ways)
            except OutOfWorkError:
                return
            if found is not None:
                yield found
