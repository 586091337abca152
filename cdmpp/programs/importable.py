"""An exported graph as TVM's importer takes it: the same values, by operators that it reads as torch means them."""

from __future__ import annotations

import math
from typing import Any


def make_importable(exported: Any) -> None:
    """Change the graph of a ``torch.export.ExportedProgram`` in place.

    Decomposed attention may leave its result in strides that a view cannot take; a reshape gives the same values.
    Tensors without elements, which torch joins to those of any rank, are left out where tensors are joined.
    """
    import torch

    aten = torch.ops.aten
    for node in list(exported.graph.nodes):
        if node.target is aten.view.default:
            node.target = aten.reshape.default
        elif node.target is aten.cat.default:
            _join_what_has_elements(node)


def _join_what_has_elements(node: Any) -> None:
    parts = [part for part in node.args[0] if math.prod(part.meta["val"].shape)]
    if len(parts) == len(node.args[0]) or not parts:
        return
    node.args = (parts, *node.args[1:])
    if len(parts) == 1:
        node.replace_all_uses_with(parts[0])
