"""Exchange: what ranks send each other in a step, when each takes part, and what waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdmpp.collectives.collective import Collective
from cdmpp.errors import DataError
from cdmpp.platform.limits import Limits, shown
from cdmpp.simulate.task import check_seconds

_WHOLE = Limits(0, 2**53)
START = -1
"""The place before the first op of a rank: the start of the step."""


@dataclass(frozen=True)
class Exchange:
    """It is a collective, a message between two ranks, or what one parameter server does for all ranks."""

    kind: str
    """A key of ``collective.KINDS``, what the framework calls it, or ``push_pull``: a server adds up what all send."""
    bytes: int
    """Counted as ``collective.KINDS`` says; 0: unknown. A push carries this many, and so does a pull."""
    after: Mapping[int, int]
    """Rank -> place of the op that launches it; ``START``: from the start of the step on."""
    before: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Rank -> places of the ops that wait for its end; the place behind the last op is the end of the step."""
    name: str = ""
    """Title for a reader; it need not be unique."""
    server: int = 0
    """Rank on whose machine the server of a ``push_pull`` runs."""
    sum_s: float = 0.0
    """Seconds for which the server of a ``push_pull`` adds up."""
    wire_s: float | None = None
    """Measured seconds from the latest arrival on, with its links for itself. None: a topology says what it takes."""
    lag_s: Mapping[int, float] = field(default_factory=dict)
    """Rank -> measured seconds from the end of the launching op to the arrival; 0 for ranks that are not named."""
    group: str = ""
    """Process group, or ``0->1`` for a message: its exchanges run one after the other."""
    spread_s: float = 0.0
    """Half of the distance between the quartiles of the measured times."""
    follows: bool = False
    """True if it also waits for the collective before it of each of its ranks, whatever group that is of."""
    blocks: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Rank -> places of ops that start late because this message must first leave for a buffer: their delay changes
    in proportion to ``wire_s``."""
    along: tuple[str, ...] = ()
    """Parallel degrees along which ranks take part; empty: all ranks that share parameters."""
    members: tuple[int, ...] = ()
    """Ranks of the job that take part; of a message the sender, then the receiver. Empty: those of ``after``. A folded
    graph has one rank for many that are alike: ``after``, ``before`` and ``group`` name ranks of the graph, and these
    are the ranks of the job by whose places in the nodes the exchange is priced."""

    def __post_init__(self) -> None:
        if not self._is_plain:
            self._check()

    @property
    def _is_plain(self) -> bool:
        """True for most that ``_check`` lets pass; quick, since steps have many."""
        return (
            (type(self.kind) is str and type(self.name) is str and type(self.group) is str)
            and (type(self.bytes) is int and self.bytes in _WHOLE and self.server == 0 and type(self.server) is int)
            and (type(self.after) is dict and type(self.before) is dict)
            and (self.lag_s == {} and self.blocks == {})
            and (type(self.along) is tuple and all([type(one) is str for one in self.along]))
            and (type(self.members) is tuple and all([type(one) is int for one in self.members]))
            and type(self.follows) is bool
            and (
                self.wire_s is None
                and type(self.sum_s) is type(self.spread_s) is float
                and self.sum_s == self.spread_s == 0
            )
        )

    def _check(self) -> None:
        for name in ("kind", "name", "group"):
            if not isinstance(value := getattr(self, name), str):
                raise DataError(f"{name} of an exchange is {shown(value)}: expected a text")
        for name in ("bytes", "server"):
            _WHOLE.fitting(f"{name} of {self.title}", getattr(self, name))
        for name in ("after", "before", "lag_s", "blocks"):
            if not isinstance(value := getattr(self, name), Mapping):
                raise DataError(f"{name} of {self.title} is {shown(value)}: expected ranks with values")
        for name, kind in (("along", str), ("members", int)):
            if not isinstance(value := getattr(self, name), tuple) or not {*map(type, value)} <= {kind}:
                raise DataError(f"{name} of {self.title} is {shown(value)}: expected a tuple of {kind.__name__}")
        if type(self.follows) is not bool:
            raise DataError(f"follows of {self.title} is {shown(self.follows)}: expected true or false")
        check_seconds(self.sum_s, f"sum of {self.title}")
        check_seconds(self.spread_s, f"spread of {self.title}")
        if self.wire_s is not None:
            check_seconds(self.wire_s, f"wire time of {self.title}")

    @property
    def title(self) -> str:
        """Return its name, or kind and group where it has none."""
        return self.name or f"{self.kind} {self.group}".strip()

    @property
    def measured_s(self) -> float:
        """Return measured seconds with its links for itself; ``DataError`` where it was not measured."""
        if self.wire_s is None:
            raise DataError(f"nobody measured {self.title}: only measured exchanges can be changed")
        return self.wire_s

    @property
    def ranks(self) -> tuple[int, ...]:
        """These ranks take part, in order."""
        return tuple(sorted(self.after))

    @property
    def is_folded(self) -> bool:
        """Return True if its ranks in the graph stand for others of the job."""
        return bool(self.members) and set(self.members) != set(self.after)

    @property
    def participants(self) -> tuple[int, ...]:
        """These ranks of the job take part: sender and receiver of a message in this order."""
        return self.members if self.is_folded else self.peers or self.ranks

    def collective(self, backend: str) -> Collective:
        """Return what its participants exchange over a back end; ``CdmppError`` where that is no collective."""
        return Collective(self.kind, self.bytes, len(self.participants), backend)

    @property
    def peers(self) -> tuple[int, int] | None:
        """These are sender and receiver of a message; None for a collective."""
        return peers_of(self.kind, self.group)


def peers_of(kind: str, group: str) -> tuple[int, int] | None:
    """Return sender and receiver of a ``send_recv`` whose group is ``0->1``; None for anything else.

    Raises:
        DataError: a group with an arrow that names no two ranks.
    """
    if kind != "send_recv" or "->" not in group:
        return None
    sender, _, receiver = group.partition("->")
    if not (sender.isdecimal() and receiver.isdecimal()):
        raise DataError(f"a message goes {group!r}: expected SENDER->RECEIVER, such as 0->1")
    return int(sender), int(receiver)
