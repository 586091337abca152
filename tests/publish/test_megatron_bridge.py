"""Megatron-Bridge's rows: what a row leaves out is found from others, and factors are those that made the seconds."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.plans.megatron_bridge_data import Plan, rows
from benchmarks.plans.megatron_bridge_fit import fitted_s
from benchmarks.plans.megatron_bridge_job import candidates_of, degrees_of, is_far, operators_of

HEAD = (
    "release,task,model,system,gpus,precision,global_batch,micro_batch,seq_len,fsdp,tp,pp,cp,vp,ep,grad_accum,"
    "tokens_per_s_per_gpu,model_tflops_per_gpu,note,step_s"
)


def row(release: str, model: str, system: str, precision: str, tokens: int, tflops: int, **sizes: int) -> str:
    own = {"gpus": 64, "global_batch": 256, "micro_batch": 1, "seq_len": 8192, "tp": 1, "pp": 1, "ep": 1} | sizes
    cells = [release, "Pre-Training", model, system, str(own["gpus"]), precision, str(own["global_batch"]),
             str(own["micro_batch"]), str(own["seq_len"]), "", str(own["tp"]), str(own["pp"]), "1", "",
             str(own["ep"]), "", str(tokens), str(tflops), "", "2.5"]  # fmt: skip
    return ",".join(cells)


def test_models_are_named_by_operations_and_systems_by_their_order(tmp_path):
    lines = [
        row("26.08", "nan", "DGX-GB300", "MXFP8", 4864, 2186),
        row("26.08", "nan", "DGX-H100", "FP8", 1000, 85),  # 85 billion operations a token: of state space layers
        row("26.08", "nan", "DGX-GB200", "NVFP4", 4864, 2186),
        row("25.11", "LLAMA3_8B", "", "FP8-CS", 37556, 1933),
        row("25.11", "LLAMA3_70B", "", "FP8-CS", 4520, 2030),
        row("25.11", "LLAMA3_8B", "", "FP8-CS", 31508, 1622),
        row("25.09", "LLAMA3_8B", "", "nan", 31357, 1614),
        row("25.09", "LLAMA3_8B", "", "nan", 29925, 1540),
    ]
    (tmp_path / "throughput.csv").write_text("\n".join([HEAD, *lines]))
    found = rows(tmp_path)
    assert [one.plan.model for one in found] == [
        "Llama 3 70B", "Nemotron 3 super", "Llama 3 70B", "Llama 3 8B", "Llama 3 70B", *["Llama 3 8B"] * 3,
    ]  # fmt: skip
    assert [one.plan.system for one in found[3:]] == ["GB300", "GB300", "GB200", "GB200", "GB200"]
    assert [one.plan.precision for one in found[6:]] == ["float8-current", "mxfp8"]
    assert [bool(one.why_not) for one in found[:4]] == [False, True, True, False]
    assert "four bits" in found[2].why_not and "state space" in found[1].why_not


def test_tensor_ranks_have_experts_of_their_own():
    """32 ranks of experts on 16 replicas of two tensor ranks, which four nodes of eight have."""
    plan = Plan("Qwen3 235B", "H100", "float8-current", 256, 2048, 1, 4096, 0, 2, 8, 1, 4, 32)
    degrees = degrees_of(plan)
    assert (degrees.ep, degrees.tp, degrees.dp_shard, degrees.ranks) == (16, 2, 1, 256) and is_far(plan)
    assert [one.name for one in operators_of(plan)] == ["tensor", "expert"]
    assert operators_of(plan)[0].experts == "apart"  # type: ignore[attr-defined]
    found = candidates_of(plan)
    assert found.ranks == 256 and found.micro_batches.tolist() == [128]
    assert found.degrees_of(0) == degrees


def test_factors_are_those_that_made_the_seconds():
    rng = np.random.default_rng(0)
    parts, true = rng.uniform(0.1, 1.0, (80, 12)), rng.uniform(0.4, 1.6, 12)
    releases = np.array([f"r{place % 4}" for place in range(80)])
    seconds = parts @ true
    seen = releases != "r3"
    off = fitted_s(parts, seconds, releases, seen)[~seen] / seconds[~seen] - 1
    assert np.abs(off).max() == pytest.approx(0.0, abs=0.1) and np.abs(off).mean() < 0.04
