"""`--sweep` of the verbs that predict a network: sizes as they are written, files, and what does not go together."""

from __future__ import annotations

import csv
import json

import pytest

from cdmpp import cli
from cdmpp.cli.sweep import axes_of
from cdmpp.errors import UsageError

WORDS = ["network", "bert_tiny", "--device", "h100", "--runtime", "torch"]


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ("batch=1,2,4", [1, 2, 4]),
        ("batch=3..6", [3, 4, 5, 6]),
        ("batch=1..20:x2", [1, 2, 4, 8, 16]),
        ("batch=1, 8..10 ,32", [1, 8, 9, 10, 32]),
        ("past=0", [0]),
    ],
)
def test_sizes_are_lists_ranges_and_powers(given, sizes):
    assert list(axes_of([given]).values()) == [sizes]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (["batch"], "give AXIS=SIZES once"),
        (["=1"], "give AXIS=SIZES once"),
        (["batch=1", "batch=2"], "give AXIS=SIZES once"),
        (["batch="], "'' is no size"),
        (["batch=1,,2"], "'' is no size"),
        (["batch=-1"], "'-1' is no size"),
        (["batch=2..1"], "ends before it begins"),
        (["batch=1..4:x1"], "the factor of --sweep is 1"),
        (["batch=4:x2"], "is no size"),
        (["batch=1..99999999999"], "is no size"),
        (["batch=1..999999"], "999,999 sizes, more than 10,000"),
        (["batch=1.5"], "is no size"),
    ],
)
def test_what_is_no_list_of_sizes_is_refused(given, error):
    with pytest.raises(UsageError, match=error):
        axes_of(given)


def test_a_sweep_is_a_table_json_csv_a_page_and_a_picture(tmp_path, capsys):
    files = [f"--{kind}={tmp_path / f'out.{kind}'}" for kind in ("csv", "html")]
    words = [*WORDS, "--sweep", "batch=2,4", "--sweep", "seq=8,16", "--json", *files, f"--plot={tmp_path / 'out.png'}"]
    assert cli.main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["batch"], one["seq"]) for one in found["points"]] == [(2, 8), (2, 16), (4, 8), (4, 16)]
    with (tmp_path / "out.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["seq"] for row in rows] == ["8", "16", "8", "16"] and float(rows[0]["tokens_per_s"]) > 0
    assert "Throughput" in (tmp_path / "out.html").read_text(encoding="utf-8")
    assert (tmp_path / "out.png").read_bytes()[1:4] == b"PNG"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([*WORDS, "--plot", "x.png"], "--plot x.png goes with --sweep"),
        ([*WORDS, "--sweep", "batch=2", "--plot", "x.svg"], "the picture is a PNG"),
        ([*WORDS, "--sweep", "batch=2", "--timeline", "x.json"], "--timeline is of one answer"),
        ([*WORDS, "--sweep", "width=2"], "there is no axis 'width'"),
        ([*WORDS, "--sweep", "batch=2", "--batch", "4"], "batch is 4 and swept, too"),
        (["step", *WORDS[1:], "--sweep", "batch=2", "--ranks", "2", "--cluster", "dgx-a100"], "--ranks is of one"),
        (["step", "layers.csv", *WORDS[2:4], "--sweep", "batch=2"], "--sweep is of networks"),
    ],
)
def test_what_does_not_go_with_a_sweep_is_refused(words, error, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    assert error in capsys.readouterr().err
