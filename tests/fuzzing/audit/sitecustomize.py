"""Python runs this at the start of every fuzzed process, its children too: each notes what no input may cause.

One line in the file ``$FUZZ_LOG`` for a command, a socket, a library loaded from, or a file written outside, the run's
folder ``$FUZZ_HOME``, and for code that carries a canary's name and is about to be executed.
"""

from __future__ import annotations

import os
import sys
from types import CodeType

CANARY = "ran-away"
_HOME, _LOG = os.environ.get("FUZZ_HOME", ""), os.environ.get("FUZZ_LOG", "")
_ALLOWED = (_HOME, "/dev/", "/proc/", os.path.join(os.path.expanduser("~"), ".cache", "tvm-ffi"))
_COMMANDS = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "pty.spawn", "socket.connect")
_CHANGES = ("os.mkdir", "os.remove", "os.rmdir", "os.rename", "os.link", "os.symlink", "os.truncate", "shutil.rmtree")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _note(event: str, what: object) -> None:
    line = f"{event} {what!r}"[:500].replace("\n", " ") + "\n"
    file = os.open(_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)  # itself seen by the hook, and allowed: below the home
    os.write(file, line.encode())
    os.close(file)


def _outside(path: object) -> bool:
    if isinstance(path, int) or path is None:
        return False
    return not os.path.abspath(os.fsdecode(path)).startswith(_ALLOWED)  # type: ignore[arg-type]


def _carries(code: CodeType) -> bool:
    """Whether a canary's name stands in it as one that code would make; a path of its name alone is only a text."""
    return any(CANARY in const and "/.." not in const if isinstance(const, str)
               else isinstance(const, CodeType) and _carries(const) for const in code.co_consts)  # fmt: skip


def _watch(event: str, arguments: tuple) -> None:
    if event == "open":
        path, mode, flags = arguments
        if (flags or 0) & _WRITING and _outside(path):
            _note(event, path)
    elif event == "exec":
        if isinstance(arguments[0], CodeType) and _carries(arguments[0]):
            _note(event, arguments[0])
    elif event == "subprocess.Popen":
        words = [os.fsdecode(word) for word in arguments[1]] if isinstance(arguments[1], list | tuple) else []
        if words[:2] != [sys.executable, "-m"] or not words[2].startswith("cdmpp."):
            _note(event, arguments[:2])
    elif event.startswith(_COMMANDS) or (event in _CHANGES and _outside(arguments[0])):
        _note(event, arguments)


if _LOG:
    sys.addaudithook(_watch)
