"""One cell of an evaluation: a split, a seed and a model, with one small JSON file and its predictions next to it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cdmpp.ast.layout import EXTRACTOR_VERSION
from cdmpp.data.dataset import LatencyDataset
from cdmpp.errors import DataError
from cdmpp.evaluation.baselines import BASELINES
from cdmpp.predict.model_folder import find_model
from cdmpp.predict.stored_config import CONFIG, WEIGHTS


@dataclass(frozen=True)
class CellOptions:
    """All cells of a run share these options. ``force``: compute again even where a finished cell lies."""

    out: Path
    threads: int = 1
    overrides: tuple[str, ...] = ()
    """Hydra overrides of trained models: of all (``trainer.epochs=5``) or of one (``cdmpp:trainer=gpu``)."""
    accelerator: str = "auto"
    command: str = ""
    force: bool = False
    variants: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Further models that are trained, by name: the default one with these Hydra overrides."""
    stored: Mapping[str, str] = field(default_factory=dict)
    """Models that are there already and only tested, by name: folder or name of a shipped one."""


@dataclass(frozen=True)
class Cell:
    """A cell is a model on one split with one seed."""

    split: str
    seed: int
    model: str

    @staticmethod
    def parse(text: str) -> Cell:
        """Read ``split/seed/model`` as ``str(cell)`` writes it."""
        parts = text.split("/")
        if len(parts) != 3 or not parts[1].isdigit():
            raise DataError(f"cell {text!r} is not of the form split/seed/model, e.g. by_task/0/xgb_ours")
        return Cell(parts[0], int(parts[1]), parts[2])

    def __str__(self) -> str:
        return f"{self.split}/{self.seed}/{self.model}"

    def path(self, out: Path, dataset_name: str) -> Path:
        """Return the path of its JSON file; the predictions lie next to it."""
        return out / "cells" / dataset_name / self.split / str(self.seed) / f"{self.model}.json"

    def model_folder(self, out: Path, dataset_name: str) -> Path:
        """Return the folder in which its model is trained."""
        return out / "models" / dataset_name / str(self)

    def fingerprint(self, dataset: LatencyDataset, options: CellOptions) -> str:
        """Hash everything that its figures follow from: a finished cell with another hash is stale."""
        overrides: tuple[str, ...] = (*options.overrides, *options.variants.get(self.model, ()))
        if self.model in options.stored:
            files = [find_model(options.stored[self.model]) / name for name in (CONFIG, WEIGHTS)]
            overrides = tuple(hashlib.blake2b(file.read_bytes()).hexdigest() for file in files)
        elif self.model in BASELINES:
            overrides = ()
        names = dataset.devices.tolist()
        several = names if len(set(names)) > 1 else ()  # of one device nothing is added: finished cells stay so
        named = "\0".join((EXTRACTOR_VERSION, str(self), *overrides, *map(str, dataset.record_ids), *several))
        digest = hashlib.blake2b(named.encode(), digest_size=8)
        for numbers in (dataset.latency_s, dataset.asts.codes):
            if numbers is not None:
                digest.update(np.ascontiguousarray(numbers).tobytes())
        return digest.hexdigest()
