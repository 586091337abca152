"""Loops that tell what no datasheet does."""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path

import pytest
import yaml

from cdmpp import cli, devices
from cdmpp.devices import SPEC_FIELDS, read_device
from cdmpp.devices.sheet import FIELDS
from cdmpp.errors import CdmppError
from cdmpp.measure import clock
from cdmpp.measure import probe as probing
from cdmpp.measure.clock import build_clock, running_mhz
from cdmpp.measure.probe import CoreProbe, probe

HERE = platform.machine() == "x86_64" and shutil.which("cc")
CONF = Path(__file__).resolve().parents[2] / "conf"
FOUND = CoreProbe(0.25, 1.01, 0.05, 0.5, 2.5, 6.0, l2_byte_ns=0.01, l3_byte_ns=0.02, memory_byte_ns=0.04)


@pytest.mark.skipif(not HERE, reason="x86-64 with a C compiler")
def test_a_real_core_is_within_what_cores_do(monkeypatch):
    monkeypatch.setattr(
        probing, "_buffers", lambda: (1 << 18, 1 << 22, 1 << 26)
    )  # less memory than a default run takes
    found = probe()
    spec, core = found.spec(), found.core_numbers()
    assert set(spec) <= set(SPEC_FIELDS) and set(core) <= set(FIELDS["core"])
    assert 500 < spec["clock_mhz"] < 7000
    assert 1 < spec["add_latency_cycles"] < 7
    assert 2 < spec["issue_width"] < 16  # a busy machine may time it a little off; no core is wider
    assert 0.05 < spec["gather_cycles_per_lane"] < 20
    assert 4 < spec["l2_bytes_per_cycle"] < 200 and spec["l3_bytes_per_cycle"] < 200
    assert 1 < spec["core_gbps"] < 1000
    assert 2 < core["forward_cycles"] < 40 and core["masked_forward_cycles"] > 2


@pytest.mark.skipif(not HERE, reason="x86-64 with a C compiler")
def test_the_clock_is_told_again_in_a_moment(tmp_path):
    library = str(build_clock(tmp_path))
    looks = [running_mhz(library) for _ in range(20)]
    assert 500 < max(looks) < 7000 and sorted(looks)[10] > 0.6 * max(looks)


def test_lines_fit_a_device_file(tmp_path):
    spec = yaml.safe_load(FOUND.yaml().split("# of a core")[0])
    assert {name: entry["value"] for name, entry in spec.items()} == {
        "clock_mhz": 4000,
        "issue_width": 5,
        "gather_cycles_per_lane": 2.0,
        "add_latency_cycles": 4,
        "l2_bytes_per_cycle": 25.0,
        "l3_bytes_per_cycle": 12.5,
        "core_gbps": 25.0,
    }
    content = yaml.safe_load((CONF / "device/epyc-9005.yaml").read_text())
    content["spec"] |= spec
    (tmp_path / "epyc-9005.yaml").write_text(yaml.safe_dump(content))
    device = read_device(tmp_path / "epyc-9005.yaml")
    assert device.spec["clock_mhz"] == 4000 and not device.ranges
    assert device.measured == set(spec) and device.origin("core_gbps") == "measured"
    assert devices.get("epyc-9005").origin("clock_mhz") == "range"


def test_lines_fit_a_core_file():
    numbers = yaml.safe_load(FOUND.yaml().split("conf/core\n")[1])
    assert {name: entry["value"] for name, entry in numbers.items()} == {
        "forward_cycles": 10.0,
        "masked_forward_cycles": 24.0,
    }
    assert all(entry["unit"] == FIELDS["core"][name]["unit"] for name, entry in numbers.items())


def test_the_verb_prints_both(monkeypatch, capsys):
    monkeypatch.setattr(probing, "probe", lambda: FOUND)
    assert cli.main(["probe", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spec"]["clock_mhz"] == 4000
    assert cli.main(["probe"]) == 0
    assert "clock_mhz: {value: 4000" in capsys.readouterr().out


def test_where_it_cannot_run_it_says_so(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(CdmppError, match="x86-64, this is aarch64"):
        probe()
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(clock.shutil, "which", lambda _: None)
    with pytest.raises(CdmppError, match="C compiler"):
        probe()
