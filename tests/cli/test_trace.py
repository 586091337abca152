"""`cdmpp trace`: tables, JSON, a timeline; wrong input in one line."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from cdmpp import cli
from cdmpp.errors import DataError
from cdmpp.platform.files import write_atomic, write_text
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


def refused(words, capsys) -> str:
    """The one line that a refused command writes."""
    assert cli.main(["trace", *map(str, words)]) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1
    return err


@pytest.mark.parametrize("option", ["--csv", "--html", "--timeline", "--save-plan"])
def test_only_plain_files_are_written(tmp_path, capsys, option):
    words = [write_job(tmp_path / "job"), *(["--optimize"] if option == "--save-plan" else []), option]
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert "no plain file" in refused([*words, fifo], capsys) and fifo.is_fifo()
    with pytest.raises(DataError, match="no plain file"):
        write_text(fifo, "text")
    assert "name too long" in refused([*words, tmp_path / ("a" * 300)], capsys)
    assert "name too long" in refused([*words, tmp_path / ("a" * 250)], capsys)
    assert "name too long" in refused([*words, tmp_path / ("a" * 300) / "out"], capsys)


def test_advice_fits_the_reason(tmp_path):
    with pytest.raises(DataError, match="choose another folder$"):
        write_text(Path("/proc/none/out.csv"), "text")

    def write(_: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DataError, match="free some space.* continues where it stopped"):
        write_atomic(tmp_path / "out.csv", write)


def test_a_link_is_written_through(tmp_path):
    link, file = tmp_path / "link", tmp_path / "file"
    link.symlink_to(file)
    for text in ("one", "two"):
        write_text(link, text)
        assert link.is_symlink() and file.read_text() == text


def test_outputs_leave_inputs_alone(tmp_path, capsys):
    folder = write_job(tmp_path / "job")
    trace = sorted(folder.iterdir())[0]
    before = trace.read_bytes()
    linked = tmp_path / "linked"
    linked.symlink_to(folder, target_is_directory=True)
    for option in ("--csv", "--html", "--timeline"):
        assert "folder of the traces" in refused([folder, option, trace], capsys)
        assert "folder of the traces" in refused([folder, option, linked / "rank7.json"], capsys)
    assert trace.read_bytes() == before and not (folder / "rank7.json").exists()
    program = tmp_path / "program.py"
    program.write_text("text")
    assert cli.main(["predict", str(program), "--device", "a100", "--csv", str(tmp_path / "." / "program.py")]) == 2
    assert "the same command reads it" in capsys.readouterr().err and program.read_text() == "text"


@pytest.mark.parametrize("more", [["--diagnose"], ["--what-if", "bandwidth=2"], ["--optimize"], ["--timeline", "t"]])
def test_a_check_gives_no_answer(tmp_path, capsys, more):
    told = refused([write_job(tmp_path / "job"), "--check", *more], capsys)
    assert f"{more[0]} does not go with --check" in told
