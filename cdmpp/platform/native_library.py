"""Libraries of C++ that are compiled once a machine and kept in the cache."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from filelock import FileLock

from cdmpp.errors import CdmppError
from cdmpp.platform.paths import cache_root


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


def compiled_once(name: str, source: Path, header: tuple[str, str], flags: tuple[str, ...]) -> Path:
    """Path of the library ``name`` of the C++ file ``source`` and those beside it, by the compiler on the path.

    ``header``: name and text of a file that is written for it. ``CdmppError``: no compiler, or it fails; ``OSError``:
    no place to write.
    """
    file, text = header

    def build(folder: Path) -> Path:
        compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
        if compiler is None:
            raise CdmppError("no C++ compiler (c++, g++ or clang++) on the path")
        (folder / file).write_text(text)
        library = folder / f"{name}.so"
        command = [compiler, *flags, f"-I{folder}", f"-I{source.parent}", str(source), "-o", str(library)]
        built = subprocess.run(command, capture_output=True, text=True)
        if built.returncode:
            raise CdmppError(built.stderr.strip()[-300:])
        return library

    return built_once(name, source.parent, (text, flags), build)
