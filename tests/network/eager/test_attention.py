"""Attention: the kernel that torch chooses, what it computes and keeps, and what it is said to take."""

from __future__ import annotations

import contextlib
import itertools
import json

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import cdmpp
from cdmpp import cli, devices
from cdmpp.errors import DataError, UnsupportedProgramError, UsageError
from cdmpp.network.eager.attention_price import attention_prices
from cdmpp.network.eager.read import read_run
from cdmpp.network.eager.single_price import KERNEL_S, Price
from cdmpp.network.workload import Workload
from cdmpp.operators.attention import attended_pairs, workspace_bytes
from cdmpp.operators.attention_rules import AttentionCall, backend_of
from cdmpp.operators.attention_speed import attention_speeds
from cdmpp.operators.operator import EagerOperator
from tests.network.dispatched import predicted_step, real_step

CHOICES = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
BF16 = torch.bfloat16


def call(dtype=torch.float32, heads=4, own=None, rows=6, cols=6, inner=8, value=None, **options):
    q = torch.empty(2, heads, rows, inner, dtype=dtype)
    k = torch.empty(2, own or heads, cols, inner, dtype=dtype)
    v = torch.empty(2, own or heads, cols, value or inner, dtype=dtype)
    return AttentionCall(q, k, v, grouped=own is not None, **options)


MASKS = (None, (6, 6), (1, 6), (2, 1, 6, 6), (2, 4, 1, 6), (4, 6, 6), (1, 4, 6, 6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, BF16, torch.float16])
def test_on_a_cpu_the_kernel_is_the_one_that_torch_chooses(dtype):
    seen = set()
    for own, dropout, value, shape, across in itertools.product((None, 2, 4), (0.0, 0.5), (8, 16), MASKS, (0, 1)):
        given = call(dtype, own=own, value=value, dropout=dropout)
        if across:
            given = given._replace(query=given.query.transpose(2, 3).contiguous().transpose(2, 3))
        mask = None if shape is None else torch.zeros(shape, dtype=dtype)
        given = given._replace(mask=mask)
        real = torch._fused_sdp_choice(*given[:4], dropout, False, scale=None, enable_gqa=given.grouped)
        seen.add(real)
        assert backend_of(given, "cpu") == CHOICES[real], (own, dropout, value, shape, across)
    assert seen == {0, 1}
    trained = torch.zeros(6, 6, dtype=dtype, requires_grad=True)
    assert torch._fused_sdp_choice(*call(dtype)[:3], trained) == 0
    assert backend_of(call(dtype, mask=trained, mask_trains=True), "cpu") == "math"


@pytest.mark.parametrize(
    ("place", "given", "chosen"),
    [
        ("sm_90", {"dtype": BF16}, "cudnn"),
        ("sm_90", {"dtype": BF16, "inner": 256}, "cudnn"),
        ("sm_100", {"dtype": BF16, "inner": 256}, "flash"),
        ("sm_90", {"dtype": BF16, "inner": 12}, "flash"),  # filled up to 16
        ("sm_90", {"dtype": BF16, "dropout": 0.1}, "flash"),  # cuDNN drops sixteenths
        ("sm_90", {"dtype": BF16, "dropout": 0.125}, "cudnn"),
        ("sm_90", {"dtype": BF16, "inner": 512}, "efficient"),
        ("sm_90", {"dtype": torch.float32}, "efficient"),
        ("sm_90", {"dtype": torch.float32, "own": 2}, "math"),
        ("sm_90", {"dtype": torch.float64}, "math"),
        ("sm_90", {"dtype": torch.float32, "inner": 6}, "math"),
        ("sm_80", {"dtype": BF16}, "flash"),
        ("sm_80", {"dtype": BF16, "own": 2}, "flash"),
        ("sm_80", {"dtype": BF16, "causal": True, "rows": 4}, "efficient"),  # top-left: flash aligns it otherwise
        ("sm_80", {"dtype": BF16, "value": 16}, "efficient"),
        ("sm_80", {"dtype": BF16, "mask": torch.ones(6, 6, dtype=torch.bool)}, "efficient"),
        ("sm_80", {"dtype": BF16, "own": 2, "mask": torch.ones(6, 6, dtype=torch.bool)}, "math"),
        ("sm_86", {"dtype": BF16, "inner": 200, "trains": True}, "efficient"),
        ("sm_86", {"dtype": BF16, "inner": 256, "trains": True}, "flash"),
        ("sm_86", {"dtype": BF16, "inner": 200}, "flash"),
        ("sm_75", {"dtype": torch.float16}, "efficient"),
        ("sm_75", {"dtype": BF16}, "math"),
        ("sm_75", {"dtype": torch.float32, "inner": 5}, "efficient"),
        ("sm_60", {"dtype": torch.float32}, "efficient"),
        ("sm_37", {"dtype": torch.float32}, "math"),
        ("gfx90a", {"dtype": BF16}, "flash"),
        ("gfx90a", {"dtype": torch.float32}, "efficient"),
        ("gfx908", {"dtype": torch.float16}, "math"),
        ("metal", {"dtype": torch.float16}, "math"),
    ],
)
def test_on_gpus_the_rules_of_aten_choose(place, given, chosen):
    assert backend_of(call(**given), place) == chosen


