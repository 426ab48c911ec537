"""AbstractModel that takes a problem as data: `create_instance` reads a dict, a DataPortal or a Pyomo data file.

| component                                  | unit | meaning                                                      |
|--------------------------------------------|------|--------------------------------------------------------------|
| `operators`, `tensors`                     | -    | names; operators in the order of their first computes        |
| `reads`, `writes`                          | -    | (operator, tensor)                                           |
| `compute_j`, `compute_s`                   | J, s | by operator                                                  |
| `workspace_bytes`, `count`                 | -    | by operator; default 0 and 1                                 |
| `recomputable`, `backward`                 | -    | by operator, 1 or 0; default 1 and 0                         |
| `tensor_bytes`                             | byte | by tensor                                                    |
| `page_in_j`, `page_in_s`, `page_out_j`, `page_out_s` | J, s | by tensor; default 0                               |
| `ram_bytes`, `deadline_s`                  | byte, s | the budget; the bound on time, or nothing                 |
| `storage`, `dma`                           | -    | 1 or 0: whether the device has them                          |
| `alignment`, `reserve_bytes`, `wake_j`, `storage_bytes`, `storage_block_bytes` | - | as in `Problem`             |

A tensor that no operator writes is in RAM when the step begins.

The model holds the data first, then the formulation's Sets, blocks and objective, then what the user adds. An instance
from `create_instance` has all of it. Added rules read decisions by number, as the formulation's own rules do.
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

OPERATOR_PARAMS = {
    "compute_j": ("energy_j", None),
    "compute_s": ("time_s", None),
    "workspace_bytes": ("workspace_bytes", 0),
    "count": ("count", 1),
    "recomputable": ("recomputable", 1),
    "backward": ("backward", 0),
}
"""Params by operator: the field of `ProblemOperator`, and the default (None: required)."""
TENSOR_PARAMS = {"tensor_bytes": ("nbytes", None), **{key: (key, 0.0) for key in Transfers.__dataclass_fields__}}
"""Params by tensor: the field of `ProblemTensor` or `Transfers`, and the default (None: required)."""
STEP_PARAMS = {
    "storage": ("paging", 1),
    "dma": ("dma", 0),
    "alignment": ("alignment", 1),
    "reserve_bytes": ("reserve_bytes", 0),
    "wake_j": ("wake_j", 0.0),
    "storage_bytes": ("storage_bytes", None),
    "storage_block_bytes": ("storage_block_bytes", 1),
}
"""Params of the step: the field of `Problem`, and the default (None: unknown)."""
INTEGER_PARAMS = frozenset({"tensor_bytes", "workspace_bytes", "count"})
"""Params that are whole numbers."""


class DataModel(pyo.AbstractModel):  # type: ignore[misc]
    """A formulation on Sets and Params without data; `create_instance` takes the data and builds the model.

    Parameters
    ----------
    chosen, options
        The formulation, and the options of `Formulation.build`.

    Raises
    ------
    FormulationError
        The data can't be read, are incomplete, or contradict themselves.
    """

    def __init__(self, chosen: Formulation, options: dict[str, Any]) -> None:
        super().__init__(name=f"{chosen.name} from data")
        self.formulation, self.options = chosen, options
        self.operators = pyo.Set(doc="operators, in the order of their first computes")
        self.tensors = pyo.Set(doc="tensors that are scheduled")
        self.reads = pyo.Set(dimen=2, doc="(operator, tensor): the operator reads the tensor")
        self.writes = pyo.Set(dimen=2, doc="(operator, tensor): the operator writes the tensor")
        for index, params in ((self.operators, OPERATOR_PARAMS), (self.tensors, TENSOR_PARAMS)):
            for name, (_, default) in params.items():
                self._add(name, default, index)
        self.ram_bytes = pyo.Param(
            **self._param_keywords("ram_bytes", within=pyo.NonNegativeIntegers), doc="the budget"
        )
        self._add("deadline_s", math.inf)
        for name, (_, default) in STEP_PARAMS.items():
            self._add(name, default)
        self.problem = pyo.BuildAction(rule=_read)
        building.put(chosen, self, [block.name for block in chosen.blocks])

    def _param_keywords(self, name: str, **others: Any) -> dict[str, Any]:
        if not self.options["mutable"] or name not in (*COSTS, "ram_bytes", "deadline_s", "storage_bytes"):
            return others
        from poetopt.formulations import parameters  # units take Pyomo half a second

        return {**parameters.mutable(name), **others}

    def _add(self, name: str, default: object, *index: Any) -> None:
        unknown = name in STEP_PARAMS and default is None
        keywords = {"within": pyo.Any if unknown else pyo.NonNegativeReals}
        if default is not None or unknown:
            keywords["default"] = default
        self.add_component(name, pyo.Param(*index, **self._param_keywords(name, **keywords)))

    def load(self, *data: Any, **options: Any) -> None:
        """Construct all components of an instance from the data. Raises FormulationError for wrong data."""
        self.space = None
        try:
            with told_once():
                super().load(*data, **options)
        except (OSError, LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            if self.space is not None or isinstance(error, PoetError):
                raise
            message = f"the data can't be loaded: {_one_line(error)}; `data_of` shows the data of a problem"
            raise FormulationError(message) from error

    def create_instance(self, *data: Any, **options: Any) -> Any:
        """Return the model of the data; the arguments are those of Pyomo's method. Raises FormulationError."""
        model = super().create_instance(*data, **options)
        model.del_component("problem")
        building.complete(model)
        return model


