"""Plans with paged parameters over three steps: twenty that pass, and mutants, by a simulator of the tests' own."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache

import poetopt as po
from poetopt.plan.assemble import plan_of
from poetopt.plan.instructions import Action, Plan
from poetopt.plan.layout import arena_bytes, check_layout, lay_out
from poetopt.plan.simulate import simulate
from poetopt.search.heuristics.greedy import greedy
from poetopt.search.heuristics.ways import lasting_sets
from poetopt.search.search import search
from poetopt.search.solution import Options
from poetopt.util.errors import PlanError
from tests.plan.mutants import KINDS
from tests.plan.three_steps import BrokenError, run_thrice
from tests.seeds import some
from tests.stored import tight_with_parameters

NETWORKS = [("lenet", "sgd"), ("lenet", "adam"), ("mlp", "sgd"), ("mlp", "momentum")]
RANDOM = 12
MUTANTS = 2000


@cache
def plans() -> list[Plan]:
    """Twenty plans with offsets: optima of random steps, replays of networks at two budgets each."""
    found: list[Plan] = []
    seed = 0
    while len(found) < RANDOM:
        seed += 1
        problem, ram_bytes = tight_with_parameters(random.Random(seed), forward=3)
        options = Options(ram_bytes=ram_bytes, scope="full", gap=0.0, threads=1, time_limit_s=60)
        plan = search(problem, options).plan
        updates = plan is not None and any(held.updated for held in plan.problem.tensors)
        if plan is not None and updates:
            found.append(plan)
    for name, optimizer in NETWORKS:
        problem = po.load(name).differentiate(optimizer=optimizer).cost("m4", runtime="onnxruntime", parameters="paged")
        for share in (1.1, 2.0):
            aim = int(share * problem.least_ram_bytes)
            first, *_ = (
                plan_of(lasting, schedule)
                for lasting in lasting_sets(problem, aim - problem.reserve_bytes)
                if (schedule := greedy(lasting, aim, paging=True, remat=True)) is not None
            )
            found.append(lay_out(first, quick=True))
    return found


def test_twenty_plans_run_three_times() -> None:
    moves = Counter[Action]()
    lasting = 0
    for plan in plans():
        ram_bytes = arena_bytes(plan) + plan.problem.reserve_bytes
        assert run_thrice(plan, ram_bytes) == list(simulate(plan, ram_bytes=ram_bytes).live_bytes)
        moves.update(step.action for step in plan.instructions)
        lasting += len(plan.problem.lasting)
    assert len(plans()) == 20
    assert min(moves[Action.PAGE_IN], moves[Action.PAGE_OUT], lasting) > 20


def test_mutants_are_refused_where_three_steps_break() -> None:
    broken = Counter[str]()
    sound = Counter[str]()
    for seed in some(range(MUTANTS), 40):
        rng = random.Random(seed)
        kind = KINDS[seed % len(KINDS)]
        mutant = None
        while mutant is None:
            plan = rng.choice(plans())
            mutant = kind(plan, rng)
        ram_bytes = arena_bytes(plan) + plan.problem.reserve_bytes
        try:
            live = run_thrice(mutant, ram_bytes)
        except BrokenError:
            broken[kind.__name__] += 1
            assert refused(mutant, ram_bytes), (seed, kind.__name__)
            continue
        sound[kind.__name__] += 1
        assert not refused(mutant, ram_bytes), (seed, kind.__name__)
        assert live == list(simulate(mutant).live_bytes)
    few = len(some(range(MUTANTS), 40)) // len(KINDS) // 3
    assert all(broken[kind.__name__] >= few for kind in KINDS), broken
    assert sum(sound.values()) > few


def refused(plan: Plan, ram_bytes: int) -> bool:
    """Whether the package refuses the plan; one that was laid out, also for its layout."""
    try:
        simulate(plan, ram_bytes=ram_bytes)
        if plan.offsets:
            check_layout(plan, ram_bytes - plan.problem.reserve_bytes)
    except PlanError:
        return True
    return False
