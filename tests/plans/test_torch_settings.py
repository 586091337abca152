"""Settings are PyTorch's: its classes take them, make the buckets that were planned, and give the same gradients."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect

import pytest

from cdmpp.plans.plan import Plan
from cdmpp.plans.torch_settings import ddp_arguments, torch_settings
from cdmpp.steps.data_parallel import DataParallel
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
        Plan(bucket_bytes=(4 * MIB,), bucket_view=True, micro_steps=2, fused_update=True),
        Plan(bucket_bytes=(MIB // 2, 8 * MIB), recomputed=("h.0", "h.1")),
        Plan("fsdp", reshard=False),
        Plan("ps", servers=2),
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
    assert set(ddp_arguments(plan)) <= set(inspect.signature(DistributedDataParallel.__init__).parameters)
    assert "use_reentrant" in inspect.signature(checkpoint).parameters
    if plan == Plan():
        assert torch_settings(plan) == ("model = DistributedDataParallel(model)",)


@pytest.fixture
def alone():
    """A process group of this process."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("sizes", [(MIB, 25 * MIB), (3 * MIB,), (MIB, 2 * MIB), (2 * MIB, MIB // 2), (100 * MIB,)])
def test_torch_makes_the_buckets_of_the_plan(alone, sizes):
    """Layers of 1 MiB whose gradients come last first."""
    plan = Plan(bucket_bytes=sizes)
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512, bias=False) for _ in range(7)])
    wrapped = torch.nn.parallel.DistributedDataParallel(model, **ddp_arguments(plan))
    for _ in range(3):  # buckets are made anew behind the first, and told behind the second
        wrapped(torch.ones(1, 512)).sum().backward()
    told = wrapped._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    passes = (Op("forward", "forward", 1.0), *(Op("backward", "backward", 1.0) for _ in range(7)))
    rank = RankGraph(0, passes, tuple(Gradient(f"{i}.weight", MIB, 7 - i) for i in range(7)))
    planned = [sum(one.bytes for one in bucket) for bucket in plan.on().buckets(rank)]
    assert [int(size) for size in told.split(", ")] == planned
    assert isinstance(plan.on(), DataParallel)


def test_recomputed_blocks_and_added_batches_give_the_same_gradients(alone):
    torch.manual_seed(0)
    reference = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(3)])
    batches = [(torch.randn(4, 8), torch.randn(4, 8)) for _ in range(2)]
    loss_of = torch.nn.functional.mse_loss
    sum(loss_of(reference(x), y) / 2 for x, y in batches).backward()
    wanted = [one.grad.clone() for one in reference.parameters()]
    reference.zero_grad()
    plan = Plan(recomputed=("0", "1"), micro_steps=2, bucket_view=True)
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
