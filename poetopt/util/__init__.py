"""Utilities for all packages of poetopt: units, errors, files, interrupts, progress."""

__version__ = "0.1.0"
"""The version in plans, results and the command line."""
