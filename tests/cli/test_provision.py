"""`cdmpp plan --strategy ps --machines N`: workers, threads and servers of a budget."""

from __future__ import annotations

import json

import pytest

from cdmpp import cli

LAYERS = "name,forward_s,backward_s,parameter_bytes,output_bytes,examples\n" + "".join(
    f"block.{i},10e-3,20e-3,1000000,1000,8\n" for i in range(4)
)
LINK = "bytes,seconds\n1,1e-4\n1000000,10.1e-3\n100000000,1000.1e-3\n"
"""A hundred million bytes a second."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "layers.csv").write_text(LAYERS)
    (tmp_path / "links.csv").write_text(LINK)
    return tmp_path


def plan(*options, device="xeon-icelake"):
    words = ["plan", "layers.csv", "--device", device, "--link", "links.csv", "--optimizer", "none", "--strategy", "ps"]
    return cli.main([*words, "--batch", "8", *options])


def answer(capsys):
    return json.loads(capsys.readouterr().out)


def test_servers_set_the_pace_of_many_workers(folder, capsys):
    """Four megabytes take a server's link 40 ms; a batch 120 ms: three replicas fill one server."""
    assert plan("--machines", "24", "--workers", "16", "--servers", "1..8", "--json") == 0
    found = answer(capsys)
    by_servers = {one["servers"]: one for one in found["front"]}
    assert by_servers[1]["samples_per_s"] == pytest.approx(8 / 0.04, rel=0.05)
    assert by_servers[2]["samples_per_s"] == pytest.approx(16 / 0.04, rel=0.05)
    assert by_servers[1]["knee"] == pytest.approx(3.0, rel=0.02) and by_servers[1]["limit"] == "server link"
    best = found["configurations"][0]
    assert best["servers"] in (6, 7, 8) and best["limit"] == "compute" and best["by"] == "replay"
    assert best["samples_per_s"] == pytest.approx(16 * 8 / 0.12, rel=0.02)
    assert best["batch_s"] == pytest.approx(0.12) and found["link"]["start_s"] == pytest.approx(1e-4, rel=1e-3)
    shares = best["replay"]["server_link_busy_share"]
    pushed = best["samples_per_s"] / 8 * 4_000_000 / best["servers"]
    assert shares == pytest.approx([pushed / 1e8] * best["servers"], rel=0.02)
    ranked = {one["words"]: (one["samples_per_s"], one["by"]) for one in found["configurations"]}
    assert {one["by"] for one in found["front"]} == {"replay", "closed form"}
    assert all((one["samples_per_s"], one["by"]) == ranked[one["words"]] for one in found["front"])
    assert {one["workers"] for one in found["configurations"]} == {16} and found["possible"] == 8
    assert found["changes"][0]["name"] == "one more server" and found["changes"][0]["gain"] < 0.05


def test_text_and_page_name_the_choice_and_what_changes_bring(folder, capsys):
    assert plan("--machines", "6", "--synchrony", "bsp", "--spread", "0", "--html", "page.html") == 0
    shown = capsys.readouterr()
    assert "Best of 15 configurations" in shown.out and "one more server" in shown.out and "By budget" in shown.out
    assert "servers are taken to add updates in no time" in shown.err
    assert "Saturation" in (folder / "page.html").read_text()


def test_threads_share_a_machine(folder, capsys):
    words = ("--machines", "2", "--threads", "1..4", "--no-overlap", "--spread", "0", "--json")
    assert plan(*words, "--thread-slowdown", "1,1.1,1.5,2") == 0
    best = answer(capsys)["configurations"][0]
    assert best["threads"] == 3  # as fast as 4, and faster than 2
    assert best["samples_per_s"] == pytest.approx(8 / (0.12 * 1.5 / 3 + 0.0802), rel=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--machines 0", "expected a whole number from 1"),
        ("--machines 8 --servers 9", "9 servers next to 1 machines that train need 10 machines, and the budget is 8"),
        ("--machines 8 --workers 8", "need 9 machines, and the budget is 8"),
        ("--machines 8 --servers 3..1", "expected whole numbers from 1 up, the smaller first"),
        ("--machines 8 --synchrony local:4", "machines are bought for async, ssp or bsp"),
        ("--machines 8 --synchrony ssp:-1", "ssp.slack is -1"),
        ("--machines 8 --memory-gb 0.001", "no configuration fits: a machine may hold 1.00 MB"),
        ("--machines 8 --thread-slowdown x", "expected numbers from 1 up"),
        ("--machines 8 --ranks 4", "--ranks does not go with --machines"),
        ("--workers 4", "--workers goes with --machines"),
        ("--servers 4 --ranks 4", "--servers goes with --machines"),
        ("--machines 8 --machines-per-replica 5", "at most 4 stages"),
    ],
)
def test_what_cannot_be_is_refused(folder, capsys, options, message):
    assert plan(*options.split()) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_a_gpu_has_one_thread_and_other_strategies_no_machines(folder, capsys):
    assert plan("--machines", "4", "--threads", "2", device="a100") == 2
    assert "a GPU trains one batch at a time" in capsys.readouterr().err
    words = ["plan", "layers.csv", "--device", "a100", "--link", "links.csv", "--strategy", "fsdp", "--machines", "4"]
    assert cli.main(words) == 2
    assert "--machines goes with --strategy ps, given fsdp" in capsys.readouterr().err
