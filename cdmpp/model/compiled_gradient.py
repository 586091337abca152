"""CompiledGradient: the forward and backward pass of a ``CdmppModel`` on a CPU, as the compiled library computes them.

A batch is computed program by program, without padding, in chunks whose number depends on the batch alone: any number
of threads gives the same bits. The module itself is what it is held to, and trains on GPUs and with dropout.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from cdmpp.data.batching import Batch, LabelledRows, ProgramTensors
from cdmpp.model.compiled import arrays_of, made, tables_of, trained
from cdmpp.model.native import native_network
from cdmpp.model.output import Output
from cdmpp.model.prior_table import PriorTable
from cdmpp.model.regressor import CdmppModel


class _PriorTables(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("kernels", "kernel_starts", "codes")),
        ("code_width", ctypes.c_int64),
    )


class CompiledGradient:
    """Answers batches of ``programs``, and puts gradients where torch would put them.

    ``threads`` are its own. Those of torch should be one meanwhile: they spin between two loops of theirs.
    """

    @staticmethod
    def fits(model: CdmppModel, programs: ProgramTensors) -> bool:
        """Return True where the library computes what the module does: on a CPU, in float32, without dropout."""
        on_cpu = all(tensor.device.type == "cpu" for tensor in (programs.kinds, model.log_mean))
        in_float32 = all(parameter.dtype == torch.float32 for parameter in model.parameters())
        return on_cpu and in_float32 and not model.config.dropout

    def __init__(self, model: CdmppModel, programs: ProgramTensors, priors: PriorTable) -> None:
        self.threads = torch.get_num_threads()
        self._model, self._programs, self._priors = model, programs, priors
        self._weights = trained(model)
        self._made, self._kept = made(model, "trainer_new")
        finalize(self, native_network().network_trainer_delete, self._made)

    def outputs(self, batches: Sequence[Batch | LabelledRows]) -> Output:
        """Answer the programs of ``batches``, one after the other, in ``threads``."""
        rows, config = torch.cat([batch.rows for batch in batches]), self._model.config
        is_hidden = torch.zeros(len(rows), dtype=torch.bool)
        if config.code and config.code_dropout and self._model.training:
            is_hidden = torch.rand(len(rows)) < config.code_dropout
        contexts = self._model.device_encoder(self._programs.device_vectors)
        found: tuple[Tensor, Tensor] = _Pass.apply(self, rows, is_hidden, contexts, *self._weights)
        log_latency, hidden = found
        return Output(log_latency, self._model.label_transform(log_latency), hidden)

    def forward(
        self, rows: Tensor, is_hidden: Tensor, contexts: Tensor, weights: Sequence[Tensor]
    ) -> tuple[_Kept, Tensor, Tensor]:
        """Compute log-seconds (n,) and hidden vectors (n, hidden) of programs ``rows`` (n,), and keep their parts."""
        priors, n = self._priors, len(rows)
        tables = tables_of(self._programs, contexts, contexts, contexts)  # neither numbers nor costs are read
        known = _PriorTables(
            priors.kernels.data_ptr(), priors.starts.data_ptr(), priors.code.data_ptr(), priors.code.shape[1]
        )
        log_latency, hidden = np.empty(n), torch.empty(n, self._model.config.hidden)
        place = native_network().network_forward(
            self._made, arrays_of([weight.detach().numpy() for weight in weights]), ctypes.byref(tables),
            ctypes.byref(known), rows.data_ptr(), is_hidden.data_ptr(), n, log_latency.ctypes.data, hidden.data_ptr(),
            self.threads,
        )  # fmt: skip
        return _Kept(self, ctypes.c_void_p(place)), torch.from_numpy(log_latency).float(), hidden


class _Kept:
    """This is what a backward pass reads of a forward pass. It holds none of its tensors: they hold it."""

    def __init__(self, of: CompiledGradient, place: ctypes.c_void_p) -> None:
        self.of, self.place = of, place  # ``of`` has to live as long
        finalize(self, native_network().network_pass_delete, place)


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, of: CompiledGradient, rows: Tensor, is_hidden: Tensor, contexts: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        contexts = contexts.detach().contiguous()
        ctx.kept, log_latency, hidden = of.forward(rows, is_hidden, contexts, weights)
        ctx.save_for_backward(contexts, *weights)  # torch then notices where one was written since
        return log_latency, hidden

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_latency: Tensor, of_hidden: Tensor) -> tuple[Tensor | None, ...]:
        contexts, *weights = ctx.saved_tensors
        found = [torch.empty_like(one) for one in (*weights, contexts)]
        places = (ctypes.c_void_p * len(found))(*(one.data_ptr() for one in found))
        of_latency, of_hidden = of_latency.float().contiguous(), of_hidden.float().contiguous()
        native_network().network_backward(
            ctx.kept.place, arrays_of([weight.detach().numpy() for weight in weights]), len(contexts),
            of_latency.data_ptr(), of_hidden.data_ptr(), places, ctx.kept.of.threads,
        )  # fmt: skip
        *of_weights, of_contexts = found
        return None, None, None, of_contexts, *of_weights
