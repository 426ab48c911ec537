"""Constants of the search, and what each was measured on (cells of `benchmarks/solve.py`).

Shares refer to the remaining effort unless something else is stated. Seconds are counted ones (`work.Work.seconds`). A
constant without a named cell wasn't measured.
"""

from __future__ import annotations

# Time and gap
NEARLY = 0.005
"""Gap below which a wider scope is worth more than the rest of the proof. Measured on zoo resnet50 a72 30 %, whose last
0.1 % of depth 4 took 58 s where depth 8 has a fifth less."""
EFFORT_S = 60.0
"""Intended seconds of a search, to which the shares of its parts refer, unless the time limit is shorter."""
LEAST_S = 0.5
"""Seconds for which another attempt is worth beginning."""

# The whole search
ENDING_SHARE = 0.1
"""Largest share of the time limit that is reserved for the steps after the search."""
ENDING_S = 1e-5
"""Reserved seconds for each pair of operators: 2 for 457 operators, 10 for 1,000. Measured on zoo resnet50 and the
generated networks of 1,000 operators."""
ALL_SHARE = 0.1
"""Share of the time limit that is reserved for a bound on all plans. Measured on resnet18-cifar m4 40 %, whose
relaxation of all plans is cut in 8 s."""
PACE_S = 5.0
"""Seconds of a search after which its pace is meaningful. Measured on zoo resnet50 m4 50 %, which stays 2 to 3 % open
in `forward`."""
ALL_PACE_S = 1.0
"""`PACE_S` of a bound on all plans. Measured on zoo ds-cnn m4 30 % and resnet8, whose bounds of all plans rise by
another 0.1 to 2 % in four more seconds, which doesn't close them."""

# Constructive heuristics
WORK = 1_000_000
"""Units of work of the greedy schedules for one budget: about three seconds. Measured on the zoo, all of which takes as
many units per second."""
OFFER_WORK = 20
"""Units per operator for the simulation and the layout of a schedule."""
PROFILE_WORK, PROFILE_MOST = 2_000, 2_000_000
"""Units per operator, and at most, of recomputes along the memory profile. Measured on Moccasin's random graphs of 100,
250 and 1,000 operators: three seconds for the first two at 80 %, ten for the last."""
PROFILE_SEEDS, PROFILE_LAYOUTS = 3, 3
"""Number of schedules of each target that are laid out. Number of schedules without an immediate layout that get a long
search for one before that is given up."""
PROFILE_STEP, PROFILE_NEAR, PROFILE_LEAST = 0.06, 0.01, 0.7
"""Target of the profile: the step by which it is lowered until a schedule has a layout, the smallest step of the
bisection upwards that follows, and its least value, as shares of the room."""
PROFILE_STEPS = 500
"""Least number of operators of a training step for schedules along its profile. Measured on the zoo, whose smaller
steps have the same answers without them, a second sooner, and on transformers of 12 and 30 layers, whose answers they
are."""
PROFILE_PART, PROFILE_LAST, LAYOUT_WORK = 0.1, (6.0, 1.0), 800
"""Shares of the work above: of each target; of improving parts that keep a layout, without a backward pass and with
one. Units per operator of a layout that isn't found. Measured on Moccasin's random graphs and the zoo."""
QUICK_PRICES = (1.0, 4.0, 16.0, 64.0)
"""Prices of a second, in units of the power of computing, for a deadline that schedules of least energy miss. Measured
on resnet18-cifar on tx2 at 45 % within 1.25x."""
QUICK_SHARE = 0.1
"""Share of the time limit for schedules with those prices."""
HEURISTICS_SHARE = 0.25
"""Share of the time limit after which no further target is tried, if there is a schedule. Measured on the deep
networks."""
GRACE_S = 1.0
"""Seconds beyond the limit for the heuristics: a schedule is worth them, however short the limit."""
PLAIN = ((False, True, 0.4), (True, False, 0.08))
"""Solutions of plainer problems: whether they page, whether they recompute, and the share of the remaining time for
each. Measured on problems whose storage is woken, random ones and resnet18_cifar."""

RUN_PLAIN = 0.8, 0.25
"""Shares of the remaining time for the problem in which only those operators may stream that don't fit plain: if all
fit, and otherwise. Measured on lenet, ds-cnn and the autoencoder at 1.02 to 2 times what the largest operator takes,
mobilenetv1-025 at 0.6 times, and resnet8 at 1.28 times, which costs 24 % more after a quarter than where the plain
problem has all of it."""

RELAX_SHARE = 0.1
"""Share of it for the first relaxation of the whole problem, which comes earlier. Measured on the autoencoder at 1.3
times: the plain problem is given up after 1 s there instead of being proven in 23."""
BESIDE_SHARE = 0.5
"""Share of it for the proof that no streaming pays, once the plain problem is proven and its plan the best. Measured on
lenet and resnet8."""

