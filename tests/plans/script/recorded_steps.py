"""Run a generated script on one rank of a job, and print what it exchanged in its last step, as JSON.

python recorded_steps.py SCRIPT FOLDER: as torchrun starts it; each rank writes FOLDER/RANK.json.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.experimental._context_parallel import _attention as attention

from benchmarks.gloo_jobs.record import exchanges_of


class _Ring(torch.autograd.Function):
    """PyTorch's own ring attention with the kernel of a CPU, which ``context_parallel`` refuses."""

    @staticmethod
    def forward(ctx, q, k, v, group, is_causal):
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, sums = attention._templated_ring_attention(group, 2, kernel, q, k, v, is_causal=is_causal)
        ctx.save_for_backward(q, k, v, out, sums)
        ctx.group, ctx.is_causal = group, is_causal
        return out

    @staticmethod
    def backward(ctx, grad):
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        found = attention._templated_ring_attention_backward(
            ctx.group, 2, kernel, grad, "grad_out", *ctx.saved_tensors, ctx.is_causal, dropout_p=0.0
        )
        return *found, None, None


def _dispatch(seq_dim, mesh):
    nn.functional.scaled_dot_product_attention = lambda q, k, v, is_causal=False: _Ring.apply(
        q, k, v, mesh.get_group(), is_causal
    )


attention._enable_context_parallel_dispatcher_impl = _dispatch
attention._disable_context_parallel_dispatcher_impl = lambda: None


def main(script: Path, folder: Path) -> None:
    spec = importlib.util.spec_from_file_location("script", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    profile = torch.profiler.profile(record_shapes=True)

    def told(number: int, start_s: float, device: torch.device) -> None:
        if number == module.STEPS - 1:
            profile.stop()
        dist.barrier()  # a profile must not begin, nor one rank end, while another one still exchanges
        if number == module.STEPS - 2:
            profile.start()

    module.told = told
    module.main()
    with tempfile.TemporaryDirectory() as own:
        trace = Path(own) / "trace.json"
        profile.export_chrome_trace(str(trace))
        found = [row[1::2] for row in exchanges_of(trace, 1)]
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
