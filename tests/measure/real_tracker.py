"""A real RPC tracker as a process of its own, on a port that it takes itself: no other test can be faster."""

from __future__ import annotations

import os
import subprocess
import sys

_SCRIPT = """
import sys
from tvm.rpc.tracker import Tracker
first = int(sys.argv[1])
tracker = Tracker("127.0.0.1", port=first or 9190, port_end=first + 1 if first else 65_000, silent=True)
print(tracker.port, flush=True)
tracker.proc.join()
"""


def start_tracker(port: int = 0) -> tuple[subprocess.Popen[str], str]:
    """Start one, on ``port`` if it is given; its process, the leader of a group, and its address."""
    command = [sys.executable, "-c", _SCRIPT, str(port)]
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True, env=os.environ
    )
    assert started.stdout is not None
    told = started.stdout.readline()  # its own child holds the pipe as well
    assert told, f"the tracker did not start: status {started.wait()}"
    return started, f"127.0.0.1:{int(told)}"
