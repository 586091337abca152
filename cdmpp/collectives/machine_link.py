"""machine_link: what a named link carries between a machine that trains and a server, which talk over TCP."""

from __future__ import annotations

from cdmpp.collectives import interconnect
from cdmpp.collectives.interconnect import AlphaBeta, Interconnect
from cdmpp.collectives.messages import read_messages
from cdmpp.collectives.topology import by_messages, on_link

_SERVERS = "gloo"
"""Sends over TCP, as servers of parameters do."""


def machine_link(link: str, backend: str | None = None) -> AlphaBeta:
    """Return what one message between two machines takes, by the shipped collective model.

    Args:
        link: a name of ``conf/interconnect``, or a ``*.csv`` file of timed messages (``messages.read_messages``).
        backend: what sends; None: ``backend_of`` the link.

    Raises:
        CdmppError: no such link or file, a back end that does not send over it, or a medium, which all share.
    """
    if link.endswith(".csv"):
        carries = backend or _SERVERS
        timed = read_messages(link, carries)
        return by_messages(timed, 2, carries).wire(0, 1, float(timed.bytes.min()))
    named = interconnect.get(link)
    return on_link(named, 2, backend or backend_of(named)).wire(0, 1)


def backend_of(link: Interconnect) -> str:
    """Return what moves parameters to servers over a link: gloo, or its first back end where gloo does not send."""
    return server_backend(link) or link.backends[0]


def server_backend(*links: Interconnect) -> str | None:
    """Return gloo where it sends over all of the links, as servers do; None: what fits the device sends."""
    return _SERVERS if all(_SERVERS in link.backends for link in links) else None
