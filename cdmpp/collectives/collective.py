"""Collective: what ranks exchange, who carries it out, and how many bytes that takes at least."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cdmpp.devices.sheet import nearest
from cdmpp.errors import CdmppError
from cdmpp.platform.limits import Limits

KINDS: Mapping[str, str] = {
    "all_reduce": "the buffer of one rank, as long before as after",
    "all_gather": "the gathered result on one rank",
    "reduce_scatter": "the input of one rank, before it is scattered",
    "broadcast": "the message that every rank has in the end",
    "all_to_all": "all that one rank hands out, the part that it keeps included",
    "send_recv": "the message from one rank to another",
}
"""Kind -> what its ``bytes`` count. These are the sizes of nccl-tests."""
BACKENDS: Mapping[str, str] = {
    "nccl": "NVIDIA GPUs",
    "rccl": "AMD GPUs",
    "oneccl": "Intel devices",
    "gloo": "CPUs, over TCP; it runs a reduce-scatter as an all-reduce, and a broadcast as a binomial tree",
    "custom": "kernels of inference servers (vLLM, SGLang, TensorRT-LLM), all-reduce alone",
}

MOST_RANKS = 2**16
"""Most ranks of a job: the largest ones that anyone trained have half as many."""
RANKS = Limits(1, MOST_RANKS, "ranks")
MESSAGE = Limits(1, 10**15, "bytes")


def check_backend(name: str) -> None:
    """Raise ``CdmppError``, which names the nearest back ends, where ``name`` is none."""
    if not isinstance(name, str) or name not in BACKENDS:
        raise CdmppError(f"unknown back end {name!r}; {nearest(str(name), BACKENDS)}")


def kind_named(given: str) -> str:
    """Return the key of ``KINDS`` that PyTorch, NCCL or nccl-tests spells as ``given``; ``given`` itself where none is.

    ``AllReduce``, ``allreduce`` and ``all-reduce`` are ``all_reduce``.
    """
    letters = re.sub("[-_ ]", "", given.lower())
    return next((kind for kind in KINDS if kind.replace("_", "") == letters), given)


@dataclass(frozen=True)
class Collective:
    """A collective is one exchange between ranks."""

    kind: str
    """A key of ``KINDS``."""
    bytes: int
    """Message size in bytes, counted as ``KINDS`` says; at least 1."""
    ranks: int
    """Number of ranks that take part; 1 takes no time."""
    backend: str = "nccl"
    """A key of ``BACKENDS``."""

    def __post_init__(self) -> None:
        for what, given, allowed in (("kind", self.kind, KINDS), ("backend", self.backend, BACKENDS)):
            if not isinstance(given, str) or given not in allowed:
                raise CdmppError(f"unknown {what} of collective {given!r}; {nearest(str(given), allowed)}")
        MESSAGE.fitting(f"{self.kind}: bytes", self.bytes)
        RANKS.fitting(f"{self.kind}: ranks", self.ranks)
        if self.kind == "send_recv" and self.ranks > 2:
            raise CdmppError(f"send_recv has two ranks, given {self.ranks}: describe each pair by itself")
        if self.backend == "custom" and self.kind != "all_reduce":
            raise CdmppError(f"back end custom has an all_reduce alone, given {self.kind}: take nccl")

    @property
    def runs_as(self) -> Collective:
        """The back end really runs this collective: gloo's reduce-scatter is an all-reduce of the same bytes."""
        return replace(self, kind="all_reduce") if self.backend == "gloo" and self.kind == "reduce_scatter" else self

    @property
    def traffic_bytes(self) -> float:
        """The rank that sends most must send so many bytes, in the best algorithm for long messages.

        Source: Patarasuk and Yuan, 2009. gloo's broadcast is none of these: its root sends the whole message again and
        again (``is_tree``).
        """
        return self.bytes * traffic(self.runs_as.kind, self.ranks, self.backend)

    @property
    def steps(self) -> int:
        """So many messages follow each other in that algorithm."""
        return steps(self.runs_as.kind, self.ranks, self.backend)

    @property
    def is_tree(self) -> bool:
        """Return True if whole messages go down a binomial tree: to half of the ranks, half of the rest, and so on."""
        return is_tree(self.kind, self.backend)


def is_tree(kind: str, backend: str) -> bool:
    """Return True for gloo's broadcast."""
    return kind == "broadcast" and backend == "gloo"


def traffic(kind: str, ranks: int, backend: str = "nccl") -> float:
    """Return the share of ``bytes`` that the rank that sends most sends."""
    if ranks == 1:
        return 0.0
    if is_tree(kind, backend):
        return float(steps(kind, ranks, backend))
    if kind in ("broadcast", "send_recv"):
        return 1.0
    return (2 if kind == "all_reduce" else 1) * (ranks - 1) / ranks


def steps(kind: str, ranks: int, backend: str = "nccl") -> int:
    """Count the messages one after the other in a ring, or from the root of a tree."""
    if is_tree(kind, backend):
        return (ranks - 1).bit_length()
    if kind == "send_recv":
        return min(ranks - 1, 1)
    return (2 if kind == "all_reduce" else 1) * (ranks - 1)