@pytest.mark.parametrize(
    ("place", "asked", "given", "told"),
    [
        ("sm_90", "flash", {"dtype": torch.float32}, "it runs in float16, bfloat16, not float32; .* efficient, math"),
        ("sm_70", "flash", {"dtype": torch.float16}, "it needs sm_80 or newer, not sm_70"),
        ("cpu", "efficient", {}, "a CPU has no such kernel; .* flash, math"),
        ("cpu", "flash", {"dropout": 0.1}, "it drops no weights; .* math"),
        ("gfx90a", "cudnn", {"dtype": BF16}, "a GPU of NVIDIA"),
    ],
)
def test_a_kernel_that_cannot_run_is_refused_with_the_reason(place, asked, given, told):
    with pytest.raises(UnsupportedProgramError, match=told):
        backend_of(call(**given), place, asked)
    assert backend_of(call(**given), place, "math") == "math"


class Block(nn.Module):
    """Attention between two layers that are trained."""

    def __init__(self, heads=4, own=None, mask=None, drop=0.0, causal=False, dtype=torch.float32):
        super().__init__()
        self.heads, self.own, self.drop, self.causal = heads, own or heads, drop, causal
        self.qkv = nn.Linear(32, 8 * (heads + 2 * self.own), dtype=dtype)
        self.out = nn.Linear(8 * heads, 32, dtype=dtype)
        self.register_buffer("mask", mask)

    def forward(self, x):
        parts = self.qkv(x).split([8 * self.heads, 8 * self.own, 8 * self.own], dim=-1)
        q, k, v = (one.unflatten(-1, (-1, 8)).transpose(1, 2) for one in parts)
        options = {"enable_gqa": True} if self.own != self.heads else {}
        x = scaled_dot_product_attention(q, k, v, self.mask, self.drop, self.causal, **options)
        return self.out(x.transpose(1, 2).flatten(2))


BLOCKS = {
    "plain": {},
    "causal": {"causal": True},
    "bool mask": {"mask": torch.ones(6, 6, dtype=torch.bool)},
    "float mask": {"mask": torch.zeros(6, 6)},
    "groups": {"own": 2, "causal": True},
    "dropout": {"drop": 0.5},
}


