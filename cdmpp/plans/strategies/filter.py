"""Filter parallelism: each rank computes some of the output channels of every convolution, as in ParaDL (HPDC'21)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.eager.divided import (
    DividedExport,
    LocalGraph,
    bytes_of_value,
    convolutions,
    gathered,
    part,
    sliced,
    smallest,
    title_of,
)
from cdmpp.operators.aten_convolution import Convolution
from cdmpp.plans.strategies.registry import STRATEGIES
from cdmpp.steps.strategy import OperatorStrategy


@STRATEGIES.register
@dataclass(frozen=True)
class Filter(OperatorStrategy):
    """Ranks gather the outputs of each convolution, and sum up the gradients of its input.

    Each rank holds, and updates, its part of the weights of all convolutions; whatever else there is runs whole on
    every rank, on the same examples. A convolution with groups is divided by groups: then ranks gather the gradients of
    its input too. If channels cannot be divided evenly, the largest part counts.
    """

    name = "filter"
    title = "filter parallel"
    degrees = ("filter",)
    replicates = False

    def limit(self, exported: Any) -> tuple[int, str]:
        """Return the fewest output channels, or groups, of a convolution, and its name."""
        return smallest(
            (one.groups if one.groups > 1 else int(node.args[1].meta["val"].shape[0]), title_of(node))
            for node, one in convolutions(exported)
        )

    def divide(self, exported: Any, ranks: int) -> DividedExport:
        """Write the graph of one rank; ``CdmppError``: more ranks than ``limit``, or a weight that is computed."""
        self.check_limit(exported, ranks, "output channels or groups")

        def columns(local: LocalGraph, node: Any, geometry: Convolution) -> None:
            new, x = local.copy(node), local.nodes[node.args[0]]
            gathered(local, node, new, -len(geometry.kernel) - 1)
            if x in local.learns:
                title = f"{title_of(node)} gradient of input"
                local.exchange("all_reduce", new, "after gradient", bytes_of_value(x.meta["val"]), title)

        return divided_convolutions(exported, dict(convolutions(exported)), ranks, 0, columns)


def divided_convolutions(
    exported: Any,
    found: Mapping[Any, Convolution],
    ranks: int,
    axis: int,
    divide: Callable[[LocalGraph, Any, Convolution], None],
) -> DividedExport:
    """Write the graph of one rank, in which the convolutions ``found`` are divided and all else runs whole.

    ``divide`` writes one without groups, of whose weight the rank has a part along ``axis``; those with groups are
    divided by these. ``CdmppError`` as of ``divided_weights``.
    """
    local, weights = LocalGraph(exported), divided_weights(found, ranks, axis)
    for node in exported.graph.nodes:
        if node in weights:
            local.placeholder(node, *weights[node])
        elif node.op == "placeholder":
            local.placeholder(node)
        elif node not in found:
            local.copy(node)
        elif found[node].groups > 1:
            by_groups(local, node, ranks)
        else:
            divide(local, node, found[node])
    return local.done()


def divided_weights(found: Mapping[Any, Convolution], ranks: int, axis: int) -> dict[Any, tuple[tuple[int, ...], int]]:
    """Return the weights of convolutions, and their biases along ``axis`` 0: part of one rank, axis of the division.

    Convolutions with groups are divided by them, along the first axis of their weights whatever ``axis`` is.

    ``CdmppError``: a weight that is computed, or that another operator reads.
    """
    made: dict[Any, tuple[tuple[int, ...], int]] = {}
    for node, one in found.items():
        own = 0 if one.groups > 1 else axis
        bias = node.args[2] if len(node.args) > 2 and not own else None
        for weight in (node.args[1], *([bias] if bias is not None else [])):
            if weight.op != "placeholder" or any(user not in found for user in weight.users):
                raise CdmppError(
                    f"the weight of {title_of(node)} is computed, or something else reads it: it cannot be divided"
                )
            shape = list(weight.meta["val"].shape)
            groups = one.groups if own == 0 and one.groups > 1 else shape[own]
            shape[own] = part(groups, ranks) * (shape[own] // groups)
            made[weight] = tuple(shape), own
    return made


def by_groups(local: LocalGraph, node: Any, ranks: int) -> None:
    """Divide a convolution with groups by these: a rank reads and writes the channels of its own groups."""
    x, geometry = local.nodes[node.args[0]], dict(convolutions(local.exported))[node]
    axis, groups = -len(geometry.kernel) - 1, part(geometry.groups, ranks)
    own = sliced(local, node, x, groups * (x.meta["val"].shape[axis] // geometry.groups), axis)
    args = (own, *local.arguments(node)[0][1:])
    at = 8 if len(node.args) == 9 else 6
    new = local.copy(node, (*args[:at], groups))
    gathered(local, node, new, axis)
    if x in local.learns:
        title = f"{title_of(node)} gradient of input"
        local.exchange("all_gather", new, "after gradient", bytes_of_value(x.meta["val"]), title, of=x)
