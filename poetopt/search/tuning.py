"""The numbers that the search goes by, and what each was measured on (cells of `benchmarks/solve.py`).

Shares are of the effort that is left where nothing else is said, seconds are counted ones (`clock.Work.seconds`).
Where no cell is named, nothing was measured.
"""

from __future__ import annotations

# How long, and how well
NEARLY = 0.005
"""The open share below which a wider scope is worth more than the rest of the proof. Measured on zoo resnet50
a72 30 %, whose last 0.1 % of depth 4 took 58 s where depth 8 has a fifth less."""
EFFORT_S = 60.0
"""Seconds that a search is meant for: what its parts' shares are of, unless the time limit is shorter."""
LEAST_S = 0.5
"""Seconds for which it is worth to begin once more."""

# The whole search
ENDING_SHARE = 0.1
"""At most this share of the time limit is set aside for what comes after the search."""
ENDING_S = 1e-5
"""Seconds of it for each pair of operators: 2 where there are 457 of them, and 10 where there are 1,000. Measured on
zoo resnet50 and the generated networks of 1,000 operators."""
ALL_SHARE = 0.1
"""Share of the time limit that is kept for a bound on all plans. Measured on resnet18-cifar m4 40 %, whose relaxation
of all plans is cut in 8 s."""
PACE_S = 5.0
"""Seconds of a search after which its pace tells something. Measured on zoo resnet50 m4 50 %, which stays 2 to 3 %
open in `forward`."""
ALL_PACE_S = 1.0
"""The same where it is for a bound on all plans alone. Measured on zoo ds-cnn m4 30 % and resnet8, whose bounds of all
plans rise by another 0.1 to 2 % in four more seconds, which don't close them."""

# Constructive heuristics
WORK = 1_000_000
"""Units of work of the greedy schedules for one budget: about three seconds. Measured on the zoo: as many units a
second on all of it."""
OFFER_WORK = 20
"""Units for each operator, of simulating a schedule and finding its layout."""
PROFILE_WORK, PROFILE_MOST = 2_000, 2_000_000
"""Units for each operator, and at most, of recomputes along the memory profile. Measured on Moccasin's random graphs of
100, 250 and 1,000 operators: three seconds for the first two at 80 %, ten for the last."""
PROFILE_SEEDS, PROFILE_LAYOUTS = 3, 3
"""So many schedules of each aim are laid out; and so many of those without a layout at once are laid out at length
before one is found."""
PROFILE_STEP, PROFILE_NEAR, PROFILE_LEAST = 0.06, 0.01, 0.7
"""The aim is lowered by the first share of the room until a schedule has a layout, or it would be below the last; then
it is raised by halves of that, the least of them no more than the second."""
PROFILE_STEPS = 500
"""Operators of a training step that schedules along its profile are made for. Measured on the zoo, whose smaller steps
have the same answers without them, a second sooner, and on transformers of 12 and 30 layers, whose answers they are."""
PROFILE_PART, PROFILE_LAST, LAYOUT_WORK = 0.1, (6.0, 1.0), 800
"""Shares of the work above: of each aim, and of parts made anew with a layout, the latter without a backward pass
and with one; and what a layout that isn't found takes for each operator. Measured on Moccasin's random graphs and the
zoo."""
QUICK_PRICES = (1.0, 4.0, 16.0, 64.0)
"""The price of a second, in units of the power that computing takes, where schedules of least energy come late.
Measured on resnet18-cifar on tx2 at 45 % within 1.25x."""
QUICK_SHARE = 0.1
"""Share of the time limit that schedules of those prices may take."""
HEURISTICS_SHARE = 0.25
"""Share of the time limit after which no further target is tried, where there is a schedule. Measured on the deep
networks."""
GRACE_S = 1.0
"""They may go on for this long beyond it: a schedule is worth that however short the limit."""
PLAIN = ((False, True, 0.4), (True, False, 0.08))
"""Solutions of plainer problems: whether they page, whether they recompute, and the share of the time left for each.
Measured on problems whose storage is woken, random ones and resnet18_cifar."""

RUN_PLAIN = 0.8, 0.25
"""Share of it for the problem in which only those operators may stream that don't fit plain: where all fit, and else.
Measured on lenet, ds-cnn and the autoencoder at 1.02 to 2 times what the largest operator takes, mobilenetv1-025 at 0.6
times, and resnet8 at 1.28 times, which costs 24 % more after a quarter than where the plain problem has all of it."""

RELAX_SHARE = 0.1
"""Share of it for the first relaxation of the whole problem, before that. Measured on the autoencoder at 1.3 times: the
plain problem is given up after 1 s there instead of being proven in 23."""
BESIDE_SHARE = 0.5
"""Share of it for proving that no streaming pays, once the plain problem is proven and its plan the best. Measured on
lenet and resnet8."""

