"""The names that a client may give: of what is described and shipped here, and nothing else."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from cdmpp import devices
from cdmpp.collectives import cluster, interconnect
from cdmpp.errors import UsageError
from cdmpp.network.source.checkpoint import read_checkpoints
from cdmpp.platform.limits import shown
from cdmpp.predict.catalogue import models
from cdmpp.programs.zoo import read_zoo

_SCHEDULE = re.compile(r"untuned|best_of:[1-9][0-9]{0,3}")


@cache
def network_names() -> frozenset[str]:
    """Return the names of networks that need no torchvision: the zoo's, and ``hf:`` names of described checkpoints."""
    checkpoints = read_checkpoints()
    hub = {f"hf:{name}" for full in checkpoints for name in (full, full.split("/")[-1])}
    return frozenset(read_zoo()) | hub


def check_names(question: Mapping[str, Any], torchvision: Collection[str]) -> None:
    """Raise ``UsageError`` for a name that is not on the list of those that are here.

    Args:
        question: of a request, its fields by name.
        torchvision: names of torchvision's models, such as ``torchvision:resnet50``.
    """
    for device in question["device"] if isinstance(question["device"], Mapping) else [question["device"]]:
        _check("device", device, devices.names(), "GET /v1/devices")
    if isinstance(network := question.get("network"), str):
        _check("network", network, network_names() | frozenset(torchvision), "GET /v1/networks")
    if (model := question.get("model")) is not None:
        _check("model", model, [one.name for one in models() if one.usable], "GET /v1/models")
    for field, known in (("cluster", cluster.names), ("link", interconnect.names)):
        if (name := question.get(field)) is not None:
            _check(field, name, known(), f"{field} of GET /v1/devices")
    schedule = question.get("schedule")
    if schedule is not None and not _SCHEDULE.fullmatch(schedule):
        raise UsageError(f"schedule is {shown(schedule)}: a server takes best_of:K, such as best_of:16, or untuned")


def _check(field: str, name: str, known: Collection[str], where: str) -> None:
    if name in known:
        return
    near = difflib.get_close_matches(name[:200], known, n=3)
    hint = f"; nearest: {', '.join(near)}" if near else ""
    no_file = ". Files, folders and code are not read for a client" if field == "network" else ""
    raise UsageError(f"{field} is {shown(name)}, which is no name that this server has{hint} ({where} lists them)"
                     f"{no_file}")  # fmt: skip
