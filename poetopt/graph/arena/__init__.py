"""Offsets in one arena for buffers whose lifetimes are known.

This is dynamic storage allocation with all lifetimes given (NP-hard). The lower bound is the highest sum of
what is alive together, and real schedules nearly always reach it. Each method is for what the ones before
leave to gain:

    greedy      buffers one by one into the lowest or the tightest gap, in several orders
    repair      buffers that end beyond a limit move forward in the order
    ejection    buffers that find no gap under a limit push others out, until all fit
    exact       a complete search: first where buffers are few, briefly under a target, last where `placements` asks
    shared      buffers that must have one offset
    stream      in the order of time, where there are too many to look at all that live together

All work is counted, never timed: the same input gives the same offsets everywhere.
"""

from poetopt.graph.arena.instance import lower_bound
from poetopt.graph.arena.packing import pack

__all__ = ["lower_bound", "pack"]
