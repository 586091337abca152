"""Mixtures of experts: the calls of a real run here, grouped or one by one; imbalance; capacity; training."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from cdmpp import cli
from cdmpp.errors import CdmppError, UsageError
from cdmpp.network.eager.read import read_run
from cdmpp.network.eager.step import read_step
from cdmpp.network.workload import Workload
from cdmpp.programs.experts import expert_rows
from cdmpp.programs.models import import_transformers

EXPERTS, CHOSEN, WIDTH, INNER, TOKENS, LAYERS = 4, 2, 16, 32, 48, 2
COUNTED = ("_grouped_mm", "topk", "sort", "index", "histc", "index_put_", "index_add_", "silu", "embedding")


class Names(TorchDispatchMode):
    """Counts operators by name, and the work of products."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.work = Counter(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func._opname
        self.seen[name] += 1
        if name in ("mm", "_grouped_mm"):
            x, y = args[:2]
            self.work += (
                2 * out.numel() * x.shape[-1] if name == "mm" or out.dim() == 2 else 2 * out[0].numel() * len(x.T)
            )
        return out


@pytest.fixture(scope="module")
def mixtral():
    pytest.importorskip("transformers")
    transformers = import_transformers()

    def made(implementation: str):
        torch.manual_seed(0)
        config = transformers.MixtralConfig(
            vocab_size=80, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=4,
            num_key_value_heads=2, num_local_experts=EXPERTS, num_experts_per_tok=CHOSEN, use_cache=False,
        )  # fmt: skip
        model = transformers.MixtralForCausalLM(config).eval()
        model.set_experts_implementation(implementation)
        return model, {"input_ids": torch.randint(0, 80, (2, TOKENS // 2))}

    return made


def called(read) -> Counter:
    """Calls by the name of their operator in ATen, those of one node once."""
    nodes = {call.name.split("#")[0] for call in read.graph.calls if call.forward is None}
    names = Counter()
    for node in nodes:
        stem, _, number = node.rpartition("_")
        names[stem if number.isdecimal() else node] += 1
    names["_grouped_mm"] = names.pop("grouped_mm_fallback", 0)
    return names


def products(read) -> float:
    operators = [read.operators[call.task_id] for call in read.graph.calls]
    return sum(
        one.flops for one in operators if one.kind.family == "linear" or (one.name == "bmm" and one["rows"] > 24)
    )


@pytest.mark.parametrize("implementation", ["grouped_mm", "eager"])
def test_its_calls_are_those_of_a_real_run(mixtral, implementation):
    model, example = mixtral(implementation)
    with torch.no_grad(), Names() as real:
        model(**example)
    found = called(read_run(Workload(model, example)))
    assert {name: found[name] for name in COUNTED} == {name: real.seen[name] for name in COUNTED}
    if implementation == "eager":  # a scan in place of nonzero, whose size is a value
        assert found["cumsum"] == found["index_add_"] == LAYERS * EXPERTS


def expert_work(rows: int) -> int:
    """FLOPs of all layers' experts on so many rows."""
    return LAYERS * 2 * rows * WIDTH * (2 * INNER + INNER)


@pytest.mark.parametrize("implementation", ["grouped_mm", "eager"])
@pytest.mark.parametrize("imbalance", [1.0, 2.0, 4.0])
def test_work_is_that_of_the_tokens_whoever_gets_them(mixtral, implementation, imbalance):
    model, example = mixtral(implementation)
    read = read_run(Workload(model, example, moe_imbalance=imbalance))
    matrices = {(WIDTH, 2 * INNER), (INNER, WIDTH)}
    inside = [
        one
        for call in read.graph.calls
        if (one := read.operators[call.task_id]).kind.family in ("linear", "bmm") and one.matmul[2:] in matrices
    ]
    assert sum(one.flops for one in inside) == pytest.approx(expert_work(TOKENS * CHOSEN), rel=0.02)
    busiest = max(one.matmul[1] for one in inside)
    assert busiest == round(TOKENS * CHOSEN / EXPERTS * imbalance)
    calls = (
        {1.0: EXPERTS, 2.0: EXPERTS, 4.0: 1}[imbalance]
        if implementation == "eager"
        else {1.0: 1, 2.0: 2, 4.0: 1}[imbalance]
    )
    assert len(inside) == LAYERS * 2 * calls


def test_it_is_trained_in_float32_without_values(mixtral):
    """PyTorch knows the shapes of grouped products in bfloat16 only, and large models have no values."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model, example = mixtral("grouped_mm")
    read = read_step(Workload(model, example, mode="training_step"))
    like = read_step(Workload(*mixtral("grouped_mm"), mode="training_step"))
    assert called(read) == called(like)
    assert called(read)["_grouped_mm"] == 2 * LAYERS


@pytest.mark.parametrize("implementation", ["grouped_mm", "eager"])
def test_it_is_trained(mixtral, implementation):
    model, example = mixtral(implementation)
    example["labels"] = example["input_ids"]
    read = read_step(Workload(model, example, mode="training_step", loss="model"))
    assert all(one.is_used for one in read.step.parameters)
    whole = sum(products_of(read, phase) for phase in ("forward", "backward"))
    assert whole == pytest.approx(3 * expert_work(TOKENS * CHOSEN), rel=0.01)
    with Names() as real:
        model(**example).loss.backward()
    grouped = [call for call in read.step.calls if "grouped" in call.call.name and call.phase == "backward"]
    kept = [one for one in grouped if read.operators[one.call.task_id].name == "bmm"]
    assert len(kept) == (2 * 2 * LAYERS if implementation == "grouped_mm" else 0)
    assert real.seen["_grouped_mm"] == (3 * 2 * LAYERS if implementation == "grouped_mm" else 0)


def products_of(read, phase: str) -> float:
    sizes = [{WIDTH, 2 * INNER}, {INNER, WIDTH}]
    return sum(
        one.flops
        for call in read.step.calls
        if call.phase == phase
        and (one := read.operators[call.call.task_id]).kind.family in ("linear", "bmm")
        and any(pair <= {*one.matmul[1:]} and TOKENS * CHOSEN // EXPERTS in one.matmul for pair in sizes)
    )


@pytest.mark.parametrize(
    ("rows", "experts", "imbalance"),
    [
        (5, 1, 1.0),
        *((rows, experts, many) for rows, experts in [(96, 4), (7, 4), (3, 8)] for many in (1.0, 1.3, 2.0, 4.0)),
    ],
)
def test_rows_are_shared_out(rows, experts, imbalance):
    found = expert_rows(rows, experts, imbalance)
    assert sum(found) == rows and len(found) == experts and max(found) == found[0] and min(found) >= 0
    assert found[0] == min(rows, max(-(-rows // experts), round(rows / experts * imbalance)))
    assert max(found[1:], default=0) - min(found[1:], default=0) <= 1


def test_an_imbalance_that_cannot_be_or_changes_nothing_is_refused():
    with pytest.raises(UsageError, match="the busiest of 4 experts has at most 4 times the mean"):
        expert_rows(96, 4, 4.5)
    with pytest.raises(UsageError, match="moe_imbalance is 2: the network has no mixture of experts"):
        read_run(Workload(nn.Linear(8, 8), torch.zeros(4, 8), moe_imbalance=2.0))
    with pytest.raises(UsageError, match="moe_imbalance is 2: the network has no mixture of experts"):
        read_step(Workload(nn.Linear(8, 8), torch.zeros(4, 8), moe_imbalance=2.0, loss="mse", mode="training_step"))


class Capacity(nn.Module):
    """Switch routing: each expert takes as many tokens as it has places, the others are dropped."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity, self.gate = capacity, nn.Linear(WIDTH, EXPERTS)
        self.up, self.down = (
            nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER)),
            nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores, chosen = self.gate(x).softmax(-1).max(-1)
        hot = nn.functional.one_hot(chosen, EXPERTS)
        place = (hot.cumsum(0) * hot).sum(-1) - 1
        slot = (chosen * self.capacity + place).clamp(max=EXPERTS * self.capacity)
        given = x.new_zeros(EXPERTS * self.capacity + 1, WIDTH).index_copy(0, slot, x)[:-1]
        made = torch.bmm(torch.relu(torch.bmm(given.view(EXPERTS, self.capacity, WIDTH), self.up)), self.down)
        return made.view(-1, WIDTH)[slot.clamp(max=EXPERTS * self.capacity - 1)] * scores.unsqueeze(-1)


def test_experts_of_a_capacity_work_on_all_their_places():
    for capacity in (12, 24):
        read = read_run(Workload(Capacity(capacity), torch.randn(TOKENS, WIDTH), mode="forward_backward"))
        products = [one for call in read.graph.calls if (one := read.operators[call.task_id]).name == "bmm"]
        assert (
            sum(one.flops for one in products) == 5 * 2 * EXPERTS * capacity * WIDTH * INNER
        )  # the batch needs no gradient


class Looping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.expert(x[torch.where(x.sum(-1) > 0)[0]])


def test_tokens_that_values_choose_are_refused_by_place():
    with pytest.raises(CdmppError, match="depends on the values"):
        read_run(Workload(Looping(), torch.randn(TOKENS, WIDTH)))


@pytest.mark.parametrize("imbalance", [0.5, float("nan"), "2"])
def test_no_imbalance_is_below_one(imbalance):
    with pytest.raises(UsageError, match="moe_imbalance"):
        Workload(Looping(), torch.randn(2, WIDTH), moe_imbalance=imbalance)


def test_the_command_line_takes_it(tmp_path, capsys):
    (tmp_path / "config.json").write_text(
        '{"model_type": "mixtral", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32,'
        ' "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4}'
    )
    command = ["network", f"hf:{tmp_path}", "--runtime", "torch", "--device", "h100", "--seq", "24"]
    assert cli.main([*command, "--moe-imbalance", "2"]) == 0
    assert "bmm 1x24x16x64" in capsys.readouterr().out


def test_experts_of_half_types_train_on_a_gpu(mixtral):
    """``aten._grouped_mm`` is differentiated by itself: a product for each expert's matrix."""
    model, example = mixtral("grouped_mm")
    given = {**example, "labels": example["input_ids"]}
    read = read_step(Workload(model, given, mode="training_step", loss="model", precision="bf16"), "sm_90")
    made = [read.operators[call.task_id] for call in read.graph.calls]
    rows = TOKENS * CHOSEN
    work = sum(one.flops for one in made if one.name == "bmm" and one["batch"] == EXPERTS)
    assert work == 3 * expert_work(rows)
