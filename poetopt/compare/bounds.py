"""A bound that was proven for one device, and what it proves of another."""

from __future__ import annotations

from dataclasses import dataclass

from poetopt.graph.problem import Problem


@dataclass(frozen=True)
class Bound:
    """A bound on the overhead that was proven on a device."""

    problem: Problem
    deadline_s: float | None
    overhead_j: float | None

    def there(self, problem: Problem, deadline_s: float | None) -> float:
        """What it proves of another device; 0 where a schedule may be in time there that isn't here.

        A schedule's overhead is a sum of its computes', transfers' and wakes' joules. Where each of them is at least
        c times what it is here, so is every schedule's overhead, and the least of all.
        """
        if self.overhead_j is None or deadline_s != self.deadline_s:
            return 0.0
        if _seconds(problem) != _seconds(self.problem) and (deadline_s is not None or problem.wake_j):
            return 0.0  # when transfers happen decides what is in time, and how often the storage wakes
        pairs = zip(_joules(problem), _joules(self.problem), strict=True)
        return self.overhead_j * min((there / here for there, here in pairs if here), default=0.0)


def _seconds(problem: Problem) -> list[float]:
    transfers = [seconds for tensor in problem.tensors for seconds in (tensor.page_in_s, tensor.page_out_s)]
    return [operator.time_s for operator in problem.operators] + transfers


def _joules(problem: Problem) -> list[float]:
    transfers = [joules for tensor in problem.tensors for joules in (tensor.page_in_j, tensor.page_out_j)]
    return [problem.wake_j, *(operator.energy_j for operator in problem.operators), *transfers]
