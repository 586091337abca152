"""Normalisations of an exported graph -> framework operators of as many rows, as long."""

from __future__ import annotations

import math
from typing import Any

from cdmpp.operators.aten_layout import arguments_of, dtype_of, shape_of
from cdmpp.operators.aten_traffic import distinct_elements, results_of
from cdmpp.operators.operator import EagerOperator

ROW_NORMS = (
    *("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm", "group_norm", "native_group_norm"),
    "instance_norm",
)
BATCH_NORMS = tuple(
    "batch_norm native_batch_norm cudnn_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
    "_native_batch_norm_legit_no_training".split()
)
_LARGE_IMAGE = 64
"""Elements of a channel from which on its factor and its shift are little compared with it, image by image."""


def row_norm_of(node: Any, name: str) -> EagerOperator:
    """Make a layer norm: of a group norm a row is a group of an image, of an instance norm a channel of one."""
    given, out = arguments_of(node), results_of(node)[0]
    x = given["input"] if "input" in given else given["self"]
    if "normalized_shape" in given:
        cols = math.prod(int(size) for size in given["normalized_shape"])
    elif name == "instance_norm":
        cols = math.prod(shape_of(x)[2:])
    else:
        groups = int(given["num_groups"] if "num_groups" in given else given["group"])
        cols = x.numel() // (shape_of(x)[0] * groups)
    weights = sum(distinct_elements(given[key]) for key in ("weight", "bias") if given.get(key) is not None)
    sizes = {"rows": out.numel() // cols, "cols": cols, "weights": round(weights / cols)}
    return EagerOperator("layer_norm", sizes, dtype_of(out))


def batch_norm_of(node: Any) -> EagerOperator:
    """Make a norm whose row is a channel of an image, or where that is small, a channel of all images."""
    given, out = arguments_of(node), results_of(node)[0]
    images, channels, *image = shape_of(out)
    elements = math.prod(image)
    rows = images * channels if elements >= _LARGE_IMAGE or images == 1 else channels
    sums = given.get("training", given.get("train", False))
    name = "batch_norm_train" if sums else "batch_norm"
    return EagerOperator(name, {"rows": rows, "cols": out.numel() // rows}, dtype_of(out))
