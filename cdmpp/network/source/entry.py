"""Entries as in ``conf/data/networks.yaml``, for models of libraries: of torchvision, and with shapes of one's own."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.platform.torch_pair import import_torchvision

_NAMES = {"tokens": "input_ids", "image": "pixel_values", "audio": "input_values", "mel": "input_features"}
"""Kind of input -> what transformers calls it; ``x`` means it, too."""
_HEADS = {"aux_logits": False, "init_weights": False}
"""Options of GoogLeNet and Inception: no heads that only training needs, no slow initialisation."""


def torchvision_names() -> list[str]:
    """Return the names of torchvision's models that classify, segment or detect; ``CdmppError``: it does not load."""
    models = import_torchvision().models
    parts = (models, models.segmentation, models.detection)
    return [name for part in parts for name in models.list_models(module=part)]


def torchvision_entry(name: str) -> dict[str, Any]:
    """Return the entry of a model for images, at the size that its published weights take; detectors resize them.

    Raises:
        CdmppError: torchvision is not installed or does not load, or has no such model; it names the nearest ones.
    """
    models = import_torchvision().models
    detectors = models.list_models(module=models.detection)
    known = torchvision_names()
    if name not in known:
        why = "is for video or flow" if name in models.list_models() else "is not among torchvision's models"
        near = ", ".join(difflib.get_close_matches(name, known, n=3)) or "resnet50, mobilenet_v2, vit_b_16"
        raise CdmppError(
            f"torchvision:{name} {why}; models that classify, segment or detect can be named, nearest: {near}. For "
            "others write a function that returns the model and example inputs, and give file.py:FUNCTION"
        )
    if name in detectors:
        sizes = {"image": 800, "batch": 1}
        without = {"weights_backbone": None}
        return {"source": "torchvision", "build": name, "arguments": without, "input": sizes, "detects": True}
    parameters = inspect.signature(models.get_model_builder(name)).parameters
    preset = next(iter(models.get_model_weights(name))).transforms
    size = preset.keywords.get("crop_size", preset.keywords.get("resize_size", 224))
    own: dict[str, bool | None] = {**_HEADS} if name in ("googlenet", "inception_v3") else {}
    if "weights_backbone" in parameters:  # else it would be downloaded
        own = {"weights_backbone": None}
    return {"source": "torchvision", "build": name, "arguments": own, "input": {"image": size}}


def with_sequence(entry: Mapping[str, Any], tokens: int, what: str, has_shape: bool = False) -> dict[str, Any]:
    """Give the entry of the network ``what`` so many tokens; ``CdmppError``: it reads none, or was given a shape."""
    kind = next(key for key in entry["input"] if key != "batch")
    if kind != "tokens":
        raise CdmppError(f"{what}: sequence={tokens}, but its input is {kind}, not tokens: leave sequence out")
    if has_shape:
        raise CdmppError(f"{what}: sequence={tokens}, and inputs give a shape: leave one of them out")
    return {**entry, "input": {**entry["input"], "tokens": tokens}}


def without_fused(what: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of the network ``what`` with attention that nobody fuses, as its code spells it out.

    ``CdmppError``: it is no model of transformers, which alone are built either way.
    """
    if entry["source"] != "transformers":
        raise CdmppError(
            f"{what}: attention eager is of models of transformers; others run as their code says: leave it"
        )
    return {**entry, "arguments": {**entry.get("arguments", {}), "attn_implementation": "eager"}}


def with_shape(entry: Mapping[str, Any], inputs: Mapping[str, Sequence[int]], what: str) -> dict[str, Any]:
    """Give the entry of the network ``what`` an input of another shape; ``CdmppError`` where it cannot have it."""
    kind = next(key for key in entry["input"] if key != "batch")
    names = [name for name in (_NAMES.get(kind), "x") if name]
    ranks = {"tokens": 2, "image": 4, "audio": 2, "mel": 3, "vector": 2}
    given = "; ".join(f"{name}={','.join(map(str, shape))}" for name, shape in inputs.items())
    shape = next(iter(inputs.values()))
    if len(inputs) != 1 or next(iter(inputs)) not in names or len(shape) != ranks[kind] or min(shape) < 1:
        example = {"tokens": "1,128", "image": "1,3,224,224", "audio": "1,16000", "mel": "1,80,3000", "vector": "1,256"}
        raise CdmppError(f"{what}: input {given}: it takes one input, for example {names[0]}={example[kind]}")
    batch, *rest = (int(size) for size in shape)
    square = kind == "image" and rest[0] == 3 and rest[1] == rest[2]
    return {**entry, "input": {kind: rest[-1] if square or len(rest) == 1 else rest, "batch": batch}}
