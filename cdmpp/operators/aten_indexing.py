"""Looking up and writing by index, of an exported graph -> framework operators. Of a table what is touched counts."""

from __future__ import annotations

import math
from typing import Any

from cdmpp.errors import UnsupportedProgramError
from cdmpp.operators.aten_layout import arguments_of, dtype_of, shape_of
from cdmpp.operators.aten_traffic import Traffic, copy_like, results_of, traffic_of
from cdmpp.operators.operator import EagerOperator

LOOKUPS = ("embedding", "index", "_unsafe_index", "index_select", "gather", "take", "take_along_dim")
STORES = tuple(
    f"{name}{end}"
    for name in (
        *("index_put", "_unsafe_index_put", "index_copy", "index_add", "index_reduce", "index_fill"),
        *("scatter", "scatter_add", "scatter_reduce"),
    )
    for end in ("", "_")
)
BAGS = ("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
_ADDING = ("add", "reduce")
"""Words in the names of stores that read what they write to."""
_SHORTEST = 16
"""Elements of the shortest row that was measured: of shorter ones the index is as large."""


def lookup_of(node: Any, name: str) -> tuple[EagerOperator, str]:
    """Look up rows of a table, or where they are short, move as much."""
    out, places = results_of(node)[0], _places(node, name)
    row = _row(node, name)
    rows = out.numel() // row
    if name == "embedding" or (row >= _SHORTEST and out.dtype.itemsize > 1):
        return EagerOperator("embedding", {"rows": rows, "cols": row}, dtype_of(out)), ""
    return copy_like(node, traffic_of([out, out, *places])), name


def bag_of(node: Any) -> EagerOperator:
    """Return the lookup that moves as much as sums of looked-up rows do: it reads all of them, and writes the sums."""
    given, out = arguments_of(node), results_of(node)[0]
    bags, cols = shape_of(out)
    return EagerOperator("embedding", {"rows": -(-(given["indices"].numel() + bags) // 2), "cols": cols}, dtype_of(out))


def store_of(node: Any, name: str) -> tuple[EagerOperator, str]:
    """Return the operator that writes values at places, and the name.

    Where it is not in place, the whole tensor is copied before. What is added to, or compared with, is read first.
    """
    given, places = arguments_of(node), _places(node, name)
    size = given["self"].dtype.itemsize
    values = [value for key in ("values", "source", "src", "value") if hasattr(value := given.get(key), "numel")]
    reads = any(word in name for word in _ADDING) or given.get("accumulate")
    touched = _touched(given, places, name) * (2 if reads else 1)
    real = traffic_of([*places, *values]) + Traffic(touched, touched * size)
    if not name.endswith("_"):
        real += traffic_of([given["self"]] * 2)
    return copy_like(node, real), name


def _touched(given: dict[str, Any], places: list[Any], name: str) -> int:
    """Elements of the tensor that are written."""
    if name.startswith("scatter"):
        return int(places[0].numel())
    shape = shape_of(given["self"])
    if "indices" in given:
        return _count(places) * math.prod(shape[len(given["indices"]) :])
    return int(places[0].numel()) * math.prod(shape) // shape[int(given["dim"])]


def _places(node: Any, name: str) -> list[Any]:
    """Tensors of indices. ``UnsupportedProgramError`` of truth values, which say how many there are when they run."""
    given = arguments_of(node)
    found = given.get("indices", given.get("index"))
    places: list[Any] = [one for one in (found if isinstance(found, list) else [found]) if hasattr(one, "numel")]
    if any(str(one.dtype) == "torch.bool" for one in places):
        raise UnsupportedProgramError(
            f"{name} ({node.name}) by a mask: how many elements it touches depends on the values of inputs"
        )
    return places


def _count(places: list[Any]) -> int:
    import torch

    return math.prod(torch.broadcast_shapes(*(tuple(shape_of(one)) for one in places)))


def _row(node: Any, name: str) -> int:
    """Elements that one index stands for and that lie together."""
    given, out = arguments_of(node), results_of(node)[0]
    if name in ("gather", "take", "take_along_dim"):
        return 1
    if name == "index_select":
        return math.prod(shape_of(out)[int(given["dim"]) % max(out.dim(), 1) + 1 :])
    if name == "embedding":
        return shape_of(out)[-1]
    last = max(axis for axis, one in enumerate(given["indices"]) if one is not None)
    return math.prod(shape_of(given["self"])[last + 1 :])
