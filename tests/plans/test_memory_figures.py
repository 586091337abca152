"""What the benchmark of memory reads from rows of public tables, and its scores."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.memory import megatron, nanotron
from benchmarks.memory.scored import cells
from cdmpp.plans.sizes import MIB

ROW = {
    "test": "gpt/gpt3_mcore_te_tp2_pp1", "gpu": "A100", "layers": "12.0", "hidden": "512.0", "heads": "8.0",
    "seq": "1024.0", "tp": "2", "pp": "1", "cp": "1", "mbs": "4.0", "gbs": "32.0", "ffn": "", "vp_layers": "", "sp": "",
    "dist_opt": "true", "deterministic": "true", "recompute": "", "impl": "transformer_engine", "attention_backend": "",
    "bf16": "true",
}  # fmt: skip


def job(attention="flash", **change):
    return megatron.job_of(ROW | change, attention)


def test_a_row_of_megatron():
    one = job()
    assert (one.tp, one.pp, one.shards, one.micro_batches, one.shape.inner) == (2, 1, 4, 2, 2048)
    assert one.framework.blas_workspace_bytes == 64 * MIB and one.framework.kernel_workspace_bytes == 4 * MIB
    assert job(deterministic="").framework.blas_workspace_bytes == 2 * 8_519_680
    assert job(gpu="H100", deterministic="").framework.kernel_workspace_bytes == 32 * MIB
    assert job(dist_opt="").shards == 1
    assert job(test="gpt/gpt3_1node", gpu="GB200").shards == 2  # four GPUs
    assert job(test="gpt/gpt3_swiglu").shape.inner == 1344
    assert job(test="gpt/gpt3_multi_dist_optimizer_instances").shards == 2
    assert job(pp="4", tp="1", vp_layers="1.0").chunks == 3
    assert job().framework.gradient == 4 and job(bf16="").framework.gradient == 2  # --fp16 adds up in that type
    assert job(impl="local").framework.score_buffer and not job().framework.score_buffer
    assert job(test="gpt/gpt3_uninstall_te").framework.float_softmax
    uneven = job(test="gpt/gpt3_uneven_pipeline", pp="4", tp="1")
    assert [stage.blocks for stage in uneven.stages] == [2, 4, 4, 2]


def test_the_kernel_that_settings_name():
    assert megatron.said(ROW) == "flash"
    assert megatron.said(ROW | {"attention_backend": "unfused"}) == "unfused"
    assert megatron.said(ROW | {"impl": "local"}) == "unfused"
    assert megatron.predicted(ROW, "unfused") > megatron.predicted(ROW, "flash")


def test_a_row_of_nanotron():
    row = {
        "layers": 16, "hidden": 2048, "heads": 32, "ffn": 8192, "vocab": 131072, "seq_len": 4096,
        "tied_embeddings": True, "zero_stage": 1, "mbs": 1, "grad_accum": 32, "tp": 1, "pp": 1, "dp": 8,
    }  # fmt: skip
    assert nanotron.job_of(row).shards == 8 and nanotron.job_of(row | {"zero_stage": 0}).shards == 1
    divided = row | {"tp": 8, "dp": 1}
    assert nanotron.peaks(divided)[0] < nanotron.peaks(row)[0]
    assert nanotron.reserved(divided, 256) > nanotron.reserved(divided, 0) >= nanotron.peaks(divided)[0]
    assert nanotron.reserved(row, 256) == nanotron.reserved(row, 0)  # no collective of tensor parallelism
    assert len(nanotron.peaks(row | {"pp": 4, "dp": 2})) == 4


@pytest.mark.parametrize(("change", "printed"), [
    ({"zero_stage": 0, "dp": 8}, 36.7),
    ({"dp": 256, "grad_accum": 1}, 21.7),
    ({"layers": 28, "hidden": 3072, "dp": 8}, 50.8),
])  # fmt: skip
def test_what_the_allocator_reserves_is_what_nanotron_printed(change, printed):
    """Jobs without tensor parallelism and pipelines, in GiB of an H100; no collective holds tensors there."""
    row = {
        "layers": 16, "hidden": 2048, "heads": 32, "ffn": 8192, "vocab": 131072, "seq_len": 4096, "pp": 1, "tp": 1,
        "tied_embeddings": True, "zero_stage": 1, "mbs": 1, "grad_accum": 32,
    }  # fmt: skip
    assert nanotron.reserved(row | change) / 2**30 == pytest.approx(printed, rel=0.02)


def test_a_job_fits_where_gaps_do_too():
    row = {
        "layers": 16, "hidden": 2048, "heads": 32, "ffn": 8192, "vocab": 131072, "seq_len": 4096, "pp": 1, "tp": 1,
        "tied_embeddings": True, "zero_stage": 0, "mbs": 2, "grad_accum": 16, "dp": 8,
    }  # fmt: skip
    assert nanotron.fits(row, nanotron.peaks(row))
    assert not nanotron.fits(row | {"mbs": 8}, nanotron.peaks(row | {"mbs": 8}))


def test_scores_say_how_far_low_estimates_are():
    assert cells([100, 103, 96, 91], [100] * 4) == ["4", "4.0", "3.5", "7.5", "75", "-9.0", "2"]
    with pytest.raises(ValueError, match="shape"):
        cells([1, 2, 3], [1, 2])


def test_tests_with_a_row_told_too_low_say_what_is_missing():
    """Of two tests one has a run that holds a second set of float32 logits: both of its runs are listed."""
    rows = [
        ROW | {"device": "old"},
        ROW | {"device": "new"},
        ROW | {"device": "new", "test": "gpt/gpt3_mcore_te_other"},
    ]
    known = np.full(3, float(megatron.predicted(ROW, "flash")))
    logits = 4 * 1024 * 4 * 50432 // 2  # of 50,257 words up to a multiple of 128 a rank
    table = megatron._lowest(rows, known, known + [logits, 0, 0])
    assert [one[:2] for one in table["rows"]] == [["tp2_pp1", "old"], ["tp2_pp1", "new"]]
    assert [one[7] for one in table["rows"]] == ["1.00", "0.00"]
    gradients = 4 * (12 * (12 * 512 * 512) // 2 + 25216 * 512)  # products and words of a rank; other tensors are small
    assert float(table["rows"][0][8]) == pytest.approx(logits / gradients, rel=0.05)
