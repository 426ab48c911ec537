"""Describes what picks by indices and puts there, and what samples planes."""