# The ladder of scopes
SOON_SHARE = 0.35
"""Share of the remaining time after which `auto` leaves a scope that is nearly proven. Measured on zoo resnet50 a72
30 %."""
CLAIMED_SHARE = 0.5
"""Share of it that a scope may take, unless it is the last, before there is a bound on all plans, and once a narrower
one is proven. Measured on transformers of 30 layers, and on the cells of `benchmarks/solve.py` in the default scope."""
NO_GOODS_SHARE = 0.2
"""Share of it that `auto` spends on leaving out refused schedules before it goes on. Measured on deadlines on m4."""
FAR_SHARE, FAR_RECOMPUTES = 0.6, 4_000
"""The widest scope follows where a first bound on all plans is below this share of the best plan, and it has no more
recomputes than that. Measured on small networks with AdamW, whose plans there cost a twentieth."""
OUTER_SHARE = 0.5
"""Share of it for a proof that no plan exists at all, before the widest scope is searched for one."""
WARM_UP_SHARES = (0.2, 0.6, 0.4)
"""Share of the remaining time that each of the first scopes may take to warm up one that was asked for. Measured on
exact_resnet18_cifar m4 40 % (depth 8), bert m4 60 % and exact_bert_base m4 30 % (depth 12), in `forward`."""
WARM_UP_GAP, WARM_UP_TIME = 0.05, 0.18
"""The third one follows where the second paid, left no more than this gap open, and took no more than this share of
the time that was left: else it would leave too little for the scope that was asked for. Measured on exact_bert_base
m4 30 %, bert m4 15 %."""
WARM_ENOUGH_SHARE = 0.4
"""Share of its time after which a warm-up ends though a little is open."""
FINER, FINEST = 6.0, 5e-3
"""A warm-up is searched to this many times less than the gap that is asked for, but to no less than FINEST: a schedule
that costs 1 % too much there leaves 1 % open in each scope after it. Measured on zoo bert-base with 3 % asked: 0.7159 J
at depth 8, where 0.6996 takes a second more."""

# One scope
ATTEMPTS = 8
"""The number of restrictions of a model that are tried. Measured on random problems with DMA."""
RESTRICTED_SHARE = 0.5
"""Share of the remaining time that they may take where there is a plan already."""
OBJECTIVE_TARGET = 1e4
"""The size to which the objective is scaled: solvers' tolerances are absolute."""

# Restriction refinement
SHRINK = 400
"""The RAM budget is first made smaller by this fraction of it, then by twice as much each time. Measured on random
problems whose plans have no layout."""
CLOSE = 0.02
"""Shares of what may hide that differ by less than this count as one. Measured on random problems with DMA."""

# Cutting
STALL = 3
"""After this many rounds in which the bound rose by less than STALL_GAIN of the overhead, the cutting may end."""
STALL_GAIN = 2e-4
STALL_SHARE = 0.3
"""It does end when they took this share of its time. On a plateau each round cuts off one of many optimal corners, at
little cost, and what comes after it is often the rest of the gap. Measured on exact_bert_base m4 30 %."""
PLATEAU_S, PLATEAU_SHARE = 8.0, 0.5
"""Or when they took this many seconds, and this share of what the rounds before them took: where rounds are dear, a
branching gains more. Measured on zoo resnet50 a72 50 %, bert m4 60 % in `forward`."""
STEEP, STEEP_ROUNDS = 0.01, 10
"""Rounds that close more than this share of what is open go on beyond the time that was meant for cutting. Later ones
differ much from each other: once there are this many, their mean counts. Measured on exact_bert_base m4 30 % in
`forward`."""
ANEW = 3.0
"""With less left than this many times the first relaxation's seconds no solver search begins, which would solve it
anew without a look at the clock: cutting and the tree have that time. Measured on exact_bert_base m4 30 % in
`forward`."""

# Relaxation-guided schedules
REPLAY_TARGETS = (1.0, 0.98)
"""Shares of the RAM budget that are aimed at: a plan's recomputes run in index order, and may need more than the
replay. Measured on the zoo."""
REPLAY_SHARE = 0.5, 0.3
"""Share of the counted work that may go into replays, where they are many: at first, and after one that brought
nothing. A tenth of the time, as a tree counts some quarter of what it takes. Measured on the guard's cells, 2026-11-27:
with less resnet18-cifar a72 50 % depth:4 with wakings stays 4.6 % open."""

WAKES = (0.1, 0.3, 1.0)
"""Shares of a waking that page-ins cost in further replays, as a relaxation pays for a small part of one."""

# The search of one model
CUT_SHARE = (0.5, 0.8)
"""Share of the remaining time that cutting may take before the integer search, and where the bound still rises.
Measured on exact_bert_base m4 30 % in `forward`."""
WAIT_S = 1.0
"""A search whose best point breaks lazy constraints goes on for this long at least. Measured on exact_resnet18_cifar
m4 40 %."""
CUTOFF_MARGIN = 1e-7
"""Solutions have to be better than the best one by this fraction."""
LATE = 3
"""Searches whose best point is late before the model is restricted: rows don't tell what the planner can order.
Measured on deadlines on m4."""

# The incumbent
LAYOUT_S = 0.5
"""A schedule's layout may take so long however late it comes. Measured on zoo resnet50."""
