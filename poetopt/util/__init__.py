"""What any room may use: units, errors, files, interrupts, progress."""

__version__ = "0.1.0"
"""What plans, results and the command line say."""
