"""The clock that visits were taken at: told by the core, kept with the record, merged with it."""

from __future__ import annotations

import platform
import shutil

import numpy as np
import pytest

from cdmpp.data.merge import merge_records
from cdmpp.errors import CdmppError
from cdmpp.measure import clock, protocol
from cdmpp.measure.clock import build_clock, running_mhz
from cdmpp.measure.labels import record_of, visits_of
from cdmpp.measure.protocol import Visits

HERE = platform.machine() in ("x86_64", "aarch64") and clock.shutil.which("cc")
NAMES = {name: "x" for name in ("record_id", "task_id", "device", "target", "schedule")}


@pytest.mark.skipif(not HERE, reason="a known instruction set and a C compiler")
def test_a_real_core_tells_it_again_in_a_moment(tmp_path):
    library = str(build_clock(tmp_path))
    looks = [running_mhz(library) for _ in range(20)]
    assert 500 < max(looks) < 7000 and sorted(looks)[10] > 0.5 * max(looks)


def record(*visits, clocks=()):
    kept = Visits()
    for i, samples in enumerate(visits):
        kept.add(samples, True, 0.0, clocks[i] if clocks else None)
    return record_of(kept, protocol.CPU, **NAMES)


def test_it_stays_with_the_visits():
    told = record([2e-3, 1e-3], [1.5e-3], clocks=[3699.6, 3601.2])
    assert told.extra["clock_mhz"] == "3700,3601" and visits_of(told).clock_mhz == [3700, 3601]
    assert "clock_mhz" not in record([1e-3]).extra and visits_of(record([1e-3])).clock_mhz == []


def test_merged_records_have_those_of_all_visits_or_none():
    first, second = record([1e-3], clocks=[3700]), record([1.1e-3], clocks=[3600])
    assert merge_records([first, second]).extra["clock_mhz"] == "3700,3600"
    assert "clock_mhz" not in merge_records([first, record([1.2e-3])]).extra


def test_samples_are_kept_to_five_digits_and_the_label_as_it_is():
    samples = [1.2345678901e-3, 1.3e-3]
    kept = record(samples)
    assert kept.latency_s == min(samples) and kept.latency_samples_s != tuple(samples)
    np.testing.assert_allclose(kept.latency_samples_s, samples, rtol=2e-5)


def test_without_a_compiler_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(CdmppError, match="no C compiler"):
        build_clock(tmp_path)
