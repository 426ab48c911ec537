"""An AbstractModel whose data are a problem's: `create_instance` takes a dict, a DataPortal or a file of Pyomo's.

| component                                  | unit | meaning                                                      |
|--------------------------------------------|------|--------------------------------------------------------------|
| `operators`, `tensors`                     | -    | names; operators in the order of their first computes        |
| `reads`, `writes`                          | -    | (operator, tensor)                                           |
| `compute_j`, `compute_s`                   | J, s | by operator                                                  |
| `workspace_bytes`, `count`                 | -    | by operator; 0 and 1 where nothing is said                   |
| `recomputable`, `backward`                 | -    | by operator, 1 or 0; 1 and 0 where nothing is said           |
| `tensor_bytes`                             | byte | by tensor                                                    |
| `page_in_j`, `page_in_s`, `page_out_j`, `page_out_s` | J, s | by tensor; 0 where nothing is said                 |
| `ram_bytes`, `deadline_s`                  | byte, s | the budget; the bound on time, or nothing                 |
| `storage`, `dma`                           | -    | 1 or 0: whether the device has them                          |
| `alignment`, `reserve_bytes`, `wake_j`, `storage_bytes`, `storage_block_bytes` | - | as in `Problem`             |

A tensor that no operator writes is in RAM when the step begins.

The formulation's Sets, blocks and objective stand on the model behind the data, and what is added to it stands behind
these: all of it is on what `create_instance` returns. Its rules read decisions by number, as the model's own do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pyomo.core as pyo

from poetopt.formulations import building
from poetopt.formulations.block import distinct
from poetopt.formulations.callbacks import told_once
from poetopt.formulations.figures import COSTS, is_figure
from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers, check_supported
from poetopt.util.errors import FormulationError, PoetError

if TYPE_CHECKING:
    from poetopt.formulations.language import Formulation

OPERATORS = {
    "compute_j": ("energy_j", None),
    "compute_s": ("time_s", None),
    "workspace_bytes": ("workspace_bytes", 0),
    "count": ("count", 1),
    "recomputable": ("recomputable", 1),
    "backward": ("backward", 0),
}
"""Params by operator: the field, and the default."""
TENSORS = {"tensor_bytes": ("nbytes", None), **{key: (key, 0.0) for key in Transfers.__dataclass_fields__}}
"""Params by tensor, likewise."""
STEP = {
    "storage": ("paging", 1),
    "dma": ("dma", 0),
    "alignment": ("alignment", 1),
    "reserve_bytes": ("reserve_bytes", 0),
    "wake_j": ("wake_j", 0.0),
    "storage_bytes": ("storage_bytes", None),
    "storage_block_bytes": ("storage_block_bytes", 1),
}
"""Params of the step, likewise."""
WHOLE = frozenset({"tensor_bytes", "workspace_bytes", "count"})
"""Those that are whole numbers."""


class DataModel(pyo.AbstractModel):  # type: ignore[misc]
    """A formulation on Sets and Params without data: `create_instance` takes these, and builds all that stands on it.

    chosen, options
        The formulation, and the options of `Formulation.build`.

    Raises FormulationError for data that can't be read, lack something, or contradict themselves.
    """

    def __init__(self, chosen: Formulation, options: dict[str, Any]) -> None:
        super().__init__(name=f"{chosen.name} from data")
        self.formulation, self.options = chosen, options
        self.operators = pyo.Set(doc="operators, in the order of their first computes")
        self.tensors = pyo.Set(doc="tensors that are scheduled")
        self.reads = pyo.Set(dimen=2, doc="(operator, tensor): the operator reads the tensor")
        self.writes = pyo.Set(dimen=2, doc="(operator, tensor): the operator writes the tensor")
        for index, params in ((self.operators, OPERATORS), (self.tensors, TENSORS)):
            for name, (_, default) in params.items():
                self._add(name, default, index)
        self.ram_bytes = pyo.Param(**self._kind("ram_bytes", within=pyo.NonNegativeIntegers), doc="the budget")
        self._add("deadline_s", math.inf)
        for name, (_, default) in STEP.items():
            self._add(name, default)
        self.problem = pyo.BuildAction(rule=_read)
        building.put(chosen, self, [block.name for block in chosen.blocks])

    def _kind(self, name: str, **others: Any) -> dict[str, Any]:
        if not self.options["mutable"] or name not in (*COSTS, "ram_bytes", "deadline_s", "storage_bytes"):
            return others
        from poetopt.formulations import parameters  # units take Pyomo half a second

        return {**parameters.mutable(name), **others}

    def _add(self, name: str, default: object, *index: Any) -> None:
        unknown = name in STEP and default is None
        given = {"within": pyo.Any if unknown else pyo.NonNegativeReals}
        if default is not None or unknown:
            given["default"] = default
        self.add_component(name, pyo.Param(*index, **self._kind(name, **given)))

    def load(self, *data: Any, **options: Any) -> None:
        """Construct all that stands on an instance, with the data. Raises as the class says."""
        self.space = None
        try:
            with told_once():
                super().load(*data, **options)
        except (OSError, LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            if self.space is not None or isinstance(error, PoetError):
                raise
            told = f"the data can't be loaded: {_line(error)}; see `data_of` for what is needed"
            raise FormulationError(told) from error

    def create_instance(self, *data: Any, **options: Any) -> Any:
        """The model of the data; see Pyomo's method of this name for the arguments. Raises as the class says."""
        model = super().create_instance(*data, **options)
        model.del_component("problem")
        building.complete(model)
        return model


