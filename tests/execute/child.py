"""A child process whose requests do what a test needs: answer, wait, crash."""

import os
import signal
import time
from pathlib import Path

from cdmpp.platform.workers import serve


def once(request):
    """Write a file of its own for each time that a request is begun, then answer after a while."""
    folder = Path(request["folder"])
    begun = folder / f"{request['value']}.{os.getpid()}"
    begun.touch()
    time.sleep(request["seconds"])
    return {"echo": request["value"], "number": 0.1 * request["value"]}


serve({
    "ready": lambda _: {},
    "echo": lambda request: {"echo": request["value"]},
    "crash": lambda _: os.abort(),
    "hang": lambda _: time.sleep(600),
    "once": once,
    "end parent": lambda _: (os.kill(os.getppid(), signal.SIGKILL), time.sleep(60)),
})  # fmt: skip
