"""ChakraRank: what the trace of one rank says, as ops, and as its part in exchanges that others have too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from cdmpp.errors import DataError
from cdmpp.platform.limits import Limits, shown
from cdmpp.steps.step_graph import RankGraph
from cdmpp.trace.chakra.messages import COLLECTIVES
from cdmpp.trace.chakra.node import ChakraNode

T = TypeVar("T")
FORMAT = 1
"""Version of what ``cdmpp`` writes beside the schema."""
KINDS: Mapping[str, str] = {
    "all_reduce": "ALL_REDUCE",
    "all_gather": "ALL_GATHER",
    "broadcast": "BROADCAST",
    "all_to_all": "ALL_TO_ALL",
    "reduce_scatter": "REDUCE_SCATTER",
}
"""Kind of exchange -> Chakra's name of the collective."""
_RANK = Limits(0, 2**16)


@dataclass
class Use:
    """One rank takes part in an exchange."""

    node: ChakraNode
    key: tuple[Any, ...]
    """The exchange is known by this on all of its ranks."""
    place: int
    """Of two exchanges of one group, the one with the lesser place goes first."""
    after: int
    """Place of the op that launches it."""
    members: tuple[int, ...] | None
    """The ranks that must take part; None: all that know its group."""
    before: list[int] = field(default_factory=list)
    """Places of the ops that wait for it."""
    lag_s: float = 0.0
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the exchange that nodes do not say."""


@dataclass(frozen=True)
class ChakraRank:
    """These are the ops of a rank, and its parts in exchanges."""

    graph: RankGraph
    uses: tuple[Use, ...]


def kind_of(node: ChakraNode) -> str:
    """Return the kind of exchange; ``DataError`` for a collective that has no counterpart."""
    if node.type != "COMM_COLL_NODE":
        return "send_recv"
    number = node.attributes.get("comm_type")
    name = COLLECTIVES[number] if type(number) is int and 0 <= number < len(COLLECTIVES) else shown(number)
    found = next((kind for kind, other in KINDS.items() if other == name), None)
    if found is None:
        raise DataError(f"{node.title} is a {name}: expected one of {', '.join(KINDS.values())}")
    return found


def size_of(kind: str, n_bytes: int, ranks: int) -> int:
    """Return the bytes of ``comm_size``: an all-gather is counted by what one rank gives, as its input."""
    return -(-n_bytes // ranks) if kind == "all_gather" else n_bytes


def peers_of(node: ChakraNode, rank: int) -> tuple[int, int]:
    """Return sender and receiver of a message; ``DataError`` where ``rank`` is not the one that the node is of."""
    own, other = ("comm_src", "comm_dst") if node.type == "COMM_SEND_NODE" else ("comm_dst", "comm_src")
    if node.attributes.get(own, rank) != rank:
        raise DataError(f"{node.title} has {own} {shown(node.attributes[own])}: expected {rank}, whose trace it is in")
    peer = _RANK.fitting(f"{other} of {node.title}", node.attributes.get(other))
    if peer == rank:
        raise DataError(f"{node.title} goes from rank {rank} to itself")
    return (rank, peer) if own == "comm_src" else (peer, rank)


def made(kind: type[T], given: Any, where: str) -> T:
    """Make a dataclass of an object of JSON; ``DataError`` where its fields are not those of the class."""
    known = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(given, Mapping) or not set(given) <= known:
        raise DataError(f"{where} is {shown(given)}: expected an object with {', '.join(sorted(known))}")
    try:
        return kind(**{name: _frozen(value) for name, value in given.items()})
    except TypeError as error:
        raise DataError(f"{where} is {shown(given)}: {error}") from error


def list_of(kind: type[T], given: Any, where: str) -> tuple[T, ...]:
    """Make dataclasses of a list of objects of JSON."""
    if not isinstance(given, list):
        raise DataError(f"{where} is {shown(given)}: expected a list")
    return tuple(made(kind, one, where) for one in given)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
