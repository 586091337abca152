"""What a plan is in PyTorch: the lines that set it, and the arguments of DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdmpp.plans.plan import DEFAULT_BUCKETS, Plan, mib

_CLASSES: Mapping[str, str] = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}


def ddp_arguments(plan: Plan) -> dict[str, Any]:
    """Of ``torch.nn.parallel.DistributedDataParallel``; empty where the plan leaves it as it is.

    A first bucket of its own takes ``bucket_cap_mb_list``, which torch 2.13 has.
    """
    found: dict[str, Any] = {}
    sizes = [_number(size) for size in plan.bucket_bytes]
    if plan.bucket_bytes != DEFAULT_BUCKETS:
        found |= {"bucket_cap_mb": sizes[0]} if len(sizes) == 1 else {"bucket_cap_mb_list": sizes}
    if plan.bucket_view:
        found["gradient_as_bucket_view"] = True
    return found


def torch_settings(plan: Plan, optimizer: str = "adamw") -> tuple[str, ...]:
    """Lines of Python for a ``model`` and ``batches``; ``optimizer``: ``sgd``, ``adam``, ``adamw``, or empty."""
    wrap = {"ddp": _ddp, "fsdp": _fsdp, "ps": _ps}[plan.scheme](plan)
    return (*_recomputed(plan), *wrap, *_optimizer(plan, optimizer), *_loop(plan))


def _ddp(plan: Plan) -> tuple[str, ...]:
    given = "".join(f", {key}={value!r}" for key, value in ddp_arguments(plan).items())
    return (f"model = DistributedDataParallel(model{given})",)


def _fsdp(plan: Plan) -> tuple[str, ...]:
    again = "" if plan.reshard else ", reshard_after_forward=False"
    return (f"for block in blocks: fully_shard(block{again})", f"fully_shard(model{again})")


def _ps(plan: Plan) -> tuple[str, ...]:
    """PyTorch has no such servers; these are BytePS's."""
    servers = () if plan.servers is None else (f'os.environ["DMLC_NUM_SERVER"] = "{plan.servers}"',)
    return (
        *servers,
        f'os.environ["BYTEPS_PARTITION_BYTES"] = "{plan.part_bytes}"',
        "optimizer = byteps.torch.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())",
    )


def _recomputed(plan: Plan) -> tuple[str, ...]:
    if not plan.recomputed:
        return ()
    return (
        f"for name in {plan.recomputed!r}:",
        "    block = model.get_submodule(name)",
        "    block.forward = functools.partial(torch.utils.checkpoint.checkpoint, block.forward, use_reentrant=False)",
    )


def _optimizer(plan: Plan, optimizer: str) -> tuple[str, ...]:
    if not plan.fused_update:
        return ()
    if not optimizer:
        return ("# give the optimizer fused=True",)
    return (f"optimizer = torch.optim.{_CLASSES.get(optimizer, optimizer)}(model.parameters(), fused=True)",)


def _loop(plan: Plan) -> tuple[str, ...]:
    if plan.micro_steps == 1:
        return ()
    return (
        "for number, (inputs, targets) in enumerate(batches, 1):",
        f"    is_last = number % {plan.micro_steps} == 0",
        "    with contextlib.nullcontext() if is_last else model.no_sync():",
        f"        (loss_of(model(inputs), targets) / {plan.micro_steps}).backward()",
        "    if is_last:",
        "        optimizer.step()",
        "        optimizer.zero_grad()",
    )


def _number(size: int) -> int | float:
    text = float(mib(size))
    return int(text) if text.is_integer() else text
