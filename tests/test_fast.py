"""``--fast`` refuses processes and TVM whatever a test does about it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CAUGHT = """
import contextlib, importlib, os, subprocess, sys, threading
import pytest

def run(): subprocess.run([sys.executable, "-c", ""])

@pytest.mark.parametrize("slow", [
    run,
    lambda: os.fork() or os._exit(0),
    lambda: os.system("true"),
    lambda: os.posix_spawn("/bin/true", ["true"], {}),
    lambda: exec("import tvm.tir"),
])
def test_slow(slow):
    with contextlib.suppress(BaseException):
        slow()

@pytest.mark.filterwarnings("ignore")
def test_slow_on_a_thread():
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()

def test_quick():
    import json

def test_imported_by_name():  # no event tells of it
    importlib.import_module("tvm")
"""


def test_a_swallowed_refusal_still_fails(tmp_path):
    (tmp_path / "tvm").mkdir()
    (tmp_path / "tvm" / "__init__.py").touch()
    (tmp_path / "some.py").write_text(CAUGHT)
    root = Path(__file__).parents[1]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.conftest",
        "--fast",
        "-p",
        "no:cacheprovider",
        "some.py",
    ]
    ran = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": f"{tmp_path}:{root}"}, capture_output=True, text=True
    )
    assert "8 passed, 7 errors" in ran.stdout, ran.stdout
