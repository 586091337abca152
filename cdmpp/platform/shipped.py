"""Shipped entries: files of the cache that came with the package, which it holds behind those that were made here.

They lie in ``cdmpp/known``: archives of files that resemble each other, packed with xz, and an index that says where
each one is. An entry has the name that it would have in the cache, so that one of other versions is never looked for.
"""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from cdmpp.platform.files import write_bytes
from cdmpp.platform.paths import cache_root

KNOWN = "CDMPP_KNOWN_NETWORKS"
"""Variable of the environment that names another folder of such archives; empty: none are used."""
_OWN, _INDEX, _SUFFIX = Path(__file__).resolve().parents[1] / "known", "index.xz", ".xz"
_FORMAT = 1
_MOST_BYTES = 256 * 10**6
"""Most bytes of an archive, unpacked."""


def shipped_files(path: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield path and content of each shipped file that is missing at a path of the cache: a file, or a folder's files.

    Nothing where the archives are damaged, of another format, or none: what is missing is made then.
    """
    folder, root = _folder(), cache_root()
    if folder is None or path.is_file() or not path.is_relative_to(root):  # the index takes milliseconds
        return
    own, entries = path.relative_to(root).as_posix(), _index(folder)["entries"]
    for name in _beneath(folder).get(own, [own]):
        if name in entries and not (root / name).exists() and (content := shipped_content(root / name)) is not None:
            yield root / name, content


def shipped_content(path: Path) -> bytes | None:
    """Return the shipped content of a file of the cache, whether it is there or not; None as ``shipped_files``."""
    folder, root = _folder(), cache_root()
    if folder is None or not path.is_relative_to(root):
        return None
    entry = _index(folder)["entries"].get(path.relative_to(root).as_posix())
    if entry is None:
        return None
    archive, begin, size = entry
    content = _unpacked(folder / f"{archive}{_SUFFIX}")[begin : begin + size]
    return content if len(content) == size else None


def shipped_networks() -> list[dict[str, Any]]:
    """Return what ``write_archives`` was told of the networks; empty where no archives are used."""
    folder = _folder()
    return [] if folder is None else list(_index(folder)["networks"])


def write_archives(
    folder: Path,
    archives: Mapping[str, Mapping[str, bytes]],
    networks: list[dict[str, Any]],
    kept: Mapping[str, tuple[str, int, int]] | None = None,
) -> None:
    """Write files as ``shipped_files`` reads them, the same bytes for the same content.

    Args:
        folder: of the archives; others in it go.
        archives: name of an archive -> path of a file below the cache -> its content.
        networks: what is told of the networks, as JSON has it.
        kept: entries of the index, by the path, whose archives stay as they are; they are none of ``archives``.
    """
    entries = dict(kept or {})
    staying = {*archives, *(archive for archive, _, _ in entries.values())}
    known: dict[bytes, tuple[str, int, int]] = {}
    for archive, files in sorted(archives.items()):
        joined = bytearray()
        for name, content in sorted(files.items()):
            place = known.setdefault(content, (archive, len(joined), len(content)))
            entries[name] = place
            if place == (archive, len(joined), len(content)):
                joined += content
        write_bytes(folder / f"{archive}{_SUFFIX}", _packed(bytes(joined)))
    index = {"format": _FORMAT, "entries": entries, "networks": networks}
    write_bytes(folder / _INDEX, _packed(json.dumps(index, sort_keys=True).encode()))
    for path in folder.glob(f"*{_SUFFIX}"):
        if path.name != _INDEX and path.name.removesuffix(_SUFFIX) not in staying:
            path.unlink()


def _folder() -> Path | None:
    given = os.environ.get(KNOWN)
    return _OWN if given is None else Path(given) if given else None


@lru_cache(maxsize=4)
def _index(folder: Path) -> Mapping[str, Any]:
    none: Mapping[str, Any] = {"entries": {}, "networks": []}
    try:
        found = json.loads(_unpacked(folder / _INDEX))
    except ValueError:
        return none
    return found if isinstance(found, dict) and found.get("format") == _FORMAT else none


@lru_cache(maxsize=4)
def _beneath(folder: Path) -> Mapping[str, list[str]]:
    """Folder of the cache -> the shipped files in it."""
    found: dict[str, list[str]] = {}
    for name in _index(folder)["entries"]:
        found.setdefault(name.rpartition("/")[0], []).append(name)
    return found


@lru_cache(maxsize=3)
def _unpacked(path: Path) -> bytes:
    """Return the content of an archive; empty where it is missing or damaged."""
    try:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(path.read_bytes(), _MOST_BYTES)
    except (OSError, lzma.LZMAError, EOFError):
        return b""


def _packed(content: bytes) -> bytes:
    return lzma.compress(content, lzma.FORMAT_XZ, lzma.CHECK_CRC64, 9 | lzma.PRESET_EXTREME)
