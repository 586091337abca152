"""Ctrl-C, kills and second runs in one folder, on real runs of the real script."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cdmpp.cli.hydra_entry import _ended_well, _how_to_go_on
from cdmpp.cli.logs import logs_to_stderr
from cdmpp.errors import CdmppError
from cdmpp.platform.files import read_json
from cdmpp.platform.lock import LOCK_FILE
from cdmpp.training.processes import one_writer
from tests.recipes.test_train_script import ROOT, settings
from tests.toy_data import write_toy_dataset

QUICK = ["experiment=quick", "accelerator=cpu", "progress=false", "plots=false", "baselines=[]"]


def start(*overrides: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "train.py"), *overrides],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CDMPP_DATA": ""},
        preexec_fn=_hearing,
    )


def _hearing() -> None:
    """A shell makes what it starts in the background deaf to Ctrl-C, and so would be all that the tests start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 500
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)


def test_a_second_run_is_refused_and_ctrl_c_says_how_to_go_on(tmp_path):
    write_toy_dataset(tmp_path / "toy", 60)
    out = tmp_path / "my run"
    command = [f"data.path=[{tmp_path}]", "trainer.epochs=60", "trainer.validate_every=15", *QUICK]
    first = start(*command, f"out={out}")
    wait_for(out / "member-0" / "checkpoints" / "last.ckpt", first)
    os.killpg(first.pid, signal.SIGSTOP)  # so that it is still there when the second comes
    second = start(*command, f"out={out}", "seed=1")
    said = second.communicate(timeout=500)[1]
    assert second.returncode == 2 and f"being written by process {first.pid}" in said and "Traceback" not in said
    assert read_json(out / "settings.json")["seed"] == 0

    os.killpg(first.pid, signal.SIGCONT)
    os.killpg(first.pid, signal.SIGINT)
    said = first.communicate(timeout=500)[1]
    assert first.returncode == 130 and "Traceback" not in said, said
    (hint,) = re.findall(r"To go on: python (.*)", said)
    script, resume = shlex.split(hint)
    assert Path(script) == ROOT / "scripts" / "train.py" and resume == f"resume={out}"
    again = start(resume)
    again.communicate(timeout=500)
    epochs = [line.split(",")[1] for line in (out / "history.csv").read_text().splitlines()[1:]]
    assert again.returncode == 0 and epochs == ["14", "29", "44", "59"] and (out / "model" / "card.json").is_file()


def test_a_run_with_other_settings_leaves_those_of_the_folder_alone(tmp_path):
    out = tmp_path / "run"
    run = settings(f"out={out}", "seed=3")
    with run.kept():
        pass
    before = (out / "settings.json").read_bytes()
    with settings(f"out={out}", "seed=4").kept():  # nothing had begun: free to change one's mind
        pass
    with run.kept():
        (out / "run.json").write_text("{}")
    other = settings(f"out={out}", "seed=4", "trainer.epochs=3")
    with pytest.raises(CdmppError, match="another trainer and seed; .*resume="), other.kept():
        raise AssertionError("it may not begin")
    assert (out / "settings.json").read_bytes() == before
    with settings(f"out={out}", "seed=3", "plots=false", "progress=false").kept():
        assert read_json(out / "settings.json")["plots"] is False
    with settings(f"resume={out}").kept():
        pass


def test_only_the_first_of_several_processes_holds_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    with one_writer(tmp_path / "run"):
        assert not (tmp_path / "run").exists()
    monkeypatch.setenv("LOCAL_RANK", "0")
    with one_writer(tmp_path / "run"):
        assert (tmp_path / "run" / LOCK_FILE).exists()


def test_ctrl_c_ends_in_one_line_with_the_status_of_a_shell(tmp_path, capsys):
    def stopped() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended, logs_to_stderr():
        _ended_well(stopped, {"out": "outputs/x now"})
    assert ended.value.code == 130
    again = "To go on, run the same command again"
    assert capsys.readouterr().err == f"cdmpp: stopped. {again} with 'out=outputs/x now'\n"
    never_begun = {"out": str(tmp_path), "resume": None}
    assert _how_to_go_on(never_begun).startswith(again)


def test_settings_of_no_effect_are_settings():
    """A name that is misspelt there would have no effect indeed."""
    from cdmpp.recipes.settings import OF_NO_EFFECT

    assert set(OF_NO_EFFECT) <= set(settings().values)
