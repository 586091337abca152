"""Baselines that any learned model must beat, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.splits import Split
from cdmpp.data.subsample import sample_rows
from cdmpp.errors import DataError
from cdmpp.evaluation.eager import EagerCosts, EagerRoofline, eager_columns
from cdmpp.evaluation.evaluation_data import Baseline, EvaluationData
from cdmpp.evaluation.formulas import Analytic, CodeCosts, Constant, Roofline, Simulated
from cdmpp.evaluation.trees import Trees, TreeSettings, ours_pooled, per_store_pooled
from cdmpp.training.metrics import score

BASELINES: dict[str, Callable[[TreeSettings], Baseline]] = {
    "constant": lambda settings: Constant(),
    "roofline": lambda settings: Roofline(),
    "analytic": lambda settings: Analytic(),
    "simulated": lambda settings: Simulated(),
    "code_costs": lambda settings: CodeCosts(),
    "xgb_per_store": lambda settings: Trees(per_store_pooled, settings),
    "xgb_ours": lambda settings: Trees(ours_pooled, settings),
    "xgb_code_residual": lambda settings: Trees(ours_pooled, settings, base=CodeCosts()),
    "library_roofline": lambda settings: EagerRoofline(),
    "library_costs": lambda settings: EagerCosts(),
    "xgb_library": lambda settings: Trees(eager_columns, settings, base=EagerRoofline()),
}
NEED_PER_STORE = "xgb_per_store"
_MAX_PROGRAMS = 50_000
"""Most programs of a part that baselines of a training run see, a sample: they hold all vectors in memory."""


def make_baseline(name: str, settings: TreeSettings) -> Baseline:
    """Make the baseline of that name; ``DataError`` lists the names."""
    if name not in BASELINES:
        raise DataError(f"unknown baseline {name!r}; known: {', '.join(BASELINES)}")
    return BASELINES[name](settings)


def score_baselines(
    dataset: LatencyDataset, split: Split, names: Sequence[str], seed: int = 0, threads: int = 1
) -> dict[str, dict[str, float]]:
    """Score the baselines ``names`` on the test part, with small trees: a training run prints them too."""
    dataset, split = _sample(dataset, split)
    data, result = EvaluationData(dataset), {}
    for name in names:
        baseline = make_baseline(name, TreeSettings(depths=(6,), rounds=400, threads=threads))
        baseline.fit(data, split, seed)
        result[name] = score(dataset, split.test, baseline.predict(data, split.test))["metrics"]
    return result


def _sample(dataset: LatencyDataset, split: Split) -> tuple[LatencyDataset, Split]:
    parts = {name: getattr(split, name) for name in ("train", "validation", "test")}
    if max(map(len, parts.values())) <= _MAX_PROGRAMS:
        return dataset, split
    kept = {name: np.sort(sample_rows(rows, _MAX_PROGRAMS)) for name, rows in parts.items()}
    rows = np.unique(np.concatenate(list(kept.values())))
    places: dict[str, Any] = {name: np.searchsorted(rows, part) for name, part in kept.items()}
    return dataset.take(rows), replace(split, **places)
