"""Random problems with operators that write an output over an input that nobody else reads."""

from __future__ import annotations

import random
from dataclasses import replace

from poetopt.graph.problem import Problem
from poetopt.plan.simulate import simulate
from tests.support.problems import random_few, store_all


def with_takes(rng: random.Random, problem: Problem) -> Problem:
    """`problem` where most operators that may take over an input do; their outputs have its size then."""
    tensors, operators = list(problem.tensors), list(problem.operators)
    for k, operator in enumerate(operators):
        alone = [i for i in operator.inputs if problem.readers[i] == (k,) and tensors[i].computed]
        if not alone or not operator.outputs or rng.random() < 0.2:
            continue
        given, made = rng.choice(alone), rng.choice(operator.outputs)
        tensors[made] = replace(tensors[made], nbytes=tensors[given].nbytes)
        operators[k] = replace(operator, takes=(given, made), recomputable=False)
    return replace(problem, operators=tuple(operators), tensors=tuple(tensors))


def tight_with_takes(rng: random.Random) -> tuple[Problem, int]:
    """A problem with such an operator, and a budget in bytes below what ordinary training takes."""
    while True:
        taking = with_takes(rng, random_few(rng)[0])
        least, most = taking.least_ram_bytes, simulate(store_all(taking)).peak_bytes
        if least < most and any(operator.takes for operator in taking.operators):
            return taking, rng.randrange(least, most)
