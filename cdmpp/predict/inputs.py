"""Whatever ``Predictor.predict`` is given -> compact ASTs with labels, and what was left out of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.layout import EXTRACTOR_VERSION
from cdmpp.ast.table import AstTable
from cdmpp.data.derive import LIMIT_S
from cdmpp.devices import Device
from cdmpp.errors import CdmppError


@dataclass(frozen=True)
class Wishes:
    """How programs are to be read."""

    device: Device
    features: str = "cdmpp"
    """Kind of leaf vectors, a name in ``layout.FEATURES``."""
    compiled: bool = False
    """Compile CPU programs for their code vectors."""
    limit_s: float = LIMIT_S


@dataclass(frozen=True)
class Inputs:
    """n programs as a model reads them."""

    asts: AstTable
    labels: tuple[str, ...]
    refused: tuple[str, ...] = ()
    """Programs that were left out, each with the reason."""
    reasons: Mapping[int, str] = field(default_factory=dict)
    """Program -> why it has no code vector, where that is known."""

    def with_codes(self, codes: np.ndarray | None, reasons: Mapping[int, str]) -> Inputs:
        """Code vectors for the programs that have none yet."""
        if codes is not None:
            have = self.asts.codes_or_nan()
            codes = np.where(np.isnan(have[:, :1]), codes, have)
        return replace(self, asts=self.asts if codes is None else self.asts.with_codes(codes), reasons=dict(reasons))


def read_inputs(programs: Any, wishes: Wishes) -> Inputs:
    """Raises ``CdmppError`` where nothing can be read of what was given."""
    from cdmpp.predict.folder import read_path

    if isinstance(programs, AstTable):
        return Inputs(programs, _numbers(len(programs)))
    if isinstance(programs, str | Path):
        return read_path(Path(programs), wishes)
    if wishes.features != "cdmpp":
        raise CdmppError(f"this model reads {wishes.features} vectors: give it a data set or a Parquet file of them")
    items: list[Any] = list(programs) if isinstance(programs, Sequence) else [programs]
    if all(isinstance(item, CompactAST) for item in items):
        if other := sorted({item.extractor_version for item in items} - {EXTRACTOR_VERSION}):
            raise CdmppError(
                f"ASTs of extractor version {', '.join(other)} given, this model reads version {EXTRACTOR_VERSION}; "
                "extract them again"
            )
        return Inputs(AstTable.from_asts(items), _numbers(len(items)))
    try:
        from cdmpp.predict.compiled import read_programs
    except ImportError as error:
        raise CdmppError(
            "predicting programs needs TVM to lower them: pip install 'cdmpp[tvm]'. Stored ASTs need none"
        ) from error
    return read_programs(items, wishes)


def _numbers(n: int) -> tuple[str, ...]:
    return tuple(f"#{i}" for i in range(n))
