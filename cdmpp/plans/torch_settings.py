"""The lines of PyTorch that set a plan."""

from __future__ import annotations

from collections.abc import Mapping

from cdmpp.plans.plan import Plan

_CLASSES: Mapping[str, str] = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}


def torch_settings(plan: Plan, optimizer: str = "adamw") -> tuple[str, ...]:
    """Write Python for a ``model`` and ``batches``; ``optimizer``: ``sgd``, ``adam``, ``adamw``, or empty."""
    return (*_recomputed(plan), *_sizes(plan), *plan.strategy.torch_lines(), *_optimizer(plan, optimizer), *_loop(plan))


def _sizes(plan: Plan) -> tuple[str, ...]:
    names = plan.strategy.degrees
    return tuple(f"{name} = {getattr(plan.degrees, name)}" for name in names) if len(names) > 1 else ()


def _recomputed(plan: Plan) -> tuple[str, ...]:
    if not plan.recompute:
        return ()
    return (
        f"for name in {plan.recompute!r}:",
        "    block = model.get_submodule(name)",
        "    block.forward = functools.partial(torch.utils.checkpoint.checkpoint, block.forward, use_reentrant=False)",
    )


def _optimizer(plan: Plan, optimizer: str) -> tuple[str, ...]:
    if plan.update != "fused":
        return ()
    if not optimizer:
        return ("# give the optimizer fused=True",)
    name = optimizer.partition("-")[0]
    return (f"optimizer = torch.optim.{_CLASSES.get(name, name)}(model.parameters(), fused=True)",)


def _loop(plan: Plan) -> tuple[str, ...]:
    if plan.gradient_accumulation_steps == 1:
        return ()
    sync = plan.strategy.torch_sync()
    indent = "        " if sync.endswith(":") else "    "
    return (
        "for number, (inputs, targets) in enumerate(batches, 1):",
        f"    is_last = number % {plan.gradient_accumulation_steps} == 0",
        *((f"    {sync}",) if sync else ()),
        f"{indent}(loss_of(model(inputs), targets) / {plan.gradient_accumulation_steps}).backward()",
        "    if is_last:",
        "        optimizer.step()",
        "        optimizer.zero_grad()",
    )
