"""Operators that training alone runs -> the operator of the forward pass that is measured in their place."""

from __future__ import annotations

from typing import NamedTuple

from cdmpp.operators.operator import FILTER_GRADIENT, IMAGE_GRADIENT, TRAINING, EagerOperator


class TrainingForm(NamedTuple):
    """An operator takes as long as another one, so many times."""

    operator: EagerOperator
    times: float


class Ratios(NamedTuple):
    """Seconds of the gradients of a convolution over those of its forward pass."""

    image: float
    filter: float


NARROW = 64
"""A convolution of so many channels, or fewer, on one of its sides is narrow."""
RATIOS = {
    "vector": {
        ("1x1", 1, True): Ratios(1.05, 2.65),
        ("1x1", 1, False): Ratios(1.10, 1.52),
        ("1x1", 2, True): Ratios(1.65, 2.59),
        ("1x1", 2, False): Ratios(1.74, 1.44),
        ("kxk", 1, True): Ratios(1.03, 1.78),
        ("kxk", 1, False): Ratios(1.00, 0.84),
        ("kxk", 2, True): Ratios(1.86, 1.71),
        ("kxk", 2, False): Ratios(1.48, 1.04),
    },
    "matrix": {
        ("1x1", 1, True): Ratios(1.19, 1.53),
        ("1x1", 1, False): Ratios(1.15, 1.42),
        ("1x1", 2, True): Ratios(1.15, 1.81),
        ("1x1", 2, False): Ratios(2.12, 1.53),
        ("kxk", 1, True): Ratios(1.08, 1.61),
        ("kxk", 1, False): Ratios(1.13, 1.07),
        ("kxk", 2, True): Ratios(1.22, 1.82),
        ("kxk", 2, False): Ratios(1.50, 0.85),
    },
}
"""Unit -> (filter, stride, narrow) -> medians over DeepBench's convolutions on a V100 and a T4 with cuDNN 7.6
(github.com/baidu-research/DeepBench, results/train): in float32, and of halves on matrix units. Made by
``python -m benchmarks.convolution_gradients``."""


def training_form(operator: EagerOperator, kind: str) -> TrainingForm:
    """Return the operator that stands for one of ``TRAINING``, and how often its time is taken; others for themselves.

    On GPUs the gradient of an image is a convolution of the result whose channels are exchanged where the stride is
    one, else ``RATIOS`` tells; so it does of filters. A filter for each channel is summed up by a kernel of PyTorch
    that reads both images once for each of its taps, but for halves. Batch norms take as long as what they move.

    Args:
        operator: any.
        kind: of the device, ``cpu`` or ``gpu``; of CPUs no ratios are known: a gradient is as the forward pass.
    """
    if operator.name not in TRAINING:
        return TrainingForm(operator, 1.0)
    if operator.name not in (IMAGE_GRADIENT, FILTER_GRADIENT):
        norm = EagerOperator("batch_norm", operator.sizes, operator.dtype)
        return TrainingForm(norm, (operator.kind.inputs + 1) / 2)
    forward = EagerOperator("conv2d", operator.sizes, operator.dtype)
    if kind != "gpu":
        return TrainingForm(forward, 1.0)
    ratios, is_image = _ratios(forward), operator.name == IMAGE_GRADIENT
    is_depthwise = 1 < forward["groups"] == forward["in_channels"] and forward.element_bytes == 4
    if is_depthwise and not is_image:
        return TrainingForm(forward, float(forward["kernel"] ** 2))
    if is_image and forward["stride"] == 1:
        back = forward["kernel"] - 1 - forward["padding"]
        exchanged = {"in_channels": forward["out_channels"], "out_channels": forward["in_channels"]}
        if back >= 0:
            sizes = {**forward.sizes, **exchanged, "in_size": forward.out_size, "padding": back}
            return TrainingForm(EagerOperator("conv2d", sizes, forward.dtype), 1.0)
    return TrainingForm(forward, ratios.image if is_image else ratios.filter)


def _ratios(forward: EagerOperator) -> Ratios:
    own = RATIOS["vector" if forward.dtype in ("float32", "float64") else "matrix"]
    channels = min(forward["in_channels"], forward["out_channels"]) // forward["groups"]
    return own["1x1" if forward["kernel"] == 1 else "kxk", min(forward["stride"], 2), channels <= NARROW]
