"""Channel parallelism: each rank reads some of the input channels of every convolution, as in ParaDL (HPDC'21)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cdmpp.network.eager.divided import (
    ROLE,
    DividedExport,
    LocalGraph,
    bytes_of_value,
    convolutions,
    part,
    sliced,
    smallest,
    title_of,
)
from cdmpp.operators.aten_convolution import Convolution
from cdmpp.plans.strategies.filter import divided_convolutions
from cdmpp.plans.strategies.registry import STRATEGIES
from cdmpp.steps.strategy import OperatorStrategy


@STRATEGIES.register
@dataclass(frozen=True)
class Channel(OperatorStrategy):
    """Ranks sum up the outputs of each convolution, and gather the gradients of its input.

    Convolutions of the images themselves, which have few channels, run whole on every rank, as all other operators do.
    One with groups is divided by groups, and its outputs are gathered. If channels cannot be divided evenly, the
    largest part counts.
    """

    name = "channel"
    title = "channel parallel"
    degrees = ("channel",)
    replicates = False

    def limit(self, exported: Any) -> tuple[int, str]:
        """Return the fewest input channels, or groups, of a convolution that is divided, and its name."""
        return smallest(
            (one.groups if one.groups > 1 else int(node.args[1].meta["val"].shape[1]), title_of(node))
            for node, one in _divided(exported).items()
        )

    def divide(self, exported: Any, ranks: int) -> DividedExport:
        """Write the graph of one rank; ``CdmppError``: more ranks than ``limit``, or a weight that is computed."""
        self.check_limit(exported, ranks, "input channels or groups")

        def rows(local: LocalGraph, node: Any, geometry: Convolution) -> None:
            x, axis = local.nodes[node.args[0]], -len(geometry.kernel) - 1
            own = sliced(local, node, x, part(x.meta["val"].shape[axis], ranks), axis)
            new = local.copy(node, (own, *local.arguments(node)[0][1:]))
            new.meta[ROLE] = ("sum",)
            title = title_of(node)
            local.exchange("all_reduce", new, "after", bytes_of_value(new.meta["val"]), f"{title} output")
            if x in local.learns:
                size = bytes_of_value(x.meta["val"])
                local.exchange("all_gather", new, "after gradient", size, f"{title} gradient of input")

        return divided_convolutions(exported, _divided(exported), ranks, 1, rows)


def _divided(exported: Any) -> dict[Any, Convolution]:
    """Convolutions but those of the images, before which no parameter is read."""
    trained, after = exported.graph_signature.inputs_to_parameters, set[Any]()
    for node in exported.graph.nodes:
        if node.name in trained or any(one in after for one in node.all_input_nodes):
            after.add(node)
    return {node: one for node, one in convolutions(exported) if node.args[0] in after}
