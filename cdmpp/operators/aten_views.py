"""Calls of an exported graph that run no kernel, as torch's own schemas tell them."""

from __future__ import annotations

import math
import operator
from functools import lru_cache
from typing import Any

from cdmpp.operators.aten_layout import arguments_of, can_be_viewed, shape_of, tensors_in

_MAY_COPY = ("reshape", "reshape_as", "flatten", "ravel", "contiguous", "to", "cpu", "cuda", "coalesce")
"""Operators whose schemas promise a view, but which copy where none is possible."""
_UNTOLD = frozenset(
    "_unsafe_view unsafe_chunk unsafe_split unsafe_split_with_sizes broadcast_tensors meshgrid atleast_1d atleast_2d "
    "atleast_3d lift_fresh_copy empty empty_like new_empty empty_strided new_empty_strided empty_permuted".split()
)
"""Views, constants and memory that nobody has written yet, of which the schemas say nothing."""


def runs_nothing(node: Any) -> bool:
    """Return True if a ``call_function`` node only sees or names a tensor, reads its sizes, or makes an empty one."""
    results = tensors_in(node.meta.get("val"))
    if node.target is operator.getitem or (results and not any(math.prod(shape_of(value)) for value in results)):
        return True
    schema = getattr(node.target, "_schema", None)
    if schema is None:  # arithmetic of sizes; higher-order operators run what is in them
        return not results and not hasattr(node.target, "_ops") and "torch" not in type(node.target).__module__
    if not results:
        return not any(
            argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments
        )
    name = schema.name.split("::")[-1]
    if name in _MAY_COPY:
        return not _copies(node, name, results[0])
    return name in _UNTOLD or _only_views(node.target)


@lru_cache(maxsize=4096)
def _only_views(target: Any) -> bool:
    """Read the marks of aliases: True if each result is one of a tensor that is read, and only its shape is written."""
    import torch

    schema = target._schema
    if torch.Tag.inplace_view in target.tags:
        return "resize" not in schema.name
    return bool(schema.returns) and all(
        result.alias_info is not None and not result.alias_info.is_write for result in schema.returns
    )


def _copies(node: Any, name: str, result: Any) -> bool:
    arguments = arguments_of(node)
    given = arguments["self"]
    if name in ("reshape", "reshape_as", "flatten", "ravel"):
        return not can_be_viewed(given, result.shape)
    is_moved = given.dtype != result.dtype or given.device != result.device
    if name == "coalesce" or (is_moved and name != "contiguous"):
        return True
    return bool(arguments.get("copy")) or given.stride() != result.stride()
