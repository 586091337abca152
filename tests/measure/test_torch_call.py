"""Every framework operator becomes a call of PyTorch that reads and writes what the operator says."""

from __future__ import annotations

import pytest
import torch

from cdmpp.errors import DataError
from cdmpp.measure.torch_call import torch_call
from cdmpp.measure.torch_plan import CallLimits, operator_plan
from cdmpp.operators.operator import LEARNED, EagerOperator

LIMITS = CallLimits(1e-3, 1e6, 1e11, 1e10)
OPTIONS = [
    EagerOperator("linear", {"rows": 5, "inner": 8, "cols": 3, "bias": 0}),
    EagerOperator("bmm", {"batch": 2, "rows": 5, "inner": 8, "cols": 3, "transposed": 1}),
    EagerOperator.parse("conv2d", "2x8x8x9x3", stride=2, padding=1, groups=8),
    EagerOperator.parse("conv2d", "2x8x12x9x3", groups=4),
    EagerOperator.parse("max_pool2d", "2x3x9x3", stride=2, padding=1),
]
"""With what most draws of a short plan leave out."""


@pytest.mark.parametrize("name", LEARNED)
def test_every_kind_has_a_working_call(name):
    drawn = [operator for operator in operator_plan(LIMITS, 2 * 97, 0) if operator.name == name]
    assert len(drawn) >= 2
    for operator in [*drawn[:4], *(other for other in OPTIONS if other.name == name)]:
        call = torch_call(operator)
        with torch.inference_mode():
            output, again = call.run(), call.run()
        assert output.numel() == operator.written_elements, operator
        assert sum(one.numel() for one in call.inputs) == operator.read_elements, operator
        assert output.dtype == torch.float32 and bool(output.isfinite().all())
        assert torch.equal(output, again) and output.data_ptr() not in {one.data_ptr() for one in call.inputs}


def test_they_compute_what_they_are_called():
    def output(name, text, **options):
        call = torch_call(EagerOperator.parse(name, text, **options))
        return call.inputs, call.run()

    (first, second), product = output("bmm", "2x3x4x5", transposed=1)
    assert torch.allclose(product, first @ second) and second.stride(-1) != 1, "the second factor is read across"
    (image, weight), result = output("conv2d", "2x8x8x9x3", padding=1, groups=8)
    assert weight.shape == (8, 1, 3, 3) and result.shape == image.shape
    (x, factor, shift), scaled = output("batch_norm", "6x10")
    expected = (x - shift[:, None]) * (factor / (factor + 1e-5).sqrt())[:, None] + shift[:, None]
    assert torch.allclose(scaled, expected, atol=1e-5)
    (places, table), rows = output("embedding", "7x3")
    assert torch.equal(rows, table[places]) and sorted(places.tolist()) == list(range(7))
    (condition, first, second), chosen = output("where", "16x16")
    assert condition.dtype == torch.bool and 0 < int(condition.sum()) < 256
    assert torch.equal(chosen, torch.where(condition, first, second))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_other_types_work_too(dtype):
    for name in ("linear", "conv2d", "softmax", "layer_norm", "gelu", "where", "mean", "batch_norm"):
        (operator,) = [one for one in operator_plan(LIMITS, 60, 0, dtype) if one.name == name][:1]
        output = torch_call(operator).run()
        assert output.dtype == getattr(torch, dtype) and output.numel() == operator.written_elements


def test_inputs_are_neither_zeros_nor_denormals():
    for one in torch_call(EagerOperator.parse("linear", "300x300x300")).inputs:
        assert 0.0999 < float(one.min()) < float(one.max()) <= 1.0 and len(one.unique()) > min(250, one.numel() - 1)


def test_a_plan_is_reproducible_and_holds_every_kind_once_or_more():
    plan = operator_plan(LIMITS, 300, 3)
    assert plan == operator_plan(LIMITS, 300, 3) and operator_plan(LIMITS, 100, 3) == plan[:100]
    assert operator_plan(LIMITS, 300, 4) != plan
    assert len(set(plan)) == 300 and {operator.name for operator in plan[: len(LEARNED)]} == set(LEARNED)
    assert all(operator.io_bytes <= 1e6 and LIMITS.roofline_s(operator) <= 1e-3 for operator in plan)
    convolutions = [operator for operator in plan if operator.name == "conv2d"]
    assert {operator["stride"] for operator in convolutions} == {1, 2}
    assert any(operator["groups"] == operator["in_channels"] > 1 for operator in convolutions)
    assert any(1 < operator["groups"] < operator["in_channels"] for operator in convolutions)
    assert {operator["transposed"] for operator in plan if operator.name == "bmm"} == {0, 1}


def test_half_of_a_plan_has_sizes_as_networks_have_them():
    products = [one.sizes for one in operator_plan(LIMITS, 600, 0) if one.name == "bmm"]
    round_ones = [sizes for sizes in products if all(_is_round(size) for size in sizes.values())]
    assert len(products) > 50 and 0.4 < len(round_ones) / len(products) < 0.7


def _is_round(size: int) -> bool:
    """Four to seven times a power of two, or smaller."""
    while size > 7 and size % 2 == 0:
        size //= 2
    return size <= 7


@pytest.mark.parametrize("name", ["permute", "transpose"])
def test_copies_are_of_tensors_that_lie_otherwise(name):
    call = torch_call(EagerOperator.parse(name, "192x24"))
    (x,), made = call.inputs, call.run()
    assert not x.is_contiguous() and made.is_contiguous() and torch.equal(made, x)
    assert made.numel() == 192 * 24 and (x.stride()[-1] == 1) == (name == "permute")


def test_limits_that_leave_nothing_say_so():
    with pytest.raises(DataError, match="raise call_ms or call_mb"):
        operator_plan(CallLimits(1e-9, 100, 1e11, 1e10), 300, 0)
