"""Layout of tensor parallelism: roles of layers, how every value is divided, and the rules of frameworks for that."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cdmpp.errors import CdmppError
from cdmpp.network.eager.divided import title_of
from cdmpp.plans.few_heads import few_heads
from cdmpp.plans.strategies.tensor_linears import Linear
from cdmpp.plans.strategies.tensor_rules import Placement
from cdmpp.plans.strategies.tensor_shard import Shard

COLUMN, ROW, LOSS = "column", "row", "loss"
GATHER, SLICE = "gather", "slice"


class Rules(NamedTuple):
    """A framework divides by these."""

    framework: str
    multiple: int
    """Words of each rank are padded to a multiple of this."""


FRAMEWORKS = {"torch": Rules("torch", 1), "megatron": Rules("megatron", 128)}


@dataclass
class Layout:
    """Roles of layers, and how every value is divided."""

    exported: Any
    linears: dict[Any, Linear] = field(default_factory=dict)
    at: dict[Any, Placement] = field(default_factory=dict)
    """Node -> how its value is divided; None: every rank has all."""
    roles: dict[Any, str] = field(default_factory=dict)
    """Linear layer or embedding -> ``COLUMN`` or ``ROW``; a loss of divided scores -> ``LOSS``."""
    parameters: dict[Any, Shard] = field(default_factory=dict)
    """Placeholder of a parameter that is divided -> how."""
    changes: dict[tuple[Any, Any], str] = field(default_factory=dict)
    """Node and one that it reads -> ``GATHER`` or ``SLICE``, by which it gets what it needs of that."""
    sliced: dict[Any, None] = field(default_factory=dict)
    """Embeddings that every rank has whole, and of whose results each takes its part of the sequence."""
    gathered: dict[Any, None] = field(default_factory=dict)
    """Layers of columns whose results every rank has whole."""
    whole: dict[Any, None] = field(default_factory=dict)
    """Linear layers that every rank runs whole."""
    apart: dict[Any, Any] = field(default_factory=dict)
    """Product of experts of which each rank has some -> placeholder of their matrices."""
    partial: dict[Any, None] = field(default_factory=dict)
    """Parameters that every rank has, and whose gradients are parts of a sum."""

    def check(self, ranks: int, strategy: str, rules: Rules) -> None:
        """Raise ``CdmppError`` where something cannot be divided evenly, with the rule of the framework."""
        sizes = self.sizes()
        most = math.gcd(*(size for size, _, _ in sizes))
        heads = max((size for size, _, what in sizes if what == "heads"), default=0)  # of queries
        for size, layer, what in sizes:
            if size % ranks:
                own = ", ".join(str(one) for one in range(1, most + 1) if most % one == 0)
                raise CdmppError(
                    f"{strategy}={ranks}: {layer} gives {size} {what}, and {rules.framework} divides them evenly among "
                    f"ranks: expected {own} ranks{few_heads(size, heads, ranks) if what == 'heads' else ''}"
                )

    def limit(self) -> tuple[int, str]:
        """Return the most ranks that can have equal parts of all that is divided, and the layer that allows no more.

        ``(1, "")`` where nothing can be divided.
        """
        sizes = self.sizes()
        return (math.gcd(*(size for size, _, _ in sizes)), sizes[0][1]) if sizes else (1, "")

    def sizes(self) -> list[tuple[int, str, str]]:
        """List sizes that are divided, the smallest first, with the name of the layer and what they count."""
        found = dict[tuple[int, str, str], None]()
        for node, shard in (*self.at.items(), *self.parameters.items()):
            if shard is None or shard.multiple:
                continue
            if not shard.origins:
                what = "experts" if node in self.parameters else "tokens"
                found |= dict.fromkeys((size, title_of(node), what) for size in shard.blocks)
            for origin in shard.origins:
                features = self.at[origin]
                least = min(features.blocks) if features is not None else 0
                for size in shard.blocks:
                    found[size, title_of(origin), "heads" if size < least else "features"] = None
        return sorted(found)
