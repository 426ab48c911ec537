"""What any room may use: units, errors, files, interrupts, progress."""

__version__ = "0.1.0"
"""The version, as plans, results and the command line say it."""
