"""Caches of single tests: empty but for the native libraries, which take half a minute to compile."""

from __future__ import annotations

from pathlib import Path

from cdmpp.platform.paths import cache_root

_LIBRARIES = cache_root() / "native"


def new_cache(folder: Path) -> Path:
    """``folder``, made, as ``$CDMPP_CACHE`` is to name it."""
    _LIBRARIES.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "native").symlink_to(_LIBRARIES, target_is_directory=True)
    return folder
