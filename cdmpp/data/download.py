"""Public tuning databases at a pinned commit, fetched once and checked against known SHA-256 sums."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import shutil
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import wrap_file

from cdmpp.errors import DataError
from cdmpp.platform.cache import note_use, note_write
from cdmpp.platform.files import write_atomic
from cdmpp.platform.paths import cache_root

REPOSITORY = "lac-dcc/bennu"
COMMIT = "ad7179973cc9bf6242e91eb9166b920dd36bc7ad"
BASE_URL = f"https://raw.githubusercontent.com/{REPOSITORY}/{COMMIT}/results/ms"
_TIMEOUT_S = 20


@dataclass(frozen=True)
class PinnedDatabase:
    """This is a public tuning database of one network on one device."""

    device: str
    network: str
    folder: str  # below ``BASE_URL``
    files: Mapping[str, str]
    """Name -> SHA-256 of the content after gunzip: packing the same records again changes nothing."""


_RESNET34 = {
    "database_workload.json": "bf836c559ce1095ce8b81b6be2521ceca18aa6be184fce60505a16b449b6c654",
    "database_tuning_record.json.gz": "739d8fc84c39eeead8848f666f8d67c1b669d5fab01483e9e750076b7e99d7de",
}
PINNED = (PinnedDatabase("a100", "resnet34", "meta_cuda_a100_resnet34_10k", _RESNET34),)


def pinned(device: str) -> tuple[PinnedDatabase, ...]:
    """List the public databases known for a device."""
    return tuple(database for database in PINNED if database.device == device)


def download(database: PinnedDatabase, base_url: str = BASE_URL, progress: bool = True) -> Path:
    """Fetch a database into the cache and return its folder, ``<network>_<device>``.

    Files that are there with the right sum stay. Raises ``DataError`` where a file cannot be fetched or is not the
    pinned one; nothing half-written stays behind.
    """
    collection = f"{REPOSITORY.replace('/', '-')}-{COMMIT[:12]}"
    folder = cache_root() / "downloads" / collection / f"{database.network}_{database.device}"
    for name, expected in database.files.items():
        path, url = folder / name, f"{base_url}/{database.folder}/{name}"
        if not path.is_file() or _content_sum(path) != expected:
            write_atomic(path, partial(fetch, url, expected=expected, content_sum=_content_sum, progress=progress))
            note_write(path)
    note_use(folder)
    return folder


def fetch(url: str, path: Path, expected: str, content_sum: Callable[[Path], str], progress: bool = True) -> None:
    """Write what ``url`` gives to ``path``; ``DataError``: it cannot be fetched, or its sum is not ``expected``."""
    title = f"downloading {url.rpartition('/')[2]}"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response, path.open("wb") as file:
            length = int(response.headers.get("Content-Length") or 0)
            with wrap_file(response, length, description=title, disable=not progress) as reader:
                shutil.copyfileobj(reader, file)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"cannot download {url}: {error}") from error
    if length and path.stat().st_size != length:
        raise DataError(f"cannot download {url}: the connection ended after {path.stat().st_size} of {length} bytes")
    if (digest := content_sum(path)) != expected:
        raise DataError(
            f"{url} has the SHA-256 {digest or '?'} (of its content), expected {expected}: not the pinned file"
        )


def _content_sum(path: Path) -> str:
    """SHA-256 after gunzip; empty where that fails."""
    try:
        with path.open("rb") as probe:
            opener: Any = gzip.open if probe.read(2) == b"\x1f\x8b" else open
        with opener(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, EOFError, zlib.error):
        return ""
