"""The cheapest way through a space of states: what exhaustive searches have in common."""

from __future__ import annotations
