"""The folder of a training run: claimed by one run, with the course of its errors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.splits import Split
from cdmpp.errors import CdmppError
from cdmpp.model.build import Model
from cdmpp.model.old_names import current_names
from cdmpp.platform.files import read_json, write_json, write_text
from cdmpp.training.config import Run, TrainConfig
from cdmpp.training.inputs import Replay

RUN_FILE = "run.json"


def claim_folder(
    run: Run, config: TrainConfig, dataset: LatencyDataset, split: Split, start: Sequence[Model], replay: Replay | None
) -> None:
    """Refuse to continue another run in ``run.out``: a checkpoint fits only its own data, start and configuration."""
    digest = hashlib.blake2b(digest_size=8)
    for rows in (split.train, split.validation, np.zeros(0, np.int64) if replay is None else replay.rows):
        digest.update("\n".join(dataset.record_ids[rows].tolist()).encode())
    for model in start:
        for value in model.state_dict().values():
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    identity = json.loads(json.dumps({"config": config.to_dict(), "seed": run.seed, "programs": digest.hexdigest()}))
    _without_processes(identity)
    path = run.out / RUN_FILE
    if path.is_file():
        before = read_json(path)
        if isinstance(config_before := before.get("config"), dict) and isinstance(config_before.get("model"), dict):
            config_before["model"] = current_names(config_before["model"])
        _without_processes(before)
        if differing := [key for key in identity if before.get(key) != identity[key]]:
            raise CdmppError(
                f"{run.out} holds a run with another {' and '.join(differing)}; choose another out= folder, "
                "or delete this one to start over"
            )
        return
    write_json(path, identity)


def _without_processes(identity: Any) -> None:
    """Leave out how many processes share each batch: what is learned is the same, and others may go on."""
    config = identity.get("config")
    if isinstance(config, dict) and isinstance(trainer := config.get("trainer"), dict):
        for name in ("devices", "nodes", "strategy"):
            trainer.pop(name, None)


def write_history(path: Path, history: list[dict[str, float]]) -> None:
    """Write one CSV line a validation."""
    lines = [",".join(history[0]), *(",".join(f"{value:g}" for value in row.values()) for row in history)]
    write_text(path, "\n".join(lines) + "\n")
