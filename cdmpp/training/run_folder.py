"""The folder of a training run: claimed by one run, with the card of what came of it and the course of its errors."""

from __future__ import annotations

import datetime
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cdmpp import __version__
from cdmpp.data.files import plain, read_json, write_atomic, write_json
from cdmpp.data.splits import Split
from cdmpp.errors import CdmppError
from cdmpp.predict.predictor import Predictor
from cdmpp.training.config import TrainConfig
from cdmpp.training.metrics import breakdown

if TYPE_CHECKING:
    from cdmpp.data.dataset import LatencyDataset

RUN_FILE = "run.json"


def claim_folder(
    out: Path,
    config: TrainConfig,
    seed: int,
    dataset: LatencyDataset,
    split: Split,
    initial: Predictor | None,
    replayed: np.ndarray,
) -> None:
    """Refuse to continue another run: a checkpoint fits only its own data and configuration.

    Args:
        initial: the model that training starts from.
        replayed: (n,) rows that are learned besides ``split.train``.

    Raises:
        CdmppError: ``out`` holds another run; it says what differs.
    """
    digest = hashlib.blake2b(digest_size=8)
    for rows in (split.train, split.validation, replayed):
        digest.update("\n".join(np.asarray(dataset.record_ids)[rows].tolist()).encode())
    for model in initial.models if initial else []:
        for value in model.state_dict().values():
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    mine = json.loads(json.dumps({"config": config.to_dict(), "seed": seed, "programs": digest.hexdigest()}))
    path = out / RUN_FILE
    if path.is_file():
        found = read_json(path)
        differing = [key for key in mine if found.get(key) != mine[key]]
        if differing:
            raise CdmppError(
                f"{out} holds a run with another {' and '.join(differing)}; choose another out= folder, "
                "or delete this one to start over"
            )
        return
    write_json(path, mine)


def run_card(
    dataset: LatencyDataset,
    split: Split,
    config: TrainConfig,
    seed: int,
    rows: np.ndarray,
    predicted: np.ndarray,
    val_metrics: dict[str, float],
) -> dict[str, Any]:
    """What a reader of the model folder needs to know of how it came to be and how good it is."""
    truth, tasks = dataset.latency_s[rows], np.asarray(dataset.task_ids)[rows]
    card = {
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cdmpp": __version__,
        "torch": torch.__version__,
        "data": dataset.source,
        "split": {"name": split.name, "seed": split.seed, **split.counts},
        "programs": {"train": len(split.train), "validation": len(split.validation), "test": len(split.test)},
        "seed": seed,
        "training": config.to_dict(),
        "validation": val_metrics,
        "validation_by_device": breakdown(truth, predicted, tasks, np.asarray(dataset.devices)[rows].tolist()),
        "validation_by_op_class": breakdown(truth, predicted, tasks, np.asarray(dataset.op_classes)[rows].tolist()),
    }
    return plain(card)


def write_history(path: Path, history: list[dict[str, float]]) -> None:
    """One CSV line a validation."""
    lines = [",".join(history[0])] + [",".join(f"{value:g}" for value in row.values()) for row in history]
    text = "\n".join(lines) + "\n"

    def write(temporary: Path) -> None:
        temporary.write_text(text)

    write_atomic(path, write)
