"""PriorTable: the prior columns of all programs of a run, which computes them once and not in every epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cdmpp.data.batching import Batch, ProgramTensors, ordered_batches
from cdmpp.model.analytic import N_BOUNDS, N_STATES
from cdmpp.model.prior_columns import PriorColumns
from cdmpp.model.regressor import CdmppModel


@dataclass(frozen=True)
class PriorTable:
    """The tables lie on the torch device of the programs."""

    kernels: Tensor
    """(sum of kernels + 1, N_BOUNDS + N_STATES + 1), log-seconds in the last column; a last row of zeros to pad."""
    starts: Tensor
    """(n,) int64, the first row of each program."""
    code: Tensor
    """(n, C)."""

    @staticmethod
    @torch.no_grad()
    def build(model: CdmppModel, programs: ProgramTensors) -> PriorTable:
        """Compute the columns of all ``programs`` by the fitted priors of ``model``."""
        starts = programs.kernel_counts.cumsum(0) - programs.kernel_counts
        rows = int(programs.host_kernel_counts.sum()) + 1
        kernels = programs.kernel_features.new_zeros(rows, N_BOUNDS + N_STATES + 1)
        code = programs.kernel_features.new_zeros(len(programs), model.n_code_columns)
        for batch in ordered_batches(programs, np.arange(len(programs))):
            columns, mask = model.prior_columns(batch), batch.kernel_mask
            code[batch.rows] = columns.code
            steps = torch.arange(mask.shape[1], device=mask.device)
            places = (starts[batch.rows, None] + steps)[mask]
            kernels[places] = torch.cat([columns.kernels, columns.log_s[..., None]], dim=-1)[mask]
        return PriorTable(kernels, starts, code)

    def take(self, batch: Batch) -> PriorColumns:
        """Return those of the programs of ``batch``."""
        steps = torch.arange(batch.kernel_mask.shape[1], device=self.starts.device)
        places = torch.where(batch.kernel_mask, self.starts[batch.rows, None] + steps, len(self.kernels) - 1)
        kernels = self.kernels[places]
        return PriorColumns(kernels[..., :-1], kernels[..., -1], self.code[batch.rows])
