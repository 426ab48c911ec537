"""The least makespan of a plan's instructions by trying every order of them: no code of the planner."""

from __future__ import annotations

from poetopt.plan.instructions import Action, Plan

_State = tuple[frozenset[int], float, float, tuple[float, ...], tuple[float, ...]]
"""What has been done, CPU, channel, and when the last page-in and the last transfer of each tensor end."""


def _updates(plan: Plan, operator: int) -> list[int]:
    """What an operator writes anew over itself."""
    return [i for i, held in enumerate(plan.problem.tensors) if held.updated_by == operator]


def _precedences(plan: Plan) -> list[set[int]]:
    """For each instruction, those that must stay before it.

    Computes keep their order, and so does all that touches one tensor, but for a page-out among the computes of
    its stay, which stays on its side of an update.
    """
    problem = plan.problem
    resident = set(problem.at_start)
    touched: list[dict[int, bool]] = []
    for step in plan.instructions:
        makes: dict[int, bool] = {}
        if step.action is Action.COMPUTE:
            operator = problem.operators[step.target]
            makes = dict.fromkeys(operator.inputs, False) | {i: i not in resident for i in operator.outputs}
            makes |= dict.fromkeys(_updates(plan, step.target), True)
            resident.update(operator.outputs)
        else:
            makes = {step.target: True}
            if step.action is Action.PAGE_IN:
                resident.add(step.target)
            elif step.action is Action.FREE:
                resident.discard(step.target)
        touched.append(makes)
    before: list[set[int]] = []
    for j, step in enumerate(plan.instructions):
        found = set()
        for i, other in enumerate(plan.instructions[:j]):
            both = touched[i].keys() & touched[j].keys()
            kinds = {step.action, other.action}
            if kinds == {Action.COMPUTE}:
                found.add(i)
            elif kinds == {Action.COMPUTE, Action.PAGE_OUT}:
                compute = i if other.action is Action.COMPUTE else j
                if any(touched[compute][tensor] for tensor in both):
                    found.add(i)
            elif both:
                found.add(i)
        before.append(found)
    return before


def least_makespan(plan: Plan, ram_bytes: int, limit: int = 200_000) -> float | None:
    """The least makespan within `ram_bytes`, or None where there are more than `limit` states to look at."""
    problem, steps = plan.problem, plan.instructions
    before = _precedences(plan)
    zeros = (0.0,) * len(problem.tensors)
    best = float("inf")
    seen: set[_State] = set()
    stack: list[tuple[_State, frozenset[int]]] = [((frozenset(), 0.0, 0.0, zeros, zeros), frozenset(problem.at_start))]
    while stack:
        state, ram = stack.pop()
        done, cpu, channel, arrived, settled = state
        if state in seen or max(cpu, channel) >= best:
            continue
        seen.add(state)
        if len(seen) > limit:
            return None
        if len(done) == len(steps):
            best = max(cpu, channel)
            continue
        for k, step in enumerate(steps):
            if k in done or not before[k] <= done:
                continue
            after, now, bus, new_arrived, new_settled = ram, cpu, channel, arrived, settled
            extra = 0
            if step.action is Action.COMPUTE:
                operator = problem.operators[step.target]
                after = ram.union(operator.outputs)
                assert not operator.takes
                extra = operator.workspace_bytes
                waits = [arrived[i] for i in operator.inputs]
                waits += [settled[i] for i in (*operator.outputs, *_updates(plan, step.target))]
                now = max([cpu, *waits]) + operator.time_s
            elif step.action is Action.FREE:
                after = ram - {step.target}
                now = max(cpu, settled[step.target])
            else:
                tensor = problem.tensors[step.target]
                inwards = step.action is Action.PAGE_IN
                bus = max(cpu, channel) + (tensor.page_in_s if inwards else tensor.page_out_s)
                new_settled = (*settled[: step.target], bus, *settled[step.target + 1 :])
                if inwards:
                    after = ram | {step.target}
                    new_arrived = (*arrived[: step.target], bus, *arrived[step.target + 1 :])
            live = problem.nbytes(tuple(after)) + extra + problem.reserve_bytes
            if live > ram_bytes and step.action is not Action.FREE:
                continue
            # What has ended by now can't be waited for any more.
            state = (
                done | {k},
                now,
                max(bus, now) if len(done) + 1 < len(steps) else bus,
                tuple(max(time, now) for time in new_arrived),
                tuple(max(time, now) for time in new_settled),
            )
            stack.append((state, after))
    return best
