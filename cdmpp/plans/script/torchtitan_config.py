"""A configuration of torchtitan 0.2.2 (``torchtitan/config/job_config.py`` there) that trains by a plan."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.network.workload import Workload
from cdmpp.plans.placement import micro_batch_of, micro_batches_of, pipeline_of, replicas_of
from cdmpp.plans.plan import Plan
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.steps.step_graph import RankGraph
from cdmpp.steps.transforms.recompute import can_recompute

VERSION = "0.2.2"
_REFUSED = f"--torch: torchtitan {VERSION} cannot train"
_MODELS = {
    "Llama-3.1-8B": ("llama3", "8B"), "Llama-3.1-70B": ("llama3", "70B"), "Llama-3.1-405B": ("llama3", "405B"),
    "Qwen3-0.6B": ("qwen3", "0.6B"), "Qwen3-1.7B": ("qwen3", "1.7B"), "Qwen3-4B": ("qwen3", "4B"),
    "Qwen3-8B": ("qwen3", "8B"), "Qwen3-14B": ("qwen3", "14B"), "Qwen3-32B": ("qwen3", "32B"),
    "Qwen3-30B-A3B": ("qwen3", "30B-A3B"), "Qwen3-235B-A22B": ("qwen3", "235B-A22B"),
}  # fmt: skip
"""Name on the hub -> model and flavor there."""
_SCHEDULES = {
    "1f1b": "1F1B", "gpipe": "GPipe", "interleaved1f1b": "Interleaved1F1B",
    "interleavedzerobubble": "InterleavedZeroBubble", "zbvzerobubble": "ZBVZeroBubble", "dualpipev": "DualPipeV",
}  # fmt: skip
_PRECISIONS = {
    "fp32": ("float32", "float32"), "bf16": ("bfloat16", "bfloat16"), "bf16-autocast": ("float32", "bfloat16"),
}  # fmt: skip
"""Precision -> types of weights, and of what FSDP gathers."""
_DIVIDING = ("pipeline", "tensor", "context", "expert")
"""Strategies that divide the model and that torchtitan has."""


@dataclass(frozen=True)
class TorchtitanConfig:
    """All that a configuration says of a job.

    ``CdmppError``: a network, a strategy, a precision or an update that torchtitan does not have; it says which.
    """

    workload: Workload
    plan: Plan
    global_batch: int
    """Examples of all ranks in one step."""
    rank: RankGraph
    """One rank's work, which has modules that can be recomputed."""

    def __post_init__(self) -> None:
        plan, precision = self.plan, str(self.workload.precision)
        if self._name not in _MODELS:
            raise CdmppError(f"{_REFUSED} {self.workload.network}: it has {', '.join(f'hf:{one}' for one in _MODELS)}")
        if precision not in _PRECISIONS:
            raise CdmppError(f"{_REFUSED} in {precision} by these settings: give {', '.join(_PRECISIONS)}")
        if not isinstance(plan.strategy, DDP | FSDP):
            raise CdmppError(f"{_REFUSED} by {plan.strategy.title}: give ddp, fsdp or hsdp")
        if others := [one.title for one in plan.model_parallel if one.name not in _DIVIDING]:
            raise CdmppError(f"{_REFUSED} by {others[0]}: give {', '.join(_DIVIDING)}")
        if plan.devices or plan.shares:
            raise CdmppError(f"{_REFUSED} on unlike devices: all of its ranks work alike")
        if self.workload.update.optimizer not in ("adam", "adamw") or self.workload.update.ema:
            raise CdmppError(f"{_REFUSED} with the update {self.workload.update}: give adam or adamw")
        if isinstance(plan.strategy, FSDP) and plan.strategy.prefetch > 1:
            raise CdmppError(f"{_REFUSED} with prefetch {plan.strategy.prefetch}: it has no such setting; leave it out")
        if plan.offload:
            raise CdmppError(
                f"{_REFUSED} with {' and '.join(plan.offload)} on the host as it is predicted: it always clips "
                "gradients, which then lie there; give a file that ends in .py"
            )
        if self.workload.recompute == "attention":
            raise CdmppError(f"{_REFUSED} with recompute attention: give none, full or op")
        if plan.recompute and {*plan.recompute} != {one.name for one in can_recompute(self.rank)}:
            raise CdmppError(f"{_REFUSED} where some blocks are recomputed and others are not: all of them, or none")

    @property
    def _name(self) -> str:
        return str(self.workload.network).removeprefix("hf:").rpartition("/")[2]

    @property
    def text(self) -> str:
        """The configuration as TOML."""
        plan = self.plan
        lines = [
            f"# {self.workload.network} on {plan.ranks} ranks as cdmpp planned it: {', '.join(plan.changes(Plan()))}.",
            f"# For torchtitan {VERSION}; paths of the tokenizer and the data set are for you to set.",
        ]
        for section, settings in self._sections().items():
            lines += ["", f"[{section}]", *(f"{name} = {json.dumps(value)}" for name, value in settings.items())]
        return "\n".join(lines) + "\n"

    def _sections(self) -> dict[str, dict[str, Any]]:
        plan, update = self.plan, self.workload.update
        name, flavor = _MODELS[self._name]
        weights, gathered = _PRECISIONS[str(self.workload.precision)]
        batch = micro_batch_of(plan, self.global_batch) * micro_batches_of(plan)
        training = {
            "local_batch_size": batch,
            "global_batch_size": batch * replicas_of(plan) * plan.gradient_accumulation_steps,
            "seq_len": self.workload.sequence,
            "max_norm": update.clip_norm or 1e12,  # it always clips
            "dtype": weights,
            "mixed_precision_param": gathered,
        }
        implementation = "fused" if plan.update == "fused" else update.implementation or "foreach"
        mode = {"none": "none", "full": "full", "op": "selective"}[self.workload.recompute]
        recompute = {"mode": "full" if plan.recompute else mode}
        if recompute["mode"] == "selective":
            recompute["selective_ac_option"] = "op"
        return {
            "model": {"name": name, "flavor": flavor},
            "optimizer": {
                "name": {"adam": "Adam", "adamw": "AdamW"}[update.optimizer],
                "implementation": implementation,
            },
            "training": {key: value for key, value in training.items() if value is not None},
            "parallelism": self._parallelism(),
            "activation_checkpoint": recompute,
            "compile": {"enable": False},
        }

    def _parallelism(self) -> dict[str, Any]:
        plan, degrees = self.plan, self.plan.degrees
        found: dict[str, Any] = {
            "data_parallel_replicate_degree": degrees.dp_replicate,
            "data_parallel_shard_degree": degrees.dp_shard * degrees.ep,  # experts are divided inside of it there
            "tensor_parallel_degree": degrees.tp,
            "context_parallel_degree": degrees.cp,
            "expert_parallel_degree": degrees.ep,
            "pipeline_parallel_degree": degrees.pp,
        }
        if isinstance(plan.strategy, FSDP):
            again = plan.strategy.reshard_after_forward
            found["fsdp_reshard_after_forward"] = "always" if again else "never"
        for one in plan.model_parallel:
            if one.name == "context":
                rotates = {"ring": "alltoall", "all_gather": "allgather"}
                found["context_parallel_rotate_method"] = rotates[getattr(one, "method", "ring")]
            if one.name == "tensor":
                found["enable_async_tensor_parallel"] = bool(getattr(one, "is_async", False))
        if (pipeline := pipeline_of(plan)) is not None:
            found["pipeline_parallel_schedule"] = _SCHEDULES[pipeline.schedule]
            found["pipeline_parallel_microbatch_size"] = micro_batch_of(plan, self.global_batch)
        return found
