"""Offsets in one arena for buffers with known lifetimes.

This is dynamic storage allocation with all lifetimes given (NP-hard). The lower bound is the highest sum of live
buffers, and real schedules nearly always reach it. Each method improves on the results of the previous ones:

    greedy      buffers one by one into the lowest or the tightest gap, in several orders
    repair      buffers that end beyond a limit move forward in the order
    ejection    buffers that find no gap under a limit eject others, until all fit
    exact       a complete search: first for few buffers, briefly under a target, last if `placements` allows it
    shared      pairs of buffers with one offset
    stream      in the order of time, if there are too many buffers to compare all that live together

Work is counted, not timed: the same input gives the same offsets on every machine.
"""

from poetopt.graph.arena.instance import lower_bound
from poetopt.graph.arena.packing import pack

__all__ = ["lower_bound", "pack"]
