"""Where derived files live: safe to delete, made again when missed."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """``$CDMPP_CACHE``, or ``~/.cache/cdmpp``."""
    return Path(os.environ.get("CDMPP_CACHE") or Path.home() / ".cache" / "cdmpp")
