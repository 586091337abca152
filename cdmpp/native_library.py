"""Libraries of C++ that are compiled once a machine and kept in the cache."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from filelock import FileLock

from cdmpp.paths import cache_root


def built_once(name: str, sources: Path, settings: object, build: Callable[[Path], Path]) -> Path:
    """Path of the library ``name``; where these ``sources`` were not built with these ``settings`` before, builds it.

    ``build`` gets an empty folder and returns the file that it made there. Of several processes one builds.
    """
    digest = sha256(repr((settings, platform.machine())).encode())
    for path in sorted(sources.iterdir()):
        digest.update(path.read_bytes())
    target = cache_root() / "native" / f"{name}-{digest.hexdigest()[:20]}.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_suffix(".lock")):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                os.replace(build(Path(folder)), target)
    return target
