"""The types for which onnxruntime leaves out kernels of the CPU."""

from __future__ import annotations

from poetopt.graph import TOGETHER, TrainingGraph

_FEW_KERNELS = ("bfloat16", "float64")


def type_notes(graph: TrainingGraph) -> tuple[str, ...]:
    """That operators compute in types for which onnxruntime leaves out kernels of the CPU, in words.

    Costs and schedules are right all the same. Which kernels there are differs between versions, so `run` finds out.
    """
    kinds: dict[str, dict[str, None]] = {dtype: {} for dtype in _FEW_KERNELS}
    for operator in graph.operators:
        for name in operator.outputs if not operator.backward and not operator.view else ():
            kinds.get(graph.tensors[name].dtype, {}).update(dict.fromkeys(operator.kind.split(TOGETHER)))
    return tuple(
        f"operators in {dtype} ({', '.join(list(found)[:4])}{', ...' if len(found) > 4 else ''}): onnxruntime may have "
        "no kernels for them on the CPU, and then `run` can't execute the plan; export the model in float32 for that"
        for dtype, found in kinds.items()
        if found
    )
