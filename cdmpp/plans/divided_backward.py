"""DividedBackward: a stage whose backward pass first makes the gradients that go back, then those of its weights.

As PyTorch divides it: autograd runs for the inputs alone, then once more for each group of weights, from the gradients
that it noted on the way. Products of matrices and convolutions have a kernel each for inputs and for weights, so that
each goes to its part. What a norm does for both is divided by the bytes that it moves.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import CdmppError
from cdmpp.plans.stages import Stage
from cdmpp.steps.derived import derived
from cdmpp.steps.exchange import START
from cdmpp.steps.step_graph import Op, RankGraph
from cdmpp.steps.transforms.edit import moved_op


@dataclass(frozen=True)
class DividedBackward:
    """The backward pass of one stage.

    The first part has all that gradients of inputs need; a stage that returns none, as the first one, has nothing in
    it. What makes a gradient of a weight, and what only such ops read, is the second part. A norm's op that makes both
    is in both, and so are sums of a norm that both need.

    ``CdmppError`` for ops that run the forward pass again, and for times that do not tell both parts apart.
    """

    stage: Stage

    def __post_init__(self) -> None:
        if any(op.is_recomputed for op in self._ops):
            raise CdmppError(f"a divided backward pass of a model that recomputes: {AGAIN}")
        weights_s = sum(op.duration_s for op in self.rank.ops[self.first_weights :] if op.phase == "backward")
        if self.stage.returned and self._made and not weights_s:
            raise CdmppError(
                "a divided backward pass, and nothing says how long gradients of weights take: give the table of "
                "layers the column weights_s, or take a schedule that divides none, such as interleaved1f1b"
            )

    @property
    def _ops(self) -> tuple[Op, ...]:
        return self.stage.rank.ops

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Place in the stage of each op of ``rank``; one that is in both parts has two."""
        phases = {phase: [i for i, op in enumerate(self._ops) if op.phase == phase] for phase in _PHASES}
        inputs = [place for place in phases["backward"] if place in self._needed or place in self._sums]
        weights = [place for place in phases["backward"] if place not in self._needed or place in self._made]
        return (*phases["forward"], *inputs, *weights, *phases["update"])

    @cached_property
    def first_weights(self) -> int:
        """Place in ``rank`` of the first op of the second part; where there is none, of the op behind the pass."""
        is_forward = sum(op.phase == "forward" for op in self._ops)
        return is_forward + len(self._needed | self._sums)

    @cached_property
    def rank(self) -> RankGraph:
        """The ops of the stage: forward pass, both parts of the backward pass, update."""
        first, last, ops = dict[int, int](), dict[int, int](), list[Op]()
        for new, place in enumerate(self.places):
            op = self._ops[place]
            if place in self._needed and place in self._made:
                op = self._part(place, is_weights=place in first)
            ops.append(moved_op(op, first))
            first.setdefault(place, new)
            last[place] = new
        gradients = (derived(one, ready_after=last.get(one.ready_after, START)) for one in self.stage.rank.gradients)
        modules = []
        for one in self.stage.rank.modules:
            own = [at for place in range(one.backward[0], one.backward[1] + 1) for at in (first[place], last[place])]
            modules.append(derived(one, backward=(min(own), max(own))))
        return derived(self.stage.rank, ops=tuple(ops), gradients=tuple(gradients), modules=tuple(modules))

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """Share of the seconds of each op of ``rank`` in those of its op of the stage."""
        found = np.ones(len(self.places))
        for new, place in enumerate(self.places):
            if place in self._needed and place in self._made:
                weights = self._weights_share(place)
                found[new] = weights if new >= self.first_weights else 1 - weights
        return found

    @cached_property
    def pending(self) -> tuple[int, ...]:
        """Places in the stage of the ops of the first part whose results wait for the second one."""
        ops, begin = self.rank.ops, self.first_weights
        read = {one for op in ops[begin:] for one in op.inputs if one < begin and ops[one].phase == "backward"}
        return tuple(sorted({self.places[one] for one in read}))

    @cached_property
    def _needed(self) -> frozenset[int]:
        """Places of the ops of the backward pass that gradients of inputs come from."""
        found, waiting = set[int](), list(self.stage.returned)
        while waiting:
            place = waiting.pop()
            if place not in found and self._ops[place].phase == "backward":
                found.add(place)
                waiting += self._ops[place].inputs
        return frozenset(found)

    @cached_property
    def _made(self) -> Counter[int]:
        """Places of the ops that make gradients of weights -> bytes of these."""
        found = Counter[int]()
        for one in self.stage.rank.gradients:
            if one.is_used and one.ready_after != START:
                found[one.ready_after] += one.bytes
        return found

    @cached_property
    def _sums(self) -> frozenset[int]:
        """Places of sums of norms that make gradients of weights, and that the gradient of the input needs as well."""
        norms = {self._norm_of(place) for place in self._needed} - {None}
        return frozenset(place for place in self._made.keys() - self._needed if self._norm_of(place) in norms)

    def _norm_of(self, place: int) -> int | None:
        """Place of the norm whose gradients an op makes; None where it makes others."""
        forward = self._ops[place].forward
        return forward if forward is not None and self._ops[forward].kind == "norm" else None

    def _part(self, place: int, is_weights: bool) -> Op:
        """One of the two parts of an op."""
        op, share = self._ops[place], self._weights_share(place)
        own = min(self._made[place], op.output_bytes)
        if is_weights:
            return derived(op, duration_s=share * op.duration_s, output_bytes=own, result_bytes=None)
        return derived(op, duration_s=(1 - share) * op.duration_s, output_bytes=op.output_bytes - own)

    def _weights_share(self, place: int) -> float:
        """Share of gradients of weights, by bytes: both parts read what an op reads, this one writes next to none."""
        op = self._ops[place]
        read = sum(self._ops[one].output_bytes for one in op.inputs)
        written = max(op.output_bytes - self._made[place], 0)
        return read / (2 * read + written) if read else 0.5


_PHASES = ("forward", "backward", "update")
AGAIN = (
    "PyTorch runs a recomputed block again for its inputs, and once more for every group of its weights; take a "
    "schedule that divides no backward pass, such as interleaved1f1b, or recompute nothing"
)
"""Why nothing is recomputed where backward passes are divided: measured with torch 2.13."""
