"""Torch models with random weights, and inputs that they run on, as an entry of the zoo or of a library says."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import os
from collections.abc import Mapping
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.platform.torch_pair import import_torchvision, torchvision_fault
from cdmpp.programs.decoder import cache_bytes, cache_of, decoder_of, encoder_decoder_of, states_of
from cdmpp.programs.refusal import first_line

INPUTS = ("image", "tokens", "audio", "mel", "vector")


def build_model(spec: Mapping[str, Any], most_bytes: float = math.inf) -> tuple[Any, tuple[Any, ...]]:
    """Build ``(torch module in eval mode, example inputs)`` of one zoo entry.

    Of more than ``most_bytes`` of weights and inputs only the shapes are made: they are on the device meta.
    """
    import torch

    torch.manual_seed(0)
    if most_bytes < math.inf:
        with contextlib.suppress(Exception), torch.device("meta"):  # some ask for values while they are made
            described, example = build_model(spec)
            if sum(one.nbytes for one in described.parameters()) + cache_bytes(example) > most_bytes:
                return described, example
    builders = {"torchvision": _build_torchvision, "transformers": _build_transformers, "handmade": _build_handmade}
    if (library := spec["source"]) not in builders:
        raise CdmppError(f"network source {library!r} is unknown: use {', '.join(builders)}")
    try:
        model = builders[library](spec)
    except ImportError as error:
        raise CdmppError(f"{library} is not installed ({error}): pip install 'cdmpp[networks]'") from error
    except CdmppError:
        raise
    except Exception as error:  # a config may ask for what its model cannot be
        raise CdmppError(f"{library} cannot build {spec['build']}: {first_line(error)}") from error
    return model.eval(), example_of(model, spec)


def example_of(model: Any, spec: Mapping[str, Any]) -> tuple[Any, ...]:
    """Make example inputs of a model that was built from an entry, or from one that differs in sizes of its inputs."""
    import torch

    example = _example(spec["input"])
    if (past := spec.get("past")) and (tokens := spec.get("decoder_tokens")):
        states = states_of(model, example)
        new = torch.randint(0, 100, (len(example), tokens))
        return new, states, cache_of(model, len(example), past, states)
    if past:
        return example, cache_of(model, len(example), past)
    if tokens := spec.get("decoder_tokens"):
        return example, torch.randint(0, 100, (len(example), tokens))
    return (example,)


def _example(given: Mapping[str, Any]) -> Any:
    import torch

    shape = dict(given)
    batch = shape.pop("batch", 1)
    if len(shape) != 1 or not set(shape) <= set(INPUTS):
        raise CdmppError(f"network input {dict(given)} must name one of {', '.join(INPUTS)} and may name batch")
    kind, size = shape.popitem()
    if kind == "tokens":
        return torch.randint(0, 100, (batch, size))
    if kind == "image" and isinstance(size, int):
        return torch.randn(batch, 3, size, size)
    return torch.randn(batch, *([size] if isinstance(size, int) else size))


def _build_torchvision(spec: Mapping[str, Any]) -> Any:
    import torch

    model = import_torchvision().models.get_model(spec["build"], weights=None, **spec.get("arguments", {}))
    if not spec.get("detects"):
        return model

    class OfImages(torch.nn.Module):
        """Detectors read a list of images, which may differ in size."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Any) -> Any:
            return self.inner(list(x.unbind(0)))

    return OfImages()


def _build_transformers(spec: Mapping[str, Any]) -> Any:
    import torch

    transformers = import_transformers()
    config = getattr(transformers, spec["config"])(**spec.get("arguments", {}))
    library = importlib.import_module(spec["module"]) if "module" in spec else transformers
    inner = getattr(library, spec["build"])(config)
    if spec.get("past") is not None:
        return encoder_decoder_of(inner) if spec.get("decoder_tokens") else decoder_of(inner)
    if spec.get("part") == "encoder" and hasattr(inner, "decoder"):
        inner = inner.get_encoder()
    parameters = inspect.signature(inner.forward).parameters
    accepted = {*parameters, *("return_dict" for p in parameters.values() if p.kind is p.VAR_KEYWORD)}
    options: dict[str, Any] = dict.fromkeys({"return_dict", "use_cache"} & accepted, False)
    first = spec.get("first_position")

    class FirstOutput(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            if first is not None:
                options["position_ids"] = torch.arange(first, first + x.shape[1]).expand(x.shape[:2])
            return self.inner(x, **options)[0]

    class OwnLoss(FirstOutput):
        def forward(self, x: Any) -> Any:
            return {"loss": self.inner(x, labels=x, **options)[0]}

    class BothParts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any, tokens: Any) -> Any:
            return self.inner(x, decoder_input_ids=tokens, **options)[0]

    if spec.get("decoder_tokens"):
        return BothParts()
    return OwnLoss() if spec.get("labels") else FirstOutput()


def _build_handmade(spec: Mapping[str, Any]) -> Any:
    from cdmpp.programs.handmade import MODELS

    if spec["build"] not in MODELS:
        raise CdmppError(f"no hand-made network {spec['build']!r}; known: {', '.join(MODELS)}")
    return MODELS[spec["build"]](**spec.get("arguments", {}))


def import_transformers() -> Any:
    """Import transformers so that it will not reach for the network."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if fault := torchvision_fault():
        raise CdmppError(fault)
    return importlib.import_module("transformers")
