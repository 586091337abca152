"""The parser of every verb: forms of an option, old names, and what a wrong form is told."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from cdmpp.cli import old_names
from cdmpp.cli.logs import logs_to_stderr
from cdmpp.cli.parser import Parser
from cdmpp.errors import UsageError


@pytest.fixture
def parser(capsys) -> Iterator[Parser]:
    made = Parser(prog="cdmpp toy")
    made.add_argument("words", nargs="*")
    made.add_argument("--device")
    made.add_argument("--clock-mhz", type=float)
    made.add_argument("--json", action="store_true")
    made.add_argument("--what-if", nargs="+")
    made.add_argument("--straggler", action="append")
    made.add_argument("--loss", default="mse", choices=("mse", "model"))
    with logs_to_stderr():
        yield made


def read(parser: Parser, words: str) -> dict[str, object]:
    empty = parser.parse_args([])
    return {key: value for key, value in vars(parser.parse_args(words.split())).items() if value != getattr(empty, key)}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("device=a100", {"device": "a100"}),
        ("--device a100", {"device": "a100"}),
        ("--device=a100", {"device": "a100"}),
        ("clock_mhz=3000 json=true", {"clock_mhz": 3000.0, "json": True}),
        ("clock-mhz=3000 json=false", {"clock_mhz": 3000.0}),
        ("op linear 8x8 bias=0 device=t4", {"words": ["op", "linear", "8x8", "bias=0"], "device": "t4"}),
        ("--what-if device=0.5 loss=2 --device t4", {"what_if": ["device=0.5", "loss=2"], "device": "t4"}),
        ("--device device=t4", {"device": "device=t4"}),
        ("straggler=1=2 --straggler 0=3", {"straggler": ["1=2", "0=3"]}),
        ("-- device=a100", {"words": ["device=a100"]}),
    ],
)
def test_both_forms_of_an_option_do_the_same(parser, capsys, words, told):
    assert read(parser, words) == told
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--dev a100", "has no option --dev"),
        ("--devise a100", "did you mean --device?"),
        ("devise=a100", "has no option devise: did you mean device=a100?"),
        ("json=perhaps", "expected json=true or json=false"),
        ("loss=own2", "invalid choice: 'own2'"),
        ("--slow", "--straggler has no value: write straggler=VALUE"),
    ],
)
def test_a_wrong_form_is_told_the_right_one(parser, words, told):
    with pytest.raises(UsageError, match="^toy ") as caught:
        parser.parse_args(words.split())
    assert told in str(caught.value) and str(caught.value).endswith("`cdmpp toy --help` says more")


@pytest.mark.parametrize("words", ["--slow 1=2", "--slow=1=2", "slow=1=2"])
def test_an_old_option_is_understood_with_a_warning(parser, capsys, words):
    assert read(parser, words) == {"straggler": ["1=2"]}
    assert capsys.readouterr().err == (
        "cdmpp: --slow is now called --straggler; the old name goes with the next version\n"
    )


@pytest.mark.parametrize("words", ["--loss own", "--loss=own", "loss=own"])
def test_an_old_value_is_understood_with_a_warning(parser, capsys, words):
    assert read(parser, words) == {"loss": "model"}
    assert "--loss own is now called --loss model" in capsys.readouterr().err


def test_an_old_setting_is_understood_with_a_warning(parser, capsys):
    assert old_names.setting_of("model.anchor=false") == "model.prior=false"
    assert "model.anchor is now called model.prior" in capsys.readouterr().err
    assert old_names.setting_of("model.bins=0") == "model.bins=0" and capsys.readouterr().err == ""


def test_an_old_name_that_is_still_an_option_is_that_option(parser, capsys):
    parser.add_argument("--slow")
    assert read(parser, "--slow x") == {"slow": "x"} and capsys.readouterr().err == ""


def test_no_old_name_is_in_the_help_or_leads_to_another_old_name(parser):
    assert "--slow" not in parser.format_help()
    assert not set(old_names.OPTIONS) & set(old_names.OPTIONS.values())


def test_verbs_get_the_words_behind_their_name():
    top = Parser(prog="cdmpp")
    verbs = top.add_subparsers(dest="verb")
    verbs.add_parser("one").add_argument("--version")
    top.add_argument("--version", action="store_true")
    assert vars(top.parse_args(["one", "version=3"])) == {"verb": "one", "version": "3"}
    assert isinstance(verbs.choices["one"], Parser) and isinstance(verbs, argparse.Action)
