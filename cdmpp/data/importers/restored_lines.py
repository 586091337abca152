"""Replies to the lines of a source that takes hours to read, kept while it is read: a run that was killed goes on."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from types import TracebackType

from cdmpp.platform.cache import note_use, working_files
from cdmpp.platform.paths import cache_root
from cdmpp.platform.workers import Reply

_DIGEST_LETTERS = 32


class RestoredLines:
    """A file of the cache holds a reply in each line, after a digest of what was asked. Memory holds digests alone.

    As a context it deletes the file where the block ends without an error: then all is read.
    """

    def __init__(self, *asked: str) -> None:
        """Find what an earlier run left of the same source; ``asked`` says all that replies depend on but the line."""
        name = hashlib.sha256("\0".join(asked).encode()).hexdigest()[:32]
        self.path = cache_root() / "restored" / f"{name}.txt"
        with working_files():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab+", buffering=0)  # a line is written at once, behind those of others
        self._before = self.path.open("rb")
        self._places = dict[bytes, int]()
        place, line = 0, b""
        for line in self._before:
            if line.endswith(b"\n"):
                self._places[line[:_DIGEST_LETTERS]] = place
            place += len(line)
        if line and not line.endswith(b"\n"):  # cut short by a kill: it stays alone
            self._file.write(b"\n")

    def __enter__(self) -> RestoredLines:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the file, and delete it unless there is an ``error``."""
        self._file.close()
        self._before.close()
        if error is None:
            with suppress(OSError):
                self.path.unlink()
        else:
            note_use(self.path)

    def __contains__(self, line: bytes) -> bool:
        """Return True where an earlier run read ``line``."""
        return _digest(line) in self._places

    def __getitem__(self, line: bytes) -> Reply | None:
        """Return what an earlier run made of ``line``; None where it is damaged."""
        self._before.seek(self._places[_digest(line)])
        with suppress(ValueError):
            reply: Reply = json.loads(self._before.readline()[_DIGEST_LETTERS:])
            return reply
        return None

    def add(self, line: bytes, reply: Reply) -> None:
        """Keep a reply for a later run."""
        with suppress(OSError):  # a full disk is told where records are written
            os.write(self._file.fileno(), _digest(line) + json.dumps(reply).encode() + b"\n")


def _digest(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=_DIGEST_LETTERS // 2).hexdigest().encode()
