"""Scorer: what a trained model says of scheduled programs, many at a time, by their compact ASTs or by machine code."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.scheduled import extract_scheduled_many
from cdmpp.ast.table import AstTable
from cdmpp.devices import Device
from cdmpp.errors import CdmppError
from cdmpp.model.pooled import with_devices
from cdmpp.model.ranker import SHARPNESS
from cdmpp.platform.cores import cores
from cdmpp.predict.predictor import Predictor

_KEPT = 20_000
"""Programs whose ASTs are remembered: a search meets most of its programs again."""
_FEW = 32
"""Programs of a task by which what the ranker says becomes seconds."""


@dataclass(frozen=True)
class Said:
    """The model says this of n programs."""

    log_latency: np.ndarray
    """(n,) seconds, by the trained model."""
    features: np.ndarray
    """(n, width) what a learner reads: the pooled compact AST."""


class Scorer:
    """A scorer has one model and one device. Where the model has a ranker, that judges ASTs: it was made to choose."""

    def __init__(self, predictor: Predictor, device: Device) -> None:
        self.predictor, self.device = predictor, device
        self._asts: OrderedDict[int, CompactAST | str] = OrderedDict()
        self.offsets: dict[str, float] = {}
        """Task -> the logarithm that turns the ranker's scores into seconds."""

    def asts(self, modules: Mapping[int, Any], target: Any) -> dict[int, CompactAST | str]:
        """Extract the compact AST of each scheduled module by its structural hash, or why it has none."""
        missing = [key for key in modules if key not in self._asts]
        read = extract_scheduled_many([modules[key] for key in missing], target, cores())
        for key, ast in zip(missing, read, strict=True):
            self._asts[key] = str(ast) if isinstance(ast, CdmppError) else ast
        found = {key: self._asts[key] for key in modules}
        while len(self._asts) > _KEPT:
            self._asts.popitem(last=False)
        return found

    def forget(self) -> None:
        """Drop the remembered ASTs."""
        self._asts.clear()

    def fast(self, asts: Sequence[CompactAST], task: str) -> Said:
        """Predict from ASTs only. ``task`` names the workload that they are schedules of."""
        table = AstTable.from_asts(asts)
        features = with_devices(table, [self.device] * len(table))
        if self.predictor.ranker is None:
            return Said(self._log_latency(table), features)
        with torch.inference_mode():
            scores = self.predictor.ranker(torch.from_numpy(features).to(self.predictor.torch_device))
        behind = -SHARPNESS * scores.double().cpu().numpy()
        if task not in self.offsets:
            few = slice(0, _FEW)
            self.offsets[task] = float(np.mean(self._log_latency(table.take(np.arange(len(table))[few])) - behind[few]))
        return Said(behind + self.offsets[task], features)

    def precise(self, asts: Sequence[CompactAST], codes: np.ndarray) -> Said:
        """Predict from ASTs and code vectors (n, CODE_WIDTH)."""
        table = AstTable.from_asts(asts).with_codes(codes)
        return Said(self._log_latency(table), with_devices(table, [self.device] * len(table)))

    def _log_latency(self, table: AstTable) -> np.ndarray:
        known = ~np.isnan(table.codes_or_nan()[:, 0])
        return np.log(self.predictor.predict(table, self.device, compiled=bool(known.any())).latency_s)
