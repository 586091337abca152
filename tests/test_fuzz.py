"""A seeded slice of ``tests/fuzz.py``, that it would see what it looks for, and every reader with broken files."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import fuzz
import pytest
from fuzzing import breakages, readers
from fuzzing.audit.sitecustomize import CANARY

from cdmpp.errors import CdmppError

SLICE = [*(f"folder:{i}" for i in range(30)), *(f"asts:{i}" for i in range(20))]


def test_no_finding_in_stored_asts_and_model_folders(tmp_path):
    rows = fuzz.fuzz(1, SLICE, tmp_path, progress=False)
    assert [row for row in rows if row["outcome"] in fuzz.FINDINGS] == []
    assert {"answered", "refused"} == {row["outcome"] for row in rows}


def test_no_finding_in_scripts_databases_and_data_sets(tmp_path):
    pytest.importorskip("tvm")
    rows = fuzz.fuzz(1, fuzz.cases(8, 0), tmp_path, progress=False)
    assert [row for row in rows if row["outcome"] in fuzz.FINDINGS] == []


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("import os; os.system('true')", "os.system"),
        ("import subprocess; subprocess.run(['true'])", "subprocess.Popen"),
        ("import socket; socket.create_connection(('127.0.0.1', 9))", "socket.connect"),
        ("open('{outside}/x', 'w')", "open"),
        ("import os; os.mkdir('{outside}/x')", "os.mkdir"),
        (f"exec(compile('a = \"{CANARY}\"', 'x', 'exec'))", "exec"),
        ("open('{home}/x', 'w').write('1'); len(open('{outside}/../here').read())", ""),
    ],
)
def test_the_watcher_sees_what_must_not_happen(tmp_path, code, seen):
    home, outside = tmp_path / "home", tmp_path / "outside"
    home.mkdir()
    outside.mkdir()
    (tmp_path / "here").write_text("x")
    audit = Path(fuzz.__file__).parent / "fuzzing" / "audit"
    environment = {**os.environ, "PYTHONPATH": str(audit), "FUZZ_HOME": str(home), "FUZZ_LOG": str(home / "log")}
    script = home / "try.py"
    script.write_text(code.replace("{home}", str(home)).replace("{outside}", str(outside)))
    subprocess.run([sys.executable, str(script)], env=environment, capture_output=True)
    noted = (home / "log").read_text() if (home / "log").exists() else ""
    assert noted.startswith(seen) if seen else not noted


def test_the_table_and_the_exit_status_tell_findings(monkeypatch, capsys):
    rows = [{"case": "asts:0", "kind": "asts", "outcome": "silent NaN", "note": "[nan]"}]
    monkeypatch.setattr(fuzz, "fuzz", lambda *_: rows)
    assert fuzz.main(["--inputs", "1", "--folders", "0"]) == 1
    assert "asts:0: silent NaN: [nan]" in capsys.readouterr().out
    monkeypatch.setattr(fuzz, "fuzz", lambda *_: [{**rows[0], "outcome": "answered"}])
    assert fuzz.main(["--inputs", "1", "--folders", "0"]) == 0


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    home = tmp_path_factory.mktemp("valid")
    readers.write_valid(home)
    return home


class Copy:
    """The part of the valid files that a reader reads, to be broken and mended."""

    def __init__(self, reader: readers.Reader, valid: Path, home: Path) -> None:
        self.reader, self.home, self.file = reader, home, reader.path(home)
        top = reader.file.split("/")[0]
        if (valid / top).is_dir():
            shutil.copytree(valid / top, home / top)
        else:
            shutil.copy(valid / top, home)
        self.content = self.file.read_bytes()

    def mended(self) -> Path:
        shutil.rmtree(self.file) if self.file.is_dir() else self.file.unlink(missing_ok=True)
        self.file.write_bytes(self.content)
        shutil.rmtree(self.home / "out", ignore_errors=True)
        return self.file

    def refusal(self) -> str | None:
        """What the reader says; None where it takes the file. Any other error than ours is raised."""
        try:
            self.reader.read(self.home)
        except CdmppError as error:
            assert "\n" not in str(error) and len(str(error)) < 5000
            assert not (self.home / "out").exists(), "half-written"
            return str(error)
        return None


def marked(reader):
    return pytest.param(reader, id=reader.name, marks=[pytest.mark.tvm] if reader.needs_tvm else [])


def copied(reader, valid, tmp_path) -> Copy:
    if reader.needs_tvm:
        pytest.importorskip("tvm")
    return Copy(reader, valid, tmp_path)


@pytest.mark.parametrize("reader", map(marked, readers.READERS))
def test_a_broken_file_is_refused_by_its_name(reader, valid, tmp_path):
    copy, changes = copied(reader, valid, tmp_path), dict(breakages.OF_BYTES)
    assert copy.refusal() is None
    if reader.kind in ("json", "lines", "yaml", "csv"):
        changes |= breakages.OF_TEXT
    if reader.kind in ("json", "lines", "yaml"):
        changes["doubled"] = breakages.DOUBLED
    if reader.kind == "parquet":
        changes["10^8 rows"] = breakages.endless_rows
    for what, change in changes.items():
        change(copy.mended())
        said = copy.refusal()
        if what not in reader.allowed and not reader.forgiving:
            assert said is not None, f"{what} is taken"
            assert {copy.file.stem.split(".")[0], copy.file.parent.name} & set(re.split(r"[/. :]", said)), (what, said)


@pytest.mark.parametrize("reader", [marked(one) for one in readers.READERS if one.kind in ("json", "lines")])
def test_values_of_another_type_are_refused_or_mean_nothing(reader, valid, tmp_path):
    copy = copied(reader, valid, tmp_path)
    text = gzip.decompress(copy.content) if copy.content[:2] == b"\x1f\x8b" else copy.content
    value = json.loads(text if reader.kind == "json" else text.splitlines()[0])
    rng, tries = random.Random(reader.name), 5 if reader.needs_tvm or reader.file.startswith("model/") else 60
    others = [(what, json.dumps(other)) for what, other in breakages.other_types(value)]
    for _, other in rng.sample(others, min(tries, len(others))):
        changed = f"{other}\n".encode()
        copy.mended().write_bytes(gzip.compress(changed, 1) if copy.content[:2] == b"\x1f\x8b" else changed)
        copy.refusal()


@pytest.mark.parametrize("name", ["packed trace", "packed database", "packed programs", "model", "kit results"])
def test_a_bomb_is_refused_with_the_limit(name, valid, tmp_path):
    (reader,) = (one for one in readers.READERS if one.name == name)
    copy = copied(reader, valid, tmp_path)
    breakages.bomb(copy.mended())
    assert copy.file.stat().st_size < 400_000
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "at most 250 times its size" in (copy.refusal() or "")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin < 150_000  # KiB
