"""The lines of PyTorch that set a plan."""

from __future__ import annotations

from collections.abc import Mapping

from cdmpp.network.precision import PRECISIONS, Precision
from cdmpp.plans.plan import PARAMETERS, Plan
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.steps.strategy import OperatorStrategy, Strategy

PLAIN = PRECISIONS["fp32"]

_CLASSES: Mapping[str, str] = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "adafactor": "Adafactor"}


def torch_settings(plan: Plan, optimizer: str = "adamw", precision: Precision = PLAIN) -> tuple[str, ...]:
    """Write Python for a ``model`` and ``batches``; ``optimizer``: ``sgd``, ``adam``, ``adamw``, or empty.

    Of a ``precision`` in which FSDP gathers in another type than ranks keep, the model is in that which they keep.
    """
    out = PARAMETERS in plan.offload
    lines = shared_lines(plan.strategy, precision, optimizer=optimizer_class(optimizer or "adamw"), is_on_host=out)
    dividing = [one for one in plan.model_parallel if isinstance(one, OperatorStrategy)]
    divided = [line for one in dividing for line in one.torch_lines(f'mesh["{one.degrees[0]}"]')]
    return (*_recomputed(plan), *_sizes(plan), *divided, *lines, *_optimizer(plan, optimizer), *_loop(plan))


def shared_lines(
    strategy: Strategy, precision: Precision, axes: str = "", optimizer: str = "", is_on_host: bool = False
) -> tuple[str, ...]:
    """Write how replicas share parameters of a model; other arguments as ``FSDP.torch_lines`` takes them."""
    if isinstance(strategy, FSDP):
        return strategy.torch_lines(axes, optimizer, precision.torch_policy, is_on_host)
    return strategy.torch_lines(axes, optimizer)


def optimizer_class(optimizer: str) -> str:
    """Return the class of torch for an optimizer's word, such as ``adamw`` or ``adamw-fused``."""
    name = optimizer.partition("-")[0]
    return f"torch.optim.{_CLASSES.get(name, name)}"


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
    return (f"optimizer = {optimizer_class(optimizer)}(model.parameters(), fused=True)",)


def _loop(plan: Plan) -> tuple[str, ...]:
    if plan.gradient_accumulation_steps == 1:
        return ()
    steps: object = plan.gradient_accumulation_steps
    shares: tuple[str, ...] = ()
    if plan.shares:
        steps = "steps"
        shares = (f"steps = {list(plan.shares)!r}[torch.distributed.get_rank()]  # losses are divided by their mean",)
    sync = plan.strategy.torch_sync()
    indent = "        " if sync.endswith(":") else "    "
    return (
        *shares,
        "for number, (inputs, targets) in enumerate(batches, 1):",
        f"    is_last = number % {steps} == 0",
        *((f"    {sync}",) if sync else ()),
        f"{indent}(loss_of(model(inputs), targets) / {plan.gradient_accumulation_steps}).backward()",
        "    if is_last:",
        "        optimizer.step()",
        "        optimizer.zero_grad()",
    )
