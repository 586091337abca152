"""A seeded slice of ``tests/fuzz.py``, and that it would see what it looks for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fuzz
import pytest
from fuzzing.audit.sitecustomize import CANARY

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
