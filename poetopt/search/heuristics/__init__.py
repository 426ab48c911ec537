"""Schedules without a model: replays of the fixed order, greedy or led by a relaxation."""
