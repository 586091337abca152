"""The cost model of a search: for ``cost_model=`` of ``ms.tune_tir``, ``ms.tune_tasks`` and ``tune_relax``."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.cost_model import PyCostModel

from cdmpp.devices import Device
from cdmpp.errors import CdmppError
from cdmpp.platform.extension import extension
from cdmpp.predict.predictor import Predictor
from cdmpp.tuning.builder import Builder
from cdmpp.tuning.stored import read_learned, write_learned
from cdmpp.tuning.two_stage import TwoStageScorer

log = logging.getLogger(__name__)

_LOOK = 16
"""Programs of each batch that the search asks about which are compiled to be read."""


@derived_object
class CostModel(PyCostModel):
    """Scores are predicted runs a second: positive, as MetaSchedule cuts scores at zero, and higher is better.

    ``counts`` says how many candidates were scored, compiled, learned from, failed and could not be read. One that
    cannot be read gets the median score of its batch, a whole batch of such random ones: it may still be measured.
    """

    def __init__(
        self,
        predictor: Predictor,
        device: Device,
        name: str = "a model",
        frozen: bool = False,
        two_stage: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        extension("extract")  # without it every batch would be unread, of which a search says little
        self.origin = f"{name} for {device.name}"
        self.two_stage, self.frozen = TwoStageScorer.of(predictor, device, _LOOK if two_stage else 0), frozen
        self.counts: Counter[str] = Counter()
        self._random = np.random.default_rng(seed)
        self._said_once: set[str] = set()

    @cached_property
    def builder(self) -> Any:
        """Pass this as ``builder=`` of a search: it measures what this model had compiled."""
        return Builder(self.two_stage.artifacts)

    def predict(self, context: Any, candidates: Sequence[Any]) -> np.ndarray:
        """Score each candidate, (n,) float64. Never raises: a search goes on whatever happens here."""
        self.counts["scored"] += len(candidates)
        try:
            return self._scores(context, candidates)
        except Exception as error:  # noqa: BLE001 - hours of tuning are worth more than a batch of scores
            self._complain("predicting", error)
            self.counts["unread"] += len(candidates)
            return self._random.random(len(candidates))

    def update(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Learn from measured candidates; those that failed teach nothing. Never raises."""
        if self.frozen or not len(candidates):
            return
        try:
            self._learn(context, candidates, results)
        except Exception as error:  # noqa: BLE001
            self._complain("learning", error)

    def save(self, path: str) -> None:
        """Save what was learned as one safetensors file. The trained model is not in it: it has a folder of its own."""
        learners = {"fast": self.two_stage.fast, "precise": self.two_stage.precise}
        write_learned(Path(path), learners, self.origin, self.two_stage.scorer.offsets)

    def load(self, path: str) -> None:
        """Load what ``save`` wrote; ``DataError`` where that is something else."""
        learned, self.two_stage.scorer.offsets = read_learned(Path(path), self.origin)
        self.two_stage.fast, self.two_stage.precise = learned["fast"], learned["precise"]

    def _scores(self, context: Any, candidates: Sequence[Any]) -> np.ndarray:
        keys, modules = _modules(candidates, self.two_stage.look > 0)
        judged = self.two_stage.judged(modules, context.target, _task_of(context))
        self.counts["compiled"] += len(judged.compiled)
        self.counts["unread"] += sum(key not in judged.log_latency for key in keys)
        if not judged.log_latency:
            self._complain("reading", CdmppError(next(iter(judged.reasons.values()), "no candidates")))
            return self._random.random(len(candidates))
        by_key = {key: math.exp(-value) for key, value in judged.log_latency.items()}
        usual = float(np.median(list(by_key.values())))
        return np.array([by_key.get(key, usual) for key in keys], np.float64)

    def _learn(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        seconds = [
            min(float(value) for value in result.run_secs) if result.run_secs is not None and result.run_secs else None
            for result in results
        ]
        measured = [(c, s) for c, s in zip(candidates, seconds, strict=True) if s is not None and 0 < s < math.inf]
        self.counts["failed"] += len(candidates) - len(measured)
        if measured:
            keys, modules = _modules([candidate for candidate, _ in measured], self.two_stage.look > 0)
            measured_s = {key: s for key, (_, s) in zip(keys, measured, strict=True)}
            self.counts["learned"] += self.two_stage.learn(modules, measured_s, context.target, _task_of(context))

    def _complain(self, what: str, error: Exception) -> None:
        text = f"{what} failed ({type(error).__name__}: {str(error)[:300]})"
        if text not in self._said_once:
            self._said_once.add(text)
            log.warning("cdmpp cost model: %s; the search goes on with random scores", text)


def _modules(candidates: Sequence[Any], hashed: bool) -> tuple[list[Any], dict[Any, Any]]:
    """Return a key of each candidate and the scheduled modules by it: their hashes, by which they are compiled.

    Not ``hashed``, each module is its own key until the scores are given.
    """
    found = [candidate.sch.mod for candidate in candidates]
    keys = [int(tvm_ffi.structural_hash(module)) for module in found] if hashed else found
    return keys, dict(zip(keys, found, strict=True))


def _task_of(context: Any) -> str:
    return f"{int(tvm_ffi.structural_hash(context.mod)):x}"
