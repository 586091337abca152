"""Products of halves on GPUs on which none was measured come no nearer to the peak than measured ones do."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from cdmpp import devices
from cdmpp.network.eager.runtime import EagerRuntime
from cdmpp.network.eager.single_price import HALVES_ON, learned_prices
from cdmpp.operators.operator import EagerOperator


def share_of_peak(device: str, operators: list[EagerOperator]) -> np.ndarray:
    sheet = devices.get(device)
    predictor, _ = EagerRuntime().predictor(sheet)
    seconds = np.array([price.latency_s for price in learned_prices(predictor, operators, sheet)])
    return np.array([one.flops for one in operators]) / seconds / (1e12 * sheet.spec["fp16_matrix_tflops"])


def linear(rows: int, inner: int, cols: int, dtype: str = "float16") -> EagerOperator:
    return EagerOperator("linear", {"rows": rows, "inner": inner, "cols": cols}, dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("device", ["a100", "a100-80gb", "a10", "v100"])
def test_no_product_reaches_the_peak_of_a_gpu_that_was_never_measured(device, dtype):
    found = share_of_peak(device, [linear(8192, 2048, 8192, dtype), linear(8192, 8192, 28672, dtype)])
    assert (found > 0.4).all() and (found < 0.945).all()


def test_the_share_of_the_peak_grows_with_the_rows_as_on_measured_boards():
    found = share_of_peak("a100", [linear(rows, 2048, 2048) for rows in (256, 1024, 4096, 16384)])
    assert all(a < b for a, b in pairwise(found)) and found[0] < 0.7 * found[-1]


def test_an_a100_multiplies_large_matrices_as_fast_as_was_published():
    """295 TFLOP/s on zeros at the full clock (H. He, 2024), of 312: large products of the model are near it."""
    assert share_of_peak("a100", [linear(8192, 8192, 8192)])[0] * 312 == pytest.approx(280, rel=0.07)


def test_a_product_that_wide_loads_do_not_fit_is_not_made_slower_still():
    odd, even = (linear(4096, 2048, columns) for columns in (50257, 50264))
    slow, fast = share_of_peak("a100", [odd, even])
    assert 0.3 * fast < slow < 0.7 * fast


def test_boards_on_which_halves_were_measured_stay_as_they_were():
    one = linear(8192, 2048, 8192)
    for name in HALVES_ON:
        sheet = devices.get(name)
        predictor, _ = EagerRuntime().predictor(sheet)
        (price,) = learned_prices(predictor, [one], sheet)
        assert price.latency_s == pytest.approx(float(predictor.device_s([one], sheet)[0]) + 3e-6, rel=1e-9)
