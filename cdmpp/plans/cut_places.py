"""Cut places: where the forward pass of a rank can be cut into stages, and what crosses a cut."""

from __future__ import annotations

import difflib
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import CdmppError, some
from cdmpp.plans.op_columns import OpColumns
from cdmpp.steps.step_graph import Gradient, Op, RankGraph

WRAPPED = "inner."
"""Prefix of the names of a model that is kept inside a module of this package, as for its loss."""
_CASTS = ("to", "_to_copy")


@dataclass(frozen=True)
class CutPlaces:
    """A cut at a place is before the op of the forward pass that stands there.

    ``CdmppError`` where nothing says which op of the backward pass belongs to which of the forward pass.
    """

    rank: RankGraph

    def __post_init__(self) -> None:
        if any(op.phase == "backward" and op.forward is None and not op.inputs for op in self.rank.ops):
            raise CdmppError(
                "pipeline: nothing says which op of the backward pass belongs to which of the forward pass; "
                "take a step that is predicted, or a table of layers"
            )

    @cached_property
    def forward(self) -> tuple[int, ...]:
        """Places of the ops of the forward pass."""
        return tuple(place for place, op in enumerate(self.rank.ops) if op.phase == "forward")

    @cached_property
    def last_readers(self) -> dict[int, int]:
        """Op of the forward pass -> the last one of the forward pass that reads its result."""
        return {one: place for place in self.forward for one in self.rank.ops[place].inputs}

    @cached_property
    def owners(self) -> tuple[int | None, ...]:
        """Op of the forward pass to which each one belongs; None: an update.

        An op of the backward pass that names none is found by what it reads and makes: results of the forward pass
        were made on its stage or are read there again, and gradients come from its own or a later stage.
        """
        made = {one.ready_after: one.readers[0] for one in self.rank.gradients if one.readers}
        found = list[int | None]()
        for place, op in enumerate(self.rank.ops):
            if op.phase == "update":
                found.append(None)
            elif op.phase == "forward" or op.forward is not None:
                found.append(place if op.phase == "forward" else op.forward)
            elif place in made:
                found.append(made[place])
            else:
                read = [one for one in op.inputs if self.rank.ops[one].phase == "forward"]
                later = [owner for one in op.inputs if one not in read if (owner := found[one]) is not None]
                least = max(read, default=0)
                most = min((self.last_readers.get(one, one) for one in read), default=self.forward[-1])
                found.append(max(least, min([most, *later])))
        return tuple(found)

    @cached_property
    def owner_places(self) -> NDArray[np.int64]:
        """Return ``owners`` as an array, -1 for an update."""
        return np.array([-1 if one is None else one for one in self.owners], np.int64)

    @cached_property
    def backward_of(self) -> dict[int, list[int]]:
        """Op of the forward pass -> the ops of the backward pass that belong to it."""
        found = dict[int, list[int]]()
        for place, owner in enumerate(self.owners):
            if owner is not None and self.rank.ops[place].phase == "backward":
                found.setdefault(owner, []).append(place)
        return found

    @cached_property
    def columns(self) -> OpColumns:
        """The ops as arrays."""
        return OpColumns(self.rank)

    @cached_property
    def sums(self) -> frozenset[int]:
        """Places of ops that only sum up parts of one gradient: the first reads all parts, the others follow it."""
        ops, found = self.rank.ops, set[int]()
        for place, op in enumerate(ops):
            if op.phase == "backward" and len(op.inputs) > 1 and all(ops[one].phase == "backward" for one in op.inputs):
                following = range(place, min(place + len(op.inputs) - 1, len(ops)))
                found |= {one for one in following if ops[one].forward == op.forward}
        return frozenset(found)

    @cached_property
    def is_sum(self) -> NDArray[np.bool_]:
        """Return which ops are ``sums``."""
        found = np.zeros(len(self.rank.ops), np.bool_)
        found[list(self.sums)] = True
        return found

    @cached_property
    def trained(self) -> frozenset[int]:
        """Places of the ops of the forward pass whose results have gradients.

        Some have no op of the backward pass of their own, such as the sum before the last norm, whose gradient is what
        the norm makes: these read what has a gradient, and what has one reads them.
        """
        pairs = zip(self.rank.ops, self.owners, strict=True)
        found = {owner for op, owner in pairs if op.phase == "backward" and owner is not None}
        learning, asked = set(found), set(found)
        for place in self.forward:
            if not learning.isdisjoint(self.rank.ops[place].inputs):
                learning.add(place)
        for place in reversed(self.forward):
            if place in asked:
                asked.update(self.rank.ops[place].inputs)
        return frozenset(found | learning & asked)

    @cached_property
    def _tensors(self) -> dict[int, tuple[int, ...]]:
        return {}

    def tensors(self, cut: int) -> tuple[int, ...]:
        """List the ops before a cut whose results are read behind it: these are sent from stage to stage."""
        if cut not in self._tensors:
            sources, lasts = self._read
            self._tensors[cut] = tuple(sources[(sources < cut) & (cut <= lasts)].tolist())
        return self._tensors[cut]

    @cached_property
    def _read(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ops whose results the forward pass reads, and the last that does."""
        sources, lasts = np.array([*self.last_readers.items()], np.int64).reshape(-1, 2).T
        return sources, lasts

    def crossing(self, cut: int, sizes: NDArray[np.int64] | None = None) -> tuple[NDArray[np.int64], list[bool]]:
        """Return the bytes of each tensor that is sent over a cut, and which have a gradient.

        Args:
            cut: place of an op of the forward pass.
            sizes: (micro-batches, ops) bytes of results, of micro-batches that run the same ops; None: those of the
                rank, as the only row.

        Returns:
            (micro-batches, tensors) bytes.
        """
        sizes = self.result_bytes[np.newaxis] if sizes is None else sizes
        own = self.tensors(cut)
        sent, are_trained = sizes[:, list(own)], [one in self.trained for one in own]
        (known,) = np.nonzero((sent > 0).any(axis=0))
        if not len(known):
            return np.ones((len(sizes), 1), np.int64), [any(are_trained)]
        return sent[:, known], [are_trained[number] for number in known.tolist()]

    @cached_property
    def result_bytes(self) -> NDArray[np.int64]:
        """Return the bytes of what each op hands on."""
        return np.array([result_bytes(op) for op in self.rank.ops], np.int64)

    @cached_property
    def sum_readers(self) -> dict[int, list[int]]:
        """Map each op to those of ``sums`` that read it."""
        found = dict[int, list[int]]()
        for place in sorted(self.sums):
            for one in self.rank.ops[place].inputs:
                found.setdefault(one, []).append(place)
        return found

    @cached_property
    def made(self) -> frozenset[int]:
        """Places of the ops after which a gradient is there."""
        return frozenset(one.ready_after for one in self.rank.gradients)

    @cached_property
    def norms(self) -> tuple[int, ...]:
        """Places of the norms of the forward pass."""
        return tuple(place for place in self.forward if self.rank.ops[place].kind == "norm")

    @cached_property
    def members(self) -> Mapping[str, list[Gradient]]:
        """Map each module to its trained parameters; those of no other one are the root's."""
        kept = {one.name: one.is_kept for one in self.rank.modules}
        roots = [name for name, is_kept in kept.items() if is_kept]
        found: dict[str, list[Gradient]] = {name: [] for name in kept}
        for one in self.rank.gradients:
            parts = one.name.split(".")
            inside = {".".join(parts[:count]) for count in range(1, len(parts) + 1)} & kept.keys()
            for name in [name for name in inside if not kept[name]] or roots:
                found[name].append(one)
        return found

    @cached_property
    def _crossing(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tensors of unknown size, and bytes of the others, that cross a cut at each place."""
        unknown, sizes = (np.zeros(len(self.rank.ops) + 1, np.int64) for _ in range(2))
        for one, last in self.last_readers.items():
            size = result_bytes(self.rank.ops[one])
            for array, value in ((unknown, int(not size)), (sizes, size)):
                array[one + 1] += value
                array[last + 1] -= value
        return np.cumsum(unknown), np.cumsum(sizes)

    def bytes_at(self, cuts: Sequence[int]) -> NDArray[np.int64]:
        """Return the bytes that cross each of several cuts in the forward pass."""
        return self._crossing[1][list(cuts)]

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Places of the ops of the forward pass that read parameters, in order."""
        read = {place for one in self.rank.gradients for place in one.readers}
        return tuple(sorted(read or {one.forward[0] for one in self.rank.modules}))

    @cached_property
    def outputs(self) -> tuple[int, ...]:
        """Place of the op that makes the output of the model: ``Cut.outputs`` says which."""
        last = [place for place in self.forward if place >= self.layers[-1]] if self.layers else []
        sizes = self._uncast_bytes(last)
        return tuple([max(last, key=lambda place: sizes[place])] if last else [])

    def _uncast_bytes(self, places: Sequence[int]) -> dict[int, float]:
        """Map ops to the bytes of their results, as if no cast among them had changed the type."""
        ops, wider, found = self.rank.ops, dict[int, float](), dict[int, float]()
        for place in places:
            read = [one for one in ops[place].inputs if one in found]
            wider[place] = max((wider[one] for one in read), default=1.0)
            size = result_bytes(ops[place])
            if read and operator_of(ops[place]) in _CASTS and (before := result_bytes(ops[read[0]])):
                wider[place] = wider[read[0]] * size / before or 1.0
            found[place] = size / wider[place]
        return found

    def places(self, stages: int) -> tuple[int, ...]:
        """List where so many stages can begin: with a module, or, where modules are too few, with a layer.

        Between two of them the cut is where the fewest bytes cross, the latest such place.

        Raises:
            CdmppError: the model has too few layers.
        """
        found = next((own for own in self._between if len(own) >= stages - 1), None)
        if found is None:
            most = len(self._between[-1])
            raise CdmppError(
                f"pipeline: {stages} stages of a model that can be cut at {most} places: expected at most "
                f"{most + 1} stages"
            )
        return found

    @cached_property
    def _between(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Places between modules, and between layers."""
        parts = [one for one in self.rank.modules if not one.is_kept]
        inside = [
            next((part.name for part in parts if part.forward[0] <= place <= part.forward[1]), place)
            for place in self.layers
        ]
        pairs = [*zip(self.layers, self.layers[1:], inside, inside[1:], strict=False)]
        best = [self.best(before, after) for before, after, _, _ in pairs]
        modules = tuple(place for place, (_, _, a, b) in zip(best, pairs, strict=True) if a != b)
        return modules, tuple(best)

    @cached_property
    def begins(self) -> Mapping[str, int]:
        """Map each module that reads parameters to the first op of the forward pass that does; in that order."""
        found = dict[str, int]()
        for one in (one for one in self.rank.gradients if one.readers):
            parts = one.name.split(".")
            for count in range(1, len(parts)):
                name = ".".join(parts[:count])
                found[name] = min(*one.readers, found.get(name, one.readers[0]), one.readers[0])
        return dict(sorted(found.items(), key=lambda pair: pair[1]))

    @cached_property
    def names(self) -> Mapping[str, int]:
        """Map each module, and each op of the forward pass, with which a stage after the first can begin to its place.

        A stage begins with a module where the fewest bytes cross behind the layer before; modules are named as those of
        the user's model, too.
        """
        found = dict[str, int]()
        for name, place in self.begins.items():
            if before := [one for one in self.layers if one < place]:
                own = self.best(before[-1], place)
                found |= {name: own, name.removeprefix(WRAPPED): own}
        for place in self.forward[1:]:
            found.setdefault(self.rank.ops[place].name, place)
        return found

    def named(self, name: str) -> int:
        """Return the place at which a stage begins with the module or op of a name.

        ``CdmppError``: there is none, or the first stage begins with it; the nearest modules are listed.
        """
        if name in self.names:
            return self.names[name]
        own = {*self.begins, *(one.name for one in self.rank.gradients)}  # layers of a table are ops of these names
        modules = [one for one in self.names if one in own]
        modules = list(dict.fromkeys(one.removeprefix(WRAPPED) for one in modules))
        is_first = name in {one.removeprefix(WRAPPED) for one in self.begins} | {*self.begins}
        is_first |= name == self.rank.ops[self.forward[0]].name
        why = "with which the first stage begins" if is_first else "no module with parameters and no op of this step"
        modules.sort(key=lambda one: difflib.SequenceMatcher(None, name, one).ratio(), reverse=True)
        raise CdmppError(
            f"pipeline.cuts names {name!r}, {why}; later stages can begin with {some(modules, ', ', 8)} (nearest first)"
        )

    def best(self, before: int, after: int) -> int:
        """Return the cut with the fewest bytes behind the op ``before`` and up to the op ``after``."""
        unknown, sizes = self._crossing
        own = self.forward[bisect_right(self.forward, before) : bisect_right(self.forward, after)]
        return min(reversed(own), key=lambda place: (unknown[place], sizes[place]))

    @cached_property
    def until_s(self) -> NDArray[np.float64]:
        """Seconds of forward and backward pass of the ops before each place."""
        seconds = np.zeros(len(self.rank.ops) + 1)
        for op, owner in zip(self.rank.ops, self.owners, strict=True):
            if owner is not None:
                seconds[owner + 1] += op.delay_s + op.duration_s + op.gap_s
        return np.cumsum(seconds)


def result_bytes(op: Op) -> int:
    """Return the bytes of what an op hands on."""
    return op.output_bytes if op.result_bytes is None else op.result_bytes


def operator_of(op: Op) -> str:
    """Return ``linear`` for a call ``linear_3#21`` of PyTorch; the kind of another op."""
    called = re.fullmatch(r"([a-zA-Z_]\w*?)(_\d+)?#\d+", op.name)
    return called[1] if called else op.kind or "other"
