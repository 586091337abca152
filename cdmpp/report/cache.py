"""The report on the cache: its entries by kind, and what was deleted."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from cdmpp.network.network_key import toolchain, version_of
from cdmpp.platform.cache import KINDS, LIMIT, OTHER, Entry
from cdmpp.platform.paths import cache_root
from cdmpp.report.report import Column, Report, Table, Total


def cache_report(entries: Sequence[Entry], limit_bytes: int, known: Sequence[Mapping[str, Any]] = ()) -> Report:
    """Report the ``entries`` by kind, largest first, beside the limit.

    ``known``: the networks of ``shipped_networks``, of which a first question is as fast as if it was no first one.
    """
    by_kind: dict[str, list[Entry]] = {}
    for one in entries:
        by_kind.setdefault(one.kind, []).append(one)
    now, root = time.time(), cache_root()
    rows: list[dict[str, Any]] = [
        {
            "kind": kind, "holds": KINDS.get(kind, OTHER).text, "entries": len(own),
            "bytes": sum(one.bytes for one in own), "used_s_ago": max(0.0, now - max(one.used_at for one in own)),
            "folder": str(root if kind not in KINDS else root / kind),
        }
        for kind, own in by_kind.items()
    ]  # fmt: skip
    rows.sort(key=lambda row: -row["bytes"])
    whole = sum(one.bytes for one in entries)
    columns = (
        Column("kind", "kind", kind="text"),
        Column("holds", "holds", kind="text", rank=2),
        Column("entries", "entries", is_sum=True),
        Column("bytes", "size", "B", is_sum=True),
        Column("used_s_ago", "used before", "s", rank=1, meaning="Time since one of them was written or read last."),
        Column("folder", "folder", kind="text", rank=3),
    )
    caption = f"${LIMIT} is the limit; what was not used for longest goes first. --clear [KIND] deletes"
    networks = [_known(one) for one in known]
    answer = {"folder": str(root), "bytes": whole, "limit_bytes": limit_bytes, "kinds": rows, "known": networks}
    totals = (Total("size", whole, "B"), Total("limit", limit_bytes, "B"), Total("folder", str(root)))
    tables = (Table("Cache", columns, rows, caption), Table("Known networks", _OF_KNOWN, networks, _KNOWN_CAPTION))
    return Report("Cache", answer, totals, tables if networks else tables[:1])


_OF_KNOWN = (
    Column("network", "network", kind="text"),
    Column("runtime", "--runtime", kind="text"),
    Column("batches", "batches", kind="text"),
    Column("on", "on", kind="text", rank=2),
    Column("is_used", "used here", kind="text"),
    Column("other", "made with", kind="text", is_optional=True, meaning="Where another version is installed here."),
)
_KNOWN_CAPTION = "Shipped with the package: read, drawn and compiled before; models predict live"


def _known(one: Mapping[str, Any]) -> dict[str, Any]:
    """Row of a shipped network: it is used where all that made it has the version that is installed here."""
    here = {name: toolchain() if name == "toolchain" else version_of(name) for name in one["made_with"]}
    other = [f"{name} {made}" for name, made in one["made_with"].items() if made != here[name]]
    row = {"network": one["network"], "runtime": one["runtime"], "on": ", ".join(one["on"])}
    row["batches"] = f"1 to {one['up_to']}" if "up_to" in one else ", ".join(map(str, one["batches"]))
    return {**row, "is_used": "no" if other else "yes", "other": ", ".join(other)}


def cleared_report(what: str, count: int, size_bytes: int) -> Report:
    """Report what was deleted."""
    answer = {"cleared": what, "entries": count, "bytes": size_bytes}
    return Report("Cache", answer, (Total("deleted", count, note="entries"), Total("size", size_bytes, "B")))
