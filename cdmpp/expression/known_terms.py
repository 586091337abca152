"""Known terms: what computing and exchanging take in jobs whose columns are recognised, up to constants.

None of them is made for one table. A worker computes its samples, layer by layer, as often as there are micro-batches;
in a pipeline the layers of a stage are gone through ``micro-batches + stages - 1`` times, what belongs to no layer once
for each micro-batch. Members of a group exchange numbers of the size of the parameters once a step, and tensor-parallel
ones numbers of the size of the activations in each layer; (n - 1) / n is the traffic of a ring, log2(n) the depth of a
tree, and "any" what a first exchange costs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdmpp.expression.columns import LAYERED
from cdmpp.expression.factor import Factor
from cdmpp.expression.term import Product

Powers = Mapping[str, float]
_SHAPES = ("any", "share", "log2")
_GROUPS = ("gpus", "nodes", "gpus_per_node", "servers")
_NONE: Powers = {}


@dataclass(frozen=True)
class KnownTerm:
    """A term that is known up to its constant."""

    product: Product
    is_exchange: bool
    """True for what is exchanged or waited for, False for what a worker computes by itself."""


def known_terms(factors: Sequence[Factor]) -> tuple[KnownTerm, ...]:
    """Return the terms of a table with these factors, none of them twice."""
    job = _Job({factor.role.name: factor.name for factor in reversed(factors) if factor.role.name}, factors)
    computed = [KnownTerm(Product(powers), False) for powers in job.computed]
    exchanged = [
        KnownTerm(Product(powers, (shape, count)), True)
        for powers, count, shapes in job.exchanged
        for shape in shapes
        if count not in powers or shape != "share"
    ]
    unlike = {_key(one.product): one for one in reversed([*computed, *exchanged])}
    return tuple(reversed(unlike.values()))


@dataclass(frozen=True)
class _Job:
    """A job as the columns of a table describe it."""

    names: Mapping[str, str]
    """Role -> name of the factor."""
    factors: Sequence[Factor]

    def of(self, **powers: float) -> Powers | None:
        """Powers of factors by their roles; None where a role is missing."""
        missing = any(role not in self.names for role in powers)
        return None if missing else {self.names[role]: power for role, power in powers.items()}

    @property
    def is_layered(self) -> bool:
        return any(role in self.names for role in LAYERED)

    @property
    def micro_batches(self) -> Powers:
        """Count the micro-batches that a worker computes in one step."""
        return self.of(chunks=1) or self.of(batch=1, dp=-1, micro_batch=-1) or self.of(batch=1, micro_batch=-1) or _NONE

    @property
    def rounds(self) -> Powers:
        """Count the times that the layers of a stage are gone through in one step."""
        return self.of(rounds=1) or self.micro_batches

    @property
    def samples(self) -> Powers:
        """Samples of one micro-batch of one worker."""
        if found := self.of(micro_batch=1):
            return found
        local = self.of(local_batch=1) or self.of(batch=1, dp=-1) or self.of(batch=1, gpus=-1) or self.of(batch=1)
        return _times(local or _NONE, _power(self.micro_batches, -1))

    @property
    def layers(self) -> Powers:
        """Layers of one stage."""
        return _times(self.of(layers=1) or _NONE, self.of(pp=-1) or _NONE)

    @property
    def activations(self) -> Powers:
        """Numbers of one layer's activations."""
        return _times(self.samples, self.of(seq=1) or _NONE, self.of(hidden=1) or _NONE)

    @property
    def others(self) -> list[Powers]:
        """Intrinsic factors that have no place in the above."""
        used = set(self.samples) | set(self.rounds) | set(self.micro_batches)
        used |= {self.names[role] for role in (*LAYERED, "heads", "batch", "local_batch") if role in self.names}
        return [
            {one.name: 1.0} for one in self.factors
            if one.role.kind == "intrinsic" and one.kind == "column" and one.name not in used
        ]  # fmt: skip

    @property
    def attention(self) -> list[Powers]:
        """Work of attention where parameters stand for layers: networks get deeper as they get wider."""
        pairs = self.of(seq=1, params=2 / 3)
        if pairs is None or "hidden" in self.names or "layers" in self.names:
            return []
        work = _times(self.rounds, self.activations, pairs)
        return [work, *(_times(work, one) for one in self.others if one != self.of(params=1))]

    @property
    def computed(self) -> list[Powers]:
        """Products of factors that a worker's work in one step grows with."""
        split = self.of(tp=-1) or _NONE
        if self.is_layered:
            inner = _times(self.rounds, self.layers)
            matrix = _times(self.activations, self.of(hidden=1) or _NONE)
            weights = _times(self.layers, self.of(hidden=2) or _NONE, split)
            found = [inner, _times(inner, self.activations, split), _times(inner, self.activations)]
            attention = _times(self.activations, self.of(seq=1) or _NONE)
            found += [_times(inner, matrix, split), _times(inner, attention, split)]
            found += [self.micro_batches, _times(self.micro_batches, self.activations, split)]
            found += [_times(self.micro_batches, self.activations), _NONE, self.layers, weights]
        else:
            powers = [_NONE, *(_power(self.samples, power) for power in (0.5, 1, 2) if self.samples)]
            found = [_times(times, one) for times in (_NONE, self.micro_batches) for one in powers]
        for one in self.others:
            found += [one, *(_times(self.rounds, power, one) for power in (self.activations, _NONE))]
            found += [_power(one, 2)] * (one != self.of(params=1))
        for pair in itertools.combinations(self.others, 2):
            found += [_times(*pair), _times(self.rounds, self.activations, *pair)]
        return found + self.attention

    @property
    def exchanged(self) -> list[tuple[Powers, str, tuple[str, ...]]]:
        """Sizes that are exchanged, the group of workers and the shapes in which its count may enter."""
        found: list[tuple[Powers, str, tuple[str, ...]]] = []
        split = _times(self.of(tp=-1) or _NONE, _NONE)
        weights = _times(self.layers, self.of(hidden=2) or _NONE, split)
        groups = ("dp",) if "dp" in self.names else _GROUPS
        for role in groups:
            if role in self.names:
                sizes = [_NONE, self.layers, weights] if self.is_layered else [_NONE, self.samples]
                sizes += self.others
                found += [(size, self.names[role], _SHAPES) for size in sizes]
        for role, times in (("tp", _times(self.rounds, self.layers)), ("pp", self.rounds)):
            if role in self.names:
                shapes = ("any", "share") if role == "tp" else ("any",)
                found += [(size, self.names[role], shapes) for size in (times, _times(times, self.activations))]
        return found


def _times(*factors: Powers) -> Powers:
    found = dict[str, float]()
    for factor in factors:
        for name, power in factor.items():
            found[name] = found.get(name, 0.0) + power
    return {name: power for name, power in found.items() if power}


def _power(factor: Powers, power: float) -> Powers:
    return {name: own * power for name, own in factor.items()}


def _key(product: Product) -> tuple[object, ...]:
    return tuple(sorted(product.powers.items())), product.shape
