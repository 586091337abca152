"""Kernels that training alone runs: what stands for them, and how often its time is taken."""

from __future__ import annotations

import pytest

from cdmpp.operators.backward import backward_of
from cdmpp.operators.operator import EagerOperator
from cdmpp.operators.training_form import training_form


def gradients(sizes: str, dtype: str = "float32", kind: str = "gpu", **options: int) -> list[tuple[str, float]]:
    forward = EagerOperator.parse("conv2d", sizes, dtype, **options)
    made = (training_form(one.operator, kind) for one in backward_of(forward))
    return [(str(operator), times) for operator, times in made]


@pytest.mark.parametrize(
    ("sizes", "options", "expected"),
    [
        ("16x256x1024x14x1", {}, [("conv2d 16x1024x256x14x1", 1.0), ("conv2d 16x256x1024x14x1", 1.52)]),
        ("16x256x64x56x1", {}, [("conv2d 16x64x256x56x1", 1.0), ("conv2d 16x256x64x56x1", 2.65)]),
        ("8x128x256x56x3", {"padding": 0}, [("conv2d 8x256x128x54x3 padding=2", 1.0), ("conv2d 8x128x256x56x3", 0.84)]),
        (
            "8x256x512x56x1",
            {"stride": 2},
            [("conv2d 8x256x512x56x1 stride=2", 1.74), ("conv2d 8x256x512x56x1 stride=2", 1.44)],
        ),
    ],
)
def test_gradients_of_convolutions_are_other_kernels_than_the_forward_pass(sizes, options, expected):
    assert gradients(sizes, **options) == expected


def test_a_depthwise_filter_is_summed_up_tap_by_tap_but_for_halves_and_cpus_have_no_ratios():
    sizes, options = "64x96x96x112x3", {"stride": 2, "padding": 1, "groups": 96}
    assert [times for _, times in gradients(sizes, **options)] == [1.86, 9.0]
    assert [times for _, times in gradients(sizes, "float16", **options)] == [1.22, 1.82]
    assert [times for _, times in gradients(sizes, kind="cpu", **options)] == [1.0, 1.0]


def test_a_gradient_moves_what_its_factors_and_its_result_have():
    forward = EagerOperator.parse("conv2d", "2x3x8x10x3", stride=2, padding=1)
    image, filters = (one.operator for one in backward_of(forward))
    assert (forward.read_elements, forward.written_elements) == (2 * 3 * 100 + 8 * 3 * 9, 2 * 8 * 25)
    assert (image.read_elements, image.written_elements) == (2 * 8 * 25 + 8 * 3 * 9, 2 * 3 * 100)
    assert (filters.read_elements, filters.written_elements) == (2 * 8 * 25 + 2 * 3 * 100, 8 * 3 * 9)
    assert image.flops == filters.flops == forward.flops == 2 * (2 * 25) * (3 * 9) * 8


def test_a_batch_norm_that_learns_reads_its_image_twice_and_its_gradient_both_twice():
    train = EagerOperator.parse("batch_norm_train", "64x49")
    (gradient,) = backward_of(train)
    norm = EagerOperator.parse("batch_norm", "64x49")
    assert training_form(train, "gpu") == (norm, 1.5) and training_form(gradient.operator, "gpu") == (norm, 2.5)
    assert training_form(norm, "gpu") == (norm, 1.0)
