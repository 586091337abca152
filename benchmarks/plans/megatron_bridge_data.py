"""Published throughput of Megatron-Bridge's releases: rows, the models that they train, and the plans that they name.

Repository NVIDIA-NeMo/Megatron-Bridge, pages of performance of releases 25.09 to 26.08; the file lies in the folder
``megatron-bridge`` of ``--data``. Later releases name no model, and earlier ones no system: the operations of a token,
and the order of the page, say which they are. Operations of a token are those of the model, not of its speed.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_LLAMA = {"model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5, "vocab_size": 128256,
          "tie_word_embeddings": False, "num_key_value_heads": 8}  # fmt: skip
_EXPERTS = {"hidden_act": "silu", "experts_implementation": "grouped_mm"}
_QWEN = {**_EXPERTS, "model_type": "qwen3_moe", "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
         "vocab_size": 151936, "num_key_value_heads": 4, "head_dim": 128}  # fmt: skip
_DEEPSEEK = {**_EXPERTS, "model_type": "deepseek_v3", "hidden_size": 7168, "n_shared_experts": 1,
             "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "intermediate_size": 18432, "q_lora_rank": 1536,
             "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
             "first_k_dense_replace": 0}  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A published model: its name here, and what transformers makes it of."""

    name: str
    layers: int
    is_dense: bool
    config: Mapping[str, Any] = field(hash=False)
    """Without the number of layers."""


MODELS = {
    one.name: one
    for one in (
        Model("Llama 3 8B", 32, True, {**_LLAMA, "hidden_size": 4096, "intermediate_size": 14336,
                                       "num_attention_heads": 32}),
        Model("Llama 3 70B", 80, True, {**_LLAMA, "hidden_size": 8192, "intermediate_size": 28672,
                                        "num_attention_heads": 64}),
        Model("Llama 3.1 405B", 126, True, {**_LLAMA, "hidden_size": 16384, "intermediate_size": 53248,
                                            "num_attention_heads": 128}),
        Model("Qwen3 30B", 48, False, {**_QWEN, "hidden_size": 2048, "num_attention_heads": 32,
                                       "moe_intermediate_size": 768, "intermediate_size": 6144}),
        Model("Qwen3 235B", 94, False, {**_QWEN, "hidden_size": 4096, "num_attention_heads": 64,
                                        "moe_intermediate_size": 1536, "intermediate_size": 12288}),
        Model("DeepSeek V3", 61, False, {**_DEEPSEEK, "num_attention_heads": 128, "num_key_value_heads": 128,
                                         "n_routed_experts": 256, "n_group": 8, "topk_group": 4, "vocab_size": 129280}),
        Model("DeepSeek V3 with MTP", 62, False, {**_DEEPSEEK, "num_attention_heads": 128, "num_key_value_heads": 128,
                                                  "n_routed_experts": 256, "n_group": 8, "topk_group": 4,
                                                  "vocab_size": 129280}),
        Model("Kimi K2", 61, False, {**_DEEPSEEK, "num_attention_heads": 64, "num_key_value_heads": 64,
                                     "n_routed_experts": 384, "n_group": 1, "topk_group": 1, "vocab_size": 163840}),
        Model("GPT-OSS 120B", 36, False, {**_QWEN, "hidden_size": 2880, "num_attention_heads": 64, "head_dim": 64,
                                          "num_experts_per_tok": 4, "num_key_value_heads": 8, "vocab_size": 201088,
                                          "moe_intermediate_size": 2880, "intermediate_size": 2880}),
    )
}  # fmt: skip
"""All layers of the last five have experts: the three, or one, without have as many operations. Multi-token prediction
is one further layer, whose head is left out. GPT-OSS is a Qwen3 of its sizes: every layer looks at all tokens, and
experts have no biases."""
_GFLOP = {
    ("Llama 3 8B", 8192): (51,), ("Llama 3 70B", 8192): (447,), ("Llama 3 70B", 4096): (432,),
    ("Llama 3.1 405B", 8192): (2525,), ("Qwen3 30B", 4096): (23.1,), ("Qwen3 235B", 4096): (148,),
    ("DeepSeek V3", 4096): (249.7,), ("DeepSeek V3 with MTP", 4096): (260.2,), ("Kimi K2", 4096): (204.6,),
    ("GPT-OSS 120B", 4096): (27.2, 32.6), ("GPT-OSS 120B", 8192): (30.8,),
    ("Nemotron 3 nano", 8192): (22.4,), ("Nemotron 3 super", 8192): (84.6,), ("Nemotron 3 ultra", 8192): (363,),
}  # fmt: skip
"""Model and tokens of a sequence -> operations of a token, as the pages count them; in billions."""
_NEAR = 0.022
_SYSTEMS = ("GB300", "GB200", "B200", "H100")
"""In the order of the pages."""
CLUSTERS = {
    "GB300": ("gb300", "gb300-nvl72", 64), "GB200": ("gb200", "gb200-nvl72", 64), "B200": ("b200", "dgx-b200", 8),
    "H100": ("h100", "dgx-h100", 8),
}  # fmt: skip
"""System -> device, cluster, GPUs of a node: jobs take 64 of the 72 of a rack."""
_PRECISIONS = {"FP8": "float8-current", "FP8-CS": "float8-current", "MXFP8": "mxfp8", "FP8-MX": "mxfp8", "BF16": "bf16"}


