"""The script that measures fused attention on a GPU, run on a CPU in small; what it writes answers."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks.attention_gpu import WARM, main, operator_of, shapes
from cdmpp import devices
from cdmpp.network.eager.attention_price import attention_prices
from cdmpp.network.eager.single_price import KERNEL_S, Price
from cdmpp.operators.attention_rules import AttentionCall, why_not
from cdmpp.operators.attention_speed import attention_speeds


def single(operators, device):
    return [Price(KERNEL_S, 1e-5, {}, ()) for _ in operators]


def test_what_it_measured_is_what_answers(tmp_path, capsys):
    out = tmp_path / "epyc-genoa.jsonl"
    main(["epyc-genoa", str(out), "--tiny", "--repeats", "3"])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 4 and all(len(row["seconds"]) == 3 and row["is_default"] for row in rows)
    speeds = attention_speeds(tmp_path)
    operators = [operator_of(shape, back) for shape in shapes(tiny=True) for back in (False, True)]
    found = attention_prices(operators, devices.get("epyc-genoa"), single, speeds)
    fill = 4 / devices.get("epyc-genoa").spec["core_count"]
    for one, row in zip(found, rows, strict=True):
        assert one.latency_s - KERNEL_S == pytest.approx(sorted(row["seconds"])[1] / min(1.0, fill), rel=1e-6)
        assert one.flags == ()
    capsys.readouterr()
    main(["epyc-genoa", str(out), "--tiny"])  # nothing again
    assert len(out.read_text().splitlines()) == 4 and not capsys.readouterr().out


def test_its_questions_fit_into_five_minutes_and_into_the_rules():
    seconds, asked = 0.0, list(shapes())
    assert len(asked) == len(set(asked))
    for shape in asked:
        q, k = (
            torch.empty(shape.batch, heads, rows, shape.inner, dtype=shape.dtype, device="meta")
            for heads, rows in ((shape.heads, shape.rows), (shape.kv_heads, shape.cols))
        )
        call = AttentionCall(q, k, k, None, 0.0, shape.causal, shape.kv_heads != shape.heads, True)
        assert not why_not(shape.backend, call, "sm_90"), shape
        rate = 10e12 if shape.dtype == torch.float32 else 100e12  # well below what is published
        seconds += 0.2 + (20 + WARM) * sum(operator_of(shape, back).flops for back in (False, True)) / rate
    assert seconds < 240
