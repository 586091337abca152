"""torchtitan's published steps of Llama-3-8B on one node of eight H100, beside what is predicted for them.

Kernels of one GPU by themselves, and the step of eight under FSDP; or why a row cannot be answered. Nothing is
fitted to a published step. Weights and gradients are bfloat16 here, where torchtitan keeps them in float32 and gathers
bfloat16; its update is the fused AdamW of a GPU's part.
"""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cdmpp
from cdmpp import Workload
from cdmpp.errors import CdmppError
from cdmpp.network.training_prediction import StepPrediction

NODE, CLUSTER, DEVICE = 8, "dgx-h100", "h100"
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "use_cache": False, "torch_dtype": "float32",
}  # fmt: skip
_PARAMETERS = 8.03e9
_PEAK_TFLOPS = 989.4
_RECOMPUTE = {"selective op": "op", "full": "full", "no": "none"}
_PRECISIONS = {"bf16": "bf16", "float8": "float8-tensorwise"}


def tables(data: Path) -> list[dict[str, Any]]:
    """Return one table; ``data``: a folder with ``torchtitan/throughput.csv``, steps as their authors print them."""
    path = data / "torchtitan" / "throughput.csv"
    rows = [row for row in csv.DictReader(path.read_text().splitlines()) if int(row["gpus"]) == NODE]
    return [
        {
            "title": "torchtitan on one node",
            "note": "Llama-3-8B on eight H100 under FSDP, as torchtitan's authors print it, and as predicted without "
            "any of their numbers. Their GPUs have HBM2e and a cap of 500 W, the predicted ones are the SXM of 700 W, "
            "whose calls were measured one at a time, far from that cap: so the kernels are a lower bound. MFU: share "
            "of the peak in bfloat16 by torchtitan's count of operations, attention not causal.",
            "commands": ["python -m benchmarks.plans torchtitan --data DATA --publish"],
            "columns": [
                *("tokens", "batch", "recomputed", "compiled", "precision", "published, ms", "MFU, %", "kernels, ms"),
                *("MFU, %", "exposed, ms", "step, ms", "off, %", "published, GiB", "predicted, GiB", "not answered"),
            ],
            "rows": [_line(row) for row in rows],
        }
    ]


def _line(row: Mapping[str, str]) -> list[str]:
    seq, batch, step_s = int(row["seq_len"]), int(row["local_batch"]), float(row["step_s"])
    published = [f"{1e3 * step_s:.0f}", _mfu(seq, batch, step_s, row)]
    told = [str(seq), str(batch), row["act_ckpt"], row["compile"], row["precision"], *published]
    kernels, whole, why = ["-"] * 2, ["-"] * 3, ""
    peak = "-"
    try:
        step, kernels_s = _step(row)
        kernels = [f"{1e3 * kernels_s:.0f}", _mfu(seq, batch, kernels_s, row)]
        replayed = cdmpp.replay_step(step, ranks=NODE, cluster=CLUSTER, strategy="fsdp")
        off = f"{100 * (replayed.iteration_s / step_s - 1):+.0f}"
        whole = [f"{1e3 * replayed.exposed_s:.0f}", f"{1e3 * replayed.iteration_s:.0f}", off]
        peak = f"{replayed.heaviest.peak_bytes / 2**30:.1f}" if replayed.heaviest else "-"
    except CdmppError as error:
        why = str(error).partition(": ")[2] if str(error).startswith("tmp") else str(error)
    return [*told, *kernels, *whole, row["mem_gib"], peak, why]


def _mfu(seq: int, batch: int, step_s: float, row: Mapping[str, str]) -> str:
    """Per cent of the peak in bfloat16, by torchtitan's count: six a parameter, twelve a pair of tokens and layer."""
    each = 6 * _PARAMETERS + 12 * LLAMA["num_hidden_layers"] * LLAMA["hidden_size"] * seq  # type: ignore[operator]
    return f"{100 * each * seq * batch * int(row['fsdp']) / NODE / step_s / 1e12 / _PEAK_TFLOPS:.0f}"


def _step(row: Mapping[str, str]) -> tuple[StepPrediction, float]:
    """Step of one GPU, and seconds of its forward and backward pass.

    Compiled blocks are alike: the seconds are those of two blocks, and thirty times what a third one adds.
    """
    if int(row["cp"]) > 1:
        raise CdmppError(f"no plan here divides attention along the sequence (cp {row['cp']})")
    blocks = int(LLAMA["num_hidden_layers"])  # type: ignore[call-overload]
    if row["compile"] == "no":
        step = _predicted(row, blocks)
        return step, _kernels_s(step)
    two, three = (_predicted(row, some) for some in (2, 3))
    return two, _kernels_s(two) + (blocks - 2) * (_kernels_s(three) - _kernels_s(two))


def _predicted(row: Mapping[str, str], blocks: int) -> StepPrediction:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": blocks}))
        workload = Workload(
            f"hf:{folder}",
            loss="model",
            batch=int(row["local_batch"]),
            sequence=int(row["seq_len"]),
            precision=_PRECISIONS[row["precision"]],
            optimizer="adamw-fused",
            recompute=_RECOMPUTE[row["act_ckpt"]],
            mode="training_step",
        )
        runtime = "torch-compile" if row["compile"] == "yes" else "torch"
        return cdmpp.predict_step(workload, device=DEVICE, runtime=runtime)


def _kernels_s(step: StepPrediction) -> float:
    return step.phase_s["forward"] + step.phase_s["backward"]
