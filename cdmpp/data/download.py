"""Public tuning databases at a pinned commit, fetched once and checked against known SHA-256 sums."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import logging
import os
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
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
    name: str
    sha256: str
    """Of the content after gunzip: packing the same records again changes nothing."""


@dataclass(frozen=True)
class PinnedDatabase:
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


def download_folder() -> Path:
    return cache_root() / "downloads" / f"{REPOSITORY.replace('/', '-')}-{COMMIT[:12]}"


def download(database: PinnedDatabase, base_url: str = BASE_URL, progress: bool = True) -> Path:
    """Fetch a database into the cache and return its folder, ``<network>_<device>``.

    Files that are there with the right sum stay. Raises ``DataError`` where a file cannot be fetched or is not the
    pinned one; nothing half-written stays behind.
    """
    folder = download_folder() / f"{database.network}_{database.device}"
    for file in database.files:
        path = folder / file.name
        if path.is_file() and _content_sum(path) == file.sha256:
            continue
        url = f"{base_url}/{database.folder}/{file.name}"
        temporary = path.with_name(f".{file.name}.{os.getpid()}.tmp")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _fetch(url, temporary, progress)
            found = _content_sum(temporary)
            if found != file.sha256:
                raise DataError(
                    f"{url} has the SHA-256 {found} (unpacked), expected {file.sha256}: not the pinned file"
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
        length = response.headers.get("Content-Length")
        line = bar.add_task(
            f"downloading {path.name.removeprefix('.').rsplit('.', 2)[0]}", total=int(length or 0) or None
        )
        with path.open("wb") as file:
            received = 0
            while block := response.read(_BLOCK):
                file.write(block)
                received += len(block)
                bar.update(line, completed=received)
        if length is not None and received != int(length):
            raise OSError(f"the connection ended after {received} of {length} bytes")


def _content_sum(path: Path) -> str:
    digest = hashlib.sha256()
    for block in _blocks(path):
        digest.update(block)
    return digest.hexdigest()


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as probe:
        packed = probe.read(2) == b"\x1f\x8b"
    opener: Any = gzip.open if packed else open
    with opener(path, "rb") as file:
        while block := file.read(_BLOCK):
            yield block
