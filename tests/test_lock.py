"""One writer a folder: others wait or are refused, and a killed one keeps nobody out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cdmpp.errors import CdmppError
from cdmpp.platform.lock import HOLDER_FILE, writing

ROOT = Path(__file__).parents[1]
HOLD = """
import sys
from pathlib import Path
from cdmpp.platform.lock import writing
with writing(Path(sys.argv[1]), "a long task"):
    print("held", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLD, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_busy_folder_is_refused_with_the_name_of_its_writer(tmp_path):
    folder = tmp_path / "new"
    with holder(folder) as process:
        with pytest.raises(CdmppError) as error, writing(folder, "mine"):
            raise AssertionError("two writers")
        words = (str(folder), str(process.pid), os.uname().nodename, "a long task", "another folder")
        assert all(word in str(error.value) for word in words)
        process.communicate("\n")
        with writing(folder, "mine"):
            assert (folder / HOLDER_FILE).exists()
        assert not (folder / HOLDER_FILE).exists()


def test_a_killed_writer_keeps_nobody_out(tmp_path):
    with holder(tmp_path) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert (tmp_path / HOLDER_FILE).exists(), "it had no time to tidy up"
        with writing(tmp_path, "mine"):
            pass


def test_waiting_says_for_whom(tmp_path, caplog):
    with holder(tmp_path) as process:
        told = threading.Event()
        caplog.handler.addFilter(lambda record: told.set() or True)
        end = threading.Thread(target=lambda: told.wait(30) and process.communicate("\n"), daemon=True)
        end.start()
        with writing(tmp_path, "mine", wait=True):
            end.join(30)
            assert process.returncode == 0
        assert f"process {process.pid}" in caplog.text and "a long task" in caplog.text and "waiting" in caplog.text


def test_a_thread_that_holds_the_folder_goes_on_and_another_thread_does_not(tmp_path):
    refused: list[CdmppError] = []

    def other() -> None:
        try:
            with writing(tmp_path, "theirs"):
                pass
        except CdmppError as error:
            refused.append(error)

    with writing(tmp_path, "mine"):
        with writing(tmp_path / "." / "..", "mine"), writing(tmp_path, "mine again"):
            pass
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert len(refused) == 1 and "mine" in str(refused[0]) and "mine again" not in str(refused[0])


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CdmppError, match="cannot write in"), writing(tmp_path / "file" / "set", "mine"):
        pass
