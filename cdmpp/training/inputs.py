"""FitInputs: the programs that a run may look at, as tensors, and what each of them is for."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace

import numpy as np
import torch

from cdmpp.data.batching import ProgramTensors
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.splits import Split
from cdmpp.devices import sheets_of
from cdmpp.errors import CdmppError, DataError
from cdmpp.platform.limits import check_choice
from cdmpp.training.config import LossConfig


@dataclass(frozen=True)
class Replay:
    """A model knows these programs already; they are mixed into the batches that teach it something new."""

    rows: np.ndarray
    """(n,) none of them in the test or validation part."""
    ratio: float = 1.0
    """Programs of these that an epoch sees for each training program, drawn anew every epoch."""
    weight: float = 1.0


@dataclass(frozen=True)
class FitInputs:
    """No program of the test part is in here, and no label of an unlabelled one. Rows are those of ``programs``."""

    programs: ProgramTensors
    dataset_rows: np.ndarray
    """(len(programs),) rising: the row of each program in the data set."""
    train: np.ndarray
    validation: np.ndarray
    unlabelled: np.ndarray
    """Programs of the target domain for ``loss.domain``; empty without."""
    replay: Replay | None = None

    @property
    def digest(self) -> int:
        """Return a number of 62 bits that tells the programs, labels and weights apart from others."""
        found = hashlib.blake2b(digest_size=8)
        replayed = self.train[:0] if self.replay is None else self.replay.rows
        for rows in (self.dataset_rows, self.train, self.validation, self.unlabelled, replayed):
            found.update(np.ascontiguousarray(rows, np.int64).tobytes() + b"|")
        for values in (self.programs.log_latency, self.programs.weights):
            found.update(values.cpu().numpy().tobytes())
        return int.from_bytes(found.digest(), "little") >> 2

    @staticmethod
    def build(
        dataset: LatencyDataset, split: Split, loss: LossConfig, accelerator: str, replay: Replay | None = None
    ) -> FitInputs:
        """Check the parts of ``split`` and put their programs on the device that computes.

        With ``loss.domain`` the pool of ``split`` is unlabelled programs; ``replay`` has rows of
        ``dataset``. ``CdmppError`` where a part is missing or one of the test, or there is no such accelerator.
        """
        domain = loss.domain
        pool = split.pool if domain != "none" else np.zeros(0, np.int64)
        if domain != "none" and len(pool) == 0:
            raise CdmppError(
                f"loss.domain={domain} needs unlabelled programs of the target domain, and split {split.name!r} sets "
                "none apart: use split=by_device, or a by_network split with split.unlabelled_fraction=0.25"
            )
        replayed = np.zeros(0, np.int64) if replay is None else replay.rows
        for name, rows in (("train", split.train), ("validation", split.validation)):
            if not len(rows):
                raise DataError(f"the {name} part of split {split.name!r} is empty: nothing to learn from or choose by")
        if np.isin(pool, split.test).any():
            raise DataError("unlabelled programs must not be part of the test programs")
        for name, rows in (("test", split.test), ("validation", split.validation)):
            if np.isin(replayed, rows).any():
                raise DataError(f"replayed programs must not be part of the {name} programs")
        labelled = np.concatenate([split.train, replayed, split.validation])
        used = np.unique(np.concatenate([labelled, pool]))
        weights = _balanced(dataset.devices[used], np.isin(used, split.train), loss.device_balance)
        if replay is not None:
            weights[np.isin(used, replayed)] = replay.weight
        # Labels of the pool may not even exist.
        latency_s = np.where(np.isin(used, labelled), dataset.latency_s[used], 1.0)
        names = dataset.devices[used]
        programs = ProgramTensors.build(dataset.asts, sheets_of(names), names, latency_s, weights, rows=used)
        train, validation, unlabelled = (np.searchsorted(used, rows) for rows in (split.train, split.validation, pool))
        moved = replace(replay, rows=np.searchsorted(used, replayed)) if replay else None
        return FitInputs(programs.to(torch_device(accelerator)), used, train, validation, unlabelled, moved)


def _balanced(names: np.ndarray, trains: np.ndarray, power: float) -> np.ndarray:
    """(n,) float32 weights of programs on devices ``names``, 1 on average over those that train."""
    _, which = np.unique(names, return_inverse=True)
    weights = np.maximum(np.bincount(which[trains], minlength=which.max() + 1), 1.0)[which] ** -power
    return (weights / weights[trains].mean()).astype(np.float32)


def torch_device(accelerator: str) -> str:
    """Return the torch device on which this process computes; ``CdmppError`` where there is no such accelerator."""
    check_choice("accelerator", accelerator, ("auto", "cpu", "gpu"))
    if accelerator == "gpu" and not torch.cuda.is_available():
        raise CdmppError("accelerator=gpu, but torch sees no CUDA device; use accelerator=cpu or install a CUDA torch")
    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if accelerator != "cpu" and torch.cuda.is_available() else "cpu"
