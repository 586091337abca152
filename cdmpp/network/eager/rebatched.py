"""An exported step at another batch, without a second export: the same operators with other numbers of examples."""

from __future__ import annotations

from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.eager.divided import DividedExport, LocalGraph
from cdmpp.operators.aten_layout import tensors_in

BATCH = 37
"""A step is exported at so many examples, a prime that hardly any other size of a network is a multiple of."""
_MOST = 1 << 40


def rebatched(exported: Any, own: int, batch: int) -> DividedExport | None:
    """Write the graph of a step at ``batch`` examples; None where that cannot be done beyond doubt.

    Every size that is a multiple of ``own`` counts as one of the batch. Operators run on tensors without values, with
    their own numbers or, where these give other sizes than expected, with numbers that are scaled as sizes are. If
    neither gives what is expected at every node, some size was a multiple by chance.

    Args:
        exported: a step of ``own`` examples.
        own: a prime, such as ``BATCH``.
        batch: examples, from 1 up.
    """
    from torch.fx.node import map_aggregate

    def scaled(value: Any) -> Any:
        is_size = type(value) is int and 0 < value < _MOST and value % own == 0
        return value // own * batch if is_size else value

    def shapes(value: Any) -> list[tuple[int, ...]]:
        return [tuple(map(int, one.shape)) for one in tensors_in(value)]

    local, inputs = LocalGraph(exported), exported.graph_signature.user_inputs
    for node in exported.graph.nodes:
        given = shapes(node.meta.get("val"))
        wanted = [tuple(map(scaled, shape)) for shape in given]
        if node.op in ("placeholder", "get_attr"):
            is_input = node.op == "placeholder" and node.name in inputs
            if wanted != given and not is_input:
                return None
            if node.op == "get_attr":
                local.copy(node)
            else:
                local.placeholder(node, wanted[0] if wanted != given else None)
        elif node.op == "output":
            local.copy(node)
        else:
            args, kwargs = local.arguments(node)
            for made in ((args, kwargs), (map_aggregate(args, scaled), map_aggregate(kwargs, scaled))):
                try:
                    value = local.value(node.target, *made, node)
                except CdmppError:
                    continue
                if shapes(value) == wanted:
                    local.nodes[node] = local.call(node.target, *made, node, node.name, value)
                    break
            else:
                return None
    return local.done()
