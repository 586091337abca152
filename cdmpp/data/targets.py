"""Does a TVM target of a record belong to a device?"""

from __future__ import annotations

import json

from cdmpp import devices


def disagreement(device: str, target: str) -> str:
    """Why records with ``target`` (JSON) cannot come from ``device``; empty where nothing speaks against it.

    The kind must be the same, and the architecture of a GPU where both state it. CPU names vary for one and the
    same processor, so they are not compared.
    """
    expected, found = devices.get(device).target, json.loads(target)
    for key in ("kind", "arch"):
        if key in expected and key in found and expected[key] != found[key]:
            return f"the records' target has {key} {found[key]}, {device} has {expected[key]}"
    return ""
