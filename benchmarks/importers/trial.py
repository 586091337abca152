"""What TVM makes of a case: imported, lowered, compiled for this CPU, run, and compared with the right results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.importers.case import Case
from cdmpp.errors import CdmppError
from cdmpp.network.graph import graph_of
from cdmpp.programs.networks import has_static_shapes, lower
from cdmpp.programs.refusal import first_line, import_refusal, quiet
from cdmpp.programs.torch_import import imported

RIGHT, REFUSED, HERE, SHAPE, TYPE, VALUES, STOPPED, CRASHED = (
    "right", "refused", "refused here", "other shape", "other type", "other values", "does not run", "crash",
)  # fmt: skip

LEFT_OUT = "left out"
"""TVM has no converter for what torch makes of it, or it cannot be exported; of no operator."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of one case."""

    outcome: str
    words: str = ""
    """What was raised, or how results differ."""


def try_case(case: Case) -> Outcome:
    """Import, lower, compile and run it: ONNX as it comes from TVM's importer, torch from that of the product."""
    from tvm.tirx import PrimFunc

    with quiet():
        try:
            module, weights = _imported(case)
        except CdmppError as error:
            return Outcome(HERE, str(error))
        except Exception as error:
            words = first_line(error) if case.source == "onnx" else str(import_refusal(error, case.model))
            return Outcome(REFUSED, words)
        if told := _other_results(module["main"].ret_ty, case.expected):
            return told
        try:
            lowered = lower(module)
            programs = (one for one in lowered.functions.values() if isinstance(one, PrimFunc))
            if case.source == "torch" and not all(map(has_static_shapes, programs)):
                graph_of(lowered, "the network")
            found = _run(lowered, case.inputs, weights)
        except CdmppError as error:
            return Outcome(REFUSED if "TVM cannot" in str(error) else HERE, first_line(error))
        except Exception as error:
            return Outcome(STOPPED, first_line(error))
    return _compared(found, case)


def _imported(case: Case) -> tuple[Any, list[Any]]:
    from tvm import relax

    if case.source == "onnx":
        from tvm.relax.frontend.onnx import from_onnx

        module = from_onnx(case.model, keep_params_in_input=True)
    else:
        module = imported(case.model)
    weights = list((module["main"].attrs or {}).get("params", []))
    return relax.transform.ConvertToDataflow()(relax.frontend.detach_params(module)[0]), weights


def _other_results(kind: Any, expected: tuple[np.ndarray, ...]) -> Outcome | None:
    """Where the declared types of the results are known and are others than the right ones."""
    kinds = list(kind.fields) if hasattr(kind, "fields") else [kind]
    if len(kinds) < len(expected):
        return Outcome(SHAPE, f"{len(kinds)} results instead of {len(expected)}")
    for one, value in zip(kinds, expected, strict=False):
        sizes = [getattr(size, "value", None) for size in getattr(getattr(one, "shape", None), "values", [])]
        if getattr(one, "shape", None) is not None and None not in sizes and sizes != list(value.shape):
            return Outcome(SHAPE, f"{sizes} instead of {list(value.shape)}")
        if (dtype := str(getattr(one, "dtype", ""))) and dtype != str(value.dtype):
            return Outcome(TYPE, f"{dtype} instead of {value.dtype}")
    return None


def _run(module: Any, inputs: tuple[np.ndarray, ...], weights: list[Any]) -> list[np.ndarray]:
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(tvm.compile(module, tvm.target.Target({"kind": "llvm"})), tvm.cpu())
    given = [tvm.runtime.tensor(np.array(value, order="C")) for value in inputs]
    found = machine["main"](*given, *weights)
    if isinstance(module["main"].ret_ty, relax.ShapeType):
        return [np.array(list(found), np.int64)]
    return [one.numpy() if hasattr(one, "numpy") else np.asarray(list(one)) for one in _listed(found)]


def _listed(found: Any) -> list[Any]:
    return [found] if hasattr(found, "numpy") else list(found)


def _compared(found: list[np.ndarray], case: Case) -> Outcome:
    for value, right in zip(found, case.expected, strict=False):
        if list(value.shape) != list(right.shape):
            return Outcome(SHAPE, f"{list(value.shape)} instead of {list(right.shape)}")
        if value.dtype != right.dtype:
            return Outcome(TYPE, f"{value.dtype} instead of {right.dtype}")
        exact = right.dtype.kind in "iub"
        one, other = (array if exact else array.astype(np.float64) for array in (value, right))
        near = one == other if exact else np.isclose(one, other, case.rtol, case.atol, equal_nan=True)
        if not np.all(near):
            place = tuple(int(index) for index in np.argwhere(~np.asarray(near))[0])
            share = f"{np.mean(~np.asarray(near)):.0%}"
            return Outcome(VALUES, f"{share} of the values, the first {one[place]:.6g} instead of {other[place]:.6g}")
    return Outcome(RIGHT)
