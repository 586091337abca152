"""Operators: what can be said of them, and what is refused by name."""

from __future__ import annotations

import pytest

from cdmpp.errors import UnsupportedProgramError
from cdmpp.operators.operator import EagerOperator


def test_it_is_written_and_read():
    operator = EagerOperator.parse("bmm", "16x128x64x128", "float16", transposed=1)
    assert EagerOperator.from_json(operator.to_json()) == operator
    assert str(operator) == "bmm 16x128x64x128 transposed=1 float16"
    assert len({operator, EagerOperator.from_json(operator.to_json())}) == 1


def test_what_is_usual_may_be_left_out():
    sizes = {"rows": 2, "inner": 3, "cols": 4}
    assert EagerOperator("linear", sizes) == EagerOperator("linear", {**sizes, "bias": 1})


def test_work_by_hand():
    linear = EagerOperator.parse("linear", "2x3x4")
    assert (linear.flops, linear.io_bytes) == (48, 4 * (6 + 12 + 4 + 8))
    conv = EagerOperator.parse("conv2d", "1x8x16x10x3", padding=1, stride=2)
    assert (conv.out_size, conv.matmul) == (5, (1, 25, 72, 16))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: EagerOperator("liner", {}), "did you mean linear"),
        (lambda: EagerOperator("linear", {"rows": 2}), "inner, cols not given; it has linear rowsxinnerxcols"),
        (lambda: EagerOperator("relu", {"rows": 2, "cols": 3, "depth": 4}), "has no depth"),
        (lambda: EagerOperator("relu", {"rows": 0, "cols": 3}), "rows is 0; a whole number from 1"),
        (lambda: EagerOperator("relu", {"rows": True, "cols": 3}), "rows is True"),
        (lambda: EagerOperator("relu", {"rows": 2, "cols": 3}, "int8"), "type 'int8'; one of float64"),
        (lambda: EagerOperator.parse("linear", "2x3"), "expected linear rowsxinnerxcols, bias=1"),
        (lambda: EagerOperator.parse("linear", "2x3x-4"), "whole numbers"),
        (lambda: EagerOperator.parse("conv2d", "1x8x16x2x3"), "larger than its padded input"),
        (lambda: EagerOperator.parse("conv2d", "1x8x16x9x3", groups=3), "3 groups do not divide"),
        (lambda: EagerOperator.flat("add", 0), "0 elements: an operator has at least one"),
        (lambda: EagerOperator.from_json("[1]"), "not an operator"),
        (lambda: EagerOperator.from_json("{}"), "not an operator"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make, said):
    with pytest.raises(UnsupportedProgramError, match=said.replace("(", r"\(")):
        make()


@pytest.mark.parametrize("elements", [1, 1000, (1 << 14) - 1, 1 << 14, (1 << 20) - 1, 1 << 20, 38_597_376, 1 << 34])
def test_elements_in_a_row_become_a_matrix_as_measured_ones(elements):
    operator = EagerOperator.flat("add", elements, "float16")
    assert elements <= operator.written_elements <= max(elements, 1.004 * elements) and operator["cols"] <= 1 << 14
    assert operator.dtype == "float16" and (elements >= 1 << 14 or operator["rows"] == 1)
