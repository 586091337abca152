"""Settings are PyTorch's: its classes take them, make the buckets that were planned, and give the same gradients."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect

import pytest

from cdmpp.network.precision import PRECISIONS
from cdmpp.plans.plan import Plan, plan_on
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.hsdp import HSDP
from cdmpp.plans.strategies.parameter_server import ParameterServer
from cdmpp.plans.torch_settings import torch_settings
from cdmpp.steps.step_graph import Gradient, Op, RankGraph

torch = pytest.importorskip("torch")
MIB = 2**20


def calls(lines: tuple[str, ...]) -> dict[str, list[ast.Call]]:
    """Name of what is called -> the calls."""
    found: dict[str, list[ast.Call]] = {}
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.Call):
            found.setdefault(ast.unparse(node.func).rpartition(".")[2], []).append(node)
    return found


def keywords(call: ast.Call) -> set[str | None]:
    return {one.arg for one in call.keywords}


@pytest.mark.parametrize(
    "plan",
    [
        Plan(),
        Plan(DDP((4 * MIB,), True), gradient_accumulation_steps=2, update="fused"),
        Plan(DDP((MIB // 2, 8 * MIB)), recompute=("h.0", "h.1")),
        Plan(FSDP(reshard_after_forward=False)),
        plan_on(2, ParameterServer(servers=2)),
    ],
)
def test_torch_has_each_setting(plan):
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.checkpoint import checkpoint

    found = calls(torch_settings(plan, "sgd"))
    has = {
        "DistributedDataParallel": DistributedDataParallel.__init__, "fully_shard": fully_shard,
        "SGD": torch.optim.SGD.__init__,
    }  # fmt: skip
    for name, function in has.items():
        for call in found.get(name, ()):
            assert keywords(call) <= set(inspect.signature(function).parameters)
    assert "use_reentrant" in inspect.signature(checkpoint).parameters
    if plan == Plan():
        assert torch_settings(plan) == ("model = DistributedDataParallel(model)",)


@pytest.mark.parametrize(
    ("precision", "given"),
    [
        ("bf16", None),
        ("bf16-fsdp", {"param_dtype": "torch.bfloat16", "reduce_dtype": "torch.float32"}),
        ("bf16-fsdp-pure", {"param_dtype": "torch.bfloat16"}),
    ],
)
@pytest.mark.parametrize("strategy", [FSDP(), HSDP()])
def test_fsdp_has_the_types_of_its_precision(strategy, precision, given):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    found = calls(torch_settings(Plan(strategy), precision=PRECISIONS[precision]))
    assert len(found["fully_shard"]) == 2
    assert all(("mp_policy" in keywords(call)) == (given is not None) for call in found["fully_shard"])
    made = [
        {one.arg: ast.unparse(one.value) for one in call.keywords} for call in found.get("MixedPrecisionPolicy", [])
    ]
    assert made == ([] if given is None else [given])
    assert {key for one in made for key in one} <= set(inspect.signature(MixedPrecisionPolicy).parameters)


@pytest.fixture
def alone():
    """A process group of this process."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("sizes", [(MIB, 25 * MIB), (3 * MIB,), (MIB, 2 * MIB), (2 * MIB, MIB // 2), (100 * MIB,)])
def test_torch_makes_the_buckets_of_the_plan(alone, sizes):
    """Layers of 1 MiB whose gradients come last first."""
    plan = Plan(DDP(sizes))
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512, bias=False) for _ in range(7)])
    wrapped = torch.nn.parallel.DistributedDataParallel(model, **plan.strategy.torch_arguments())
    for _ in range(3):  # buckets are made anew behind the first, and told behind the second
        wrapped(torch.ones(1, 512)).sum().backward()
    told = wrapped._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    passes = (Op("forward", "forward", 1.0), *(Op("backward", "backward", 1.0) for _ in range(7)))
    rank = RankGraph(0, passes, tuple(Gradient(f"{i}.weight", MIB, 7 - i) for i in range(7)))
    planned = [sum(one.bytes for one in bucket) for bucket in plan.strategy.buckets(rank)]
    assert [int(size) for size in told.split(", ")] == planned


def test_recomputed_blocks_and_added_batches_give_the_same_gradients(alone):
    torch.manual_seed(0)
    reference = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(3)])
    batches = [(torch.randn(4, 8), torch.randn(4, 8)) for _ in range(2)]
    loss_of = torch.nn.functional.mse_loss
    sum(loss_of(reference(x), y) / 2 for x, y in batches).backward()
    wanted = [one.grad.clone() for one in reference.parameters()]
    reference.zero_grad()
    plan = Plan(DDP(gradient_as_bucket_view=True), gradient_accumulation_steps=2, recompute=("0", "1"))
    names = {
        "model": reference, "torch": torch, "functools": functools, "contextlib": contextlib, "batches": batches,
        "loss_of": loss_of, "optimizer": torch.optim.SGD(reference.parameters(), lr=0.0),
        "DistributedDataParallel": torch.nn.parallel.DistributedDataParallel,
    }  # fmt: skip
    lines = "\n".join(torch_settings(plan)).replace("optimizer.zero_grad()", "pass")
    inner = []
    reference[1][0].register_forward_hook(lambda *_: inner.append(1))
    exec(lines, names)
    assert len(inner) == 4  # each batch twice
    for one, grad in zip(reference.parameters(), wanted, strict=True):
        torch.testing.assert_close(one.grad, grad)
