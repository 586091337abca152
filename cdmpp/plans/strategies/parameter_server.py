"""ParameterServer: gradients are pushed to servers, which add them up, and sums are pulled. Servers run on ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from cdmpp.collectives.collective import MOST_RANKS
from cdmpp.errors import CdmppError
from cdmpp.network.training_step import StepMemory
from cdmpp.plans.sizes import MIB, MOST_BYTES, sizes
from cdmpp.plans.strategies.registry import STRATEGIES
from cdmpp.platform.limits import Limits, numbers
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.strategy import RankBytes, Strategy, flag
from cdmpp.units import quantity

_SERVERS = Limits(1, MOST_RANKS, "servers")


@STRATEGIES.register
@dataclass(frozen=True)
class ParameterServer(Strategy):
    """Gradients are divided into parts, and part after part goes to server after server (dPRO, MLSys 2022).

    Without ``overlap`` everything is pushed after the backward pass.
    """

    LIMITS = {
        "servers": _SERVERS,
        "part_bytes": Limits(1, MOST_BYTES, "bytes"),
        "sum_bytes_per_s": numbers(0, 1e18, "bytes a second", above=True),
    }
    name = "ps"
    title = "parameter server"

    servers: int | None = field(
        default=None,
        metadata=flag("--servers", _SERVERS, "servers of ps, on the first ranks (default: one a rank)"),
    )
    """Number of servers, on the first ranks, one each. None: as many as there are ranks."""
    part_bytes: int = 4 * MIB
    """Most bytes of a part of a gradient; the default is BytePS's."""
    sum_bytes_per_s: float | None = None
    """Bytes a second that a server adds up, of all that arrives, one part at a time. None: adding takes no time."""

    def servers_on(self, ranks: int) -> int:
        """Return the number of servers; ``CdmppError`` where they are more than ranks."""
        servers = ranks if self.servers is None else self.servers
        if servers > ranks:
            raise CdmppError(f"{servers} servers on {ranks} ranks: expected 1 to {ranks}, one a rank at most")
        return servers

    def check(self, ranks: int) -> None:
        """Raise ``CdmppError`` for more servers than ranks."""
        self.servers_on(ranks)

    def exchanges(self, graph: StepGraph, sizes: Mapping[str, int] | None = None) -> tuple[Exchange, ...]:
        """List one push and pull a part; ``CdmppError``: gradients differ, or more servers than ranks."""
        graph.check_alike()
        ranks = self.ranks_of(graph, sizes)
        servers = self.servers_on(ranks)
        ready = [{one.name: one.ready_after for one in rank.gradients} for rank in graph.ranks]
        last = [max(own.values(), default=0) for own in ready]
        found: list[Exchange] = []
        used = (one for one in graph.ranks[0].gradients if one.is_used)
        for gradient in sorted(used, key=lambda one: one.ready_after):
            after = dict(enumerate([own[gradient.name] for own in ready] if self.overlap else last))
            for part, size in enumerate(_parts(gradient.bytes, self.part_bytes)):
                name, sum_s = f"{gradient.name} part {part}", ranks * size / (self.sum_bytes_per_s or math.inf)
                server = len(found) % servers
                found.append(Exchange("push_pull", size, after, name=name, server=server, sum_s=sum_s))
        return tuple(found)

    def rank_bytes(
        self, held: StepMemory, modules: Sequence[ModuleSpan], sizes: Mapping[str, int], batches: int = 1
    ) -> RankBytes:
        """Count a whole model, and on several ranks the sums of a server."""
        own, ranks = super().rank_bytes(held, modules, sizes, batches), math.prod(sizes.values())
        sums = -(-held.gradient_bytes // self.servers_on(ranks)) if ranks > 1 else 0
        return replace(own, bucket_bytes=sums)

    def proposals(self, graph: StepGraph) -> Iterator[tuple[str, str, Iterable[Self]]]:
        """Propose sizes of parts, and numbers of servers."""
        parts = [replace(self, part_bytes=size) for size in sizes(graph.ranks[0].gradient_bytes)[::-1]]
        yield "partition", "communication", parts
        counts = (None, *range(1, len(graph.ranks)))  # None: one a rank
        yield "servers", "communication", [replace(self, servers=count) for count in counts]

    def describe(self, setting: str) -> str:
        """Describe one setting for a reader."""
        return {
            "servers": f"{'a server a rank' if self.servers is None else f'{self.servers} servers'}",
            "part_bytes": f"parts of {quantity(self.part_bytes, 'B')}",
        }.get(setting) or super().describe(setting)

    def torch_lines(self, axes: str = "", optimizer: str = "torch.optim.AdamW") -> tuple[str, ...]:
        """Write settings of BytePS: PyTorch has no such servers."""
        servers = () if self.servers is None else (f'os.environ["DMLC_NUM_SERVER"] = "{self.servers}"',)
        return (
            *servers,
            f'os.environ["BYTEPS_PARTITION_BYTES"] = "{self.part_bytes}"',
            "optimizer = byteps.torch.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())",
        )


def _parts(n_bytes: int, most: int) -> list[int]:
    """The fewest parts of at most so many bytes, nearly equal ones."""
    count = -(-n_bytes // most)
    return [n_bytes * (i + 1) // count - n_bytes * i // count for i in range(count)]
