"""The comparison of two builds: what its page says of a row, and how a command is clocked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.builds import clocked, questions
from benchmarks.builds.build import BASELINE, BASELINE_COMMIT, commit_of
from benchmarks.builds.page import page, target_s
from benchmarks.builds.row import ROWS
from benchmarks.builds.runs import difference


def took(cpu_s: float, **others: float) -> dict[str, float]:
    return {"runs": 3, "cpu_s": cpu_s, "wall_s": 2 * cpu_s, "others": 0.0, **others}


def stored(name: str, base: dict[str, float], now: dict[str, float], difference: float | None = 0.0) -> dict:
    row = {"baseline": base, "now": now, "difference": difference, "commit": "b" * 40}
    return {"baseline": "a" * 40, "now": "b" * 40, "machine": "a machine", "rows": {name: row}}


def line(name: str, *given: object) -> list[str]:
    lines = page(stored(name, *given))
    return [cell.strip() for cell in next(one for one in lines if ROWS[name].title in one).split(" | ")]


def test_a_row_says_ratio_target_and_agreement():
    _, runs, today, now, times, wall, target, met, answers = line("network-cold", took(16.0), took(3.0), 0.002)
    assert (runs, today, now, times, target, met) == ("3", "16 s", "3 s", "5.33", "4 s", "yes")
    assert wall == "32 → 6 s" and answers.startswith("within 0.002")
    assert "more than 0.01" in line("network-cold", took(16.0), took(5.0), 0.02)[-1]
    assert line("network-cold", took(16.0), took(5.0))[-2] == "no"


def test_a_target_may_be_a_share_of_the_peer_and_the_strictest_counts():
    row = stored("features", took(0.003, peer_s=0.004), took(0.001, peer_s=0.005))["rows"]["features"]
    assert target_s(ROWS["features"], row) == pytest.approx(0.001)
    row = stored("replay", took(4.0), took(1.0))["rows"]["replay"]
    assert target_s(ROWS["replay"], row) == pytest.approx(0.4)  # a tenth of the baseline, less than 2 s
    row = stored("replay", took(40.0), took(1.0))["rows"]["replay"]
    assert target_s(ROWS["replay"], row) == 2.0


def test_a_slower_machine_meets_a_target_by_so_many_times():
    assert line("training", took(50.0), took(20.0))[-3:-1] == ["40 s (2.5 times)", "yes"]
    assert line("training", took(100.0), took(39.0))[-2] == "in times"  # wall: 200 and 78 s
    assert line("training", took(100.0), took(41.0))[-2] == "no"


def test_what_keeps_a_row_from_its_target_is_said_of_missed_rows_alone():
    said = f"- {ROWS['cpu-code'].title}: {ROWS['cpu-code'].limit}."
    assert said in page(stored("cpu-code", took(5.0), took(4.0)))
    assert said not in page(stored("cpu-code", took(5.0), took(1.0)))
    assert said not in page(stored("gpu-code", took(5.0), took(4.0)))


def test_what_was_measured_beside_other_work_is_marked():
    assert "\\*" in line("help", took(0.1), took(0.1, others=0.5))[2]
    assert "\\*" not in line("help", took(0.1), took(0.1))[2]


def test_rows_without_a_measurement_and_of_other_commits_are_said():
    found = stored("help", took(0.1), took(0.1))
    text = "\n".join(page({**found, "now": "c" * 40}))
    assert ROWS["replay"].title in text.partition("Not measured: ")[2]
    assert "earlier commits: `bbbbbbbbbb`" in text


def test_differences_are_relative_and_lengths_count():
    assert difference([1.0, 2.0], [1.0, 2.002]) == pytest.approx(0.002 / 2.002)
    assert difference([1.0], [1.0, 2.0]) is None
    assert difference([], []) == 0.0


def test_all_questions_of_rows_are_there():
    assert {row.question for row in ROWS.values() if row.question} == set(questions.QUESTIONS)


def test_processes_that_a_command_leaves_behind_count(tmp_path: Path):
    orphan = "import time\nbegin = time.process_time()\nwhile time.process_time() - begin < 0.4: pass"
    command = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {orphan!r}]); sys.exit(3)"
    report = tmp_path / "took.json"
    done = subprocess.run([sys.executable, clocked.__file__, str(report), sys.executable, "-c", command])
    assert done.returncode == 3
    assert json.loads(report.read_text())["cpu_s"] >= 0.4


def test_the_baseline_is_known_without_its_tag(monkeypatch: pytest.MonkeyPatch):
    from benchmarks.builds import build

    known = build._ok
    if not known("cat-file", "-e", BASELINE_COMMIT):
        pytest.skip("this clone does not reach back to the baseline")
    monkeypatch.setattr(build, "_ok", lambda *words: BASELINE not in words and known(*words))
    assert commit_of(BASELINE) == BASELINE_COMMIT
    with pytest.raises(SystemExit, match="no such revision: no-such"):
        commit_of("no-such")


def test_no_script_of_benchmarks_hides_a_module_of_python():
    """Its folder comes first where modules are looked for: torch imports ``cProfile``, and that ``profile``."""
    scripts = [path.stem for path in Path(questions.__file__).parents[1].rglob("*.py")]
    assert "questions" in scripts and not sys.stdlib_module_names & set(scripts)
