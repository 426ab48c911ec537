"""What a solve found, in sentences: the proof, its scope, and why there is no schedule."""

from __future__ import annotations

from poetopt.engine.solution import OrderFound, Solution, Status
from poetopt.formulations.goal import TIME
from poetopt.plan.transfers import Hiding
from poetopt.problem import Problem
from poetopt.units import show_bytes, show_joules, show_limit, show_seconds, show_share


def scope_words(
    scope: str, *, formulation: str = "retention", paging: bool = True, remat: bool = True, storage: bool = True
) -> str:
    """The space of schedules that `scope` names, as it reads after 'among'.

    formulation
        Whose scope it is: `full` is Algorithm 1's own rules in `poet`, and more than those in `retention`.
    paging, remat
        Whether schedules may page, and recompute.
    storage
        Whether there is a storage to page to.
    """
    if not remat:
        return f"all schedules without recomputation{'' if paging else ' and paging'}"
    papers = scope == "full" and formulation.partition("+")[0] == "poet"
    space = "all schedules of the paper's Algorithm 1" if papers else _scope_words(scope)
    if not paging:
        return space + ", without paging"
    # What is recomputed within a stage finds what is paged in for the stage in RAM already.
    between = storage and not papers and scope not in ("depth<=0", "store-all")
    return space + (", with transfers between stages" if between else "")


def _scope_words(scope: str) -> str:
    if scope.startswith("depth<="):
        depth = scope.removeprefix("depth<=")
        if depth == "0":
            return "schedules without recomputation"
        operators = "1 operator" if depth == "1" else f"{depth} operators"
        return f"schedules whose recomputation chains have at most {operators}"
    return {
        "needed": "schedules that recompute what a backward stage needs itself, where that is better than paging",
        "forward": "schedules whose backward stages recompute what their own operator needs, by chains of any length",
        "full": "schedules that recompute any operator in any stage",
        "store-all": "all schedules",
    }.get(scope, f"schedules of scope {scope}")


def proof_words(solution: Solution) -> str:
    """What is proven of the plan, in one sentence; 'optimal' is said only of a proof."""
    if solution.simulation is None:
        return "there is no schedule"
    if solution.scope == "store-all":
        timed = solution.objective is not None and solution.objective.name == TIME.name
        less = "take less time" if timed else "cost less"
        return f"optimal: keeping everything fits, and nothing can {less}"
    options, gap = solution.options, solution.overhead_gap
    storage = solution.plan is None or solution.plan.problem.paging
    space = scope_words(
        solution.scope,
        formulation=options.formulation_name,
        paging=options.paging,
        remat=options.remat,
        storage=storage,
    )
    if gap is None:
        return f"no bound on what {space} could save"
    space += "" if solution.order is None else ", in the order of operators used"
    if solution.outdone:
        return f"better than all {space.removeprefix('all ')}, by proof"
    if solution.status is Status.OPTIMAL:
        return f"optimal among {space}"
    what = "overhead" if solution.objective is None else f"{solution.objective.name} above one pass"
    could = f"at most {show_share(gap)} of the {what} can be saved among {space}"
    if solution.status is Status.WITHIN_GAP:
        return f"{could} (asked: {show_share(solution.options.gap)})"
    bound = solution.overhead_bound_j if solution.objective is None else solution.objective.bound
    if not bound:
        return f"a valid schedule; no bound above 0 was found on the {what} among {space}"
    return could


def order_words(order: OrderFound) -> str:
    """What a search over orders of the operators found, in one sentence."""
    tried = f"{order.judged} orders judged" + ("" if order.finished else " until the time was up")
    if not order.moves:
        return f"as given: no better one was found ({tried})"
    moved = "1 move" if order.moves == 1 else f"{order.moves} moves"
    if order.gain_j is None or order.given_overhead_j is None:
        return f"{moved} from the given one, in which no schedule was found ({tried})"
    if order.gain_j <= 0:
        return f"{moved} from the given one, in which the same schedule does as well ({tried})"
    share = f", {show_share(order.gain_j / order.given_overhead_j)}" if order.given_overhead_j else ""
    proven = f", {show_joules(order.proven_j)} of it proven" if order.proven_j else ", which may be the longer search's"
    return f"{moved} from the given one save {show_joules(order.gain_j)} of its overhead{share}{proven} ({tried})"


def order_fields(order: OrderFound | None) -> dict[str, object]:
    """The same as fields of the JSON report; `order` is what was asked for."""
    if order is None:
        return {"order": "given"}
    return {
        "order": "search",
        "order_moves": order.moves,
        "order_gain_j": order.gain_j,
        "order_gain_proven_j": order.proven_j,
        "order_given_overhead_j": order.given_overhead_j,
        "order_given_bound_j": order.given_bound_j,
        "order_judged": order.judged,
        "order_drawn": order.drawn,
        "order_finished": order.finished,
    }


def failure_words(problem: Problem, solution: Solution) -> str:
    """Why a solve ended without a plan, and what would help: the message of exit codes 3 and 4."""
    reason = solution.reason.rstrip(".") or f"no schedule with {solution.options.ram_bytes:,} bytes of RAM"
    return "; ".join(
        [
            f"{problem.model_ref or problem.name} on {problem.device}: {reason}",
            *solution.why,
            *_remedies(solution, " ".join([reason, *solution.why])),
        ]
    )


def _remedies(solution: Solution, said: str) -> list[str]:
    """The smallest RAM and deadline known to be feasible, or the best bounds on them, unless `said` already."""
    least, bound, deadline = solution.least_ram_bytes, solution.ram_bound_bytes, solution.least_deadline_s
    known = []
    if solution.interrupted:
        known.append("interrupted in looking for what would help")
    if least is not None and least == bound and f"{bound:,}" in said:
        known.append(f"a schedule with just that is known (--ram {least})")
    elif least is not None and f"{least:,}" not in said:
        known.append(f"a schedule is known with {least:,} bytes ({show_bytes(least)})")
    if bound is not None and bound != least and "shorter than one pass" not in said and f"{bound:,}" not in said:
        known.append(f"no schedule has less than {bound:,} bytes")
    if deadline is not None and show_limit(deadline, "s") not in said:
        known.append(f"the shortest deadline known to be feasible is {show_limit(deadline, 's')}")
    if solution.status is Status.UNKNOWN:
        longer = ", --ram or a longer --deadline" if solution.options.deadline_s is not None else " or --ram"
        known.append(f"give more --time-limit{longer}")
    elif least is None and deadline is None and "--" not in said and not solution.why:
        known.append("give more --ram, a longer --deadline or a smaller --batch")
    return known


def hiding_words(found: Hiding) -> str:
    """How much of the transfers the CPU's computing hides."""
    return (
        f"{show_seconds(found.hidden_s)} of {show_seconds(found.transfer_s)} and {show_bytes(found.hidden_bytes)} of "
        f"{show_bytes(found.transfer_bytes)} move while the CPU computes"
    )
