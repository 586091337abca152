"""Operators of detectors of an exported graph -> framework operators; nobody measured any."""

from __future__ import annotations

import math
from typing import Any

from cdmpp.operators.aten_layout import arguments_of, dtype_of, shape_of
from cdmpp.operators.aten_traffic import Traffic, copy_like, results_of, traffic_of
from cdmpp.operators.operator import EagerOperator

DETECTION = ("nms", "roi_align")
_USUAL_SAMPLES = 2
"""Points along each axis of a bin where torchvision chooses by the size of a region: that of its pyramids."""
_SORTS = 8
"""Times that a radix sort of 32-bit keys moves a key and its place, both ways."""
_WORD_BITS = 64
"""Pairs of boxes whose overlap is one word."""


def detection_of(node: Any, name: str) -> EagerOperator:
    """Return the pooling that reads as many taps as regions of interest do, or what moves as much as a suppression.

    A bin of a region is a mean over samples, each of four pixels. Non-maximum suppression sorts the scores, writes a
    bit for each pair of boxes, and reads them once.
    """
    given = arguments_of(node)
    if name == "nms":
        boxes, scores = given["boxes"], given["scores"]
        many = shape_of(boxes)[0]
        bits = many * -(-many // _WORD_BITS)
        own = traffic_of([boxes, boxes, scores, *results_of(node)])
        return copy_like(node, own + Traffic(2 * (bits + _SORTS * many), 16 * (bits + _SORTS * many)))
    out = results_of(node)[0]
    regions, channels, *bins = shape_of(out)
    samples = given["sampling_ratio"] if given["sampling_ratio"] > 0 else _USUAL_SAMPLES
    side, taps = max(round(math.sqrt(math.prod(bins))), 1), 2 * samples
    sizes = {"batch": regions, "channels": channels, "in_size": side * taps, "kernel": taps, "stride": taps}
    return EagerOperator("avg_pool2d", sizes, dtype_of(out))
