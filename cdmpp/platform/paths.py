"""Places of settings and of derived files."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """``$CDMPP_CACHE``, or ``~/.cache/cdmpp``: safe to delete, made again when missed."""
    return Path(os.environ.get("CDMPP_CACHE") or Path.home() / ".cache" / "cdmpp")


def conf_folder() -> Path:
    """``conf``: inside the package once installed, beside it in a source checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"
