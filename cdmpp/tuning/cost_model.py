"""The cost model of a search: for ``cost_model=`` of ``ms.tune_tir``, ``ms.tune_tasks`` and ``tune_relax``."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.cost_model import PyCostModel

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.devices import Device
from cdmpp.errors import CdmppError
from cdmpp.machine_code.compile import can_have_code
from cdmpp.predict.predictor import Predictor
from cdmpp.tuning.artifacts import Artifacts
from cdmpp.tuning.builder import Builder
from cdmpp.tuning.learner import Learner
from cdmpp.tuning.scorer import Said, Scorer
from cdmpp.tuning.stored import read_learned, write_learned

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
        cascade: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.origin = f"{name} for {device.name}"
        self.scorer, self.device, self.frozen = Scorer(predictor, device), device, frozen
        self.reads_code = cascade and predictor.reads_code and can_have_code(device.target)
        self.artifacts = Artifacts(device.core or "" if self.reads_code else "")
        self.fast, self.precise = Learner(), Learner()
        self.counts: Counter[str] = Counter()
        self._random = np.random.default_rng(seed)
        self._said_once: set[str] = set()

    @cached_property
    def builder(self) -> Any:
        """For ``builder=``: it measures what this model had compiled."""
        return Builder(self.artifacts)

    def predict(self, context: Any, candidates: Sequence[Any]) -> np.ndarray:
        """(n,) float64, one score a candidate. Never raises: a search goes on whatever happens here."""
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
        """What was learned, as one safetensors file. The trained model is not in it: it has a folder of its own."""
        write_learned(Path(path), {"fast": self.fast, "precise": self.precise}, self.origin)

    def load(self, path: str) -> None:
        """What ``save`` wrote; ``DataError`` where that is something else."""
        learned = read_learned(Path(path), self.origin)
        self.fast, self.precise = learned["fast"], learned["precise"]

    def _scores(self, context: Any, candidates: Sequence[Any]) -> np.ndarray:
        keys, modules, asts = self._read(context, candidates)
        readable = [key for key in modules if isinstance(asts[key], CompactAST)]
        self.counts["unread"] += sum(key not in readable for key in keys)
        if not readable:
            self._complain("reading", CdmppError(str(next(iter(asts.values()), "no candidates"))))
            return self._random.random(len(candidates))
        said = self.scorer.said([asts[key] for key in readable])
        task = _task_of(context)
        logs = said.log_latency + self.fast.residuals(said.features, task)[0]
        if self.reads_code:
            place = np.argsort(logs)[:_LOOK]
            looked = [readable[i] for i in place]
            artifacts = self.artifacts.compiled({key: modules[key] for key in looked}, context.target)
            self.counts["compiled"] += len(looked)
            coded = [i for i, key in zip(place, looked, strict=True) if artifacts[key].code is not None]
            if coded:
                precise = self._said_of_code(asts, [readable[i] for i in coded])
                logs[coded] = precise.log_latency + self.precise.residuals(precise.features, task)[0]
            for i, key in zip(place, looked, strict=True):
                if artifacts[key].library is None:
                    logs[i] = math.inf  # it does not compile: a score of zero
        by_key = dict(zip(readable, np.exp(-logs), strict=True))
        usual = float(np.median(list(by_key.values())))
        return np.array([by_key.get(key, usual) for key in keys], np.float64)

    def _read(self, context: Any, candidates: Sequence[Any]) -> tuple[list[int], dict[int, Any], dict[int, Any]]:
        found = [candidate.sch.mod for candidate in candidates]
        keys = [int(tvm_ffi.structural_hash(module)) for module in found]
        modules = dict(zip(keys, found, strict=True))
        return keys, modules, self.scorer.asts(modules, context.target)

    def _learn(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        seconds = [
            min(float(value) for value in result.run_secs) if result.run_secs is not None and result.run_secs else None
            for result in results
        ]
        measured = [(c, s) for c, s in zip(candidates, seconds, strict=True) if s is not None and 0 < s < math.inf]
        self.counts["failed"] += len(candidates) - len(measured)
        if not measured:
            return
        keys, modules, asts = self._read(context, [candidate for candidate, _ in measured])
        logs = {key: math.log(s) for key, (_, s) in zip(keys, measured, strict=True)}
        readable = [key for key in modules if isinstance(asts[key], CompactAST)]
        if not readable:
            return
        task, labels = _task_of(context), np.array([logs[key] for key in readable])
        said = self.scorer.said([asts[key] for key in readable])
        self.fast.learn(said.features, labels - said.log_latency, task)
        if coded := [i for i, key in enumerate(readable) if self.artifacts.code(key) is not None]:
            precise = self._said_of_code(asts, [readable[i] for i in coded])
            self.precise.learn(precise.features, labels[coded] - precise.log_latency, task)
        self.counts["learned"] += len(readable)

    def _said_of_code(self, asts: Mapping[int, Any], keys: Sequence[int]) -> Said:
        codes = np.stack([code for key in keys if (code := self.artifacts.code(key)) is not None])
        return self.scorer.said([asts[key] for key in keys], codes)

    def _complain(self, what: str, error: Exception) -> None:
        text = f"{what} failed ({type(error).__name__}: {str(error)[:300]})"
        if text not in self._said_once:
            self._said_once.add(text)
            log.warning("cdmpp cost model: %s; the search goes on with random scores", text)


def _task_of(context: Any) -> str:
    return f"{int(tvm_ffi.structural_hash(context.mod)):x}"
