"""The analytic times by hand, and a fit that finds factors it can know."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cdmpp import devices
from cdmpp.ast.layout import KERNEL_NAMES
from cdmpp.ast.leaf_features import CACHE_KIB
from cdmpp.data.batching import ProgramTensors, spec_array
from cdmpp.model.analytic import BOUNDS, N_BOUNDS, N_OVERLAPPING, PARTS, bound_times, kernel_parts, kernel_seconds
from cdmpp.model.analytical_prior import AnalyticalPrior
from tests.toy_data import toy_dataset


def parts_of(device: str, kind: int, **quantities: float) -> dict[str, float]:
    features = torch.zeros(1, 1, len(KERNEL_NAMES), dtype=torch.float64)
    for name, value in quantities.items():
        features[0, 0, KERNEL_NAMES.index(name)] = np.log2(1 + value)
    spec = torch.from_numpy(spec_array(devices.get(device)))[None].double()
    values = kernel_parts(features, spec, torch.tensor([kind]))[0, 0]
    return dict(zip(PARTS, values.tolist(), strict=True))


def test_gpu_parts_by_hand():
    # 216 blocks of 8 warps on 108 multiprocessors: two blocks each, 16 active warps, one round.
    spec = devices.get("a100").spec
    found = parts_of(
        "a100", 1, blocks=216, warps_per_block=8, fp_per_thread=1000, shared_load_wavefronts_per_warp=50,
        global_read_bytes=1e6, refill_rounds=4,
    )  # fmt: skip
    assert spec["core_count"] == 108
    clock = spec["clock_mhz"] * 1e6
    lanes = spec["fp32_tflops"] * 1e12 / (2 * clock * 108)
    assert found["gpu_fp"] == pytest.approx(1000 * 16 * 32 / lanes / clock)
    assert found["gpu_fp_issue"] == pytest.approx(1000 * 16 / 4 / clock)
    assert found["gpu_shared_load"] == pytest.approx(16 * 50 / clock)
    assert found["gpu_dram_read"] == pytest.approx(1e6 / (spec["bandwidth_gbps"] * 1e9))
    assert found["gpu_refill"] == pytest.approx(2 * found["gpu_hidden_refill"])  # two blocks hide each other's waits
    assert all(value == 0 for name, value in found.items() if name.startswith("cpu_"))


def test_cpu_parts_by_hand():
    spec = devices.get("xeon-icelake").spec
    clock = spec["clock_mhz"] * 1e6
    found = parts_of(
        "xeon-icelake", 0, flops=1e6, load_instructions=1e5, chain_iterations=1e4, parallel_extent=1, miss_bytes_16kib=0
    )
    assert found["cpu_flops"] == pytest.approx(1e6 / (spec["fp32_tflops"] * 1e12 / spec["core_count"]))
    assert found["cpu_load_ports"] == pytest.approx(1e5 / 2 / clock)
    assert found["cpu_chain"] == pytest.approx(4e4 / clock)
    assert all(value == 0 for name, value in found.items() if name.startswith("gpu_"))


def test_bounds_are_sums_of_their_parts():
    parts = torch.rand(5, len(PARTS), dtype=torch.float64) + 0.1
    log_factor = torch.randn(len(PARTS), dtype=torch.float64)
    expected = parts * log_factor.exp()
    times = bound_times(parts, log_factor)
    assert times.shape == (5, N_BOUNDS)
    assert torch.allclose(times.sum(-1), expected.sum(-1))
    compute = [
        PARTS.index(name) for name in ("cpu_flops", "cpu_special", "cpu_integer_division", "gpu_fp", "gpu_special")
    ]
    assert torch.allclose(times[:, BOUNDS.index("compute")], expected[:, compute].sum(-1))


def test_soft_maximum_lies_between_the_slowest_and_the_sum():
    times = torch.rand(20, N_BOUNDS, dtype=torch.float64) + 0.01
    rest = times[:, N_OVERLAPPING:].sum(-1)
    slowest, total = times[:, :N_OVERLAPPING].amax(-1) + rest, times.sum(-1)
    assert torch.allclose(kernel_seconds(times, 8.0), slowest, rtol=1e-3)
    assert torch.allclose(kernel_seconds(times, -20.0), total)
    middle = kernel_seconds(times)
    assert ((middle > slowest) & (middle < total)).all()


def test_fit_finds_the_factors_behind_the_labels():
    dataset, _ = toy_dataset(200, devices=("a100",), kind="gpu")
    sheets = {"a100": devices.get("a100")}
    programs = ProgramTensors.build(dataset.asts, sheets, dataset.devices, dataset.latency_s)
    truth, rows = AnalyticalPrior(), np.arange(200)
    truth.log_factor[PARTS.index("gpu_launch")] = 1.0
    truth.log_factor[PARTS.index("gpu_global_load_issue")] = -0.7
    truth.log_factor[PARTS.index("gpu_refill")] = 0.9
    labels = torch.cat([truth.total(programs.batch(rows[i : i + 1])) for i in rows])
    programs = replace(programs, log_latency=labels)
    fitted = AnalyticalPrior()
    before = (fitted.total(programs.batch(rows)) - labels).abs().mean()
    fitted.fit(programs, rows[:150])
    after = (fitted.total(programs.batch(rows[150:])) - labels[150:]).abs().mean()
    assert before > 0.2
    assert after < 0.05
    assert (fitted.log_factor[: PARTS.index("gpu_fp")].abs() < 1e-6).all()  # no CPU program, nothing learned


@pytest.mark.parametrize("name", devices.names())
def test_every_described_device_gets_a_sensible_time_however_little_is_published(name):
    device = devices.get(name)
    kind = 0 if device.kind == "cpu" else 1
    found = parts_of(
        name, kind, flops=1e9, fp_per_thread=1e3, blocks=1024, warps_per_block=8, parallel_extent=1,
        global_read_bytes=1e7, **{f"miss_bytes_{kib}kib": 1e7 for kib in CACHE_KIB},
    )  # fmt: skip
    assert all(np.isfinite(value) and value >= 0 for value in found.values())
    if kind == 0:  # one core: 1e9 operations at 2 to 400 a nanosecond, 1e7 bytes at 2 to 50 GB/s
        assert 2.5e-3 < found["cpu_flops"] < 0.5 and 2e-4 < found["cpu_l3_misses"] < 5e-3
    else:  # 2.6e8 multiply-adds, 1e7 bytes at 50 GB/s to 10 TB/s
        assert 1e-6 < found["gpu_fp"] < 1e-2 and 1e-6 < found["gpu_dram_read"] < 2e-4


def test_one_core_does_not_get_the_bandwidth_of_its_socket():
    alone = parts_of("epyc-7452", 0, parallel_extent=1, **{f"miss_bytes_{kib}kib": 1e9 for kib in CACHE_KIB})
    every = parts_of("epyc-7452", 0, parallel_extent=32, **{f"miss_bytes_{kib}kib": 1e9 for kib in CACHE_KIB})
    assert alone["cpu_l3_misses"] == pytest.approx(1e9 / 20e9, rel=1e-6)
    assert every["cpu_l3_misses"] == pytest.approx(1e9 / 204.8e9, rel=1e-6)


def test_an_unpublished_rate_follows_from_lanes_and_units():
    spec = devices.get("epyc-9005").spec
    assert spec["fp32_tflops"] is None
    per_second = 2 * spec["simd_bits"] / 32 * (spec["fma_units_per_core"] or 2) * (spec["clock_mhz"] or 2500) * 1e6
    assert parts_of("epyc-9005", 0, flops=1e9)["cpu_flops"] == pytest.approx(1e9 / per_second, rel=1e-5)


@pytest.mark.parametrize(("lanes", "times"), [(64, 2), (16, 2), (12, 1.5), (8, 1), (4, 1)])
def test_narrower_vectors_take_more_instructions(lanes, times):
    """AVX2 beside AVX-512: twice the instructions for vectors that fill 64 bytes, the same for those of 32."""
    quantities = {"iterations": 1e6, "vector_iterations": 1e6 / lanes, "load_instructions": 1e6 / lanes}
    wide, narrow = (parts_of(name, 0, **quantities) for name in ("xeon-icelake", "xeon-icelake-avx2"))
    for part in ("cpu_vector_issue", "cpu_load_ports"):
        assert narrow[part] == pytest.approx(times * wide[part], rel=1e-4)
    alike = [parts_of(name, 0, iterations=1e6, scalar_iterations=1e6, load_instructions=1e6) for name in
             ("xeon-icelake", "xeon-icelake-avx2")]  # fmt: skip
    assert alike[0]["cpu_load_ports"] == pytest.approx(alike[1]["cpu_load_ports"], rel=1e-4)