def _read(model: Any) -> None:
    """Give an instance its space, once it has the data. Raises FormulationError for what they lack."""
    _check_given(model)
    deadline_s = pyo.value(model.deadline_s)
    makespan_s = None if deadline_s == math.inf else deadline_s
    chosen: Formulation = model.formulation
    ram_bytes = pyo.value(model.ram_bytes)
    building.enter(
        chosen, model, chosen.space_of(_problem(model), ram_bytes=ram_bytes, makespan_s=makespan_s, **model.options)
    )


def data_of(problem: Problem, *, ram_bytes: int, deadline_s: float | None = None) -> dict[None, dict[str, Any]]:
    """The data of a problem, as `DataModel.create_instance` takes them.

    Raises ProblemError for a problem with what the data can't say, such as a parameter on storage.
    """
    check_supported(problem, "data for an AbstractModel")
    operators, tensors = distinct(problem.operators), distinct(problem.tensors)
    found: dict[str, Any] = {"operators": {None: list(operators)}, "tensors": {None: list(tensors)}}
    for name, key in (("reads", "inputs"), ("writes", "outputs")):
        pairs = zip(operators, problem.operators, strict=True)
        found[name] = {None: [(own, tensors[i]) for own, operator in pairs for i in getattr(operator, key)]}
    for names, things, params in ((operators, problem.operators, OPERATORS), (tensors, problem.tensors, TENSORS)):
        for name, (key, _) in params.items():
            found[name] = {own: getattr(thing, key) for own, thing in zip(names, things, strict=True)}
    found |= {name: {None: getattr(problem, key)} for name, (key, default) in STEP.items() if default is not None}
    if problem.storage_bytes is not None:
        found["storage_bytes"] = {None: problem.storage_bytes}
    found["ram_bytes"] = {None: ram_bytes}
    if deadline_s is not None:
        found["deadline_s"] = {None: deadline_s}
    return {None: found}


def _line(error: Exception) -> str:
    """Pyomo's error, in a line."""
    return " ".join(str(error).split()) or type(error).__name__


def _check_given(loaded: Any) -> None:
    """Raises FormulationError for Sets and Params that have no data and no default."""
    for name in ("operators", "tensors"):
        if not len(loaded.component(name)):
            raise FormulationError(f"the data lack {name}: give their names, in order")
    for index, params in ((loaded.operators, OPERATORS), (loaded.tensors, TENSORS)):
        for name, (_, default) in params.items():
            param = loaded.component(name)
            known = {own: pyo.value(param[own]) for own in param.sparse_keys()}
            missing = [own for own in index if own not in known] if default is None else []
            if missing:
                others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
                asked = f"give one for each of {index.name}"
                raise FormulationError(f"the data lack {name} of {missing[0]!r}{others}: {asked}")
            for own, given in known.items():
                if not math.isfinite(given) or (name in WHOLE and given != int(given)):
                    what = "a whole number" if name in WHOLE else "finite"
                    raise FormulationError(f"the data: {name} of {own!r} must be {what}, and is {given}")
    if not list(loaded.ram_bytes.sparse_keys()):
        raise FormulationError("the data lack ram_bytes: give the budget")
    stored = loaded.storage_bytes.value
    if stored is not None and not is_figure(stored):
        raise FormulationError(f"the data: storage_bytes must be a number from 0 on, and is {stored!r}")


def _problem(loaded: Any) -> Problem:
    """The problem that loaded data say."""
    place = {name: i for i, name in enumerate(loaded.tensors)}
    number = {name: j for j, name in enumerate(loaded.operators)}
    linked: dict[str, dict[str, list[int]]] = {}
    for key in ("reads", "writes"):
        linked[key] = {name: [] for name in number}
        for operator, tensor in loaded.component(key):
            if operator not in number or tensor not in place:
                raise FormulationError(f"{key}: ({operator}, {tensor}) is no pair of an operator and a tensor")
            linked[key][operator].append(place[tensor])
    producer = {i: number[name] for name, written in linked["writes"].items() for i in written}

    def fields(params: dict[str, tuple[str, Any]], name: str) -> dict[str, Any]:
        return {key: pyo.value(loaded.component(param)[name]) for param, (key, _) in params.items()}

    operators = []
    for name in number:
        given = fields(OPERATORS, name)
        given |= {key: int(given[key]) for key in ("workspace_bytes", "count")}
        given |= {key: bool(given[key]) for key in ("recomputable", "backward")}
        reads, writes = (tuple(sorted(linked[key][name])) for key in ("reads", "writes"))
        operators.append(ProblemOperator(name, reads, writes, **given))
    tensors = []
    for name, i in place.items():
        given = fields(TENSORS, name)
        nbytes = int(given.pop("nbytes"))
        tensors.append(ProblemTensor(name, nbytes, producer.get(i, -1), Transfers(**given)))
    step = {key: pyo.value(loaded.component(param)) for param, (key, _) in STEP.items() if param != "storage_bytes"}
    step |= {key: bool(step[key]) for key in ("paging", "dma")}
    stored = loaded.component("storage_bytes")
    return Problem("data", "data", tuple(operators), tuple(tensors), storage_bytes=stored.value, **step)