def _read(model: Any) -> None:
    """Give an instance that has its data a space. Raises FormulationError for incomplete data."""
    _check_complete(model)
    deadline_s = pyo.value(model.deadline_s)
    makespan_s = None if deadline_s == math.inf else deadline_s
    chosen: Formulation = model.formulation
    ram_bytes = pyo.value(model.ram_bytes)
    building.enter(
        chosen,
        model,
        chosen.space_of(_build_problem(model), ram_bytes=ram_bytes, makespan_s=makespan_s, **model.options),
    )


def data_of(problem: Problem, *, ram_bytes: int, deadline_s: float | None = None) -> dict[None, dict[str, Any]]:
    """Return the data of a problem, as `DataModel.create_instance` takes them.

    Raises
    ------
    ProblemError
        The problem has a feature that the data can't express, such as a parameter on storage.
    """
    check_supported(problem, "data for an AbstractModel")
    operators, tensors = distinct(problem.operators), distinct(problem.tensors)
    tables: dict[str, Any] = {"operators": {None: list(operators)}, "tensors": {None: list(tensors)}}
    for name, key in (("reads", "inputs"), ("writes", "outputs")):
        pairs = zip(operators, problem.operators, strict=True)
        tables[name] = {None: [(member, tensors[i]) for member, operator in pairs for i in getattr(operator, key)]}
    for names, things, params in (
        (operators, problem.operators, OPERATOR_PARAMS),
        (tensors, problem.tensors, TENSOR_PARAMS),
    ):
        for name, (key, _) in params.items():
            tables[name] = {member: getattr(thing, key) for member, thing in zip(names, things, strict=True)}
    tables |= {
        name: {None: getattr(problem, key)} for name, (key, default) in STEP_PARAMS.items() if default is not None
    }
    if problem.storage_bytes is not None:
        tables["storage_bytes"] = {None: problem.storage_bytes}
    tables["ram_bytes"] = {None: ram_bytes}
    if deadline_s is not None:
        tables["deadline_s"] = {None: deadline_s}
    return {None: tables}


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _check_complete(loaded: Any) -> None:
    """Raise FormulationError for a Set or Param that has neither data nor a default."""
    for name in ("operators", "tensors"):
        if not len(loaded.component(name)):
            raise FormulationError(f"the data lack {name}: give their names, in order")
    for index, params in ((loaded.operators, OPERATOR_PARAMS), (loaded.tensors, TENSOR_PARAMS)):
        for name, (_, default) in params.items():
            param = loaded.component(name)
            known = {member: pyo.value(param[member]) for member in param.sparse_keys()}
            missing = [member for member in index if member not in known] if default is None else []
            if missing:
                others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
                raise FormulationError(
                    f"the data lack {name} of {missing[0]!r}{others}: give one for each of {index.name}"
                )
            for member, figure in known.items():
                if not math.isfinite(figure) or (name in INTEGER_PARAMS and figure != int(figure)):
                    what = "a whole number" if name in INTEGER_PARAMS else "finite"
                    raise FormulationError(f"the data: {name} of {member!r} must be {what}, and is {figure}")
    if not list(loaded.ram_bytes.sparse_keys()):
        raise FormulationError("the data lack ram_bytes: give the budget")
    capacity = loaded.storage_bytes.value
    if capacity is not None and not is_figure(capacity):
        raise FormulationError(f"the data: storage_bytes must be a number from 0 on, and is {capacity!r}")


def _build_problem(loaded: Any) -> Problem:
    """Return the problem that the loaded data describe."""
    tensor_index = {name: i for i, name in enumerate(loaded.tensors)}
    operator_index = {name: j for j, name in enumerate(loaded.operators)}
    tensors_of: dict[str, dict[str, list[int]]] = {}
    for key in ("reads", "writes"):
        tensors_of[key] = {name: [] for name in operator_index}
        for operator, tensor in loaded.component(key):
            if operator not in operator_index or tensor not in tensor_index:
                raise FormulationError(f"{key}: ({operator}, {tensor}) is no pair of an operator and a tensor")
            tensors_of[key][operator].append(tensor_index[tensor])
    producer = {i: operator_index[name] for name, written in tensors_of["writes"].items() for i in written}

    def fields(params: dict[str, tuple[str, Any]], name: str) -> dict[str, Any]:
        return {key: pyo.value(loaded.component(param)[name]) for param, (key, _) in params.items()}

    operators = []
    for name in operator_index:
        values = fields(OPERATOR_PARAMS, name)
        values |= {key: int(values[key]) for key in ("workspace_bytes", "count")}
        values |= {key: bool(values[key]) for key in ("recomputable", "backward")}
        reads, writes = (tuple(sorted(tensors_of[key][name])) for key in ("reads", "writes"))
        operators.append(ProblemOperator(name, reads, writes, **values))
    tensors = []
    for name, i in tensor_index.items():
        values = fields(TENSOR_PARAMS, name)
        nbytes = int(values.pop("nbytes"))
        tensors.append(ProblemTensor(name, nbytes, producer.get(i, -1), Transfers(**values)))
    step = {
        key: pyo.value(loaded.component(param)) for param, (key, _) in STEP_PARAMS.items() if param != "storage_bytes"
    }
    step |= {key: bool(step[key]) for key in ("paging", "dma")}
    capacity = loaded.component("storage_bytes")
    return Problem("data", "data", tuple(operators), tuple(tensors), storage_bytes=capacity.value, **step)
