"""The command as a whole: usage, help, what it imports."""

from __future__ import annotations

import argparse
import logging
import re
import subprocess
import sys
import warnings

import pytest

from cdmpp import cli
from cdmpp.cli import old_names
from cdmpp.cli.hydra_entry import Entry
from cdmpp.cli.verbs import GROUPS, PURPOSES, VERBS
from cdmpp.errors import CdmppError

CONFIGURED = [verb.name for verb in VERBS.values() if verb.has_settings]


def test_usage_errors_end_with_code_2(capsys):
    for arguments, said in (([], "COMMAND"), (["predict"], "PROGRAMS"), (["nonsense"], "invalid choice")):
        assert cli.main(arguments) == 2
        told = capsys.readouterr().err
        assert said in told and "--help` says more" in told and len(told.splitlines()) == 1


REPLAYING = [verb.name for verb in VERBS.values() if "engine" in verb.libraries]


@pytest.mark.parametrize("verb", REPLAYING)
def test_a_missing_library_is_told_before_anything_is_read(verb, capsys, monkeypatch, tmp_path):
    """The network and the traces that are named are not there either."""
    options = {"compare": ["--devices", "t4,a10"], "synchrony": ["--workers", "2"], "trace": []}
    monkeypatch.setattr("cdmpp.platform.extension._PACKAGE", tmp_path)
    words = [] if verb == "serve" else ["none.onnx", *options.get(verb, ["--device", "t4"])]
    assert cli.main([verb, *words]) == 2
    told = capsys.readouterr().err
    assert (
        told.startswith(f"cdmpp: the compiled extension {tmp_path}/lib/engine.so is missing: ") and "none" not in told
    )


def test_without_tvm_a_line_names_the_extra_and_other_mistakes_are_no_wrong_input(capsys, monkeypatch):
    lacking = ["tvm", "tvm.s_tir", "tvmisspelt"]

    def run(_):
        raise ModuleNotFoundError(f"No module named {lacking[0]!r}", name=lacking.pop(0))

    monkeypatch.setattr("cdmpp.cli.tune.run", run)
    words = ["tune", "resnet18", "--device", "epyc-genoa", "--out", "db"]
    for _ in range(2):
        assert cli.main(words) == 2
        assert capsys.readouterr().err == "cdmpp: this needs TVM, which is not installed: pip install 'cdmpp[tvm]'\n"
    with pytest.raises(ModuleNotFoundError):
        cli.main(words)


def test_all_verbs_that_replay_need_the_engine():
    assert REPLAYING == ["network", "compare", "step", "synchrony", "serve", "plan", "trace"]


def help_of(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as caught:
        cli.main([*words, "--help"])
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_every_verb_is_named_by_purpose(capsys):
    shown = help_of(capsys)
    places = [shown.index(f"\n{purpose}:\n") for purpose in PURPOSES]
    assert places == sorted(places)
    assert all(f"\n  {verb.name:<25}{verb.text}\n" in shown for verb in VERBS.values())
    assert not {f"\n  {old} " for old in old_names.VERBS if f"\n  {old} " in shown}


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_lists_its_verbs_and_needs_one(group, capsys):
    shown = help_of(capsys, group)
    named = [verb.name.split()[1] for verb in VERBS.values() if verb.name.startswith(f"{group} ")]
    assert named and all(re.search(rf"\n +{name}\s", shown) for name in named)
    assert cli.main([group, "nonsense"]) == 2
    assert "invalid choice: 'nonsense'" in capsys.readouterr().err


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS.values() if not verb.has_settings])
def test_every_verb_explains_its_options(verb, capsys):
    shown = help_of(capsys, *verb.split())
    assert shown.startswith(f"usage: cdmpp {verb} [-h] [-v | -q]") and ("--json" in shown or verb == "serve")


@pytest.mark.parametrize("verb", CONFIGURED)
def test_help_of_a_configured_verb_explains_its_settings(verb, capsys):
    shown = help_of(capsys, *verb.split(), "device=a100")
    assert shown.startswith(f"usage: cdmpp {verb} [KEY=VALUE ...]\n") and re.search(r"^ *out[:=]", shown, re.MULTILINE)
    assert "output_subdir" not in shown and "job_logging" not in shown
    assert "device=NAME: a device of `cdmpp devices`" in shown
    if verb in ("model train", "model finetune"):
        assert "\ntrainer=default|gpu|quick|reference\n" in shown
        assert re.search(r"^  trainer.warmup=[\d.]+\n      Share of all steps", shown, re.MULTILINE)


@pytest.fixture
def imported(monkeypatch) -> list[tuple[list[str], str]]:
    """The settings that reach `cdmpp data import`, and what it is called by."""
    given: list[tuple[list[str], str]] = []
    monkeypatch.setattr(Entry, "run", lambda self, settings, program: given.append((list(settings), program)))
    return given


