"""What the flags say of measured programs, of slow answers made fast, and of programs nobody scheduled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import cdmpp
from cdmpp import devices
from cdmpp.ast.layout import LEAF_NAMES
from cdmpp.ast.table import AstTable
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.loading import load_dataset
from cdmpp.machine_code.cpu.code_features import CODE_NAMES
from cdmpp.predict.flags import (
    COUNT_UNKNOWN,
    FASTER_THAN_PEAK,
    NO_MACHINE_CODE,
    NOT_SCHEDULED,
    flag_programs,
    least_seconds,
)

SHIPPED = Path(__file__).resolve().parents[2] / "datasets"


@pytest.fixture(scope="module", params=["xeon-icelake-2c", "xeon-emeraldrapids"])
def measured(request) -> LatencyDataset:
    return load_dataset(SHIPPED / request.param, progress=False)


def test_measured_programs_are_hardly_ever_flagged(measured):
    device = devices.get(str(measured.devices[0]))
    flags = flag_programs(measured.asts, device, measured.latency_s, wants_code=True)
    assert flags[FASTER_THAN_PEAK].sum() == 0
    assert flags[NOT_SCHEDULED].mean() < 0.001
    assert flags[NO_MACHINE_CODE].mean() < 0.01


def test_an_answer_above_the_peak_is_flagged(measured):
    device = devices.get(str(measured.devices[0]))
    least = least_seconds(measured.asts, device)
    dense = measured.latency_s < 10 * least  # those that are bound by arithmetic
    assert dense.sum() > 100
    fast = flag_programs(measured.asts, device, measured.latency_s / 20, wants_code=False)
    assert fast[FASTER_THAN_PEAK][dense].all()
    assert not fast[NO_MACHINE_CODE].any()


@pytest.mark.parametrize("name", ["unknown_loops", "machine_unmatched_loops"])
def test_code_whose_runs_data_decide_is_flagged(measured, name):
    device, codes = devices.get(str(measured.devices[0])), measured.asts.codes.copy()
    codes[:, [CODE_NAMES.index(n) for n in ("unknown_loops", "machine_unmatched_loops")]] = 0.0
    codes[3, CODE_NAMES.index(name)] = 1.0  # one branch
    codes[4] = np.nan
    asts = measured.asts.with_codes(codes)
    flags = flag_programs(asts, device, measured.latency_s, wants_code=True)
    assert np.flatnonzero(flags[COUNT_UNKNOWN]).tolist() == [3] and flags[NO_MACHINE_CODE][4]
    assert not flag_programs(asts, device, measured.latency_s, wants_code=False)[COUNT_UNKNOWN].any()
    bare = flag_programs(asts.with_codes(None), device, measured.latency_s, wants_code=True)
    assert not bare[COUNT_UNKNOWN].any()


def one_leaf(**values: float) -> AstTable:
    """A CPU program of one store; values in their unit."""
    features = np.zeros((1, len(LEAF_NAMES)), np.float32)
    for name, value in {"store_element_bytes": 4, "blocks": 1, **values}.items():
        features[0, LEAF_NAMES.index(name)] = np.log2(1 + value)
    blank = AstTable.from_asts([])
    place = np.zeros(1, np.int32)
    return replace(
        blank,
        leaf_features=features,
        leaf_positions=place,
        leaf_serial_positions=place,
        leaf_kernels=place,
        leaf_offsets=np.array([0, 1]),
        kernel_features=np.zeros((1, blank.kernel_features.shape[1]), np.float32),
        kernel_offsets=np.array([0, 1]),
        target_kinds=np.array([0], np.uint8),
    )


def test_the_bound_is_that_of_the_cores_in_use():
    device = devices.get("xeon-icelake-2c")  # 0.4352 TFLOP/s on two cores
    serial, parallel = (least_seconds(one_leaf(ops_fma=1e9, parallel_extent=p), device)[0] for p in (1, 8))
    assert serial == pytest.approx(2e9 / (0.2176e12 * 1.1), rel=1e-3)
    assert parallel == pytest.approx(serial / 2, rel=1e-3)
    assert least_seconds(one_leaf(ops_fadd=1e9), device)[0] == 0  # additions may be folded


def test_half_precision_is_held_against_its_own_peak():
    a100 = devices.get("a100")  # 19.5 TFLOP/s, 312 for products of halves
    table = replace(one_leaf(ops_fma=1e12, blocks=200), target_kinds=np.array([1], np.uint8))
    half = replace(one_leaf(ops_fma=1e12, blocks=200, load0_element_bytes=2), target_kinds=np.array([1], np.uint8))
    assert least_seconds(table, a100)[0] == pytest.approx(2 / 19.5, rel=1e-3)
    assert least_seconds(half, a100)[0] == pytest.approx(2 / 312, rel=1e-3)


def test_without_a_published_peak_nothing_is_flagged():
    sheet = devices.get("xeon-icelake")
    unknown = replace(sheet, spec={**sheet.spec, "fp32_tflops": None})
    assert least_seconds(one_leaf(ops_fma=1e12), unknown)[0] == 0


@pytest.mark.parametrize("mark", ["parallel_extent", "vector_lanes", "unrolled_trips", "unroll_limit"])
def test_one_mark_of_a_schedule_is_enough(mark):
    device, seconds = devices.get("xeon-icelake"), np.ones(1)
    assert flag_programs(one_leaf(), device, seconds, False)[NOT_SCHEDULED].all()
    assert not flag_programs(one_leaf(**{mark: 16}), device, seconds, False)[NOT_SCHEDULED].any()


def test_what_was_learned_without_schedules_on_one_device_vouches_for_no_other():
    model = cdmpp.load_model("cpus")
    plain = one_leaf()
    known, other = (model.predict(plain, name).flags[0] for name in ("epyc-genoa", "xeon-icelake"))
    assert NOT_SCHEDULED in other and NOT_SCHEDULED not in known
