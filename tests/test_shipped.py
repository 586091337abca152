"""Files that came with the package, behind those of the cache."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from cdmpp import cli
from cdmpp.errors import DataError
from cdmpp.platform.cache import bring, cached_json, entries, keep_json
from cdmpp.platform.shipped import KNOWN, shipped_content, shipped_files, shipped_networks, write_archives

ONE, TWO, SAME = b'{"value": 1}', b'{"value": 2}', b'{"value": 1}'
ARCHIVES = {
    "first": {"networks/v3/a.json": ONE, "codes/v6/0123/chunk-1.parquet": b"12"},
    "second": {"networks/v3/b.json": TWO, "networks/v3/c.json": SAME, "codes/v6/0123/chunk-2.parquet": b"345"},
}
NETWORKS = [
    {
        "network": "torchvision:resnet18",
        "runtime": "torch",
        "on": ["sm_90"],
        "batches": [1],
        "up_to": 64,
        "made_with": {"torch": "0.1"},
    },
    {"network": "hf:gpt2", "runtime": "tvm", "on": ["epyc-genoa"], "batches": [1], "made_with": {}},
]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CDMPP_CACHE_LIMIT", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_archives(tmp_path / "known", ARCHIVES, NETWORKS)
    monkeypatch.setenv(KNOWN, str(tmp_path / "known"))
    return tmp_path / "known"


def test_what_is_missing_comes_from_there_and_is_an_entry_then(cache, shipped):
    assert cached_json(cache / "networks/v3/b.json") == {"value": 2}
    assert cached_json(cache / "networks/v3/c.json") == {"value": 1}
    assert {(one.kind, one.path.name) for one in entries()} == {("networks", "b.json"), ("networks", "c.json")}
    assert (cache / "networks/v3/b.json").read_bytes() == TWO
    with pytest.raises(DataError, match="no such file"):
        cached_json(cache / "networks/v4/b.json")  # of another version


def test_a_folder_comes_whole(cache, shipped):
    bring(cache / "codes/v6/0123")
    assert {path.name: path.read_bytes() for path in (cache / "codes/v6/0123").iterdir()} == {
        "chunk-1.parquet": b"12", "chunk-2.parquet": b"345",
    }  # fmt: skip
    assert not list(shipped_files(cache / "codes/v6/0123"))


def test_what_was_made_here_counts_first(cache, shipped):
    keep_json(cache / "networks/v3/a.json", {"value": 7})
    assert cached_json(cache / "networks/v3/a.json") == {"value": 7}
    assert shipped_content(cache / "networks/v3/a.json") == ONE


def test_files_outside_the_cache_are_not_looked_for(cache, shipped, tmp_path):
    assert shipped_content(tmp_path / "networks/v3/a.json") is None
    assert not list(shipped_files(tmp_path / "codes/v6/0123"))


@pytest.mark.parametrize("limit", ["0", "5"])
def test_a_cache_that_keeps_nothing_keeps_nothing_of_it(limit, cache, shipped, monkeypatch):
    monkeypatch.setenv("CDMPP_CACHE_LIMIT", limit)
    with pytest.raises(DataError, match="no such file"):
        cached_json(cache / "networks/v3/a.json")


def test_a_cache_that_cannot_be_written_has_nothing_of_it(cache, shipped):
    cache.write_text("no folder")
    with pytest.raises(DataError):
        cached_json(cache / "networks/v3/a.json")


def test_equal_files_are_stored_once_and_the_same_bytes_are_written_again(shipped, tmp_path):
    index = json.loads(lzma.decompress((shipped / "index.xz").read_bytes()))
    assert index["entries"]["networks/v3/c.json"] == index["entries"]["networks/v3/a.json"]
    backwards = {name: dict(reversed(files.items())) for name, files in reversed(ARCHIVES.items())}
    write_archives(tmp_path / "again", backwards, NETWORKS)
    assert contents(tmp_path / "again") == contents(shipped)


def test_archives_that_are_no_more_go(shipped):
    write_archives(shipped, {"third": {"networks/v3/d.json": ONE}}, [])
    assert sorted(contents(shipped)) == ["index.xz", "third.xz"]


def test_entries_that_are_kept_stay_with_their_archives(cache, shipped):
    index, before = json.loads(lzma.decompress((shipped / "index.xz").read_bytes())), contents(shipped)
    kept = {name: entry for name, entry in index["entries"].items() if entry[0] == "first"}
    write_archives(shipped, {"third": {"networks/v3/b.json": ONE}}, [], kept)
    assert sorted(contents(shipped)) == ["first.xz", "index.xz", "third.xz"]
    assert contents(shipped)["first.xz"] == before["first.xz"]
    assert shipped_content(cache / "networks/v3/a.json") == shipped_content(cache / "networks/v3/b.json") == ONE
    assert shipped_content(cache / "codes/v6/0123/chunk-1.parquet") == b"12"


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "first.xz").unlink(),
        lambda folder: (folder / "first.xz").write_bytes(b"no archive"),
        lambda folder: (folder / "first.xz").write_bytes((folder / "first.xz").read_bytes()[:30]),
        lambda folder: (folder / "first.xz").write_bytes(lzma.compress(b"{")),
        lambda folder: (folder / "index.xz").unlink(),
        lambda folder: (folder / "index.xz").write_bytes(lzma.compress(b"[]")),
        lambda folder: (folder / "index.xz").write_bytes(lzma.compress(b'{"format": 99, "entries": {}}')),
    ],
)
def test_damaged_archives_are_as_none(damage, cache, tmp_path, monkeypatch):
    write_archives(tmp_path / "known", ARCHIVES, NETWORKS)
    damage(tmp_path / "known")
    monkeypatch.setenv(KNOWN, str(tmp_path / "known"))
    assert shipped_content(cache / "networks/v3/a.json") is None
    bring(cache / "codes/v6/0123")
    with pytest.raises(DataError, match="no such file"):
        cached_json(cache / "networks/v3/a.json")


def test_an_empty_name_means_none(cache, monkeypatch):
    monkeypatch.setenv(KNOWN, "")
    assert not shipped_networks() and shipped_content(cache / "networks/v3/a.json") is None


def test_the_command_lists_them_and_says_whether_they_are_used_here(cache, shipped, capsys):
    assert cli.main(["cache", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)["known"]
    assert [(one["network"], one["batches"], one["is_used"], one["other"]) for one in known] == [
        ("torchvision:resnet18", "1 to 64", "no", "torch 0.1"), ("hf:gpt2", "1", "yes", ""),
    ]  # fmt: skip
    assert cli.main(["cache"]) == 0
    assert "Known networks" in capsys.readouterr().out


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
