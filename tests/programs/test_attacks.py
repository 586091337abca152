"""Scripts from somebody else never run: attacks by hand, and mutants of valid scripts."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

tvm = pytest.importorskip("tvm")

from cdmpp.errors import CdmppError, DataError, UnsupportedProgramError  # noqa: E402
from cdmpp.programs.replay import parse_workload  # noqa: E402
from cdmpp.programs.script import parse_text, read_script  # noqa: E402
from tests.programs.attacks import SCRIPT, attacks  # noqa: E402

pytestmark = pytest.mark.tvm


def test_there_are_a_hundred():
    assert len(attacks()) >= 100
    assert all(text != SCRIPT for _, text in attacks())


@pytest.mark.parametrize("text", [text for _, text in attacks()], ids=[name[:60] for name, _ in attacks()])
def test_an_attack_is_refused_and_does_not_run(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "script.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UnsupportedProgramError, match="script.py"):
        read_script(path, tvm.target.Target("llvm"))
    with pytest.raises(DataError):
        parse_workload(text)
    assert [entry.name for entry in tmp_path.iterdir()] == ["script.py"]


SINS = {
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "subprocess.Popen",
    "socket.connect",
}
_seen: list[str] | None = None


def _watch(event: str, arguments: tuple) -> None:
    if _seen is not None and (event in SINS or (event == "open" and _writes(arguments))):
        _seen.append(f"{event} {arguments}")


def _writes(arguments: tuple) -> bool:
    mode, flags = arguments[1], arguments[2]
    return any(letter in (mode or "") for letter in "wax+") or bool((flags or 0) & (os.O_WRONLY | os.O_RDWR))


sys.addaudithook(_watch)

FRAGMENTS = [
    "T",
    "I",
    ".",
    "(",
    ")",
    "[",
    "]",
    "lambda m: m",
    "eval",
    "__import__('os')",
    ".entry",
    ":=",
    "*",
    "**",
    '"',
    "'",
    "\n",
    "\x0c",
]
FRAGMENTS += [
    "open('ran', 'w')",
    ".mkdir('ran')",
    "for",
    "if",
    "@",
    "import os",
    "A[v]",
    "range",
    "exec",
    "#",
    "\\",
    "{",
    "}",
    "=",
    "9**9**9",
]


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), st.sampled_from(FRAGMENTS)), min_size=1, max_size=4))
def test_a_mutant_is_read_or_refused_and_never_runs(edits):
    global _seen
    text = SCRIPT
    for place, length, fragment in edits:
        at = int(place * len(text))
        text = text[:at] + fragment + text[at + length :]
    _seen = []
    try:
        parse_text(text, "mutant")
    except CdmppError:
        pass
    finally:
        seen, _seen = _seen, None
    assert not seen
