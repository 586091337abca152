"""One writer a folder: a lock of the operating system, which ends with its process, however that ends."""

from __future__ import annotations

import json
import logging
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from cdmpp.errors import CdmppError

log = logging.getLogger(__name__)

LOCK_FILE, HOLDER_FILE = ".writer.lock", ".writer.json"
"""Names of files in the folder. The first is never deleted: a lock on a file that is gone would keep nobody out."""

_UNTOLD_S = 2.0
"""Waiting for less than that is not worth a word: two that write often meet often."""


@contextmanager
def writing(folder: Path, what: str, wait: bool = False) -> Iterator[None]:
    """Be the only writer of ``folder``, which is made where it is missing. Readers are never held up.

    A thread that holds the folder already goes straight on. A process that was killed holds nothing any more.

    Args:
        what: what is written, such as "import of resnet34", for the message to others.
        wait: until another writer is done, after saying so; otherwise a busy folder is refused.

    Raises:
        CdmppError: another process writes there, or nobody can.
    """
    folder = Path(folder).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK_FILE, is_singleton=True)
        nested = lock.is_locked
        try:
            lock.acquire(timeout=_UNTOLD_S if wait else 0)
        except Timeout:
            if not wait:
                raise CdmppError(
                    f"{folder} is being written by {_holder(folder)}: wait until that has ended, stop it, or choose "
                    "another folder"
                ) from None
            log.warning("%s is being written by %s: waiting until that has ended", folder, _holder(folder))
            lock.acquire()
    except OSError as error:
        raise CdmppError(f"cannot write in {folder}: {error.strerror or error}") from error
    try:
        if not nested:
            holder = {"pid": os.getpid(), "host": platform.node(), "what": what, "since": time.strftime("%F %T")}
            with suppress(OSError):  # for the message of others alone
                (folder / HOLDER_FILE).write_text(json.dumps(holder))
        yield
    finally:
        if not nested:
            with suppress(OSError):
                (folder / HOLDER_FILE).unlink(missing_ok=True)
        lock.release()


def _holder(folder: Path) -> str:
    try:
        entry = json.loads((folder / HOLDER_FILE).read_text())
        return f"process {entry['pid']} on {entry['host']} ({entry['what']}, since {entry['since']})"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"
