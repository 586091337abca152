"""Two-stage scoring: a fast model judges all programs, a precise one those that look best. Both learn while tuning."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cdmpp.ast.quantities import unrolled_steps
from cdmpp.ast.table import AstTable
from cdmpp.devices import Device
from cdmpp.machine_code.cpu.compile import can_have_code
from cdmpp.network.compiled.choice import MOST_STEPS
from cdmpp.predict.predictor import Predictor
from cdmpp.tuning.artifacts import Artifacts
from cdmpp.tuning.learner import Learner
from cdmpp.tuning.scorer import Read, Said, Scorer


@dataclass(frozen=True)
class Judged:
    """These are answers for the programs of one task, by the key of each."""

    log_latency: Mapping[Hashable, float]
    """Seconds, of those that can be read; infinite where it turned out that one does not compile."""
    compiled: frozenset[Hashable]
    """Keys of those whose seconds are predicted from machine code."""
    reasons: Mapping[Hashable, str]
    """The reason for which a program cannot be read or does not compile."""


@dataclass
class TwoStageScorer:
    """Scores by ASTs, then by the machine code of ``look`` of the programs judged together; 0: by ASTs alone."""

    scorer: Scorer
    artifacts: Artifacts
    look: int
    fast: Learner = field(default_factory=Learner)
    precise: Learner = field(default_factory=Learner)

    @classmethod
    def of(cls, predictor: Predictor, device: Device, look: int) -> TwoStageScorer:
        """Make one whose ``look`` counts where the model reads machine code and the device's can be had here."""
        look = look if predictor.reads_code and can_have_code(device.target) else 0
        return cls(Scorer(predictor, device, look > 0), Artifacts(device.core or "" if look else ""), look)

    def judged(self, modules: Mapping[Any, Any], target: Any, task: str) -> Judged:
        """Judge scheduled ``modules``, whose keys are structural hashes where any is compiled.

        ``task`` names the workload that they are schedules of.
        """
        read = self.scorer.read(modules, target)
        reasons: dict[Hashable, str] = {key: one for key, one in read.items() if isinstance(one, str)}
        readable, programs = _readable(read)
        if not readable:
            return Judged({}, frozenset(), reasons)
        said = self.scorer.fast(programs, task)
        logs = said.log_latency + self.fast.expected(said.features, task)
        coded: list[int] = []
        if self.look:
            place, late = np.argsort(logs, kind="stable"), self._late(programs)
            place = place[~late[place]][: self.look]
            artifacts = self.artifacts.compiled({readable[i]: modules[readable[i]] for i in place}, target)
            coded = [int(i) for i in place if artifacts[readable[i]].code is not None]
            if coded:
                precise = self._said_of_code(read, [readable[i] for i in coded])
                better = precise.log_latency + self.precise.expected(precise.features, task)
                # What looked best turns out worse, mostly: without this those that nobody looked at would win.
                logs += np.mean(better - logs[coded])
                logs[late] = np.maximum(logs[late], better.max())
                logs[coded] = better
            for i in place:
                if artifacts[readable[i]].library is None:
                    logs[i], reasons[readable[i]] = math.inf, artifacts[readable[i]].fault
        by_key = {key: float(value) for key, value in zip(readable, logs, strict=True)}
        return Judged(by_key, frozenset(readable[i] for i in coded), reasons)

    def learn(self, modules: Mapping[Any, Any], measured_s: Mapping[Any, float], target: Any, task: str) -> int:
        """Learn from measured programs of a task; unreadable ones teach nothing. Return how many were learned from."""
        read = self.scorer.read(modules, target)
        readable, programs = _readable(read)
        if not readable:
            return 0
        labels = np.log([measured_s[key] for key in readable])
        said = self.scorer.fast(programs, task)
        self.fast.learn(said.features, labels - said.log_latency, task)
        if coded := [i for i, key in enumerate(readable) if self.look and self.artifacts.code(key) is not None]:
            precise = self._said_of_code(read, [readable[i] for i in coded])
            self.precise.learn(precise.features, labels[coded] - precise.log_latency, task)
        return len(readable)

    @staticmethod
    def _late(programs: Sequence[Read]) -> np.ndarray:
        """(n,) bool: those that take seconds, or minutes, to compile, and are hardly ever the fastest."""
        return unrolled_steps(AstTable.from_asts([one.ast for one in programs])) > MOST_STEPS

    def _said_of_code(self, read: Mapping[Any, Any], keys: Sequence[Any]) -> Said:
        codes = np.stack([code for key in keys if (code := self.artifacts.code(key)) is not None])
        return self.scorer.precise([read[key] for key in keys], codes)


def _readable(read: Mapping[Hashable, Read | str]) -> tuple[list[Any], list[Read]]:
    """Keys and programs of what could be read."""
    found = {key: one for key, one in read.items() if isinstance(one, Read)}
    return list(found), list(found.values())
