"""ProgramBatch: programs as a model reads them, and ReadOptions: how they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from cdmpp.ast.table import AstTable
from cdmpp.data.targets import disagreement, retargeted
from cdmpp.devices import Device
from cdmpp.errors import UnsupportedProgramError
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH
from cdmpp.machine_code.cpu.compile import LIMIT_S
from cdmpp.platform.limits import check_fields, numbers


@dataclass(frozen=True)
class ReadOptions:
    """These options decide how programs are read. ``UsageError`` for a value that cannot be."""

    LIMITS: ClassVar = {"limit_s": numbers(0, 10**6, "seconds")}

    device: Device
    features: str = "cdmpp"
    """Kind of leaf vectors, a name in ``layout.FEATURES``."""
    compiled: bool = False
    """Compile CPU programs for their code vectors."""
    limit_s: float = LIMIT_S
    retarget: bool = False
    """Make programs of another architecture, or of another CPU, for the device's own target."""

    def __post_init__(self) -> None:
        check_fields(self)

    def target_of(self, target: str) -> str:
        """Return the target that a program recorded for ``target`` is made for, both as JSON.

        ``UnsupportedProgramError``: it is not of the device.
        """
        own = retargeted(self.device, target)
        used = own if self.retarget else target
        if reason := disagreement(self.device, used):
            hint = "" if disagreement(self.device, own) else "; retarget=True (--retarget) makes programs for that"
            raise UnsupportedProgramError(f"{reason}{hint}")
        return used


@dataclass(frozen=True)
class ProgramBatch:
    """A model reads n programs so."""

    asts: AstTable
    labels: tuple[str, ...]
    refused: tuple[str, ...] = ()
    """Programs that were left out, each with the reason."""
    reasons: Mapping[int, str] = field(default_factory=dict)
    """Program -> why it has no code vector, where that is known."""

    def with_codes(
        self, codes: Mapping[str, np.ndarray], faults: Mapping[str, str], keys: Sequence[str]
    ) -> ProgramBatch:
        """Get code vectors for programs without, and why some get none, by the ``keys`` (n,) of the programs."""
        reasons = {i: faults[key] for i, key in enumerate(keys) if key in faults}
        if not codes:
            return replace(self, reasons=reasons)
        have, missing = self.asts.codes_or_nan(), np.full(CODE_WIDTH, np.nan, np.float32)
        new = np.stack([codes.get(key, missing) for key in keys])
        return replace(self, asts=self.asts.with_codes(np.where(np.isnan(have[:, :1]), new, have)), reasons=reasons)
