"""The place of the package's log messages: one handler for a command, on standard error, one line a message."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator

log = logging.getLogger("cdmpp")


@contextlib.contextmanager
def logs_to_stderr() -> Iterator[None]:
    """Show what the package logs from INFO up while the block runs; ``set_level`` changes that."""
    handler, level = _ToStderr(), log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def set_level(verbose: bool, quiet: bool) -> None:
    """Show everything where ``verbose``, only errors where ``quiet``."""
    if verbose:
        log.setLevel(logging.DEBUG)
    elif quiet:
        log.setLevel(logging.ERROR)
        warnings.simplefilter("ignore")


class _ToStderr(logging.Handler):
    """Writes to what ``sys.stderr`` is at that time; a traceback follows its line."""

    def emit(self, record: logging.LogRecord) -> None:
        text = f"cdmpp: {' '.join(record.getMessage().split())}"
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        print(text, file=sys.stderr)
