"""Columns that any user of distributed jobs has: recognised by name, with the powers that are physically plausible."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cdmpp.errors import UsageError
from cdmpp.platform.limits import shown

Kind = Literal["intrinsic", "extrinsic"]
"""Intrinsic factors belong to the algorithm, such as layers; extrinsic ones to what it is run on and split over."""


@dataclass(frozen=True)
class Role:
    """A role is what a factor means, as far as its name says it."""

    name: str
    kind: Kind
    powers: tuple[float, ...]
    """Powers of the factor that a term of a run time may plausibly have, 0 among them."""
    is_count: bool = False
    """It counts devices or other members of a group, from 1 up, between which something may be exchanged."""
    spellings: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Return True for what is counted in whole numbers; GPUs of a node may be a mean."""
        return (self.is_count and self.name != "gpus_per_node") or self.name == "chunks"


_MEMBERS = (-1.0, 0.0, 1.0)
ROLES: tuple[Role, ...] = (
    Role("gpus", "extrinsic", _MEMBERS, True, ("gpus", "gpu_count", "n_gpus", "num_gpus", "ngpus", "devices",
         "accelerators", "world_size", "ranks", "n_ranks", "num_ranks", "processes", "procs", "workers", "n_workers",
         "num_workers")),
    Role("nodes", "extrinsic", _MEMBERS, True, ("nodes", "n_nodes", "num_nodes", "nnodes", "machines", "hosts",
         "instances")),
    Role("gpus_per_node", "extrinsic", _MEMBERS, True, ("gpus_per_node", "devices_per_node", "ranks_per_node",
         "most_gpus_per_node", "local_world_size")),
    Role("servers", "extrinsic", _MEMBERS, True, ("servers", "parameter_servers", "n_servers", "ps")),
    Role("tp", "extrinsic", _MEMBERS, True, ("tp", "tensor_parallel", "tensor_parallel_size", "tp_size")),
    Role("dp", "extrinsic", _MEMBERS, True, ("dp", "data_parallel", "data_parallel_size", "dp_size")),
    Role("pp", "extrinsic", _MEMBERS, True, ("pp", "pipeline_parallel", "pipeline_parallel_size", "pp_size",
         "stages")),
    Role("chunks", "extrinsic", _MEMBERS, False, ("chunks", "micro_batches", "microbatches", "num_microbatches",
         "grad_accum", "accumulation_steps", "gradient_accumulation_steps", "shards")),
    Role("batch", "intrinsic", (0.0, 1.0), False, ("batch", "batch_size", "global_batch", "global_batch_size", "gbs",
         "samples")),
    Role("local_batch", "intrinsic", (0.0, 1.0), False, ("local_batch", "batch_per_gpu", "local_batch_size",
         "per_device_batch", "per_device_batch_size")),
    Role("micro_batch", "intrinsic", _MEMBERS, False, ("micro_batch", "microbatch", "micro_batch_size", "mbs")),
    Role("layers", "intrinsic", (0.0, 1.0), False, ("layers", "n_layers", "num_layers", "depth", "blocks")),
    Role("hidden", "intrinsic", (0.0, 1.0, 2.0), False, ("hidden", "hidden_size", "d_model", "width", "embed_dim",
         "features")),
    Role("heads", "intrinsic", (0.0, 1.0), False, ("heads", "n_heads", "num_heads")),
    Role("seq", "intrinsic", (0.0, 1.0, 2.0), False, ("seq", "seq_len", "seq_length", "sequence_length", "tokens",
         "context")),
    Role("params", "intrinsic", (0.0, 1.0), False, ("params", "num_params", "n_params", "parameters", "size_bytes",
         "bytes")),
)  # fmt: skip
"""Meanings that are recognised, with the spellings of their columns."""
LAYERED = ("layers", "hidden", "seq")
"""Roles of the sizes of a network of layers. What layers compute and exchange is known as a function of these."""
UNKNOWN = Role("", "intrinsic", (-1.0, 0.0, 1.0, 2.0))
"""The role of a factor whose name says nothing."""
_BY_SPELLING: Mapping[str, Role] = {spelling: role for role in ROLES for spelling in role.spellings}
_UNITS: Mapping[float, tuple[str, ...]] = {
    1.0: ("s", "sec", "secs", "second", "seconds"),
    1e-3: ("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"),
    1e-6: ("us", "\u00b5s", "\u03bcs", "usec", "usecs", "micros", "microsecond", "microseconds"),
    1e-9: ("ns", "nsec", "nsecs", "nanos", "nanosecond", "nanoseconds"),
    60.0: ("min", "mins", "minute", "minutes"),
    3600.0: ("h", "hr", "hrs", "hour", "hours"),
}
_SECONDS: Mapping[str, float] = {word: scale for scale, words in _UNITS.items() for word in words}
"""Unit, as a word of the name of a column of times -> seconds of one."""
_OTHER_WORDS = ("s", "h", "min")
"""Units that, as a whole name, as often mean a sequence length, a hidden size or a smallest value."""
_TIME_WORDS = ("time", "latency", "duration", "runtime", "elapsed")


