"""How every process of a job begins."""

from __future__ import annotations

import io
import os
import signal
import sys

import torch

from cdmpp.synchrony.processes.namespaces import Place


def begin(place: Place | None = None, core: int | None = None) -> None:
    """Enter the namespace and stay on the core, with one thread; an interrupt is left to the process that started it.

    The terminal sends Ctrl-C to all processes of a job. The one that called ``run`` ends the others, in the midst of
    what they do: so what the user's code prints is written line by line.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    if place is not None:
        place.enter()
    if core is not None:
        os.sched_setaffinity(0, {core})
