"""Columns that any user of distributed jobs has: recognised by name, with the powers that are physically plausible."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

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
TIMES: Mapping[str, float] = {"_s": 1.0, "_ms": 1e-3, "_us": 1e-6, "_ns": 1e-9, "_min": 60.0, "_h": 3600.0}
"""End of the name of a column of times -> seconds of one."""


def role_of(column: str) -> Role:
    """Return what the name of a column says of it; case and separators do not matter."""
    return _BY_SPELLING.get(_plain(column), UNKNOWN)


def seconds_of(column: str) -> float:
    """Return how many seconds 1 in a column of times is, by the end of its name: ``iteration_ms`` 0.001, else 1."""
    return next((scale for end, scale in TIMES.items() if _plain(column).endswith(end)), 1.0)


def name_in_seconds(column: str) -> str:
    """Return the name of a column of times with seconds as its unit: ``iteration_s`` for ``iteration_ms``."""
    end = next((end for end in TIMES if _plain(column).endswith(end)), "")
    return f"{column[: -len(end)]}_s" if end and end != "_s" and column.lower().endswith(end) else column


def is_time(column: str) -> bool:
    """Return True if the name of a column says that it holds times, such as ``step_s`` or ``seconds``."""
    plain = _plain(column)
    return plain in ("time", "seconds", "latency", "step_time") or any(plain.endswith(end) for end in TIMES)


def _plain(column: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", column.strip())
    return re.sub(r"[\s\-.]+", "_", words).lower()
