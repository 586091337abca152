"""Scorer: what a trained model says of scheduled programs, many at a time, by their compact ASTs or by machine code."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.scheduled import extract_scheduled_many
from cdmpp.ast.table import AstTable
from cdmpp.devices import Device
from cdmpp.errors import CdmppError
from cdmpp.model.compiled_ranker import CompiledRanker
from cdmpp.model.pooled import with_devices
from cdmpp.model.ranker import SHARPNESS
from cdmpp.platform.cores import cores
from cdmpp.predict.predictor import Predictor

_KEPT = 8192
"""Programs that are remembered, 10 kB each: a search meets some of them again."""
_FEW = 32
"""Programs of a task by which what the ranker says becomes seconds."""


class Read(NamedTuple):
    """This is what a program's AST says of it, whatever its task."""

    ast: CompactAST
    features: np.ndarray
    """(width,) what a learner reads: the pooled compact AST."""
    log_latency: float
    """Seconds, by the trained model; from a ranker only how far programs of a task are apart."""


@dataclass(frozen=True)
class Said:
    """The model says this of n programs."""

    log_latency: np.ndarray
    """(n,) seconds, by the trained model."""
    features: np.ndarray
    """(n, width) what a learner reads: the pooled compact AST."""


class Scorer:
    """A scorer has one model and one device. Where the model has a ranker, that judges ASTs: it was made to choose.

    One that ``remembers`` reads a program once, and its keys have to be hashes, which take as long as half of reading.
    Another one, whose keys may be modules, knows those it was asked about last: a generation of a search keeps a tenth
    of the one before as it was. More modules would live on, and slow the search down.
    """

    def __init__(self, predictor: Predictor, device: Device, remembers: bool) -> None:
        self.predictor, self.device, self._kept = predictor, device, _KEPT if remembers else 0
        self._ranker = None if predictor.ranker is None else CompiledRanker(predictor.ranker)
        self._read: OrderedDict[Hashable, Read | str] = OrderedDict()
        self.offsets: dict[str, float] = {}
        """Task -> the logarithm that turns the ranker's scores into seconds."""

    def read(self, modules: Mapping[Hashable, Any], target: Any) -> dict[Hashable, Read | str]:
        """Read each scheduled module, or say why it cannot be read. Equal keys stand for equal programs."""
        missing = [key for key in modules if key not in self._read]
        found = extract_scheduled_many([modules[key] for key in missing], target, cores())
        asts = [ast for ast in found if isinstance(ast, CompactAST)]
        if asts:
            rows = (Read(*one) for one in zip(asts, *self.scored(AstTable.from_asts(asts)), strict=True))
        for key, ast in zip(missing, found, strict=True):
            self._read[key] = str(ast) if isinstance(ast, CdmppError) else next(rows)
        known = {key: self._read[key] for key in modules}
        for key in modules:
            self._read.move_to_end(key)
        while len(self._read) > max(self._kept, len(modules)):
            self._read.popitem(last=False)
        return known

    def forget(self) -> None:
        """Drop what was read."""
        self._read.clear()

    def scored(self, table: AstTable) -> tuple[np.ndarray, np.ndarray]:
        """Compute the last two fields of ``Read`` of n programs: (n, width) and (n,)."""
        features = with_devices(table, [self.device] * len(table))
        if self._ranker is None:
            return features, self._log_latency(table)
        return features, -SHARPNESS * self._ranker.scores(features).astype(np.float64)

    def fast(self, programs: Sequence[Read], task: str) -> Said:
        """Predict from ASTs only. ``task`` names the workload that they are schedules of."""
        logs = np.array([one.log_latency for one in programs])
        if self._ranker is not None:
            if task not in self.offsets:
                few = AstTable.from_asts([one.ast for one in programs[:_FEW]])
                self.offsets[task] = float(np.mean(self._log_latency(few) - logs[:_FEW]))
            logs = logs + self.offsets[task]
        return Said(logs, _features(programs))

    def precise(self, programs: Sequence[Read], codes: np.ndarray) -> Said:
        """Predict from ASTs and code vectors (n, CODE_WIDTH)."""
        table = AstTable.from_asts([one.ast for one in programs]).with_codes(codes)
        return Said(self._log_latency(table), _features(programs))

    def _log_latency(self, table: AstTable) -> np.ndarray:
        known = ~np.isnan(table.codes_or_nan()[:, 0])
        return np.log(self.predictor.predict(table, self.device, compiled=bool(known.any())).latency_s)


def _features(programs: Sequence[Read]) -> np.ndarray:
    return np.concatenate([one.features for one in programs]).reshape(len(programs), -1)  # `stack` checks each shape
