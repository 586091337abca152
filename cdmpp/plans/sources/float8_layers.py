"""Float8 layers: linear layers of compiled blocks in float8, as torchao converts all but the one that scores words.

Before each product both factors are cast, in kernels that the compiler fuses. Under tensor parallelism with a scale for
each tensor, sequences are cast before they are gathered (``Float8ColwiseParallel``, ``PrepareFloat8ModuleInput``), and
so are gradients of what layers of rows give: half of the bytes are gathered, and each rank casts its own part. With a
scale for each row torchtitan gathers halves, and every rank casts all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from cdmpp.network.precision import Scaling
from cdmpp.plans.sources.fused_ops import FusedOps
from cdmpp.plans.sources.source import OpExchange
from cdmpp.steps.derived import derived
from cdmpp.steps.step_graph import RankGraph

PRODUCT = "dense"
"""Kind of an op that multiplies by a weight."""
SPEED = 1280 / 720
"""Speed of products in float8 by that of bfloat16 on an H100 at 700 W, on the shapes of a language model (SemiAnalysis,
"MI300X vs H100 vs H200, training", 2024)."""
_CAST_BYTES = 5
"""Bytes that a factor's element moves on its way to float8: it is read for its largest value, read and written."""
_COLUMN_BYTES = 13
"""The same with scales along the other axis than that in which it lies, slower products included: a step of Llama 3 8B
with scales of rows takes 0.145 s longer than one with scales of tensors, 8,192 tokens on each of 8 H100 (torchao,
``torchao/float8/README.md``, H100, versions 2.7 and 0.10: 6,768 and 7,689.5 tokens/s)."""
_TURNED_BYTES = 2
"""Bytes of an element that is in float8 already, and is copied so that it lies along the other axis."""


@dataclass(frozen=True)
class Float8Layers:
    """The linear layers of the blocks of a rank."""

    fused: FusedOps
    scaling: Scaling
    tensor_ranks: int
    """Ranks that divide each of them."""

    @property
    def gathers(self) -> bool:
        """Return True if what tensor ranks gather is in float8."""
        return self.scaling == "tensorwise" and self.tensor_ranks > 1

    def is_gathered(self, one: OpExchange) -> bool:
        """Return True for an exchange of sequences that a linear layer of a block reads."""
        is_near = one.after >= 0 and self.fused.is_within(one.after + 1)
        return self.gathers and one.degree == "tp" and one.kind == "all_gather" and is_near

    @cached_property
    def exchanges(self) -> tuple[OpExchange, ...]:
        """Exchanges with their bytes in float8."""
        given = self.fused.exchanges
        return tuple(replace(one, bytes=-(-one.bytes // 2)) if self.is_gathered(one) else one for one in given)

    @cached_property
    def _copied(self) -> frozenset[int]:
        """Places of ops that copy what is gathered into its order, and of what copies that again."""
        ops, found = self.fused.rank.ops, set[int]()
        for one in filter(self.is_gathered, self.fused.exchanges):
            own = [place for place in one.before if ops[place].kind != PRODUCT and one.after in self.fused.read(place)]
            found.update(own or (one.after,))  # asynchronous ones run beside the product that reads the copy
        for place in self.fused.groups:
            read = self.fused.read(place)
            if read and found.issuperset(read):
                found.add(place)
        return frozenset(found)

    @cached_property
    def _of_weights(self) -> dict[int, int]:
        """Place of a linear layer in the forward pass -> elements of its weight."""
        ops, found = self.fused.rank.ops, dict[int, int]()
        for one in self.fused.rank.gradients:
            op = ops[one.ready_after] if one.ready_after >= 0 else None
            if op is not None and op.kind == PRODUCT and op.forward is not None:
                found[op.forward] = op.output_bytes // 2
        return found

    @cached_property
    def _makes_weights(self) -> frozenset[int]:
        return frozenset(one.ready_after for one in self.fused.rank.gradients)

    def _is_layer(self, place: int) -> bool:
        return self.fused.rank.ops[place].kind == PRODUCT and self.fused.is_within(place)

    def _casts(self) -> Iterator[tuple[int, float]]:
        """Yield products with the bytes that casts before them move; what several read is cast once."""
        ops, known = self.fused.rank.ops, set[tuple[int, int | str]]()
        other = _COLUMN_BYTES if self.scaling == "rowwise" else _CAST_BYTES
        for place in filter(self._is_layer, range(len(ops))):
            op = ops[place]
            is_backward = op.phase == "backward" and not op.is_recomputed
            layer = op.forward if op.forward is not None and op.phase == "backward" else place
            weight = self._of_weights.get(layer, 0)
            read = self.fused.read(place)
            if not read:
                continue
            if not is_backward:
                yield place, _CAST_BYTES * weight
                if (read[0], "cast") not in known:
                    known.add((read[0], "cast"))
                    yield place, self._cast_bytes(read[0], _CAST_BYTES)
            elif place in self._makes_weights:
                if len(read) > 1 and (read[1], "turned") not in known:
                    known.add((read[1], "turned"))
                    bytes_ = _TURNED_BYTES if read[1] in self._copied else other
                    yield place, bytes_ * self._elements(read[1])
                if self.scaling == "rowwise":
                    yield place, other * self._elements(read[0])
            else:
                yield place, other * weight + self._cast_bytes(read[0], _CAST_BYTES)

    def _elements(self, place: int) -> int:
        op = self.fused.rank.ops[place]
        return (op.output_bytes if op.result_bytes is None else op.result_bytes) // 2

    def _cast_bytes(self, place: int, bytes_: int) -> float:
        """Bytes of a cast of what an op gives; of a gathered one each rank casts its part."""
        return bytes_ * self._elements(place) / (self.tensor_ranks if place in self._copied else 1)

    def rank_of(self, compiled: RankGraph, byte_s: float) -> RankGraph:
        """Return a compiled rank with products in float8 behind their casts.

        Args:
            compiled: the same ops as those of ``fused``.
            byte_s: seconds of a byte that a large kernel moves.
        """
        ops = list(compiled.ops)
        for place in range(len(ops)):
            if self._is_layer(place):
                ops[place] = derived(ops[place], duration_s=ops[place].duration_s / SPEED)
            elif place in self._copied:
                op = ops[place]
                ops[place] = derived(op, duration_s=op.duration_s / 2, output_bytes=-(-op.output_bytes // 2))
        for place, moved in self._casts():
            ops[place] = derived(ops[place], delay_s=ops[place].delay_s + moved * byte_s)
        return derived(compiled, ops=tuple(ops))
