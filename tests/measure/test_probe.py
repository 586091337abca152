"""Loops that tell what no datasheet does."""

from __future__ import annotations

import platform
import shutil

import pytest
import yaml

from cdmpp.devices import SPEC_FIELDS
from cdmpp.errors import CdmppError
from cdmpp.measure import probe as probing
from cdmpp.measure.probe import CoreProbe, probe


@pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which("cc"), reason="x86-64 with a C compiler")
def test_a_real_core_is_within_what_cores_do():
    found = probe()
    assert 500 < found.running_mhz < 7000
    assert 1.5 < found.add_latency_cycles < 6
    assert 2 < found.issue_width < 16  # a busy machine may time it a little off; no core is wider
    assert 0.05 < found.gather_cycles_per_lane(2500) < 20


def test_lines_fit_a_device_file():
    found = CoreProbe(integer_add_ns=0.25, float_add_ns=1.01, zeroed_ns=0.05, gather_lane_ns=0.5)
    spec = yaml.safe_load(found.yaml(2000))
    assert set(spec) <= set(SPEC_FIELDS)
    assert {name: entry["value"] for name, entry in spec.items()} == {
        "issue_width": 5,
        "gather_cycles_per_lane": 1.0,
        "add_latency_cycles": 4,
    }
    assert all(entry["source"].startswith("derived: ") for entry in spec.values())


def test_where_it_cannot_run_it_says_so(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(CdmppError, match="x86-64, this is aarch64"):
        probe()
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(probing.shutil, "which", lambda _: None)
    with pytest.raises(CdmppError, match="C compiler"):
        probe()
