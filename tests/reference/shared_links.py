"""SharedLinks: each link divides its rate evenly among its flows; the tightest of its links paces a flow.

A thousand flows may share a link, and when one joins or leaves nobody touches the others. A flow has its home on the
link that most flows share; the least share of its other links is its *cap*. Flows of one home and one cap go equally
fast, so they are kept as one group, which has one clock: the bytes that each of its flows has sent. A group either goes
with its link or at its cap, and a change of the link's share moves only the groups whose cap lies between the old share
and the new one. When a flow joins another link that it crosses, the few flows there that have their home elsewhere get
another cap.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Mapping
from itertools import count
from typing import Any

from cdmpp.errors import DataError
from cdmpp.simulate.flow import Flow

_Heap = list[tuple[float, int, Any, int]]
"""(when, order of arrival, of whom, its version), the least first. An entry of an earlier version is void."""

_KEPT = 16
"""Groups that a link keeps although they are empty."""


class _Moving:
    """A flow under way."""

    __slots__ = ("count", "entry", "group", "item", "left_bytes", "links", "target")

    def __init__(self, item: Any, flow: Flow, links: tuple[_Link, ...]) -> None:
        self.item, self.links, self.count, self.left_bytes = item, links, flow.count, flow.bytes
        self.group: _Group | None = None
        self.target = 0.0
        """The clock of its group at which all is sent."""
        self.entry = 0
        """The number of its entry in the heap of the group."""


class _Group:
    """Flows of one home and one cap."""

    __slots__ = ("at", "cap", "flows", "goes_along", "home", "sent_bytes", "version")

    def __init__(self, home: _Link, cap: float, now_s: float) -> None:
        self.home, self.cap = home, cap
        self.flows: _Heap = []
        """By target."""
        self.sent_bytes = 0.0
        """The clock at ``at``."""
        self.goes_along = cap >= home.share
        self.at = home.clock(now_s) if self.goes_along else now_s
        """The clock of the link, where the group goes along with it, or the time."""
        self.version = 0

    def clock(self, now_s: float) -> float:
        if self.goes_along:
            return self.sent_bytes + (self.home.clock(now_s) - self.at)
        return self.sent_bytes + self.cap * (now_s - self.at)

    def turn(self, now_s: float) -> None:
        """Go along with the link from now on, or no longer."""
        self.sent_bytes = self.clock(now_s)
        self.goes_along = not self.goes_along
        self.at = self.home.clock(now_s) if self.goes_along else now_s
        self.announce()

    def take(self, moving: _Moving, now_s: float, order: int) -> None:
        moving.group, moving.entry = self, order
        moving.target = self.clock(now_s) + moving.left_bytes
        self.home.members += 1
        heapq.heappush(self.flows, (moving.target, order, moving, order))
        if self.flows[0][2] is moving:
            self.announce()

    def leave(self, moving: _Moving, now_s: float) -> None:
        moving.left_bytes = max(0.0, moving.target - self.clock(now_s))
        moving.group = None
        self.home.members -= 1
        self.announce()

    def ended(self) -> list[_Moving]:
        """Take out the flows that end next, all at once."""
        done, flows = list[_Moving](), self.flows
        target = flows[0][0]
        while flows and flows[0][0] == target:
            _, _, moving, entry = heapq.heappop(flows)
            if moving.group is self and moving.entry == entry:
                moving.group = None
                done.append(moving)
        self.home.members -= len(done)
        self.announce()
        return done

    def announce(self) -> None:
        """Tell the link when the next flow is done."""
        self.version += 1
        flows = self.flows
        while flows and (flows[0][2].group is not self or flows[0][2].entry != flows[0][3]):
            heapq.heappop(flows)
        if not flows:
            self.home.drop(self)
            return
        home, left = self.home, flows[0][0] - self.sent_bytes
        if self.goes_along:
            heapq.heappush(home.along, (self.at + left, flows[0][1], self, self.version))
        else:
            heapq.heappush(home.capped, (self.at + left / self.cap, flows[0][1], self, self.version))


class _Link:
    """A link, and the flows that have their home here."""

    __slots__ = (
        "along", "capped", "caps", "count", "groups", "guests", "members", "rate", "sent_bytes", "share", "since_s",
        "version",
    )  # fmt: skip

    def __init__(self, rate: float) -> None:
        self.rate = self.share = rate
        self.count = 0
        """Flows that cross it, each counted as many times as it stands for."""
        self.guests: dict[_Moving, None] = {}
        """Flows that cross it and have their home elsewhere."""
        self.members = 0
        """Flows that have their home here."""
        self.groups: dict[float, _Group] = {}
        self.caps: list[float] = []
        """Caps of the groups, the least first."""
        self.sent_bytes = self.since_s = 0.0
        """The clock of the link at ``since_s``: bytes that a flow has sent which always went along."""
        self.along: _Heap = []
        """Groups that go along, by the clock of the link at which their next flow is done."""
        self.capped: _Heap = []
        """The others, by time."""
        self.version = 0

    def clock(self, now_s: float) -> float:
        return self.sent_bytes + self.share * (now_s - self.since_s)

    def settle(self, now_s: float) -> None:
        """Give each flow its new share from now on."""
        self.sent_bytes, self.since_s = self.clock(now_s), now_s
        old, new = self.share, self.rate / (self.count or 1)
        if not self.members:
            self.groups.clear()
            self.caps.clear()
            self.along.clear()
            self.capped.clear()
            self.sent_bytes = 0.0
        self.share = new
        least, most = (old, new) if old < new else (new, old)
        caps = self.caps
        if caps and least <= caps[-1] and caps[0] < most:  # a group goes along where its cap is not below the share
            for cap in caps[bisect_left(caps, least) : bisect_left(caps, most)]:
                self.groups[cap].turn(now_s)

    def group(self, cap: float, now_s: float) -> _Group:
        group = self.groups.get(cap)
        if group is None:
            group = self.groups[cap] = _Group(self, cap, now_s)
            insort(self.caps, cap)
        return group

    def ended(self, now_s: float) -> list[_Moving]:
        """Take out the flows that end now."""
        done = list[_Moving]()
        if self.along and (head := _head(self.along)):
            when = head[0]
            if self.since_s + (when - self.sent_bytes) / self.share <= now_s:
                self.sent_bytes, self.since_s = when, now_s
                while head and head[0] == when:
                    done += head[2].ended()
                    head = _head(self.along)
        if self.capped:
            while (head := _head(self.capped)) and head[0] <= now_s:
                done += head[2].ended()
        return done

    def drop(self, group: _Group) -> None:
        """Forget a group without flows, unless there are so few that it may stay for the next flow."""
        if len(self.caps) > _KEPT and self.groups.get(group.cap) is group:
            del self.groups[group.cap]
            del self.caps[bisect_left(self.caps, group.cap)]

    def next_s(self) -> float:
        """Return when its next flow is done; infinite without flows."""
        found = math.inf
        if self.along and (head := _head(self.along)):
            found = self.since_s + (head[0] - self.sent_bytes) / self.share
        if self.capped and (head := _head(self.capped)) and head[0] < found:
            found = head[0]
        return found if found > self.since_s else self.since_s


def _head(heap: _Heap) -> tuple[float, int, Any, int] | None:
    while heap and heap[0][2].version != heap[0][3]:
        heapq.heappop(heap)
    return heap[0] if heap else None


class SharedLinks:
    """All links of one simulation.

    What a flow leaves of its share on the other links nobody else takes. Between two calls of ``next_s`` time stands
    still: flows that join and leave together change the shares once.
    """

    def __init__(self, rates: Mapping[str, float]) -> None:
        """``rates``: link -> bytes a second."""
        for name, rate in rates.items():
            if not (math.isfinite(rate) and rate > 0):
                raise DataError(f"link {name!r} has a rate of {rate} bytes a second: it must be finite and positive")
        self._links = {name: _Link(rate) for name, rate in rates.items()}
        self._ways: dict[tuple[str, ...], tuple[_Link, ...]] = {}
        self._changed: dict[_Link, None] = {}
        """Links that a flow has joined or left."""
        self._joined: list[_Moving] = []
        self.flows = 0
        """Flows under way."""
        self._ends: _Heap = []
        """Links, by the time at which their next flow is done."""
        self._order = count()

    def join(self, item: Any, flow: Flow, now_s: float) -> None:
        """Add a flow from ``now_s`` on; ``ended`` gives ``item`` back. ``DataError`` where a link has no rate."""
        links = self._ways.get(flow.links)
        if links is None:
            if unknown := [name for name in flow.links if name not in self._links]:
                raise DataError(f"a flow goes over link {unknown[0]!r}, whose rate is not given")
            links = self._ways[flow.links] = tuple(self._links[name] for name in dict.fromkeys(flow.links))
        for link in links:
            link.count += flow.count
            if link.count > flow.count or link.caps:
                self._changed[link] = None
            else:  # it is alone
                link.share, link.since_s = link.rate / flow.count, now_s
        self._joined.append(_Moving(item, flow, links))
        self.flows += 1

    def next_s(self, now_s: float) -> float:
        """Return when the next flow is done, with all that joined or left by ``now_s``; infinite without flows."""
        if self._changed or self._joined:
            self._settle(now_s)
        ends = self._ends
        while ends and ends[0][2].version != ends[0][3]:
            heapq.heappop(ends)
        return ends[0][0] if ends else math.inf

    def ended(self, now_s: float) -> list[Any]:
        """Return the items of the flows that are done at ``now_s``, which ``next_s`` has said; they have left."""
        done, ends = list[Any](), self._ends
        while ends and ends[0][0] == now_s:
            _, _, link, version = heapq.heappop(ends)
            if link.version == version:
                for moving in link.ended(now_s):
                    done.append(moving.item)
                    for crossed in moving.links:
                        crossed.count -= moving.count
                        if crossed.guests:
                            crossed.guests.pop(moving, None)
                        if crossed.count or crossed.caps:
                            self._changed[crossed] = None
        self.flows -= len(done)
        return done

    def _settle(self, now_s: float) -> None:
        changed, self._changed = self._changed, {}
        joined, self._joined = self._joined, []
        homes = dict[_Link, None]()
        for link in changed:
            if link.members or link.caps:
                link.settle(now_s)
                homes[link] = None
            else:  # nobody's home
                link.share, link.since_s = link.rate / (link.count or 1), now_s
        for link in changed:
            if link.guests:
                for moving in list(link.guests):
                    self._place(moving, now_s, homes)
        for moving in joined:
            self._place(moving, now_s, homes)
        for link in homes:
            link.version += 1
            if (end_s := link.next_s()) < math.inf:
                heapq.heappush(self._ends, (end_s, next(self._order), link, link.version))

    def _place(self, moving: _Moving, now_s: float, homes: dict[_Link, None]) -> None:
        """Put a flow into the group where it belongs."""
        group, links, cap = moving.group, moving.links, math.inf
        home = links[0] if group is None else group.home
        if len(links) > 1:
            most = home.count if group is None else 2 * home.count  # a home that changes to and fro costs time
            for link in links:
                if link.count > most:
                    home, most = link, link.count
            for link in links:
                if link.share < cap and link is not home:
                    cap = link.share
        if group is not None:
            if group.home is home and group.cap == cap:
                return
            group.leave(moving, now_s)
            homes[group.home] = None
        if group is None or group.home is not home:
            for link in links:
                if link is home:
                    link.guests.pop(moving, None)
                else:
                    link.guests[moving] = None
        home.group(cap, now_s).take(moving, now_s, next(self._order))
        homes[home] = None
