"""Free cores, told by a file as Linux writes it."""

from __future__ import annotations

import os
import time

import pytest

from cdmpp.platform import cores as module
from cdmpp.platform.cores import CoreWatch, allowed_cores, cores

TICKS = os.sysconf("SC_CLK_TCK")


class Machine:
    """A stat file of two cores, and clocks that a test moves."""

    def __init__(self, path, monkeypatch):
        self.path, self.clock_s, self.own_s, self.idle_s = path, 0.0, 0.0, [0.0, 0.0]
        monkeypatch.setattr(module, "allowed_cores", lambda: [0, 1])
        monkeypatch.setattr(time, "monotonic", lambda: self.clock_s)
        monkeypatch.setattr(time, "process_time", lambda: self.own_s)
        monkeypatch.setattr(time, "sleep", self.sleep)
        self.slept_s = 0.0
        self.write()

    def write(self):
        lines = [f"cpu{i} 5 0 7 {round(TICKS * idle)} 0 0 0 0 0 0" for i, idle in enumerate(self.idle_s)]
        self.path.write_text("\n".join(["cpu 0 0 0 0 0 0 0 0 0 0", *lines, "intr 1 2"]))

    def sleep(self, seconds):
        self.slept_s += seconds

    def run(self, seconds, own_s, idle_s):
        self.clock_s += seconds
        self.own_s += own_s
        self.idle_s = [before + idle_s / 2 for before in self.idle_s]
        self.write()


@pytest.mark.parametrize(
    ("own_s", "idle_s", "free"),
    [
        (0.0, 4.0, 2),  # nobody works
        (3.9, 0.1, 2),  # only this process does, on both
        (2.0, 0.0, 1),  # one core each, for this process and another
        (2.7, 0.0, 1),  # two threads here and one neighbour: each thread has two thirds of a core
        (1.0, 0.0, 1),  # squeezed
        (0.0, 0.0, 1),  # others have all
        (2.0, 2.0, 2),  # the neighbour has gone
    ],
)
def test_counts_what_others_leave(tmp_path, monkeypatch, own_s, idle_s, free):
    machine = Machine(tmp_path / "stat", monkeypatch)
    watch = CoreWatch(tmp_path / "stat")
    machine.run(2.0, own_s, idle_s)
    assert watch.free() == free and machine.slept_s == 0


def test_each_question_is_about_the_time_since_the_last(tmp_path, monkeypatch):
    machine = Machine(tmp_path / "stat", monkeypatch)
    watch = CoreWatch(tmp_path / "stat")
    machine.run(2.0, 2.0, 0.0)
    assert watch.free() == 1
    machine.run(2.0, 2.0, 2.0)
    assert watch.free() == 2


def test_waits_until_ticks_tell_something(tmp_path, monkeypatch):
    machine = Machine(tmp_path / "stat", monkeypatch)
    watch = CoreWatch(tmp_path / "stat")
    machine.run(0.04, 0.0, 0.0)
    watch.free()
    assert machine.slept_s == pytest.approx(0.06)


@pytest.mark.parametrize("text", [None, "", "cpu0 1 2", "cpu0 a b c d e\ncpu1 a b c d e"])
def test_where_nobody_tells_all_count_as_free(tmp_path, monkeypatch, text):
    monkeypatch.setattr(module, "allowed_cores", lambda: [0, 1, 2])
    if text is not None:
        (tmp_path / "stat").write_text(text)
    assert CoreWatch(tmp_path / "stat").free() == 3


def test_cores_of_this_process():
    assert cores() == len(allowed_cores()) >= 1
