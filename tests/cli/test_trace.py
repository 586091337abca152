"""`cdmpp trace`: tables, JSON, a timeline; wrong input in one line."""

from __future__ import annotations

import json

from cdmpp import cli
from tests.trace.small_traces import cpu_step, write, write_job


def test_it_prints_ranks_and_the_replay(tmp_path, capsys):
    folder = write_job(tmp_path / "job")
    assert cli.main(["trace", str(folder), "--diagnose", "--what-if", "straggler=no"]) == 0
    out, err = capsys.readouterr()
    assert "2 ranks, gloo, 3 traced steps" in out and "+0.0 % against it" in out
    assert "straggler rank 1" in out and "per step with straggler=no" in out
    assert "no steps without the profiler" in err


def test_json_and_a_timeline(tmp_path, capsys):
    folder = write_job(tmp_path / "job")
    line = tmp_path / "line.json"
    assert cli.main(["trace", str(folder), "--json", "--diagnose", "--timeline", str(line)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["what_if_s"] is None and len(found["exchanges"]) == 2 and found["causes"]
    names = {event["name"] for event in json.loads(line.read_text())["traceEvents"]}
    assert "all_reduce" in names


def test_wrong_input_is_one_line(tmp_path, capsys):
    folder = write_job(tmp_path / "job")
    write(tmp_path, 1, cpu_step(3), world=1)
    for given, message in (
        ([str(tmp_path / "none")], "no folder"),
        ([str(tmp_path)], "rank 1 of a world of 1"),
        ([str(folder), "--step-mark", "("], "no regular expression"),
        ([str(folder), "--what-if", "bandwidth"], "expected KEY=VALUE"),
        ([str(folder), "--what-if", "wind=2"], "expected ranks, bucket_mb"),
        ([str(folder), "--timeline", str(tmp_path)], "it is a folder"),
    ):
        assert cli.main(["trace", *given]) == 2
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1


def test_a_plan_for_a_traced_job(tmp_path, capsys):
    folder = write_job(tmp_path / "job")
    assert cli.main(["trace", str(folder), "--optimize"]) == 0
    out, err = capsys.readouterr()
    assert "Plan: " in out and "settings   " in out and "What was tried" in out
    assert "memory is unknown" in err
    assert cli.main(["trace", str(folder), "--optimize", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["optimized"]
    assert found["gain"] >= 0 and found["peak_bytes"] is None
