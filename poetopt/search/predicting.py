"""Forward pass of a step in inference, as a plan of its own in the same arena.

It starts from the state that the step leaves: resident tensors, tensors that last in the arena at their offsets, and
tensors on storage. It changes none of them. Operators run in their order. Tensors without room are paged, or streamed.
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

TARGET_SHARES = (1.0, 0.9, 0.8, 0.65, 0.5)
"""Shares of the arena that a replay aims at, since a layout takes more."""
MAX_WORK = 20_000_000
"""Limit of the work of a replay."""
COST_DEVICE = "a72"
"""Device whose energies choose between variants of a run: storage is expensive on every device."""


def prediction_of(plan: Plan, graph: TrainingGraph) -> Plan | None:
    """Return a plan of the network's outputs within the arena of `plan`, or None.

    It is None if the network has no outputs beside its loss, if rows of its tables are moved one by one, or if no plan
    was found that has room.

    Parameters
    ----------
    plan
        Plan of a step, laid out; its problem is that of `graph`.
    """
    network = predicting(graph)
    if network is None or not network.inputs or graph.joint.rows:
        return None
    sums = {*graph.sums.values()}
    lasting = {name: span for name, span in lasting_at(plan).items() if name not in sums}
    in_place_network = in_place(network, runtime_of(plan.problem.runtime))
    attempts = [(candidate, STREAM[1], False) for candidate in (in_place_network, network)]
    if plan.problem.paging:
        attempts += [
            (candidate, STREAM[0], swap_out) for swap_out in (False, True) for candidate in (in_place_network, network)
        ]
    plans = (
        _within(plan, candidate, lasting, stream=stream, swap_out=swap_out) for candidate, stream, swap_out in attempts
    )
    return next(filter(None, plans), None)


def _within(
    plan: Plan, network: TrainingGraph, lasting: Mapping[str, tuple[int, int]], *, stream: str, swap_out: bool
) -> Plan | None:
    """Return a plan of one network within the arena of `plan`, or None.

    Parameters
    ----------
    lasting
        Offset and bytes of the tensors that last in the arena, by name.
    stream
        Whether its operators may stream, and large inputs begin on storage.
    swap_out
        Whether the lasting tensors are first written to storage, and return to their offsets at the end.
    """
    problem, room = prediction_problem(plan, network, lasting, stream), arena_bytes(plan)
    inner_problem = prediction_problem(plan, network, lasting, stream, lasting_in_ram=False) if swap_out else problem
    lasting_indices = [i for i, tensor in enumerate(problem.tensors) if tensor.name in lasting]
    for schedule in _schedules(inner_problem, room):
        candidate = plan_of(inner_problem, schedule)
        if swap_out:
            page_outs = [Instruction(action, i) for i in lasting_indices for action in (Action.PAGE_OUT, Action.FREE)]
            page_ins = [Instruction(Action.PAGE_IN, i) for i in lasting_indices]
            candidate = Plan(problem, (*page_outs, *candidate.instructions, *page_ins))
        try:
            simulate(candidate)
        except PlanError:  # a replay may miss its target
            continue
        laid_out = lay_out_around(candidate, lasting)
        if arena_bytes(laid_out) <= room:
            return laid_out
    return None


def prediction_problem(
    plan: Plan, network: TrainingGraph, lasting: Collection[str], stream: str, *, lasting_in_ram: bool = True
) -> Problem:
    """Return the problem of `network` in the state that the step of `plan` leaves.

    Parameters
    ----------
    lasting
        Names of tensors that are in the arena, and have to be there in the end, whether they are read or not.
    lasting_in_ram
        False: they are on storage.
    """
    step = plan.problem
    read_names = {network.root(name) for operator in network.operators for name in operator.inputs}
    resident = {n: role for n, role in resident_storages(network).items() if n in read_names or n in lasting}
    flash = in_flash(graph_of(plan).joint, step.flash_bytes)
    scheduled = scheduled_names(step)
    homes = Homes(
        ram={name: role for name, role in resident.items() if name not in scheduled and name not in flash},
        storage={name: "" for name in resident if name in scheduled},
        flash={name: role for name, role in resident.items() if name in flash},
    )
    runtime = runtime_of(step.runtime)
    costs = device(COST_DEVICE)
    assert costs.storage is not None
    costs = replace(costs, storage=replace(costs.storage, block_bytes=step.storage_block_bytes))
    problem = cost(network, costs, runtime, stream=stream, where=homes)
    outputs = {network.root(name) for name in network.outputs}
    tensors = []
    for tensor in problem.tensors:
        if tensor.name in homes.storage:
            lasts = lasting_in_ram and tensor.name in lasting
            tensor = replace(tensor, home=Home.RAM if lasts else Home.STORAGE, carried=lasts)
        tensors.append(replace(tensor, result=True) if tensor.name in outputs else tensor)
    return replace(problem, tensors=tuple(tensors), paging=step.paging)


def _schedules(problem: Problem, room: int) -> Iterator[Schedule]:
    """Yield schedules that may have room, the plainest first."""
    yield everything(problem)
    all_ways = Ways(problem)
    for share in TARGET_SHARES:
        target_bytes = int(share * room) + problem.reserve_bytes
        for ways in all_ways.within(target_bytes):
            try:
                schedule = greedy(
                    problem, target_bytes, paging=problem.paging, remat=False, work=Work(MAX_WORK), ways=ways
                )
            except OutOfWorkError:
                return
            if schedule is not None:
                yield schedule
