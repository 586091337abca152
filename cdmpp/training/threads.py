"""Threads of a training run on a CPU: as many as there are free cores, counted again before every epoch."""

from __future__ import annotations

import os

import torch

from cdmpp.platform.cores import CoreWatch

_SET_BY_USER = "OMP_NUM_THREADS"


class FreeThreads:
    """It gives torch a thread for each free core, unless ``OMP_NUM_THREADS`` says how many it has."""

    def __init__(self) -> None:
        self._given = torch.get_num_threads()
        self._watch = None if os.environ.get(_SET_BY_USER) else CoreWatch()

    def adapt(self) -> int:
        """Count what other work has left free since the last call, and return the number of threads from now on."""
        if (free := self.count()) != torch.get_num_threads():
            torch.set_num_threads(free)
        return free

    def count(self) -> int:
        """Count what other work has left free since the last call, and leave the threads of torch as they are."""
        return self._given if self._watch is None else self._watch.free()
