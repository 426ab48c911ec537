"""The version of poetopt: what plans, results and the command line say."""

from __future__ import annotations

__version__ = "0.1.0"