@pytest.mark.parametrize(
    "words",
    ["device=a100 path=x", "--device a100 --path x", "--device=a100 path=x", "-q --device a100 --path=x"],
)
def test_both_forms_of_a_setting_do_the_same(imported, capsys, words):
    assert cli.main(["data", "import", *words.split()]) == 0
    assert imported == [(["device=a100", "path=x"], "cdmpp data import")] and capsys.readouterr().err == ""


def test_forms_of_settings_that_hydra_knows_stay(imported):
    words = ["--cfg", "job", "+a.b=1", "~trainer", "--trainer.lr", "-1", "--on-bad=skip", "x=a=b"]
    assert cli.main(["data", "import", *words]) == 0
    assert imported[0][0] == ["--cfg", "job", "+a.b=1", "~trainer", "trainer.lr=-1", "on_bad=skip", "x=a=b"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("a100", "a100 is no setting: write KEY=VALUE or --KEY VALUE, such as device=a100"),
        ("--device", "--device has no value: write device=VALUE or --device VALUE"),
        ("--device path=x", "--device has no value"),
        ("--device --path x", "--device has no value"),
        ("-x", "-x is no setting"),
    ],
)
def test_a_wrong_form_of_a_setting_is_told_the_right_one(imported, capsys, words, told):
    assert cli.main(["data", "import", *words.split()]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"cdmpp: data import {told}") and shown.count("\n") == 1 and not imported


def test_an_unknown_setting_names_what_is_near(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main(["data", "import", "--device", "a100", "--nettwork", "resnet34"])
    assert ended.value.code == 2 and "did you mean network" in capsys.readouterr().err


def test_a_script_is_called_by_its_path(imported):
    assert cli.main(["data", "import", "path=x"], "my scripts/import_data.py") == 0
    assert imported == [(["path=x"], "python 'my scripts/import_data.py'")]


@pytest.mark.parametrize(("old", "new"), old_names.VERBS.items())
def test_an_old_verb_is_understood_with_a_warning(old, new, capsys):
    assert old_names.verb_of(["-q", old, "x"]) == ["-q", *new.split(), "x"]
    assert VERBS[new] and old not in VERBS


@pytest.mark.parametrize("word", old_names.SEARCHES)
def test_a_step_that_is_searched_is_a_plan(word):
    assert old_names.verb_of(["step", "gpt2", word, "--ranks", "2"]) == ["plan", "gpt2", "--ranks", "2"]
    assert old_names.verb_of(["trace", "job", word]) == ["trace", "job", word]


def test_an_old_verb_runs(imported, capsys):
    assert cli.main(["import", "path=x"]) == 0
    assert imported == [(["path=x"], "cdmpp data import")]
    said = capsys.readouterr().err
    assert said == "cdmpp: cdmpp import is now called cdmpp data import; the old name goes with the next version\n"


@pytest.mark.parametrize(
    ("words", "now"),
    [([], ["summary"]), (["--json"], ["summary", "--json"]), (["codes"], ["codes"]), (["--help"], ["--help"])],
)
def test_data_without_a_verb_was_its_summary(words, now):
    assert old_names.verb_of(["data", *words]) == ["data", *now]


@pytest.mark.parametrize("before", [True, False])
def test_quiet_and_verbose(before, capsys, monkeypatch):
    def run(options: argparse.Namespace) -> None:
        log = logging.getLogger("cdmpp.somewhere")
        log.debug("detail")
        log.info("notice\nof two lines")
        log.warning("warning")
        warnings.warn("from elsewhere", stacklevel=1)
        raise CdmppError("refused")

    monkeypatch.setattr("cdmpp.cli.devices.run", run)

    def said(*words: str) -> str:
        assert cli.main([*words, "devices"] if before else ["devices", *words]) == 2
        return capsys.readouterr().err

    with warnings.catch_warnings():
        assert said("-q") == said("--quiet") == "cdmpp: refused\n"
    with pytest.warns(UserWarning, match="elsewhere"):
        assert said() == "cdmpp: notice of two lines\ncdmpp: warning\ncdmpp: refused\n"
        for word in ("-v", "--verbose"):
            told = said(word)
            assert told.startswith("cdmpp: cdmpp 0.") and "\ncdmpp: detail\n" in told and "Traceback" in told
    assert "not allowed with argument" in said("-v", "-q")


def test_logging_is_as_before_when_a_command_ends(capsys):
    log = logging.getLogger("cdmpp")
    before = (log.level, list(log.handlers))
    assert cli.main(["devices", "--nonsense"]) == 2
    assert (log.level, log.handlers) == before


def test_listing_devices_starts_neither_torch_nor_tvm():
    code = (
        "import sys; from cdmpp.cli import main; main(['devices', '--json']); "
        "print({'torch', 'tvm', 'hydra', 'lightning', 'sklearn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