@pytest.mark.parametrize("attention", ["auto", "math"])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_step_runs_the_calls_of_a_real_one(name, attention):
    torch.manual_seed(0)
    model = Block(**BLOCKS[name])
    x = torch.randn(2, 6, 32)
    with sdpa_kernel(SDPBackend.MATH) if attention == "math" else contextlib.nullcontext():
        real = real_step(model, (x,))
    predicted = predicted_step(model, (x,), attention=attention)
    assert predicted.forward == real.forward and predicted.backward == real.backward
    assert predicted.saved_bytes == real.saved_bytes


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (5, 5), (3, 7), (7, 3), (1, 9), (9, 1)])
def test_pairs_are_those_that_a_mask_leaves(rows, cols):
    assert attended_pairs(rows, cols, True) == int(torch.ones(rows, cols).tril().sum())
    assert attended_pairs(rows, cols, False) == rows * cols
    sizes = {"batch": 2, "heads": 4, "rows": rows, "cols": cols, "inner": 16, "kv_heads": 2}
    plain, masked = (EagerOperator("flash_attention", {**sizes, "causal": one}) for one in (0, 1))
    assert plain.flops == 4 * 2 * 4 * rows * cols * 16
    assert masked.flops == 4 * 2 * 4 * 16 * attended_pairs(rows, cols, True)
    back = EagerOperator("flash_attention_backward", {**sizes, "causal": 1})
    assert back.flops == 2.5 * masked.flops
    assert plain.read_elements == 2 * 16 * (4 * rows + 2 * 2 * cols)  # keys and values are not repeated
    assert plain.written_elements == 2 * 4 * rows * (16 + 1)  # and the log-sum-exp
    assert back.written_elements == plain.read_elements


def test_a_backward_kernel_holds_what_it_adds_up():
    sizes = {"batch": 2, "heads": 4, "rows": 100, "cols": 50, "inner": 20, "kv_heads": 2}
    options = EagerOperator("flash_attention_backward", sizes, "bfloat16").sizes
    assert workspace_bytes("flash_attention_backward", options, 2) == 2 * 4 * (128 * 33 * 4 + 50 * 40 * 2)
    assert workspace_bytes("flash_attention", options, 2) == workspace_bytes("linear", {}, 4) == 0


@pytest.mark.parametrize(
    ("asked", "more"), [("flash", 8 * 16 * 4 + 24), ("efficient", 8 * 32 * 4 + 16), ("cudnn", 8 * 16 * 4 + 16)]
)
def test_a_gpu_keeps_the_result_and_its_log_sum_exp(asked, more):
    """Of two examples with four heads of 16 x 8; the efficient kernel fills rows up to 32, all keep a random state."""

    read = read_run(
        Workload(Block(), torch.randn(2, 16, 32), precision="float16", mode="forward_backward", attention=asked),
        "sm_90",
    )
    places = {read.operators[one.task_id].name: one for one in read.graph.calls}
    assert {f"{asked}_attention", f"{asked}_attention_backward"} <= {*places}
    assert places[f"{asked}_attention"].output_bytes == 2 * 16 * 32 * 2 + more


def known(dtype="bfloat16", backend="flash", **sizes):
    given = {"batch": 8, "heads": 16, "rows": 2048, "cols": 2048, "inner": 128, **sizes}
    return EagerOperator(f"{backend}_attention", given, dtype)


def single(operators, device):
    """Each operator takes as long as its bytes at 1 TB/s."""
    return [Price(one.io_bytes / 1e12 + KERNEL_S, 1e-5, {}, ()) for one in operators]


