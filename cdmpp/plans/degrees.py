"""ParallelDegrees: along which dimensions the ranks of a job divide the work."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from cdmpp.collectives.collective import MOST_RANKS
from cdmpp.errors import CdmppError
from cdmpp.platform.limits import Limits, check_fields

_RANKS = Limits(1, MOST_RANKS, "ranks")
TITLES = {
    "dp_replicate": "data parallelism over replicas",
    "dp_shard": "sharded data parallelism",
    "tp": "tensor parallelism",
    "pp": "pipeline parallelism",
    "cp": "context parallelism",
    "ep": "expert parallelism",
    "spatial": "spatial parallelism",
    "filter": "filter parallelism",
    "channel": "channel parallelism",
}

REPLICAS = ("dp_replicate", "dp_shard")
"""Degrees along which ranks have replicas or shards of one model."""
BATCHED = (*REPLICAS, "ep")
"""Degrees along which each rank has a batch of its own."""


@dataclass(frozen=True)
class ParallelDegrees:
    """Each dimension has so many ranks; their product is the number of ranks of the job.

    The names are those of torchtitan, the last three those of ParaDL (HPDC'21). ``CdmppError`` for a degree below 1, or
    too many ranks.
    """

    LIMITS = dict.fromkeys(TITLES, _RANKS)

    dp_replicate: int = 1
    """Replicas of the model, each with a batch of its own."""
    dp_shard: int = 1
    """Ranks over which parameters are divided, each with a batch of its own."""
    tp: int = 1
    """Ranks that divide each operator."""
    pp: int = 1
    """Stages, one after the other."""
    cp: int = 1
    """Ranks that divide a sequence."""
    ep: int = 1
    """Ranks over which the experts of a layer are divided."""
    spatial: int = 1
    """Ranks that divide the images of a convolutional network."""
    filter: int = 1
    """Ranks that divide the output channels of convolutions."""
    channel: int = 1
    """Ranks that divide the input channels of convolutions."""

    def __post_init__(self) -> None:
        check_fields(self, "degrees.")
        if self.ranks not in _RANKS:
            raise CdmppError(f"degrees have a product of {self.ranks:,}: expected {_RANKS}")

    @property
    def ranks(self) -> int:
        """The job has so many ranks."""
        return self.size(*TITLES)

    def size(self, *names: str) -> int:
        """Return the product of some degrees."""
        return math.prod(getattr(self, name) for name in names)

    def beyond_one(self) -> tuple[str, ...]:
        """Return the names of the degrees that exceed 1."""
        return tuple(one.name for one in fields(self) if getattr(self, one.name) > 1)
