"""Layers: a network as a list of modules, and the part of it that each stage has."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import nn

from cdmpp.errors import UsageError
from cdmpp.platform.limits import shown

Network = nn.Sequential | nn.ModuleList | Sequence[nn.Module]
"""Modules that follow each other: each takes the one tensor that the one before returns."""


def layers_of(network: Network | Callable[[], Network]) -> list[nn.Module]:
    """Return the modules of a network, or of the one that a function makes.

    Raises:
        UsageError: it is something else, or has none.
    """
    if not isinstance(network, nn.Module | Sequence) and callable(network):
        network = network()
    if not isinstance(network, nn.Sequential | nn.ModuleList | list | tuple):
        raise UsageError(
            f"the network is {shown(type(network).__name__)}: expected an nn.Sequential, a list of modules that follow "
            "each other, or a function that makes one"
        )
    layers: list[Any] = list(network)
    for number, one in enumerate(layers):
        if not isinstance(one, nn.Module):
            raise UsageError(f"layer {number} of the network is {shown(one)}: expected an nn.Module")
    if not layers:
        raise UsageError("the network has no layers: give one or more")
    return layers


def spans_of(cuts: Sequence[int], layers: int) -> list[range]:
    """Return the layers of each stage; ``cuts``: the first layer of each stage but the first one.

    Raises:
        UsageError: more stages than layers, or cuts that do not rise.
    """
    if len(cuts) + 1 > layers:
        raise UsageError(
            f"{len(cuts)} cuts make {len(cuts) + 1} stages, and the network has {layers} layers: give at most "
            f"{layers - 1} cuts"
        )
    bounds = [0, *cuts, layers]
    for before, after in zip(bounds, bounds[1:], strict=False):
        if after <= before:
            raise UsageError(
                f"cuts are {list(cuts)}: expected the first layer of each later stage, rising, each from 1 to "
                f"{layers - 1}"
            )
    return [range(*pair) for pair in zip(bounds, bounds[1:], strict=False)]


def check_untied(layers: Sequence[nn.Module], spans: Iterable[range]) -> None:
    """Raise ``UsageError`` where a parameter or buffer is read on both sides of a cut."""
    first: dict[int, tuple[int, str]] = {}
    for stage, span in enumerate(spans):
        for layer in span:
            for name, one in [*layers[layer].named_parameters(), *layers[layer].named_buffers()]:
                where, known = first.setdefault(id(one), (stage, f"{layer}.{name}"))
                if where != stage:
                    raise UsageError(
                        f"{layer}.{name} on stage {stage} is the same tensor as {known} on stage {where}: a cut "
                        f"between layers {known.split('.')[0]} and {layer} would train two copies of it; cut "
                        "elsewhere, as `cdmpp plan --strategies partition --keep-tied` does"
                    )


def stage_of(layers: Sequence[nn.Module], span: range) -> nn.Sequential:
    """Return a copy of the layers of one stage, whose parameters have the names that they have in the network."""
    stage = nn.Sequential()
    for layer in span:
        stage.add_module(str(layer), layers[layer])
    return copy.deepcopy(stage)  # of modules that were given to the process: their tensors are shared with the giver's
