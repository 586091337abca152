"""Operators over lists of tensors (``_foreach_*``, ``_fused_*``) -> one call on all of their elements."""

from __future__ import annotations

from typing import Any

from cdmpp.operators.aten_layout import dtype_of
from cdmpp.operators.aten_traffic import Traffic, moved, traffic_of
from cdmpp.operators.operator import EagerOperator

_NAMED = {"sqrt": "sqrt", "exp": "exp", "neg": "neg", "sigmoid": "sigmoid", "copy": "copy", "zero": "copy"}
"""Operators that have a name of their own here; the others go by how many tensors they read."""
_SCALAR = {"div": "div_scalar", "add": "add_scalar", "sub": "add_scalar"}
_READS = {1: "mul_scalar", 2: "add"}
"""Tensors that are read -> an operator that reads as many; ``where`` reads more, as ``addcmul`` does."""


def is_foreach(name: str) -> bool:
    """Return True for an operator over lists of tensors."""
    return name.startswith(("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad", "_amp_foreach_"))


def foreach_of(node: Any, name: str) -> EagerOperator:
    """Return the call of an operator over lists: what is computed for each element reads each list once."""
    lists = [[one.meta["val"] for one in given] for given in node.args if isinstance(given, list | tuple) and given
             and hasattr(given[0], "meta")]  # fmt: skip
    first = lists[0]
    elements, dtype = sum(one.numel() for one in first), dtype_of(first[0])
    if name.startswith("_fused"):  # all are read, and all but gradients and counts of steps are written
        written = [one for place, given in enumerate(lists) for one in given if place != 1 and one.numel() > 1]
        real = traffic_of([one for given in lists for one in given]) + traffic_of(written)
        return moved(Traffic(*real), dtype)
    if "norm" in name:
        return EagerOperator.flat("mean", elements, dtype)
    short = name.removeprefix("_amp").removeprefix("_foreach_").removesuffix("_")
    alike = [given for given in lists if sum(one.numel() for one in given) == elements]
    named = _NAMED.get(short) or (_SCALAR.get(short) if len(alike) == 1 else None)
    kind = named or _READS.get(len(alike), "where")
    types = tuple(dtype_of(given[0]) for given in alike) if kind not in ("copy", "where") else ()
    return EagerOperator.flat(kind, elements, dtype, types if {*types} - {dtype} else ())
