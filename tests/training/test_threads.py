"""Threads of a training run follow the free cores, unless the user says how many there are."""

from __future__ import annotations

import pytest
import torch

from cdmpp.training import threads as module
from cdmpp.training.threads import FreeThreads


class Watch:
    def __init__(self):
        self.answers = iter([2, 1, 1, 3])

    def free(self):
        return next(self.answers)


@pytest.fixture(autouse=True)
def restored():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_follows_the_free_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(module, "CoreWatch", Watch)
    threads = FreeThreads()
    assert [(threads.adapt(), torch.get_num_threads()) for _ in range(4)] == [(2, 2), (1, 1), (1, 1), (3, 3)]


def test_the_user_decides(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(module, "CoreWatch", lambda: pytest.fail("watched"))
    torch.set_num_threads(1)
    assert FreeThreads().adapt() == torch.get_num_threads() == 1
