"""Does a TVM target of a record belong to a device? No TVM here: targets are compared as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from cdmpp import devices
from cdmpp.errors import DataError
from cdmpp.platform.content import lines_of, parse_json


def disagreement(device: str | devices.Device, target: str, exact: bool = False) -> str:
    """Say why programs for ``target`` (JSON) are not of ``device``; empty where nothing speaks against it.

    The kind must be the same, and the architecture of a GPU where both state it. Names of one CPU vary, so
    ``mcpu`` is compared with ``exact`` only.
    """
    sheet = devices.get(device) if isinstance(device, str) else device
    expected, given = sheet.target, json.loads(target)
    for key in ("kind", "arch", "mcpu") if exact else ("kind", "arch"):
        if key in expected and key in given and expected[key] != given[key]:
            return f"the target has {key} {given[key]}, {sheet.name} has {expected[key]}"
    return ""


def retargeted(device: devices.Device, target: str) -> str:
    """Replace a target of another processor of its kind by that of ``device``, JSON; else return ``target``."""
    own, given = device.target, json.loads(target)
    another = any(given.get(key) != own[key] for key in ("arch", "mcpu") if key in own)
    return json.dumps(own) if another and given.get("kind") == own["kind"] else target


def first_target(database: Path) -> str:
    """Return the target of the first readable record of a MetaSchedule database, as JSON."""
    plain = database / "database_tuning_record.json"
    path = plain if plain.is_file() else plain.with_name(plain.name + ".gz")
    for _, (_, line) in zip(range(100), lines_of(path), strict=False):
        try:
            target = parse_json(line)[1][2]
        except (ValueError, TypeError, IndexError, KeyError):
            continue
        if isinstance(target, dict) and "kind" in target:
            return json.dumps(target)
    raise DataError(f"{path} has no readable record among its first lines")