# The ladder of scopes
SOON_SHARE = 0.35
"""Share of the remaining time after which `auto` leaves a scope that is nearly proven. Measured on zoo resnet50 a72
30 %."""
CLAIMED_SHARE = 0.5
"""Largest share of it for a scope that isn't the last, as long as there is no bound on all plans, and once a narrower
one is proven. Measured on transformers of 30 layers, and on the cells of `benchmarks/solve.py` in the default scope."""
NO_GOODS_SHARE = 0.2
"""Share of it in which `auto` excludes rejected schedules before it goes on. Measured on deadlines on m4."""
FAR_SHARE, FAR_RECOMPUTES = 0.6, 4_000
"""Share of the best plan below which a first bound on all plans lets the widest scope follow, and largest number of
recomputes of that scope. Measured on small networks with AdamW, whose plans there cost a twentieth."""
OUTER_SHARE = 0.5
"""Share of it for a proof that no plan exists at all, before the widest scope is searched for one."""
WARM_UP_SHARES = (0.2, 0.6, 0.4)
"""Shares of the remaining time in which the first scopes warm up a requested one. Measured on exact_resnet18_cifar m4
40 % (depth 8), bert m4 60 % and exact_bert_base m4 30 % (depth 12), in `forward`."""
WARM_UP_GAP, WARM_UP_TIME = 0.05, 0.18
"""Limits of the second warm-up, if a third is to follow: it improved the plan, left at most this gap open, and took at
most this share of the remaining time. Otherwise the third leaves too little for the requested scope. Measured on
exact_bert_base m4 30 %, bert m4 15 %."""
WARM_ENOUGH_SHARE = 0.4
"""Share of its time after which a warm-up ends with a small open gap."""
FINER, FINEST = 6.0, 5e-3
"""Divisor of the requested gap in a warm-up, and its least gap: a schedule that costs 1 % too much there leaves 1 %
open in each scope after it. Measured on zoo bert-base with 3 % requested: 0.7159 J at depth 8, where 0.6996 takes a
second more."""

# One scope
ATTEMPTS = 8
"""Largest number of restrictions of a model. Measured on random problems with DMA."""
RESTRICTED_SHARE = 0.5
"""Share of the remaining time for restrictions if there is a plan already."""
OBJECTIVE_TARGET = 1e4
"""Size to which the objective is scaled, since the tolerances of solvers are absolute."""

# Restriction refinement
SHRINK = 400
"""Divisor of the RAM budget for its first reduction, which then doubles each time. Measured on random problems whose
plans have no layout."""
CLOSE = 0.02
"""Difference below which two shares of hidden transfers count as equal. Measured on random problems with DMA."""

# Cutting
STALL = 3
"""Number of rounds that raise the bound by less than STALL_GAIN of the overhead, after which cutting may end."""
STALL_GAIN = 2e-4
STALL_SHARE = 0.3
"""Share of its time after which stalled cutting does end. On a plateau each round cuts off one of many optimal corners,
at little cost, and the next gain is often the rest of the gap. Measured on exact_bert_base m4 30 %."""
PLATEAU_S, PLATEAU_SHARE = 8.0, 0.5
"""Seconds, and share of the time of the rounds before them, after which stalled cutting also ends: if rounds are
expensive, branching gains more. Measured on zoo resnet50 a72 50 %, bert m4 60 % in `forward`."""
STEEP, STEEP_ROUNDS = 0.01, 10
"""Rounds that close more than this share of the open gap go on beyond the intended time for cutting. Later ones differ
much from each other, so the mean of this number of rounds counts. Measured on exact_bert_base m4 30 % in `forward`."""
ANEW = 3.0
"""If less time is left than this multiple of the first relaxation's seconds, no integer search begins, since the solver
would solve the relaxation anew without a look at the clock. Cutting and the tree have that time. Measured on
exact_bert_base m4 30 % in `forward`."""

# Relaxation-guided schedules
REPLAY_TARGETS = (1.0, 0.98)
"""Shares of the RAM budget that replays aim at: a plan's recomputes run in index order, and may need more than the
replay. Measured on the zoo."""
REPLAY_SHARE = 0.5, 0.3
"""Shares of the counted work for replays: at first, and after one without an improvement. They are a tenth of the time,
as a tree counts some quarter of its time. Measured on the guard's cells, 2026-11-27: with less, resnet18-cifar a72 50 %
depth:4 with wakings stays 4.6 % open."""

WAKES = (0.1, 0.3, 1.0)
"""Shares of a waking that are added to page-ins in further replays, since a relaxation pays for a small part of one."""

# The search of one model
CUT_SHARE = (0.5, 0.8)
"""Shares of the remaining time for cutting before the integer search: normally, and if the bound still rises. Measured
on exact_bert_base m4 30 % in `forward`."""
WAIT_S = 1.0
"""Least seconds for which a search goes on after its best point breaks lazy constraints. Measured on
exact_resnet18_cifar m4 40 %."""
CUTOFF_MARGIN = 1e-7
"""Fraction by which solutions have to be better than the best one."""
LATE = 3
"""Number of searches with a late best point before the model is restricted: rows can't describe the order that the
planner finds. Measured on deadlines on m4."""

# The incumbent
LAYOUT_S = 0.5
"""Seconds for the layout of a schedule, however late it comes. Measured on zoo resnet50."""
