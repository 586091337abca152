"""`cdmpp collective`: an answer with its interval, source and warnings; wrong input in one line."""

from __future__ import annotations

import json

import pytest

from cdmpp import cli
from cdmpp.cli.collective import read_bytes
from cdmpp.errors import CdmppError


def test_it_answers_with_source_and_interval(workplace, capsys):
    assert cli.main(["collective", "all_reduce", "64MiB", "--ranks", "8", "--link", "nvlink3"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "80 %" in out and "a100_sxm" in out and "117.4 MB" in out


def test_json_and_doubts_on_a_cluster(workplace, capsys):
    command = [
        "collective",
        "reduce_scatter",
        "4MiB",
        "--ranks",
        "4",
        "--cluster",
        "cpus-ethernet",
        "--backend",
        "gloo",
    ]
    assert cli.main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["low_s"] < found["latency_s"] < found["high_s"] and found["collective"]["bytes"] == 2**22
    assert any("as an all_reduce" in flag for flag in found["flags"])
    assert cli.main(command) == 0
    assert "cdmpp: gloo runs a reduce_scatter as an all_reduce" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spelling", "kind"),
    [("AllReduce", "all_reduce"), ("allgather", "all_gather"), ("reducescatter", "reduce_scatter"),
     ("alltoall", "all_to_all"), ("sendrecv", "send_recv"), ("all-reduce", "all_reduce"), ("Broadcast", "broadcast")],
)  # fmt: skip
def test_spellings_of_nccl_are_understood(spelling, kind, workplace, capsys):
    command = ["4MiB", "--ranks", "2", "--link", "nvlink3", "--json"]
    assert cli.main(["collective", spelling, *command]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["collective"]["kind"] == kind
    assert cli.main(["collective", kind, *command]) == 0
    assert json.loads(capsys.readouterr().out) == answer


@pytest.mark.parametrize(("text", "size"), [("512", 512), ("1.5kB", 1500), ("64MiB", 2**26), ("2 GB", 2 * 10**9)])
def test_sizes(text, size):
    assert read_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-4kB", "4 XB", "1e6"])
def test_other_sizes_are_refused(text):
    with pytest.raises(CdmppError, match="expected a number and one of B, kB"):
        read_bytes(text)


def test_wrong_input_is_one_line(workplace, refused):
    assert "nearest: nvlink3" in refused("collective", "all_reduce", "1MiB", "--ranks", "8", "--link", "nvlinc3")
    asked = ("collective", "all_reduce", "1MiB", "--ranks", "8", "--cluster", "dgx-a100", "--system", "a100_sxm")
    assert "goes with --link" in refused(*asked)


def test_timed_messages_are_a_link(tmp_path, capsys):
    """An all-reduce of 2 ranks is two messages of half the bytes: 2 x 2 ms."""
    (tmp_path / "links.csv").write_text("bytes,seconds\n1000000,1e-3\n3000000,3e-3\n")
    cli.main(["collective", "all_reduce", "4MB", "--ranks", "2", "--link", str(tmp_path / "links.csv")])
    assert "4.000 ms" in capsys.readouterr().out
