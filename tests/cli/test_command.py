"""The command as a whole: usage, help, what it imports."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from cdmpp import cli
from cdmpp.cli.command import CONFIGURED, VERBS


def test_usage_errors_end_with_code_2(capsys):
    for arguments, said in (([], "COMMAND"), (["predict"], "PROGRAMS"), (["nonsense"], "invalid choice")):
        assert cli.main(arguments) == 2
        told = capsys.readouterr().err
        assert said in told and "--help` says more" in told and len(told.splitlines()) == 1


def test_every_verb_is_named_and_explained(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert all(re.search(rf"\n    {verb}\s", shown) for verb in (*VERBS, *CONFIGURED))
    for verb in VERBS:
        with pytest.raises(SystemExit):
            cli.main([verb, "--help"])
        assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("verb", CONFIGURED)
def test_help_of_a_configured_verb_explains_its_settings(verb, capsys):
    assert cli.main([verb, "device=a100", "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: cdmpp {verb} [KEY=VALUE ...]\n") and re.search(r"^ *out[:=]", shown, re.MULTILINE)
    assert "output_subdir" not in shown and "job_logging" not in shown
    assert "device=NAME: a device of `cdmpp devices`" in shown
    if verb in ("train", "finetune"):
        assert "\ntrainer=default|gpu|quick|reference\n" in shown
        assert re.search(r"^  trainer.warmup=[\d.]+\n      Share of all steps", shown, re.MULTILINE)


def test_settings_reach_a_configured_verb(monkeypatch):
    from cdmpp.cli import import_data

    given = []
    monkeypatch.setattr(import_data, "main", lambda: given.append(list(sys.argv)))
    assert cli.main(["import", "device=a100", "path=x"]) == 0
    assert given == [["cdmpp import", "device=a100", "path=x"]]


def test_listing_devices_starts_neither_torch_nor_tvm():
    code = (
        "import sys; from cdmpp.cli import main; main(['devices', '--json']); "
        "print({'torch', 'tvm', 'hydra', 'lightning', 'sklearn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
