"""Places of settings and of derived files."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """Return ``$CDMPP_CACHE``, or ``~/.cache/cdmpp``: safe to delete, made again when missed."""
    return Path(os.environ.get("CDMPP_CACHE") or Path.home() / ".cache" / "cdmpp")


def conf_folder() -> Path:
    """Return ``conf``: inside the package once installed, next to it in a source checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"
