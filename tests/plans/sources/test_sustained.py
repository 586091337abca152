"""The clock that the power of a board allows: published speeds of products, and the balance of energy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp import devices
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.sources.sustained import ATTENTION, PRODUCTS, WATTS, SustainedSource, sustained_clock
from tests.plans.toy_source import ToySource

BF16 = "bf16"


@pytest.mark.parametrize(("device", "share"), [("a100", 257 / 295), ("h100", 720 / 840)])
def test_products_run_as_published(device: str, share: float) -> None:
    assert sustained_clock(PRODUCTS, devices.get(device)) == pytest.approx(share, abs=1e-6)
    assert sustained_clock(ATTENTION, devices.get(device)) == 1


def test_less_power_is_slower() -> None:
    capped = devices.get("h100").with_spec(board_power_w=500.0)
    clock = sustained_clock(PRODUCTS, capped)
    # what is left for products, 400 of 600 W, is the cube of the clock where voltage follows it, and its first power
    # where it does not
    assert 720 / 840 * (400 / 600) < clock < 720 / 840 * (400 / 600) ** (1 / 3)
    assert clock == pytest.approx(0.7044, abs=1e-3)
    watts = WATTS["sm_90"]
    assert watts.idle + (watts.products - watts.idle) * clock * (0.4 + 0.6 * clock) ** 2 == pytest.approx(500)
    assert clock < sustained_clock(ATTENTION, capped) < 1
    assert sustained_clock(PRODUCTS, devices.get("h100").with_spec(board_power_w=2000.0)) == 1


def test_flash_attention_takes_as_much_energy_an_operation_as_products() -> None:
    watts, capped = WATTS["sm_90"], devices.get("h100").with_spec(board_power_w=500.0)
    assert (watts.flash - watts.idle) / 335 == pytest.approx((watts.products - watts.idle) / 840)
    assert watts.idle < watts.flash < 500 < watts.attention
    assert sustained_clock(ATTENTION, capped, "flash") == 1 > sustained_clock(ATTENTION, capped, "cudnn")


def test_unknown_boards_keep_their_clock() -> None:
    assert sustained_clock(PRODUCTS, devices.get("v100")) == 1
    assert sustained_clock(PRODUCTS, devices.get("xeon-icelake")) == 1


def test_source_slows_products_only() -> None:
    class Products(ToySource):
        def work(self, batch, degrees, strategies=()):  # type: ignore[no-untyped-def]
            work = super().work(batch, degrees, strategies)
            kinds = ("dense", "elementwise")
            made = tuple(replace(op, kind=kinds[place % 2 and 1]) for place, op in enumerate(work.rank.ops))
            return replace(work, rank=replace(work.rank, ops=made))

    source, device = Products(), devices.get("h100").with_spec(board_power_w=300.0)
    nominal, found = source.work(1, ParallelDegrees()), SustainedSource(source, device, BF16).work(1, ParallelDegrees())
    clock = sustained_clock(PRODUCTS, device)
    assert clock < 1
    for one, two in zip(nominal.rank.ops, found.rank.ops, strict=True):
        assert two.duration_s == pytest.approx(one.duration_s / (clock if one.kind == "dense" else 1))
    assert "300 W" in found.warnings[-1]
    assert not SustainedSource(source, devices.get("t4"), BF16).work(1, ParallelDegrees()).warnings
    single = SustainedSource(source, device, "fp32").work(1, ParallelDegrees())
    assert single.rank.ops == nominal.rank.ops
