"""Scorer: what a trained model says of scheduled programs, many at a time, by their compact ASTs or by machine code."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.extract import extract
from cdmpp.ast.table import AstTable
from cdmpp.data.derive import cores
from cdmpp.devices import Device
from cdmpp.errors import CdmppError
from cdmpp.model.pooled import with_devices
from cdmpp.predict.predictor import Predictor

_KEPT = 20_000
"""Programs whose ASTs are remembered: a search meets most of its programs again."""


@dataclass(frozen=True)
class Said:
    """Of n programs."""

    log_latency: np.ndarray
    """(n,) seconds, by the trained model."""
    features: np.ndarray
    """(n, width) what a learner reads: the pooled compact AST."""


class Scorer:
    """One model, one device."""

    def __init__(self, predictor: Predictor, device: Device) -> None:
        self.predictor, self.device = predictor, device
        self._asts: OrderedDict[int, CompactAST | str] = OrderedDict()
        self._pool = ThreadPoolExecutor(cores())

    def asts(self, modules: Mapping[int, Any], target: Any) -> dict[int, CompactAST | str]:
        """Compact AST of each scheduled module by its structural hash, or why it has none."""
        missing = [key for key in modules if key not in self._asts]

        def read(key: int) -> CompactAST | str:
            try:
                return extract(modules[key], target)
            except CdmppError as error:
                return str(error)

        self._asts.update(zip(missing, self._pool.map(read, missing), strict=True))
        found = {key: self._asts[key] for key in modules}
        while len(self._asts) > _KEPT:
            self._asts.popitem(last=False)
        return found

    def said(self, asts: Sequence[CompactAST], codes: np.ndarray | None = None) -> Said:
        """By ASTs alone, or with code vectors (n, CODE_WIDTH)."""
        table = AstTable.from_asts(asts).with_codes(codes)
        latency_s = self.predictor.predict(table, self.device, compiled=codes is not None).latency_s
        features = with_devices(table, [self.device] * len(table))
        return Said(np.log(latency_s), features)
