"""Step times of six networks on four clusters: placements that are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.expressions.placements import SOURCE, cut, judged, pairs
from benchmarks.expressions.rows import COLUMNS, COMMANDS, summary

LEFT_OUT = 1
"""Placements of each pair that are left out, one at a time, drawn with seed 0."""


def tables(data: Path) -> list[dict[str, Any]]:
    """Judge the folder ``sia`` of ``data``."""
    own = list(pairs(data))
    return [_half(own), _placement(own)]


def _half(own: list[dict[str, Any]]) -> dict[str, Any]:
    splits = []
    for one in own:
        names = np.unique(one["placement"])
        held = np.random.default_rng(0).permutation(names)[: len(names) // 2]
        asked = np.isin(one["placement"], held)
        splits.append(cut(one, ~asked, asked))
    note = SOURCE.format(count=len(own)) + "A random half of the placements is left out (seed 0)."
    rows = summary(judged(splits))
    return {"title": "Half of the placements left out", "note": note, "commands": COMMANDS,
            "columns": list(COLUMNS), "rows": rows}  # fmt: skip


def _placement(own: list[dict[str, Any]]) -> dict[str, Any]:
    splits = []
    for one in own:
        for held in np.random.default_rng(0).permutation(np.unique(one["placement"]))[:LEFT_OUT]:
            asked = one["placement"] == held
            splits.append(cut(one, ~asked, asked))
    note = SOURCE.format(count=len(own)) + (
        f"Placements are left out one at a time, {LEFT_OUT} of each pair (drawn with seed 0). Permuted placements with "
        "the same GPUs a node differ by 4.6 %."
    )
    return {"title": "One placement left out", "note": note, "commands": COMMANDS,
            "columns": list(COLUMNS), "rows": summary(judged(splits))}  # fmt: skip
