"""Finds the TVM that wrote a workload graph, and checks that its format is read here."""

from __future__ import annotations

import re

READABLE = "0.16 to 0.20 and 0.27"
_LEGACY_MINORS, _NATIVE_MINORS = range(16, 21), range(27, 28)
_VERSION = re.compile(r'"tvm_version"\s*:\s*"([^"\\]{1,40})"')
"""Stands in ``attrs`` of a legacy graph, ``metadata`` of a newer one; a text of the program has its quotes escaped."""


def is_legacy_graph(text: str) -> bool:
    """Return True if a workload graph is of the format before TVM 0.21 (nodes carry ``type_key``)."""
    return '"type_key"' in text[:4000]


def check_writer(text: str) -> str:
    """Say why the version of a workload graph is not read; empty where it is, or where the graph states none."""
    if (stated := _VERSION.search(text)) is None:
        return ""
    version = re.match(r"0\.(\d+)\b", stated[1])
    minors = _LEGACY_MINORS if is_legacy_graph(text) else _NATIVE_MINORS
    if version is not None and int(version[1]) in minors:
        return ""
    return (
        f"written by TVM {stated[1]}, whose format is not read here; workloads of TVM {READABLE} are. Tune with one of "
        "these, or bring scheduled programs as TVMScript (`cdmpp data import source=tvmscript`)"
    )
