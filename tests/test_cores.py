"""Cores: every sheet is complete, sourced and plausible, and wrong ones are told apart."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import yaml
from toy_data import write_toy_dataset

from cdmpp import devices
from cdmpp.data.codes import code_cache
from cdmpp.devices.cores import Core, core_names, core_of_processor, get_core, read_core
from cdmpp.devices.sheet import FIELDS, read_numbers
from cdmpp.errors import CdmppError
from cdmpp.machine_code.cpu.operation import OPERATIONS
from cdmpp.network.compiled.choice import codes_folder
from cdmpp.network.network_key import device_key

CONF = Path(__file__).resolve().parent.parent / "conf"
ZERO = "reserved_shared_bytes"


@pytest.mark.parametrize("name", core_names())
def test_a_core_describes_all_that_the_pipeline_needs(name: str) -> None:
    core = get_core(name)
    assert set(core.units) == set(OPERATIONS)
    assert set(core.numbers) == set(FIELDS["core"])
    assert all(quantity.source and quantity.value for quantity in core.numbers.values())
    assert core.units["move"][0].ports == core.units["int_move"][0].ports == ()
    for operation in ("fma", "fadd", "shuffle", "int", "branch"):
        assert all(unit.ports and unit.latency >= 1 for unit in core.units[operation])
    l1_kib = core["l1_sets"] * core["l1_ways"] * 64 / 1024
    assert l1_kib in (32, 48, 64)


@pytest.mark.parametrize("device", [d for d in devices.all_devices() if d.core], ids=lambda device: device.name)
def test_caches_of_a_device_are_its_cores(device: devices.Device) -> None:
    core = get_core(str(device.core))
    assert core["l1_sets"] * core["l1_ways"] * 64 / 1024 == device.spec["l1_kb_per_core"]
    assert core["l2_sets"] * core["l2_ways"] * 64 / 1024 == device.spec["l2_kb"]


def test_processors_of_llvm_lead_to_cores() -> None:
    assert core_of_processor("znver4") == "zen4" and core_of_processor("sapphirerapids") == "golden_cove"
    assert core_of_processor("pentium4") is None
    named = [processor for name in core_names() for processor in get_core(name).processors]
    assert len(named) == len(set(named))


def test_a_range_stands_for_its_middle() -> None:
    zen2 = get_core("zen2")
    low, high = zen2.numbers["aliased_cycles"].bounds or (0, 0)
    assert low < zen2["aliased_cycles"] < high and zen2["aliased_cycles"] ** 2 == pytest.approx(low * high)


@pytest.fixture
def content() -> dict:
    return yaml.safe_load((CONF / "core/zen4.yaml").read_text())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda c: c["numbers"].pop("window"), "numbers missing or unknown: window"),
        (lambda c: c["numbers"]["window"].update(value=None, source="not published"), "window is null"),
        (lambda c: c["numbers"]["window"].update(value=[5, 2]), r"\[5, 2\]"),
        (lambda c: c["numbers"]["window"].update(value=320.5), "numbers.window is 320.5: expected a whole number"),
        (
            lambda c: c["numbers"]["l2_cycles"].update(value=14e3),
            "l2_cycles is 14000 cycle: expected what a core has, 2 to 128",
        ),
        (lambda c: c["numbers"]["window"].update(source="hearsay"), "source names 'hearsay'"),
        (lambda c: c["operations"]["fma"].pop("latency"), "latency at least"),
        (lambda c: c["operations"]["fma"].update(latency=2.5), "operations.fma.latency is 2.5"),
        (lambda c: c.update(name="zen9"), "expected the file's name"),
        (lambda c: c.update(processors="znver4"), "processors must be a list"),
        (lambda c: c.pop("vendor"), "must hold exactly the keys"),
    ],
)
def test_a_wrong_sheet_is_refused_by_field(tmp_path: Path, content: dict, change, expected: str) -> None:
    change(content)
    path = tmp_path / "zen4.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(CdmppError, match=expected) as caught:
        read_core(path)
    assert str(path) in str(caught.value)


def test_an_unknown_core_is_answered_with_the_nearest() -> None:
    with pytest.raises(CdmppError, match="zen4"):
        get_core("zen-4")


def test_a_core_of_ones_own_is_read(tmp_path: Path, content: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    own = copy.deepcopy(content) | {"name": "zen4c"}
    (tmp_path / "conf/core").mkdir(parents=True)
    (tmp_path / "conf/core/zen4c.yaml").write_text(yaml.safe_dump(own))
    monkeypatch.chdir(tmp_path)
    core = get_core("zen4c")
    assert isinstance(core, Core) and core.units == get_core("zen4").units


@pytest.mark.parametrize("place", [("operations", "fma", "latency"), ("numbers", "l2_cycles", "value")])
def test_a_core_that_is_described_anew_has_other_caches(
    tmp_path: Path, content: dict, monkeypatch: pytest.MonkeyPatch, place: tuple[str, str, str]
) -> None:
    """What was made of machine code on the first description is not found again, and answers that followed from it."""
    sheet = yaml.safe_load((CONF / "device/epyc-genoa.yaml").read_text()) | {"name": "own", "core": "own"}
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path / "cache"))
    write_toy_dataset(tmp_path / "set", n=12, device="own")
    found = []
    for folder, more in (("one", 0), ("two", 1), ("three", 0)):
        own = copy.deepcopy(content) | {"name": "own", "title": folder}
        group, name, field = place
        own[group][name][field] += more
        for kind, text in (("core", own), ("device", sheet)):
            (tmp_path / folder / "conf" / kind).mkdir(parents=True)
            (tmp_path / folder / "conf" / kind / "own.yaml").write_text(yaml.safe_dump(text))
        monkeypatch.chdir(tmp_path / folder)
        device = devices.get("own")
        found.append((codes_folder(device), code_cache(tmp_path / "set"), device_key(device)))
    one, two, three = found
    assert all(own != other for own, other in zip(one, two, strict=True))
    assert one == three  # a title changes nothing


SHEETS = [(group, path) for group in ("core", "gpu_core") for path in sorted((CONF / group).glob("*.yaml"))]


@pytest.mark.parametrize(("group", "path"), SHEETS, ids=lambda one: getattr(one, "stem", one))
def test_a_unit_mistaken_is_refused_in_every_sheet(group, path):
    """Each number a thousand times too large or too small, and each count with a half more."""
    given = yaml.safe_load(path.read_text())
    for name, told in FIELDS[group].items():
        whole = told["unit"] == "1" and not told.get("may_be_broken")
        value = given["numbers"][name]["value"]
        for wrong in (1000.0 * np.array(value), 0.001 * np.array(value), *([0.5 + np.array(value)] if whole else [])):
            number = {**given["numbers"][name], "value": wrong.tolist()}
            if name != ZERO:  # it may be nothing, so that a thousandth is within its range
                with pytest.raises(CdmppError, match=f"numbers.{name} is .*Check the units"):
                    read_numbers(path, {**given, "numbers": {**given["numbers"], name: number}}, group, ZERO)
