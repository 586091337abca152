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
from cdmpp.data.targets import disagreement, retargeted
from cdmpp.devices import Device
from cdmpp.errors import CdmppError, UnsupportedProgramError
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH
from cdmpp.operators.operator import LibraryOperator
from cdmpp.operators.operator_vector import operator_program


@dataclass(frozen=True)
class Wishes:
    """How programs are to be read."""

    device: Device
    features: str = "cdmpp"
    """Kind of leaf vectors, a name in ``layout.FEATURES``."""
    compiled: bool = False
    """Compile CPU programs for their code vectors."""
    limit_s: float = LIMIT_S
    retarget: bool = False
    """Make programs of another architecture, or of another CPU, for the device's own target."""

    def target_of(self, target: str) -> str:
        """JSON of the target that a program recorded for ``target`` (JSON) is made for.

        ``UnsupportedProgramError``: it is not of the device.
        """
        own = retargeted(self.device, target)
        used = own if self.retarget else target
        if reason := disagreement(self.device, used):
            hint = "" if disagreement(self.device, own) else "; retarget=True (--retarget) makes programs for that"
            raise UnsupportedProgramError(f"{reason}{hint}")
        return used


@dataclass(frozen=True)
class Inputs:
    """n programs as a model reads them."""

    asts: AstTable
    labels: tuple[str, ...]
    refused: tuple[str, ...] = ()
    """Programs that were left out, each with the reason."""
    reasons: Mapping[int, str] = field(default_factory=dict)
    """Program -> why it has no code vector, where that is known."""

    def with_codes(self, codes: Mapping[str, np.ndarray], faults: Mapping[str, str], keys: Sequence[str]) -> Inputs:
        """Code vectors for programs that have none yet, and why some get none, by the ``keys`` (n,) of the programs."""
        reasons = {i: faults[key] for i, key in enumerate(keys) if key in faults}
        if not codes:
            return replace(self, reasons=reasons)
        have, missing = self.asts.codes_or_nan(), np.full(CODE_WIDTH, np.nan, np.float32)
        new = np.stack([codes.get(key, missing) for key in keys])
        return replace(self, asts=self.asts.with_codes(np.where(np.isnan(have[:, :1]), new, have)), reasons=reasons)


def read_inputs(programs: Any, wishes: Wishes) -> Inputs:
    """Raises ``CdmppError`` where nothing can be read of what was given."""
    from cdmpp.predict.folder import read_path

    if isinstance(programs, AstTable):
        return Inputs(programs, _numbers(len(programs)))
    if isinstance(programs, str | Path):
        return read_path(Path(programs), wishes)
    items: list[Any] = list(programs) if isinstance(programs, Sequence) else [programs]
    if items and all(isinstance(item, LibraryOperator) for item in items):
        return _of_operators(items, wishes)
    if wishes.features != "cdmpp":
        raise CdmppError(f"this model reads {wishes.features} vectors: give it a data set or a Parquet file of them")
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


def _of_operators(operators: Sequence[LibraryOperator], wishes: Wishes) -> Inputs:
    if wishes.features != "library":
        raise CdmppError(
            "this model predicts scheduled programs, not operators that a library serves: name a model of those "
            "(trained with model=library features=library)"
        )
    kind = "cpu" if wishes.device.kind == "cpu" else "gpu"
    asts = AstTable.from_asts(operator_program(operator, kind) for operator in operators)
    return Inputs(asts, tuple(map(str, operators)))


def _numbers(n: int) -> tuple[str, ...]:
    return tuple(f"#{i}" for i in range(n))
