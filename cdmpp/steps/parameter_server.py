"""ParameterServer: gradients are pushed to servers, which add them up, and sums are pulled. Servers run on ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cdmpp.errors import CdmppError
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.step_graph import StepGraph

PART_BYTES = 4 * 2**20
"""BytePS cuts tensors into parts of so many bytes."""


@dataclass(frozen=True)
class ParameterServer:
    """Gradients are cut into parts, and part after part goes to server after server (dPRO, MLSys'22)."""

    servers: int | None = None
    """On the first ranks, one each. None: as many as there are ranks."""
    part_bytes: int = PART_BYTES
    sum_bytes_per_s: float | None = None
    """What a server adds up, counting all that arrives; it adds one part at a time. None: that takes no time."""
    overlap: bool = True
    """False: all is pushed after the backward pass."""

    name = "ps"

    def __post_init__(self) -> None:
        for what in ("part_bytes", "sum_bytes_per_s"):
            if (value := getattr(self, what)) is not None and value <= 0:
                raise CdmppError(f"parameter server: {what} is {value}, expected more than 0")

    def shards(self, ranks: int) -> int:
        """Ranks over which parameters are cut."""
        return 1

    def servers_on(self, ranks: int) -> int:
        """How many there are; ``CdmppError`` where they are more than ranks."""
        servers = ranks if self.servers is None else self.servers
        if not 1 <= servers <= ranks:
            raise CdmppError(f"{servers} servers on {ranks} ranks: expected 1 to {ranks}, one a rank at most")
        return servers

    def exchanges(self, graph: StepGraph) -> tuple[Exchange, ...]:
        """The exchanges of one step.

        Raises:
            CdmppError: ranks with other gradients than rank 0, or more servers than ranks.
        """
        graph.check_alike()
        servers = self.servers_on(len(graph.ranks))
        ready = [{one.name: one.ready_after for one in rank.gradients} for rank in graph.ranks]
        last = [max(own.values(), default=0) for own in ready]
        found: list[Exchange] = []
        for gradient in sorted(graph.ranks[0].gradients, key=lambda one: one.ready_after):
            after = dict(enumerate([own[gradient.name] for own in ready] if self.overlap else last))
            for part, size in enumerate(_cut(gradient.bytes, self.part_bytes)):
                name, sum_s = (
                    f"{gradient.name} part {part}",
                    len(graph.ranks) * size / (self.sum_bytes_per_s or math.inf),
                )
                server = len(found) % servers
                found.append(Exchange("push_pull", size, after, name=name, server=server, sum_s=sum_s))
        return tuple(found)


def _cut(n_bytes: int, most: int) -> list[int]:
    """Into the fewest parts of at most so many bytes, nearly equal ones."""
    count = -(-n_bytes // most)
    return [n_bytes * (i + 1) // count - n_bytes * i // count for i in range(count)]
