"""The cache: kinds and sizes, its limit, several processes at once, and what a killed one leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cdmpp import cli
from cdmpp.errors import DataError, UsageError
from cdmpp.platform import cache
from cdmpp.platform.cache import cached_json, clear, entries, keep_json, limit_bytes, note_use, note_write
from cdmpp.platform.lock import writing

WRITES = """
import sys
from pathlib import Path
from cdmpp.platform.cache import keep_json, cached_json
from cdmpp.errors import DataError
root, mine = Path(sys.argv[1]), sys.argv[2]
for i in range(int(sys.argv[3])):
    keep_json(root / "answers" / f"{i % 40}.json", {"who": mine, "i": i, "text": "x" * 20_000})
    try:
        assert len(cached_json(root / "answers" / f"{i * 7 % 40}.json")["text"]) == 20_000
    except DataError as error:
        assert "no such file" in str(error), error
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CDMPP_CACHE_LIMIT", raising=False)
    return tmp_path / "cache"


def aged(path: Path, seconds: float) -> None:
    when = time.time() - seconds
    for one in (path, *path.rglob("*")) if path.is_dir() else (path,):
        os.utime(one, (when, when))


def test_entries_are_files_or_whole_folders_by_kind(root: Path):
    for name in ("answers/a.json", "networks/v3/b.json", "gpu_programs/v1/ab/abc.json.gz", "strange/deep/er/c"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_bytes(b"12345")
    chunks = root / "asts" / "v5" / "0123"
    chunks.mkdir(parents=True)
    for number in range(3):
        (chunks / f"chunk-{number}.parquet").write_bytes(b"12")
    found = {(one.kind, str(one.path.relative_to(root))): one.bytes for one in entries()}
    assert found == {
        ("answers", "answers/a.json"): 5, ("networks", "networks/v3/b.json"): 5, ("asts", "asts/v5/0123"): 6,
        ("gpu_programs", "gpu_programs/v1/ab/abc.json.gz"): 5, ("other", "strange/deep/er/c"): 5,
    }  # fmt: skip


def test_what_was_used_longest_ago_goes_first(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CDMPP_CACHE_LIMIT", "100KB")
    paths = [root / "answers" / f"{name}.json" for name in "abcd"]
    for place, path in enumerate(paths):
        keep_json(path, "x" * 19_000)
        aged(path, 1000.0 - place)
    cached_json(paths[0])  # the oldest, read again
    keep_json(root / "answers" / "large.json", "x" * 30_000)  # 106 kB in all
    assert [path.exists() for path in paths] == [True, False, True, True]
    assert sum(one.bytes for one in entries()) <= 100_000


def test_a_folder_in_use_stays_and_an_old_one_goes_whole(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CDMPP_CACHE_LIMIT", "10KB")
    used, old, held = (root / "asts" / "v5" / name for name in ("used", "old", "held"))
    for folder in (used, old, held):
        folder.mkdir(parents=True)
        (folder / "chunk-1.parquet").write_bytes(b"x" * 8000)
        aged(folder, 10_000.0)
    note_use(used)
    with writing(held, "a test"):
        aged(held, 20_000.0)
        child = "from pathlib import Path; import sys; from cdmpp.platform.cache import note_write; "
        subprocess.run([sys.executable, "-c", child + "note_write(Path(sys.argv[1]))", str(used)], check=True)
    assert used.is_dir() and held.is_dir() and not old.exists()
    assert not [path for path in root.rglob(".gone-*")]


def test_several_processes_write_and_read_within_the_limit(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CDMPP_CACHE_LIMIT", "300KB")
    children = [subprocess.Popen([sys.executable, "-c", WRITES, str(root), str(n), "150"]) for n in range(3)]
    assert [child.wait(timeout=500) for child in children] == [0, 0, 0]
    found = entries()
    assert 0 < sum(one.bytes for one in found) <= 300_000
    assert all(len(json.loads(one.path.read_text())["text"]) == 20_000 for one in found)


def test_a_kill_leaves_whole_files_and_its_unfinished_one_goes_later(root: Path):
    child = subprocess.Popen([sys.executable, "-c", WRITES, str(root), "0", "1000000"])
    while not list(root.glob("answers/*.json")):
        time.sleep(0.01)
    time.sleep(0.3)
    child.send_signal(signal.SIGKILL)
    child.wait()
    for path in root.glob("answers/*.json"):
        assert len(json.loads(path.read_text())["text"]) == 20_000
    left = root / "answers" / ".0.json.123.tmp"  # as a kill may leave one
    left.write_text("{")
    keep_json(root / "answers" / "next.json", 1)  # the lock of the dead holds nobody up
    assert left.exists()
    aged(left, cache.UNFINISHED_S + 1)
    (root / ".size.json").unlink()
    keep_json(root / "answers" / "next.json", 2)
    assert not left.exists() and cached_json(root / "answers" / "next.json") == 2


def test_a_count_that_is_damaged_or_old_is_made_again(root: Path):
    keep_json(root / "answers" / "a.json", "x" * 1000)
    for text in ("{", '{"bytes": 1}', '{"bytes": 1, "since": 5}', "[]"):
        (root / ".size.json").write_text(text)
        note_write(root / "answers" / "a.json")
        assert json.loads((root / ".size.json").read_text())["bytes"] == sum(one.bytes for one in entries())


@pytest.mark.parametrize("given, expected", [("500MB", 500e6), ("10gb", 10e9), ("0", 0), ("1.5 KB", 1500), ("7", 7)])
def test_limits(given: str, expected: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CDMPP_CACHE_LIMIT", given)
    assert limit_bytes() == expected


@pytest.mark.parametrize("given", ["many", "-1", "1XB", "GB", "1e9"])
def test_limits_that_are_none(given: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CDMPP_CACHE_LIMIT", given)
    with pytest.raises(UsageError, match="such as 500MB"):
        limit_bytes()


def test_the_verb_shows_and_clears(root: Path, capsys: pytest.CaptureFixture[str]):
    keep_json(root / "answers" / "a.json", "x" * 1000)
    keep_json(root / "works" / "v3" / "b.json", "y" * 2000)
    assert cli.main(["cache", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {row["kind"]: row["entries"] for row in shown["kinds"]} == {"works": 1, "answers": 1}
    assert shown["bytes"] == sum(row["bytes"] for row in shown["kinds"]) and shown["limit_bytes"] == 10**10
    assert cli.main(["cache", "--size"]) == 0
    assert int(capsys.readouterr().out) == shown["bytes"]
    assert cli.main(["cache", "--clear", "works"]) == 0
    assert [one.kind for one in entries()] == ["answers"]
    assert cli.main(["cache", "--clear", "--json"]) == 0
    assert not entries() and '"entries": 1' in capsys.readouterr().out
    assert cli.main(["cache", "--clear", "nothing"]) == 2
    assert cli.main(["cache", "--clear", "--size"]) == 2


def test_clear_leaves_tables_of_running_processes(root: Path):
    running, left = (root / "mapped" / f"asts-{name}" for name in ("running", "left"))
    for folder in (running, left):
        folder.mkdir(parents=True)
        (folder / "leaves").write_bytes(b"12")
    aged(left, cache.UNFINISHED_S + 1)
    clear()
    assert running.is_dir() and not left.exists()


def test_a_full_disk_costs_what_is_kept_and_not_the_answer(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path))
    (tmp_path / "answers").write_text("no folder")  # stands for every reason why a file cannot be written
    for keep, content in ((cache.keep_json, {"a": 1}), (cache.keep_text, "a")):
        keep(tmp_path / "answers" / "one.json", content)
    (said,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]  # once of a kind
    assert "cannot write" in said and said.endswith("worked out again the next time")
    with pytest.raises(DataError, match="cannot write"):  # what somebody asked to be written is no cache
        monkeypatch.setenv("CDMPP_CACHE", str(tmp_path / "elsewhere"))
        cache.keep_json(tmp_path / "answers" / "one.json", {})
