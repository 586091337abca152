"""The report on one collective."""

from __future__ import annotations

from dataclasses import asdict

from cdmpp.collectives.collective import Collective
from cdmpp.collectives.collective_model import CollectiveEstimate
from cdmpp.report.report import Report, Total

_LEVEL = 0.8
_SENDERS = {False: "sent by each rank", True: "sent by the root"}


def collective_report(collective: Collective, found: CollectiveEstimate) -> Report:
    """Report totals only: there is one answer."""
    moved = (
        (
            Total("traffic", collective.traffic_bytes, "B", 4, note=_SENDERS[collective.is_tree]),
            Total("rate", collective.traffic_bytes / found.latency_s, "B/s", 4),
        )
        if found.latency_s
        else ()
    )
    interval = (_LEVEL, found.low_s, found.high_s)
    answer = {"collective": asdict(collective), **asdict(found)}
    return Report(
        title=f"{collective.kind} of {collective.ranks} ranks, {collective.backend}",
        answer=answer,
        totals=(
            Total("latency", found.latency_s, "s", 4, interval=interval),
            Total("source", found.source),
            *moved,
        ),
        warnings=found.flags,
    )
