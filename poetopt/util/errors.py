"""Errors that poetopt raises on purpose, with the exit codes of the command line.

A message says what is wrong, where (file, node, operator, opset), and what to do.
"""

from __future__ import annotations

from typing import ClassVar


class PoetError(Exception):
    """Base of all errors of poetopt; the command line prints its message and exits with `exit_code`."""

    exit_code: ClassVar[int] = 2


class ModelError(PoetError, ValueError):
    """A model or problem file that can't be read, or that is not a valid training problem."""


class UnsupportedOpError(ModelError):
    """An ONNX operator that the frontend can't import (control flow, custom domains, dynamic shapes)."""


class OpenError(UnsupportedOpError):
    """A size or a choice that a model leaves open, and that an option can set."""


class MissingVjpError(ModelError):
    """A differentiable path runs through an operator without a gradient rule."""


class DeviceError(PoetError, ValueError):
    """An unknown device, or a device description that is incomplete or invalid."""


class ProblemError(PoetError, ValueError):
    """A scheduling problem that contradicts itself, or has features that its reader can't plan for."""


class FormulationError(PoetError, ValueError):
    """An unknown formulation, or blocks that don't compose."""


class OptionError(PoetError, ValueError):
    """An option whose value can't be understood (a size, a time, a scope)."""


class OutputError(PoetError, OSError):
    """An output that can't be written."""


class InfeasibleError(PoetError):
    """No schedule exists; the message says what would make one possible.

    Attributes
    ----------
    report
        The JSON object of the command line (status `infeasible`), if there is one.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, message: str, *, report: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.report = report


class NoScheduleError(PoetError):
    """No schedule was found within the time limit, and none is proven impossible."""

    exit_code: ClassVar[int] = 4

    def __init__(self, message: str, *, report: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.report = report


class TimeUpError(PoetError):
    """Expiry of the time limit in a step without a usable partial result, such as building a model."""

    exit_code: ClassVar[int] = 4


class PlanError(PoetError):
    """A plan that the simulator refuses, or a plan file that is damaged or of another model."""


class OtherRuntimeError(PlanError):
    """A plan for another runtime's kernels than the one that should run it."""


class ExecutionError(PoetError):
    """An execution that failed its check or its storage."""

    exit_code: ClassVar[int] = 5


class BackendUnavailableError(PoetError, ImportError):
    """A backend that is not installed; the message says how to install it."""

    exit_code: ClassVar[int] = 6
