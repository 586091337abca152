"""Pinned files come from a server once, checked; anything else leaves nothing behind."""

from __future__ import annotations

import gzip
import hashlib
import os

import pytest

from cdmpp.data import download as module
from cdmpp.data.download import COMMIT, PINNED, PinnedDatabase, download, pinned
from cdmpp.errors import DataError
from tests.data.file_server import Server, address, serving

CONTENT = b"[0, [[[], []]]]\n" * 1000
DATABASE = PinnedDatabase(
    "a100",
    "tiny",
    "meta_cuda_a100_tiny_10k",
    {
        "database_workload.json": hashlib.sha256(b"w").hexdigest(),
        "database_tuning_record.json.gz": hashlib.sha256(CONTENT).hexdigest(),
    },
)


@pytest.fixture
def server():
    files = {
        f"/ms/{DATABASE.folder}/database_workload.json": b"w",
        f"/ms/{DATABASE.folder}/database_tuning_record.json.gz": gzip.compress(CONTENT),
    }
    with serving(files) as running:
        yield running


def _url(server: Server) -> str:
    return f"{address(server)}/ms"


def _files(folder) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_downloads_once(server, own_cache):
    folder = download(DATABASE, _url(server), progress=False)
    assert folder.name == "tiny_a100" and COMMIT[:12] in str(folder) and own_cache in folder.parents
    assert _files(folder) == ["database_tuning_record.json.gz", "database_workload.json"]
    assert gzip.decompress((folder / "database_tuning_record.json.gz").read_bytes()) == CONTENT
    assert download(DATABASE, _url(server), progress=False) == folder and len(server.asked) == 2
    (folder / "database_workload.json").write_bytes(b"changed")
    download(DATABASE, _url(server), progress=False)
    assert len(server.asked) == 3 and (folder / "database_workload.json").read_bytes() == b"w"


def test_packing_does_not_matter(server):
    server.files[f"/ms/{DATABASE.folder}/database_tuning_record.json.gz"] = gzip.compress(CONTENT, 1)
    download(DATABASE, _url(server), progress=False)


@pytest.mark.parametrize("fault", ["other content", "cut", "missing", "not gzip", "refused"])
def test_faults_leave_nothing_behind(server, own_cache, fault):
    url, path = _url(server), f"/ms/{DATABASE.folder}/database_tuning_record.json.gz"
    expected = "cannot download"
    if fault == "other content":
        server.files[path], expected = gzip.compress(CONTENT + b"x"), "not the pinned file"
    elif fault == "cut":
        server.cut = 1
    elif fault == "missing":
        del server.files[path]
    elif fault == "not gzip":
        server.files[path], expected = gzip.compress(CONTENT)[:-9], "not the pinned file"
    else:
        server.shutdown()
        server.server_close()
    with pytest.raises(DataError, match=expected):
        download(DATABASE, url, progress=False)
    assert "database_tuning_record.json.gz" not in _files(own_cache)
    assert not [name for name in _files(own_cache) if name.endswith(".tmp")]


def test_full_disk(server, own_cache, monkeypatch):
    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(DataError, match="No space left"):
        download(DATABASE, _url(server), progress=False)
    assert _files(own_cache) == []


def test_the_pinned_source():
    (database,) = pinned("a100")
    assert database in PINNED and pinned("v100") == ()
    assert all(len(digest) == 64 for digest in database.files.values())
    assert module.BASE_URL.startswith("https://raw.githubusercontent.com/lac-dcc/bennu/" + COMMIT)