def role_of(column: str) -> Role:
    """Return what the name of a column says of it; case and separators do not matter."""
    return _BY_SPELLING.get(_plain(column), UNKNOWN)


def seconds_of(column: str) -> float | None:
    """Return how many seconds 1 in a column of times is, as its name says, or None where it names no unit.

    The unit is the last word, as in ``iteration_ms``, ``stepMs`` or ``time (ms)``, or the one before ``per``, as in
    ``ms_per_step``.
    """
    place = _unit_place(_words(column))
    return None if place is None else _SECONDS[_words(column)[place]]


def name_in_seconds(column: str) -> str:
    """Return the name of a column of times with seconds as its unit: ``iteration_s`` for ``iteration_ms``."""
    words = _words(column)
    place = _unit_place(words)
    if place is None or _SECONDS[words[place]] == 1:
        return column
    return "_".join([*words[:place], "s", *words[place + 1 :]]) if len(words) > 1 else "time_s"


def unit_of(time: str, others: Sequence[str]) -> tuple[float | None, str]:
    """Return the seconds of 1 in a column of times, None where its name has no unit, and its name in seconds.

    Raises:
        UsageError: the column is a rate, or its name in seconds is one of ``others``.
    """
    if is_rate(time):
        raise UsageError(f"column {shown(time)} is a rate by its name, no time: name a column of times")
    name = name_in_seconds(time)
    if name != time and name in others:
        raise UsageError(f"column {shown(time)} in seconds is {shown(name)}, as another one: rename one")
    return seconds_of(time), name


def is_rate(column: str) -> bool:
    """Return True if the name of a column says that it is so much per something, such as ``tokens_per_s``."""
    words = _words(column)
    return "per" in words[1:] and words[words.index("per", 1) - 1] not in (*_SECONDS, *_TIME_WORDS)


def is_time(column: str) -> bool:
    """Return True if the name of a column says that it holds times, such as ``step_s`` or ``seconds``."""
    words = _words(column)
    if is_rate(column) or words in [[word] for word in _OTHER_WORDS]:
        return False
    has_word = words[-1:] == ["time"] or (len(words) == 1 and words[0] in _TIME_WORDS)
    return has_word or words[:2] == ["time", "per"] or _unit_place(words) is not None


def _unit_place(words: list[str]) -> int | None:
    """Place of the unit among the words of the name of a time."""
    places = [len(words) - 1]
    if "per" in words[1:]:
        places.insert(0, words.index("per", 1) - 1)
    return next((place for place in places if place >= 0 and words[place] in _SECONDS), None)


def _words(column: str) -> list[str]:
    return _plain(column.replace("/", " per ")).strip("_").split("_")


def _plain(column: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", column.strip())
    return re.sub(r"[\s\-.()\[\]]+", "_", words).lower()
