"""``examples/time_runs.py``: the file that it continues has one head, also after a run that was interrupted."""

import csv
import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "time_runs.py"


@pytest.mark.parametrize("is_there", [False, True])
def test_the_head_is_written_once(tmp_path, is_there, monkeypatch):
    file = tmp_path / "runs.csv"
    if is_there:
        file.touch()
    main = runpy.run_path(str(EXAMPLE))["main"]
    monkeypatch.setitem(main.__globals__, "torch_rows", lambda *_: [("torch", 1, 2, 128, 32, 1, 0.5)])
    monkeypatch.setenv("XLA_FLAGS", "")
    for _ in range(2):
        main(["torch", str(file), "--processes", "1"])
    rows = list(csv.DictReader(file.open()))
    assert [row["step_s"] for row in rows] == ["0.5", "0.5"] and rows[0]["framework"] == "torch"