def test_a_published_speed_is_answered_as_published():
    h100, a100 = devices.get("h100"), devices.get("a100")
    blocks = 8 * 16 * 16 / 132
    fill = blocks / -(-blocks // 1)
    (found,) = attention_prices([known()], h100, single)
    assert found.latency_s == pytest.approx(known().flops / 362e12 / fill + KERNEL_S, rel=1e-6)
    assert found.flags == ("fused attention",)
    low, high = found.intervals[0.8]
    assert low < found.latency_s / 1.3 and high > 1.3 * found.latency_s
    (elsewhere,) = attention_prices([known()], a100, single)  # FlashAttention-2's paper: 0.73 of 312 TFLOP/s
    assert 0.6 * 312e12 < known().flops / elsewhere.latency_s < 0.8 * 312e12
    low, high = elsewhere.intervals[0.8]
    assert high / low > 1.5 * 1.5


def test_a_single_query_is_answered_by_the_bytes_of_its_keys():
    step = known(rows=1, cols=4096, kv_heads=2)
    (found,) = attention_prices([step], devices.get("h100"), single)
    assert found.latency_s == pytest.approx(step.io_bytes / 1e12 + KERNEL_S, rel=0.01)
    (more,) = attention_prices([known(rows=1, cols=4096)], devices.get("h100"), single)
    assert more.latency_s > 7 * found.latency_s


def test_without_a_published_speed_products_answer():
    (found,) = attention_prices([known("float32", "efficient")], devices.get("t4"), single)
    (halved,) = attention_prices([known("float32", "efficient", causal=1)], devices.get("t4"), single)
    assert halved.latency_s - KERNEL_S == pytest.approx((found.latency_s - KERNEL_S) * 2049 / 4096)
    assert found.intervals[0.8][1] == pytest.approx(2 * found.latency_s)


def test_what_was_measured_comes_before_what_was_published(tmp_path):
    own = known(causal=1)
    row = {"device": "h100", "operator": json.loads(own.to_json()), "seconds": [2e-3, 1e-3, 4e-3]}
    (tmp_path / "h100.jsonl").write_text(json.dumps(row) + "\n")
    speeds = attention_speeds(tmp_path)
    speed = speeds.of(own, "h100")
    assert speed.is_measured and speed.tflops == pytest.approx(own.flops / 2e-3 / 1e12)
    assert speeds.of(own, "a100") is None
    (found,) = attention_prices([own], devices.get("h100"), single, speeds)
    assert found.flags == ()
    (tmp_path / "h100.jsonl").write_text(json.dumps({**row, "seconds": []}) + "\n")
    attention_speeds.cache_clear()
    with pytest.raises(DataError, match="h100.jsonl, line 1: no measured attention: seconds"):
        attention_speeds(tmp_path)


@pytest.mark.parametrize("backend", ["flash", "cudnn", "efficient"])
@pytest.mark.parametrize("back", ["", "_backward"])
def test_speeds_grow_with_sequences_and_never_pass_the_peak(backend, back):
    speeds, last = attention_speeds(), 0.0
    for at in (16, 128, 512, 1024, 4096, 16384, 10**6):
        sizes = {"batch": 1, "heads": 1, "rows": at, "cols": at, "inner": 64, "causal": 1}
        found = speeds.of(EagerOperator(f"{backend}_attention{back}", sizes, "float16"), "h100").tflops
        assert last <= 1.01 * found < 989
        last = found


def test_a_network_says_that_its_attention_was_not_measured():
    found = cdmpp.predict_network(
        cdmpp.Workload(Block(causal=True), torch.randn(2, 16, 32), precision="float16"), device="h100", runtime="torch"
    )
    assert any("fused attention: nobody measured it here" in one for one in found.warnings)


def test_the_command_line_asks_for_a_kernel(capsys):
    words = ["network", "hf:gpt2", "--device", "h100", "--runtime", "torch", "--batch", "2", "--seq", "64", "--json"]
    said = {}
    for asked in ("auto", "math", "eager", "flash"):
        code = cli.main([*words, "--attention", asked])
        out, err = capsys.readouterr()
        said[asked] = out if not code else err
    names = {key: said[key] for key in ("auto", "math", "eager")}
    assert "efficient_attention 2x12x64x64x64" in names["auto"]
    assert "attention" not in json.dumps([one["kernel"] for one in json.loads(names["eager"])["kernels"]])
    assert "bmm" in names["math"] and "bmm" in names["eager"]
    assert "attention by flash cannot run here: it runs in float16, bfloat16, not float32" in said["flash"]


def test_a_speed_that_was_not_stored_well_is_named(tmp_path):
    (tmp_path / "published.yaml").write_text("speeds: [{device: h100, backend: flash}]\n")
    with pytest.raises(DataError, match="entry 1: no speed of attention: 'halves'"):
        attention_speeds(tmp_path)


def test_an_operator_of_attention_is_no_single_question():
    with pytest.raises(UnsupportedProgramError, match="nobody measured fused attention"):
        cdmpp.load_model("torch-gpus").predict([known()], device="h100")
    with pytest.raises(UnsupportedProgramError, match="3 kv_heads do not divide its heads"):
        known(kv_heads=3)


def test_a_kernel_of_attention_is_refused_where_there_is_no_attention():
    with pytest.raises(UsageError, match="attention math: Linear does not call scaled_dot_product_attention"):
        read_run(Workload(nn.Linear(8, 8), torch.zeros(4, 8), attention="math"))
