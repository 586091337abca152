"""torchtitan's published throughput and memory of Llama, as jobs.

Repository pytorch/torchtitan, ``docs/performance.md`` and ``benchmarks``; the file lies in the folder ``torchtitan`` of
``--data``. GPUs and links are those that the texts name: 64 A100, in nodes of eight (taken for DGX A100); H100 with 96
GB of HBM2e at 2.4 TB/s and a cap of 500 W, in nodes of eight with 400 Gbit/s a GPU; H200.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from benchmarks.plans.language_models import LanguageModel
from benchmarks.plans.titan_job import TitanJob
from cdmpp.plans.degrees import ParallelDegrees

_8B = LanguageModel("llama", 32, 4096, 32, 128256, 14336, 8)
_70B = LanguageModel("llama", 80, 8192, 64, 128256, 28672, 8)
_405B = LanguageModel("llama", 126, 16384, 128, 128256, 53248, 8)
_MODELS = {
    "llama3-8b": _8B, "llama3.1-8b": _8B, "llama3-70b": _70B, "llama3.1-70b": _70B, "llama3.1-405b": _405B,
    "llama2-13b": LanguageModel("llama", 40, 5120, 40, 32000, 13824),
    "llama2-70b": LanguageModel("llama", 80, 8192, 64, 32000, 28672, 8),
}  # fmt: skip
_HBM2E = (("bandwidth_gbps", 2400.0), ("memory_gb", 96.0))
_GPUS: dict[str, tuple[str, str, tuple[tuple[str, float], ...], float | None]] = {
    "A100-80": ("a100-80gb", "dgx-a100", (), None),
    "H100-96": ("h100", "grand-teton", _HBM2E, 500.0),
    "H100-94": ("h100", "grand-teton", _HBM2E, 500.0),
    "H200": ("h200", "dgx-h100", (), None),
}
"""GPU of the table -> device, cluster, numbers that are others than described, and watts to which it is limited."""
_RECOMPUTE = {"selective op": "op", "per op": "op", "default of the toml": "op", "full": "full"}
_SCHEDULES = {"": "", "1F1B": "1f1b", "Interleaved 1F1B": "interleaved1f1b"}


@dataclass(frozen=True)
class Row:
    """One published job."""

    model: str
    gpu: str
    gpus: int
    recomputed: str
    precision: str
    is_compiled: bool
    job: TitanJob
    step_s: float
    held_gib: float
    """NaN: not published."""
    flops: float
    """A GPU runs so many in a step, as torchtitan counts them: six a parameter and token, attention not causal."""

    @property
    def strategies(self) -> str:
        """Return its degrees and schedule in words."""
        degrees = self.job.degrees
        each = [f"fsdp {degrees.dp_shard}"]
        each += [f"{name} {getattr(degrees, name)}" for name in ("tp", "pp", "cp") if getattr(degrees, name) > 1]
        return ", ".join([*each, *["async"] * self.job.async_tp, *[self.job.schedule] * bool(self.job.schedule)])


def rows(folder: Path) -> list[Row]:
    """Read all rows."""
    return [_row(one) for one in csv.DictReader((folder / "throughput.csv").read_text().splitlines())]


def _row(one: dict[str, str]) -> Row:
    model, (device, cluster, spec, limit_w) = _MODELS[one["model"]], _GPUS[one["gpu"]]
    sequence, batch, given = int(one["seq_len"]), int(one["local_batch"]), one["precision"]
    degrees = ParallelDegrees(dp_shard=int(one["fsdp"]), **{name: int(one[name]) for name in ("tp", "pp", "cp")})
    is_float8 = given.startswith("float8")
    job = TitanJob(
        model, sequence, device, cluster, degrees, batch, recompute=_RECOMPUTE.get(one["act_ckpt"], "none"),
        every=2 * (one["act_ckpt"] == "selective layer"), is_compiled=one["compile"] == "yes" or is_float8,
        has_loss="2025" in one["source"],
        float8=("rowwise" if given.endswith("rowwise") else "tensorwise") if is_float8 else None,
        async_tp=one["async_tp"] == "True", schedule=_SCHEDULES[one["schedule"]], spec=spec, power_limit_w=limit_w,
    )  # fmt: skip
    tokens = sequence * batch * int(one["fsdp"]) / int(one["gpus"])
    return Row(
        one["model"], one["gpu"], int(one["gpus"]), one["act_ckpt"], given, job.is_compiled, job,
        float(one["step_s"]), float(one["mem_gib"] or "nan"),
        tokens * (6 * _parameters(model) + 12 * model.layers * model.width * sequence),
    )  # fmt: skip


def _parameters(model: LanguageModel) -> float:
    head = model.width // model.heads
    attention = 2 * model.width**2 + 2 * model.width * head * (model.kv_heads or model.heads)
    return model.layers * (attention + 3 * model.width * model.inner) + 2 * model.vocabulary * model.width
