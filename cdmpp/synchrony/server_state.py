"""ServerState: what one server of a running job has done."""

from __future__ import annotations

from cdmpp.synchrony.outcome import ServerShare


class ServerState:
    """It changes with every transfer and every commit that is added."""

    def __init__(self, n_bytes: float) -> None:
        self.bytes = n_bytes
        """Bytes of its part of the parameters."""
        self.busy_s = self.queued_s = 0.0
        """Seconds in which it added, and of all commits from their arrival until they were added."""
        self.waiting = 0
        """Commits that are not added yet."""
        self.sent_bytes = self.received_bytes = 0.0

    def arrived(self, now_s: float) -> None:
        """A commit has come and waits to be added."""
        self.waiting += 1
        self.queued_s -= now_s

    def added(self, start_s: float, now_s: float) -> None:
        """A commit was added from ``start_s`` until now."""
        self.waiting -= 1
        self.busy_s += now_s - start_s
        self.queued_s += now_s

    def share(self, seconds: float) -> ServerShare:
        """Return what it has done in so many seconds."""
        return ServerShare(
            self.busy_s, (self.queued_s + self.waiting * seconds) / seconds, self.sent_bytes, self.received_bytes
        )
