"""The records that a shipped model was trained and tested on, and the split that its card names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.sources import load_devices
from cdmpp.data.splits import Split, make_split
from cdmpp.errors import DataError
from cdmpp.predict.predictor import Predictor


def data_of(predictor: Predictor, roots: Sequence[Path]) -> tuple[LatencyDataset, Split]:
    """From the data sets that its card names, wherever they lie below ``roots``; ``DataError`` where one is missing."""
    names = [Path(part).name for part in str(predictor.card.get("data", "")).split(", ")]
    folders = {path.parent.name: path.parent for root in roots for path in sorted(root.glob("**/dataset.json"))}
    if missing := [name for name in names if name not in folders]:
        raise DataError(f"no data set {', '.join(missing)} below {', '.join(map(str, roots))}")
    dataset = load_devices(sorted(predictor.trained_on), [folders[name] for name in names], features=predictor.features)
    told = predictor.card["split"]
    return dataset, make_split(dataset, str(told["name"]), int(told["seed"]))


def same_parts(predictor: Predictor, split: Split) -> bool:
    """Whether the parts have as many programs as those of its training: some data sets are kept as a sample only."""
    return dict(predictor.card["programs"]) == {
        part: len(np.atleast_1d(getattr(split, part))) for part in ("train", "validation", "test")
    }