@dataclass(frozen=True)
class Plan:
    """A job as its page names it."""

    model: str
    system: str
    precision: str
    """A name of ``PRECISIONS``; empty: none of the product."""
    gpus: int
    global_batch: int
    micro_batch: int
    sequence: int
    fsdp: int
    tp: int
    pp: int
    cp: int
    vp: int
    ep: int

    @property
    def data(self) -> int:
        """Return the replicas of what is no expert."""
        return self.gpus // (self.tp * self.pp * self.cp)

    @property
    def micro_batches(self) -> int:
        """Return the micro-batches of a step on one replica."""
        return self.global_batch // self.data // self.micro_batch


@dataclass(frozen=True)
class Row:
    """One published throughput."""

    release: str
    task: str
    plan: Plan
    stated: str
    """Precision as the page has it."""
    gflop: float
    """Operations of a token."""
    step_s: float

    @property
    def is_dense(self) -> bool:
        """Return True for a model without experts."""
        return MODELS[self.plan.model].is_dense

    @property
    def why_not(self) -> str:
        """Reason for which no prediction is made; empty: one is."""
        if self.task == "LoRA":
            return "LoRA: adapters are no part of the networks here"
        if self.plan.model not in MODELS:
            return (
                f"{self.plan.model or 'a model that operations of a token do not name'}: state space layers, or unknown"
            )
        if self.stated == "NVFP4":
            return "NVFP4: no datasheet here has products of four bits, and no precision of the product"
        if not self.plan.precision:
            return "the page states no precision"
        if self.plan.global_batch % (self.plan.data * self.plan.micro_batch):
            return "replicas cannot divide the batch as it is stated"
        return ""


def rows(folder: Path) -> list[Row]:
    """Read all rows, in the order of the file."""
    found, section, last = list[Row](), dict[str, int](), dict[str, str]()
    for one in csv.DictReader((folder / "throughput.csv").read_text().splitlines()):
        release, stated = one["release"], one["precision"].replace("nan", "")
        if one["system"] in ("", "nan"):
            if "8B" in one["model"] and "8B" not in last.get(release, "8B"):
                section[release] += 1
            section.setdefault(release, 1 if release == "25.09" else 0)  # the first page has no GB300
            last[release] = one["model"]
            system = _SYSTEMS[section[release]]
        else:
            system = one["system"].removeprefix("DGX-")
        gflop = 1e3 * float(one["model_tflops_per_gpu"]) / float(one["tokens_per_s_per_gpu"])
        sequence = int(float(one["seq_len"]))
        if not stated and "LLAMA" in one["model"]:
            stated = _unstated(found, system, one)
        size = {name: int(float(one[name] or 0)) for name in ("fsdp", "tp", "pp", "cp", "vp", "ep", "gpus")}
        plan = Plan(
            _model(gflop, sequence), system, _PRECISIONS.get(stated, ""), size["gpus"],
            int(float(one["global_batch"])), int(float(one["micro_batch"])), sequence,
            size["fsdp"], max(size["tp"], 1), max(size["pp"], 1), max(size["cp"], 1), max(size["vp"], 1),
            max(size["ep"], 1),
        )  # fmt: skip
        found.append(Row(release, one["task"], plan, stated, gflop, float(one["step_s"])))
    return found


def _unstated(found: list[Row], system: str, one: Mapping[str, str]) -> str:
    """The first page writes two numbers of a plan of Llama side by side, with a scale a tensor and with one a block.

    H100 has only the first.
    """
    if system == "H100":
        return "FP8-CS"
    before = found[-1] if found else None
    plan = before.plan if before is not None and before.release == one["release"] else None
    alike = plan is not None and plan.model == _model_of(one) and plan.system == system
    return "FP8-MX" if alike else "FP8-CS"


def _model_of(one: Mapping[str, str]) -> str:
    return _model(
        1e3 * float(one["model_tflops_per_gpu"]) / float(one["tokens_per_s_per_gpu"]), int(float(one["seq_len"]))
    )


def _model(gflop: float, sequence: int) -> str:
    """Name of the model whose tokens have as many operations; empty: none."""
    far = {name: min(abs(gflop / own - 1) for own in known) for (name, at), known in _GFLOP.items() if at == sequence}
    near = min(far, key=lambda name: far[name], default="")
    return near if near and far[near] < _NEAR else ""
