"""Stored work: what a rank runs and holds, kept in the cache: a second question needs neither a model nor torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cdmpp.ast.layout import EAGER_FEATURES
from cdmpp.devices import Device
from cdmpp.errors import CdmppError, DataError
from cdmpp.network.network_key import device_key, digest, name_key, surroundings
from cdmpp.network.precision import precision_of
from cdmpp.network.training_step import StepBuffer, StepMemory
from cdmpp.network.workload import Workload
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.sources.source import OpExchange, RankWork, StepSource
from cdmpp.platform.cache import cached_json, keep_json
from cdmpp.platform.paths import cache_root
from cdmpp.predict.catalogue import model_for, models, state_of
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import Gradient, Op, RankGraph
from cdmpp.steps.strategy import Strategy

_VERSION = "3"
"""Goes up when the same question gives other ops."""
_LOW, _HIGH, _CHECKED = 2, 3, 5
"""Two micro-batches say all larger ones where they say this third one too; one example may have other layouts."""
_GROWING = (
    "duration_s", "gap_s", "output_bytes", "saved_bytes", "result_bytes", "workspace_bytes", "own_saved_bytes",
    "gradient_bytes",
)  # fmt: skip
"""Fields of an op that depend on the micro-batch."""
_FIXED = ("name", "phase", "kind", "is_recomputed", "inputs", "forward", "held")
_Split = tuple[ParallelDegrees, tuple[Strategy, ...]]
_OF_WORKLOAD = (
    "network", "sequence", "decoder_sequence", "inputs", "loss", "moe_imbalance", "attention", "boxes", "recompute",
)  # fmt: skip


@dataclass(frozen=True)
class StoredSource(StepSource):
    """The bytes of its works are those of ``make``; seconds, by which stages are balanced, are so up to three examples.

    A network without a name that says all of it, such as a file of Python, is read each time.
    """

    workload: Workload
    """Network, loss and optimizer; its batch plays no part."""
    device: Device
    model: str | None
    """Model that prices kernels; None: the default one of the device."""
    make: Callable[[], StepSource]
    """Makes what is asked where nothing is stored."""
    before_reading: Callable[[bool], None] = lambda is_kept: None
    """Called where a network has to be read, which takes long, with whether the answer is kept for later questions."""
    _works: dict[tuple[int, _Split], RankWork] = field(default_factory=dict, compare=False, repr=False)

    def work(self, batch: int, degrees: ParallelDegrees, strategies: Sequence[Strategy] = ()) -> RankWork:
        """Return the work of one rank, from the cache if such a question was asked; ``CdmppError`` as of ``make``."""
        split = _split(degrees, strategies)
        if (batch, split) not in self._works:
            self._works[batch, split] = self._work(batch, split)
        return self._works[batch, split]

    def limits(self) -> Mapping[str, int]:
        """Return those of ``make``, which reads the network."""
        return self._made.limits()

    def refusal(self, degree: str, ranks: int, strategies: Sequence[Strategy] = ()) -> str:
        """Return that of ``make``, which reads the network."""
        return self._made.refusal(degree, ranks, strategies)

    @cached_property
    def _made(self) -> StepSource:
        self.before_reading(self._key is not None)
        return self.make()

    @cached_property
    def _key(self) -> list[Any] | None:
        network, one = name_key(self.workload.network), self.workload
        if network is None or callable(one.loss) or one.target is not None or one.example_inputs is not None:
            return None
        settings = [repr(getattr(one, name)) for name in _OF_WORKLOAD]
        return [
            network, *settings, repr(precision_of(one.precision)), repr(one.update), device_key(self.device),
            self._model_state, surroundings(self.workload.network),
        ]  # fmt: skip

    @property
    def _model_state(self) -> list[str]:
        """Return the folder of the model that prices kernels, and what tells whether its files are still the same."""
        entries, own = models(), self.model
        with suppress(CdmppError):  # there is none, which who asks is told
            if own is None:
                folder = model_for(self.device, entries, EAGER_FEATURES).folder
            else:
                folder = next((one.folder for one in entries if one.name == own), Path(own))
            return [str(folder.absolute()), repr(state_of(folder))]
        return []

    def _work(self, batch: int, split: _Split) -> RankWork:
        if self._key is None:
            return self._made.work(batch, *split)
        try:
            stored = cached_json(self._path(split, batch > 1))
            if stored["grows"] or stored["batch"] == batch:
                return _restored(stored, batch - stored["batch"])
        except (CdmppError, KeyError, TypeError, ValueError, IndexError):  # not there, or damaged: made again
            stored = {}
        if not stored:
            found = self._read(split)
            if batch in found or (batch > 1 and _LOW in found):
                stored = found[min(batch, _LOW)]
        if not stored or (batch > 1 and not stored["grows"]):  # each batch of such a network has to be read
            stored = _plain(self._made.work(batch, *split), None, batch)
        keep_json(self._path(split, batch > 1), stored)
        return _restored(json.loads(json.dumps(stored)), batch - stored["batch"])

    def _path(self, split: _Split, is_many: bool) -> Path:
        """Return the file of one example, or that of several."""
        asked = digest([self._key, repr(split), "many" if is_many else "one"])
        return cache_root() / "works" / f"v{_VERSION}" / f"{asked}.json"

    def _read(self, split: _Split) -> dict[int, dict[str, Any]]:
        """Read one example and several, and store both: the next question may be of either."""
        found = dict[int, dict[str, Any]]()
        if (grown := self._growing(split)) is not None:
            found[_LOW] = grown
        with suppress(CdmppError):  # a network that takes no single example; who asks for it is told
            found[1] = _plain(self._made.work(1, *split), None, 1)
        for batch, stored in found.items():
            keep_json(self._path(split, batch > 1), stored)
        return found

    def _growing(self, split: _Split) -> dict[str, Any] | None:
        """Return two micro-batches as plain values; None where they do not say the others."""
        low, high, checked = (self._made.work(batch, *split) for batch in (_LOW, _HIGH, _CHECKED))
        if _alike(low) != _alike(high):
            return None
        stored = _plain(low, high, _LOW)
        said = _restored(json.loads(json.dumps(stored)), _CHECKED - _LOW)
        return stored if _sizes(said) == _sizes(checked) else None


def _split(degrees: ParallelDegrees, strategies: Sequence[Strategy]) -> _Split:
    """Return what changes the ops of a rank: neither replicas nor stages do."""
    own = replace(degrees, dp_replicate=1, dp_shard=1, pp=1)
    return own, tuple(one for one in strategies if {*one.degrees} & {*own.beyond_one()})


def _alike(work: RankWork) -> list[object]:
    ops = [[getattr(op, name) for name in _FIXED] for op in work.rank.ops]
    known = [[getattr(op, name) is None for name in _GROWING] for op in work.rank.ops]
    exchanges = [replace(one, bytes=1) for one in work.exchanges]
    return [ops, known, work.rank.gradients, work.rank.modules, work.rank.buffers, exchanges]


def _sizes(work: RankWork) -> list[object]:
    sizes = [[getattr(op, name) for name in _GROWING[2:]] for op in work.rank.ops]
    return [sizes, [one.bytes for one in work.exchanges], _of_memory(work)]


def _of_memory(work: RankWork) -> list[int] | None:
    """Bytes of ``StepMemory``, but for those that follow from the ops: they grow by steps."""
    if (one := work.memory) is None:
        return None
    own = replace(one, saved_activation_bytes=0, live_bytes=0)
    return [int(getattr(own, each.name)) for each in fields(own)]


def _plain(low: RankWork, high: RankWork | None, batch: int) -> dict[str, Any]:
    """Return works as JSON takes them: the smaller one, and how much more the other one has."""
    more = low if high is None else high
    pairs = list(zip(low.rank.ops, more.rank.ops, strict=True))
    return {
        "batch": batch,
        "grows": high is not None,
        "ops": {name: [getattr(op, name) for op, _ in pairs] for name in (*_FIXED, *_GROWING)},
        "more": {name: [_more(getattr(op, name), getattr(one, name)) for op, one in pairs] for name in _GROWING},
        "gradients": [asdict(one) for one in low.rank.gradients],
        "modules": [asdict(one) for one in low.rank.modules],
        "buffers": [asdict(one) for one in low.rank.buffers],
        "exchanges": [asdict(one) for one in low.exchanges],
        "exchanged": [one.bytes - two.bytes for one, two in zip(more.exchanges, low.exchanges, strict=True)],
        "memory": [_of_memory(low), _of_memory(more)],
        "start_s": low.rank.start_s,
        "low": low.low,
        "high": low.high,
        "warnings": low.warnings,
    }


def _more(low: float | None, high: float | None) -> float:
    return 0 if low is None or high is None else high - low


def _restored(stored: Mapping[str, Any], more: int) -> RankWork:
    """Return the work of ``more`` examples more than the stored ones."""
    own, growth = stored["ops"], stored["more"]
    grown = {name: _grown(own[name], growth[name], more) for name in _GROWING}
    places = {name: map(_frozen, own[name]) for name in ("inputs", "held")}
    columns = {**{name: own[name] for name in _FIXED}, **grown, **places}
    ops = tuple(Op(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True))
    gradients = tuple(Gradient(**_frozen(one)) for one in stored["gradients"])
    rank = RankGraph(
        0, ops, gradients, tuple(ModuleSpan(**_frozen(one)) for one in stored["modules"]), stored["start_s"],
        buffers=tuple(StepBuffer(**one) for one in stored["buffers"]),
    )  # fmt: skip
    sent = zip(stored["exchanges"], stored["exchanged"], strict=True)
    exchanges = tuple(OpExchange(**{**_frozen(one), "bytes": one["bytes"] + more * each}) for one, each in sent)
    first, second = stored["memory"]
    held = None
    if first is not None:
        held = StepMemory(*(low + more * (high - low) for low, high in zip(first, second, strict=True)))
    return RankWork(rank, exchanges, held, stored["low"], stored["high"], tuple(stored["warnings"]))


def _grown(values: list[Any], more: list[Any], times: int) -> list[Any]:
    if not times:
        return values
    pairs = zip(values, more, strict=True)
    grown = [None if value is None else value + times * each for value, each in pairs]
    if any(value is not None and value < 0 for value in grown):  # seconds that a fit lets fall
        if any(type(value) is int and value < 0 for value in grown):
            raise DataError("a stored op has less than no bytes")
        grown = [value if value is None else max(value, 0.0) for value in grown]
    return grown


def _frozen(value: Any) -> Any:
    """Return plain values with tuples in place of lists, as frozen dataclasses have them."""
    if isinstance(value, Mapping):
        return {name: _frozen(one) for name, one in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
