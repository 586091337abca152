"""Public tuning databases at a pinned commit, fetched once and checked against known SHA-256 sums."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import logging
import os
import shutil
import urllib.error
import urllib.request
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from cdmpp.errors import DataError
from cdmpp.paths import cache_root

log = logging.getLogger(__name__)

REPOSITORY = "lac-dcc/bennu"
COMMIT = "ad7179973cc9bf6242e91eb9166b920dd36bc7ad"
BASE_URL = f"https://raw.githubusercontent.com/{REPOSITORY}/{COMMIT}/results/ms"
_TIMEOUT_S = 20
_BLOCK = 1 << 20


@dataclass(frozen=True)
class PinnedFile:
    """One file of a public database."""

    name: str
    sha256: str
    """Of the content after gunzip: packing the same records again changes nothing."""


@dataclass(frozen=True)
class PinnedDatabase:
    """A public tuning database of one network on one device."""

    device: str
    network: str
    folder: str
    """Below ``BASE_URL``."""
    files: tuple[PinnedFile, ...]


PINNED = (
    PinnedDatabase(
        "a100",
        "resnet34",
        "meta_cuda_a100_resnet34_10k",
        (
            PinnedFile("database_workload.json", "bf836c559ce1095ce8b81b6be2521ceca18aa6be184fce60505a16b449b6c654"),
            PinnedFile(
                "database_tuning_record.json.gz", "739d8fc84c39eeead8848f666f8d67c1b669d5fab01483e9e750076b7e99d7de"
            ),
        ),
    ),
)


def pinned(device: str) -> tuple[PinnedDatabase, ...]:
    """Public databases known for a device."""
    return tuple(database for database in PINNED if database.device == device)


def download(database: PinnedDatabase, base_url: str = BASE_URL, progress: bool = True) -> Path:
    """Fetch a database into the cache and return its folder, ``<network>_<device>``.

    Files that are there with the right sum stay. Raises ``DataError`` where a file cannot be fetched or is not the
    pinned one; nothing half-written stays behind.
    """
    collection = f"{REPOSITORY.replace('/', '-')}-{COMMIT[:12]}"
    folder = cache_root() / "downloads" / collection / f"{database.network}_{database.device}"
    for file in database.files:
        path = folder / file.name
        if path.is_file() and _content_sum(path) == file.sha256:
            continue
        url = f"{base_url}/{database.folder}/{file.name}"
        temporary = path.with_name(f".{file.name}.{os.getpid()}.tmp")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _fetch(url, temporary, progress)
            if (digest := _content_sum(temporary)) != file.sha256:
                raise DataError(
                    f"{url} has the SHA-256 {digest} (unpacked), expected {file.sha256}: not the pinned file"
                )
            os.replace(temporary, path)
        except (OSError, EOFError, zlib.error, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise DataError(f"cannot download {url}: {reason}") from error
        finally:
            temporary.unlink(missing_ok=True)
    return folder


def _fetch(url: str, path: Path, progress: bool) -> None:
    columns = (TextColumn("{task.description}"), DownloadColumn(), TransferSpeedColumn())
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response, Progress(*columns, disable=not progress) as bar:
        length = int(response.headers.get("Content-Length") or 0)
        title = f"downloading {path.name.removeprefix('.').rsplit('.', 2)[0]}"
        with path.open("wb") as file:
            shutil.copyfileobj(bar.wrap_file(response, length, description=title), file, _BLOCK)
    received = path.stat().st_size
    if length and received != length:
        raise OSError(f"the connection ended after {received} of {length} bytes")


def _content_sum(path: Path) -> str:
    with path.open("rb") as probe:
        opener: Any = gzip.open if probe.read(2) == b"\x1f\x8b" else open
    with opener(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
