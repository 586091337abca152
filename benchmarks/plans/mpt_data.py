"""Rows of llm-foundry's public FSDP benchmarks of MPT models, as jobs.

Repository mosaicml/llm-foundry, ``scripts/train/benchmarking/README.md`` at 8c8dd48; sizes are those of its yamls. The
file lies in the folder ``mpt-fsdp`` of ``--data``.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from benchmarks.plans.fsdp_job import FSDPJob
from benchmarks.plans.language_models import LanguageModel

_SIZES = {
    "125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 12), "1b": (24, 2048, 16), "3b": (32, 2560, 20),
    "7b": (32, 4096, 32), "13b": (40, 5120, 40), "30b": (48, 7168, 56), "70b": (80, 8192, 64),
}  # fmt: skip
"""Name -> blocks, width, heads."""
SIZES = tuple(_SIZES)
_GPUS = {
    "a100_40gb": ("a100", "dgx-a100"),
    "a100_80gb": ("a100-80gb", "dgx-a100"),
    "h100_80gb": ("h100", "dgx-h100"),
}
"""GPU of the table -> device and cluster. Nodes of A100 have 1,600 Gbit/s; of those of H100 the table says nothing."""

_POLICIES = {"bf16": "bf16-fsdp-pure", "amp_bf16": "bf16-fsdp", "amp_fp8": "bf16-fsdp"}
"""Precision of the table -> what FSDP gathers and reduces: all in bfloat16, or gradients in float32."""


@dataclass(frozen=True)
class Row:
    """One measured job."""

    size: str
    gpu: str
    is_float8: bool
    job: FSDPJob
    step_s: float
    flops: float
    """A GPU runs so many in a step, as the authors count: attention whole, nothing a second time."""


def rows(folder: Path) -> list[Row]:
    """Read all rows."""
    return [_row(one) for one in csv.DictReader((folder / "throughput.csv").read_text().splitlines())]


def _row(one: dict[str, str]) -> Row:
    layers, width, heads = _SIZES[one["model"]]
    device, cluster = _GPUS[one["gpu"]]
    model = LanguageModel("gpt2", layers, width, heads, 50368, 4 * width, activation="gelu")
    job = FSDPJob(
        model, int(one["seq_len"]), device, cluster, int(one["gpus"]), int(one["micro_batch"]), int(one["grad_accum"]),
        _POLICIES[one["precision"]], "full" if one["act_checkpoint"] == "True" else "none",
        reshard=one["sharding"] == "FULL_SHARD", is_flat=True, optimizer="adamw-for-loop", fuses_loss=True,
    )  # fmt: skip
    tokens = int(one["global_batch_tokens"]) / int(one["gpus"])
    flops = tokens * (6 * float(one["num_params"]) + 12 * layers * width * int(one["seq_len"]))
    return Row(one["model"], one["gpu"], one["precision"] == "amp_fp8", job, float(one["step_s"]), flops)
