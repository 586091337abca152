"""Code vectors as the model reads them: beside the analytic time, in the device's own seconds."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cdmpp.devices import SPEC_FIELDS
from cdmpp.machine_code.code_features import CODE_NAMES, CODE_WIDTH

N_CODE = 1 + CODE_WIDTH + 2
"""Flag, code vector, log-seconds by the cycles of its machine code, and how far those are from the analytic time."""
_CYCLES = 1 + CODE_NAMES.index("machine_cycles")
_CLOCK = SPEC_FIELDS.index("clock_mhz")
_TYPICAL_CLOCK_MHZ = 2500.0


def code_inputs(codes: Tensor, device_spec: Tensor, log_analytic_s: Tensor) -> Tensor:
    """(B, N_CODE); zeros where there is no code vector.

    Args:
        codes: (B, 1 + CODE_WIDTH), see ``Batch.codes``.
        device_spec: (B, len(SPEC_FIELDS)) raw datasheet numbers, 0 where unknown.
        log_analytic_s: (B,) natural log of the analytic time of the whole program.
    """
    clock = device_spec[:, _CLOCK]
    clock_hz = 1e6 * torch.where(clock > 0, clock, torch.full_like(clock, _TYPICAL_CLOCK_MHZ))
    log_code_s = codes[:, _CYCLES] * math.log(2.0) - clock_hz.log()
    pair = torch.stack([log_code_s, log_code_s - log_analytic_s.to(log_code_s.dtype)], dim=1)
    return torch.cat([codes, pair * codes[:, :1]], dim=1)
