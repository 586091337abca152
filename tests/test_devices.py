"""Devices: every shipped file is complete and sourced, the vector never lies, wrong files and names are told apart."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import yaml

from cdmpp import devices
from cdmpp.devices.sheet import Quantity
from cdmpp.devices.sheet_check import check_sheet
from cdmpp.errors import CdmppError, UnknownDeviceError

REPOSITORY = Path(__file__).resolve().parent.parent
PROMISED = """
    a100 a100-80gb h100 h200 b200 v100 p100 p4 t4 k80 a10 a30 l4 l40s rtx3090 rtx4090 mi100 mi210 mi250x mi300x
    epyc-7452 platinum-8272cl e5-2673v4 graviton2 epyc-9005 xeon-icelake a64fx apple-m1-gpu apple-m2-gpu hl-100
""".split()


@pytest.fixture
def a100_content() -> dict:
    return yaml.safe_load((REPOSITORY / "conf/device/a100.yaml").read_text())


def write(folder: Path, content: dict, name: str = "a100") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_promised_devices_are_described():
    assert set(PROMISED) <= set(devices.names())
    assert len(devices.names()) >= 28


@pytest.mark.parametrize("name", devices.names())
def test_device_is_complete_and_its_vector_finite(name):
    device = devices.get(name)
    assert tuple(device.spec) == devices.SPEC_FIELDS
    assert all(device.sources[field] for field in devices.SPEC_FIELDS)
    vector = device.vector()
    n = len(devices.VECTOR_FIELDS)
    assert vector.shape == (devices.VECTOR_WIDTH,) == (2 * n + 3,)
    assert vector.dtype == np.float32
    assert np.isfinite(vector).all()
    values, mask, kind = vector[:n], vector[n : 2 * n], vector[2 * n :]
    assert ((values >= 0) & (values <= 1.05)).all()
    for i, field in enumerate(devices.VECTOR_FIELDS):
        known = device.spec[field] is not None
        assert mask[i] == known
        assert (values[i] > 0) == known
    assert kind.sum() == 1 and kind[devices.KINDS.index(device.kind)] == 1


def test_numbers_tell_devices_apart():
    """Cards of one chip may differ in nothing but the power that their boards may burn."""
    rows = [tuple(device.spec.values()) for device in devices.all_devices()]
    assert len(set(rows)) == len(rows)


PEAK_FIELDS = ("fp32_tflops", "clock_mhz", "core_count", "fma_units_per_core")


@pytest.mark.parametrize("device", devices.all_devices(), ids=lambda device: device.name)
def test_a_unit_mistaken_is_refused_in_every_sheet(device):
    """Each number that is known, a thousand times too large or too small: GB/s for TB/s, GHz for MHz, MB for KiB."""
    numbers = {name: Quantity(value, value, "", "") for name, value in device.spec.items()}
    check_sheet(Path("sheet.yaml"), device.kind, device.target, numbers)
    for field, value in device.spec.items():
        for factor in (1000, 0.001) if value is not None else ():
            wrong = Quantity(value * factor, value * factor, "", "")
            with pytest.raises(CdmppError, match="sheet.yaml: spec.*Check the units"):
                check_sheet(Path("sheet.yaml"), device.kind, device.target, {**numbers, field: wrong})


WITH_PEAK = [d for d in devices.all_devices() if None not in [d.spec[field] for field in PEAK_FIELDS]]


@pytest.mark.parametrize("device", WITH_PEAK, ids=lambda device: device.name)
def test_peak_follows_from_clock_cores_and_lanes(device):
    """A typing slip in any of the four numbers shows here: peak = cores x lanes x 2 x clock, within 4 %."""
    spec = device.spec
    lanes = spec["fma_units_per_core"] * (spec["simd_bits"] / 32 if device.kind == "cpu" else 1)
    peak = spec["core_count"] * lanes * 2 * spec["clock_mhz"] / 1e6
    assert peak == pytest.approx(spec["fp32_tflops"], rel=0.04)


def test_known_numbers():
    a100 = devices.get("a100")
    assert a100.spec["bandwidth_gbps"] == 1555 and a100.spec["l2_kb"] == 40960 and a100.target["arch"] == "sm_80"
    assert "whitepaper" in a100.sources["clock_mhz"]
    assert devices.get("k80").spec["l2_kb"] == 1536
    goya = devices.get("hl-100")
    assert goya.kind == "accelerator" and goya.spec["fp32_tflops"] is None


def test_device_travels_between_processes():
    device = devices.get("t4")
    assert pickle.loads(pickle.dumps(device)) == device


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("a100-40gb", "a100"),
        ("rtx-4090", "rtx4090"),
        ("epyc", "epyc-7452"),
        ("MI300", "mi300x"),
        ("xeon_icelake", "xeon-icelake"),
    ],
)
def test_unknown_name_is_answered_with_the_nearest(asked, expected):
    with pytest.raises(UnknownDeviceError) as caught:
        devices.get(asked)
    assert repr(asked) in str(caught.value)
    assert expected in str(caught.value).split("nearest:")[1]


@pytest.mark.parametrize("asked", ["", "../device/a100", "qqqqqqq"])
def test_hopeless_name_is_answered_with_all(asked):
    with pytest.raises(UnknownDeviceError, match="unknown device"):
        devices.get(asked)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["spec"]["l2_kb"].update(value=float("nan")), "spec.l2_kb.value is nan"),
        (lambda c: c["spec"]["l2_kb"].update(value=-1), "spec.l2_kb.value is -1"),
        (lambda c: c["spec"]["l2_kb"].update(value=0), "spec.l2_kb.value is 0"),
        (lambda c: c["spec"]["l2_kb"].update(value="40 MB"), "spec.l2_kb.value is '40 MB'"),
        (lambda c: c["spec"]["l2_kb"].update(value=True), "spec.l2_kb.value is True"),
        (lambda c: c["spec"]["l2_kb"].update(value=None), "spec.l2_kb is null"),
        (lambda c: c["spec"]["l2_kb"].update(unit="MB"), "spec.l2_kb.unit is 'MB', expected 'KiB'"),
        (lambda c: c["spec"]["l2_kb"].update(source="hearsay"), "spec.l2_kb.source names 'hearsay'"),
        (lambda c: c["spec"]["l2_kb"].update(source="not published"), "spec.l2_kb has a value"),
        (lambda c: c["spec"]["l2_kb"].pop("source"), "spec.l2_kb must be a mapping"),
        (lambda c: c["spec"].update(l2_kb=40960), "spec.l2_kb must be a mapping"),
        (lambda c: c["spec"].pop("l2_kb"), r"missing or unknown: \['l2_kb'\]"),
        (lambda c: c["spec"].update(l4_kb=c["spec"]["l2_kb"]), r"missing or unknown: \['l4_kb'\]"),
        (lambda c: c.update(kind="dsp"), "field kind is 'dsp'"),
        (lambda c: c.update(name="a101"), "field name is 'a101'"),
        (lambda c: c.update(target="cuda"), "field target"),
        (lambda c: c.pop("documents"), "must hold exactly the keys"),
        (lambda c: c.update(kind="cpu"), "field target.kind is 'cuda' and kind is cpu"),
        (lambda c: c["target"].update(thread_warp_size=64), "thread_warp_size is 64 and spec.warp_size is 32"),
        (lambda c: c["spec"]["core_count"].update(value=108.5), "spec.core_count is 108.5: expected a whole number"),
        (lambda c: c["spec"]["core_count"].update(value=54), r"spec.fp32_tflops is 19.5, and .* x 2 is 9.746"),
        (
            lambda c: c["spec"]["bandwidth_gbps"].update(value=1.555),
            "spec.bandwidth_gbps is 1.555 GB/s: expected what a gpu has, 8",
        ),
        (
            lambda c: c["spec"]["clock_mhz"].update(value=1.41),
            "spec.clock_mhz is 1.41 MHz: expected what a gpu has, 200 to 10000",
        ),
        (
            lambda c: c["spec"]["fp32_tflops"].update(value=19500),
            "spec.fp32_tflops is 19500 TFLOP/s: expected what a gpu has",
        ),
        (lambda c: c["spec"]["bandwidth_gbps"].update(value=9), "bandwidth_gbps is 9 and fp32_tflops is 19.5: their"),
    ],
)
def test_malformed_file_is_refused_with_file_and_field(tmp_path, a100_content, change, message):
    devices.read_device(write(tmp_path, a100_content))
    spoilt = copy.deepcopy(a100_content)
    change(spoilt)
    (tmp_path / "spoilt").mkdir()
    path = write(tmp_path / "spoilt", spoilt)
    with pytest.raises(CdmppError, match=message) as caught:
        devices.read_device(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "name: [unclosed", "\x00\x01"])
def test_file_that_is_no_device_is_refused(tmp_path, text):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(CdmppError, match="x.yaml"):
        devices.read_device(path)


def test_hydra_reads_the_same_files():
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    GlobalHydra.instance().clear()
    with initialize_config_dir(str(REPOSITORY / "conf" / "device"), version_base="1.3"):
        for name in devices.names():
            composed = OmegaConf.to_container(compose(config_name=name), resolve=True)
            given = {field: entry["value"] for field, entry in composed["spec"].items() if entry["value"] is not None}
            device = devices.get(name)
            assert given == {field: list(device.ranges.get(field, ())) or device.spec[field] for field in given}


@pytest.mark.tvm
def test_every_target_constructs():
    target = pytest.importorskip("tvm.target")
    for device in devices.all_devices():
        built = target.Target(device.target)
        assert built.kind.name == device.target["kind"]
        if device.kind == "gpu":
            assert "gpu" in built.keys
            for name in ("max_threads_per_block", "max_shared_memory_per_block", "thread_warp_size"):
                assert int(built.attrs[name]) == device.target[name]
