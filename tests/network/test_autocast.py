"""Regions of ``torch.autocast``: the casts and types that eager PyTorch dispatches, or a refusal."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

import cdmpp
from cdmpp import cli
from cdmpp.errors import CdmppError
from cdmpp.network.eager.read import read_run
from cdmpp.network.eager.step import read_step
from cdmpp.network.workload import Workload
from tests.network.dispatched import NAMES, Log
from tests.network.region_networks import Attention, Run, mlp

BF16 = torch.bfloat16


def under(run, **options):
    def forward(parts, x):
        with torch.autocast("cpu", **{"dtype": BF16, **options}):
            return run(parts, x)

    return forward


def plain(parts, x):
    for part in parts:
        x = part(x)
    return x


def same_twice(parts, x):
    return parts[0](parts[0](x))


def two_regions(parts, x):
    for _ in range(2):
        with torch.autocast("cpu", BF16):
            x = parts[0](x)
    return x


def off_inside(parts, x):
    with torch.autocast("cpu", BF16):
        x = parts[0](x)
        with torch.autocast("cpu", enabled=False):
            x = parts[1](x.float())
        return parts[2](x)


class Decorated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = mlp()

    @torch.autocast("cpu", BF16)
    def forward(self, x):
        return self.part(x)


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        with torch.autocast("cpu", BF16):
            return self.conv(x).float()


def products(parts, x):
    return torch.matmul(x, x.transpose(-1, -2)).softmax(-1) @ x


CASES = {
    "layers": (Run(under(plain), mlp(), mlp()), (4, 8)),
    "float16": (Run(under(plain, dtype=torch.float16), mlp()), (4, 8)),
    "off": (Run(under(plain, enabled=False), mlp()), (4, 8)),
    "a weight is cast once": (Run(under(same_twice), mlp()), (4, 8)),
    "without a cache each time": (Run(under(same_twice, cache_enabled=False), mlp()), (4, 8)),
    "a frozen weight each time": (Run(under(same_twice), mlp()).requires_grad_(requires_grad=False), (4, 8)),
    "each region for itself": (Run(two_regions, mlp()), (4, 8)),
    "off inside": (Run(off_inside, mlp(), mlp(), mlp()), (4, 8)),
    "float32 behind": (Run(lambda parts, x: parts[1](under(plain)(parts[:1], x).float()), mlp(), mlp()), (4, 8)),
    "sum of two types": (Run(under(lambda parts, x: parts[1](x + parts[0](x))), mlp(), mlp()), (4, 8)),
    "loss in float32": (Run(under(lambda parts, x: nn.functional.mse_loss(parts[0](x), x)), mlp()), (4, 8)),
    "attention": (Run(under(plain), Attention()), (2, 5, 8)),
    "products of inputs": (Run(under(products)), (2, 5, 8)),
    "casts inside an operator": (Run(under(lambda _, x: torch.einsum("bij,bkj->bik", x, x))), (2, 5, 8)),
    "decorator": (Decorated(), (4, 8)),
    "convolution": (Convolution(), (1, 3, 8, 8)),
}


@pytest.mark.parametrize("name", CASES)
def test_operators_types_and_casts_are_those_of_the_real_run(name):
    model, shape = CASES[name]
    x = torch.randn(*shape)
    with Log() as real, torch.no_grad():
        model.eval()(x)
    read = read_run(Workload(model, x), place="cpu")
    counted: Counter = Counter()
    for call in read.graph.calls:
        operator = read.operators[call.task_id]
        if operator.kind.family in ("linear", "bmm"):
            counted["product", *operator.matmul, f"torch.{operator.dtype}"] += 1
        elif operator.name == "copy" or operator.name in NAMES.values():
            what = "cast" if operator.name == "copy" else operator.name
            counted[what, operator["rows"] * operator["cols"], f"torch.{operator.dtype}"] += 1
    assert counted == real.seen
    assert not read.warnings


class On(nn.Module):
    """Its region names a device."""

    def __init__(self, device, **options):
        super().__init__()
        self.part, self.device, self.options = mlp(), device, options

    def forward(self, x):
        with torch.autocast(self.device, **self.options):
            return self.part(x).softmax(-1)


def types(model, kind):
    read = read_run(Workload(model, torch.randn(4, 8)), place=kind)
    return [(one.name, one.dtype) for one in map(read.operators.get, (call.task_id for call in read.graph.calls))], read


@pytest.mark.parametrize(("dtype", "name"), [(None, "float16"), (BF16, "bfloat16")])
def test_a_region_of_cuda_follows_the_rules_of_gpus_on_a_machine_without_one(dtype, name):
    model = On("cuda", dtype=dtype)
    found, read = types(model, "gpu")
    assert [one for one in found if one[0] == "linear"] == [("linear", name)] * 2
    assert found.count(("copy", name)) == 1 + 2 + 2  # the input and each weight and bias; what is between has the type
    assert found[-1] == ("softmax", "float32") and not read.warnings  # a rule of GPUs alone
    assert {kind for _, kind in types(model, "cpu")[0]} == {"float32"}  # as on a CPU it changes nothing
    assert {kind for _, kind in types(On("cuda", enabled=False), "gpu")[0]} == {"float32"}


def test_a_region_of_cpu_is_taken_for_one_of_the_gpu_with_a_word(tmp_path, capsys):
    found, read = types(On("cpu", dtype=BF16), "gpu")
    assert ("linear", "bfloat16") in found and len(read.warnings) == 1
    file = tmp_path / "nets.py"
    file.write_text(
        "import torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)\n"
        "    def forward(self, x):\n        with torch.autocast('cpu', torch.bfloat16):\n"
        "            return self.second(torch.softmax(self.first(x), -1))\n"
        "def make():\n    return Net(), (torch.randn(8, 64),)\n"
    )
    assert cli.main(["network", f"{file}:make", "--device", "h100", "--runtime", "torch"]) == 0
    told = capsys.readouterr()
    assert "linear 8x64x64 bfloat16" in told.out and "is taken for one of the GPU" in told.err
    assert cli.main(["step", f"{file}:make", "--device", "h100", "--runtime", "torch", "--loss", "mse"]) == 0
    told = capsys.readouterr()
    assert "linear 64x8x64 bias=0 bfloat16" in told.out and "is taken for one of the GPU" in told.err


def test_what_cannot_be_told_is_refused():
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = mlp()

        @torch.autocast("cuda", BF16)  # made here, where torch turns it off: nobody can tell any more
        def forward(self, x):
            return self.part(x)

    if not torch.cuda.is_available():
        with pytest.raises(CdmppError, match="Write `with torch.autocast"):
            types(Late(), "gpu")
    with pytest.raises(CdmppError, match="'xpu'.*'cuda' and 'cpu' are read"):
        types(On("xpu", dtype=BF16), "gpu")


def test_attention_of_transformers_turns_autocast_off_where_it_was_not_on():
    library = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    llama = library.LlamaModel(library.LlamaConfig(**sizes, vocab_size=50, use_cache=False))

    def run(parts, x):
        with torch.autocast("cuda", BF16):
            return parts[0](x).last_hidden_state

    read = read_run(Workload(Run(run, llama), torch.randint(0, 50, (1, 8))))
    kinds = {read.operators[call.task_id].dtype for call in read.graph.calls if "linear" in call.name}
    assert kinds >= {"bfloat16"}
    plain_read = read_run(Workload(Run(lambda parts, x: parts[0](x).last_hidden_state, llama), torch.ones(1, 8).long()))
    assert not any("bfloat16" in str(one) for one in plain_read.operators.values())


@pytest.mark.tvm
def test_tvms_programs_refuse_a_region_and_go_on_without():
    pytest.importorskip("tvm")
    x = torch.randn(4, 8)
    with pytest.raises(CdmppError, match=r"torch\.autocast\('cpu', torch\.bfloat16\).*ask for --runtime torch"):
        cdmpp.predict_network(On("cpu", dtype=BF16), x, device="xeon-icelake", schedule="untuned")
    with pytest.raises(CdmppError, match=r"torch\.autocast\('cuda', torch\.bfloat16\).*ask for --runtime torch"):
        cdmpp.read_step(cdmpp.Workload(On("cuda", dtype=BF16), x, loss="mse"))
    from cdmpp.network.source.read import read_network

    assert read_network(Workload(On("cpu", enabled=False), x)).module is not None


def test_a_trained_batch_norm_is_read_as_on_a_gpu():
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    workload = Workload(module, torch.zeros(2, 3, 16, 16), mode="training_step", loss="mse", precision="bf16-autocast")
    read = read_step(workload, "sm_90")
    types = {one.name: one.dtype for one in read.operators.values()}
    assert types["conv2d"] == "bfloat16"


def test_scores_of_classes_are_float32_for_their_likelihood_alone():
    """On a GPU autocast casts for ``nll_loss``, inside of ``cross_entropy``; its softmax takes scores as they come."""
    workload = Workload(
        nn.Linear(8, 10), torch.zeros(4, 8), mode="training_step", loss="cross_entropy", precision="bf16-autocast"
    )
    read = read_step(workload, "sm_90")
    assert "flatten" not in " ".join(call.name for call in read.graph.calls)
    calls = [(one.name, one.dtype) for one in (read.operators[call.task_id] for call in read.graph.calls)]
    start = calls.index(("softmax", "bfloat16"))
    assert calls[start : start + 7] == [
        ("softmax", "bfloat16"), ("copy", "float32"), ("mean", "float32"),
        ("copy", "float32"), ("copy", "bfloat16"), ("mul", "bfloat16"), ("softmax", "bfloat16"),
    ]  # fmt: skip
