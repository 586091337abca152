"""Expert code: the lines of PyTorch by which a rank has some of the experts, and gets their tokens from all ranks."""

from __future__ import annotations

from inspect import signature

from cdmpp.errors import CdmppError
from cdmpp.network.eager.step import export_step
from cdmpp.network.source.torch_network import read_torch
from cdmpp.network.workload import Workload
from cdmpp.plans.cut_places import WRAPPED
from cdmpp.plans.plan import Plan
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.expert import Expert
from cdmpp.plans.strategies.fsdp import FSDP

_REFUSED = "--torch: no script can be written of expert parallelism"
_TOML = "give a file that ends in .toml, for torchtitan"


def expert_lines(workload: Workload, plan: Plan, strategy: Expert) -> tuple[str, ...]:
    """Write the lines that divide the experts of ``model``, which ``divide_experts`` of the script does.

    Raises:
        CdmppError: another degree or setting next to it that a script has no lines for, or experts that are no modules
            with the arguments of those of transformers.
    """
    degrees, ranks = plan.degrees, plan.degrees.ep
    if others := [name for name in degrees.beyond_one() if name not in ("dp_shard", "ep")]:
        raise CdmppError(f"{_REFUSED} with degrees.{others[0]}: it runs here alone or with degrees.dp_shard; {_TOML}")
    if type(plan.strategy) not in (DDP, FSDP):
        raise CdmppError(f"{_REFUSED} with {plan.strategy.title}: give ddp or fsdp")
    if workload.update.clip_norm is not None:
        raise CdmppError(f"{_REFUSED} with gradients that are clipped by one norm: leave --clip-norm out, or {_TOML}")
    names = _modules(workload, strategy, ranks)
    lines = [f"experts = [model.get_submodule(name) for name in {names!r}]"]
    lines += ['for one in experts: divide_experts(one, mesh.get_group("ep"))']
    if isinstance(plan.strategy, DDP):
        return (
            *lines,
            "apart = [name for name, _ in model.named_parameters() if name.rpartition('.')[0] in",
            f"         {names!r}]",
            "DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, apart)",
        )
    return tuple(lines)


def sharded_lines(plan: Plan, lines: tuple[str, ...]) -> tuple[str, ...]:
    """Return the lines of ``FSDP.torch_lines`` for a model whose ``experts`` are divided along ``ep``.

    Experts are sharded among the ranks that have the same ones, along their second dimension where these are more than
    the experts of a rank, as torchtitan does. Their gradients are divided as those of all other parameters are.
    """
    shards = plan.degrees.dp_shard
    if shards == 1:
        apart = "ignored_params={value for one in experts for value in one.parameters()}"
        return tuple(line.replace("fully_shard(block", f"fully_shard(block, {apart}").replace(
            "fully_shard(model", f"fully_shard(model, {apart}") for line in lines)  # fmt: skip
    (block,) = [line for line in lines if "fully_shard(block" in line]
    again = block.partition("fully_shard(block")[2].rstrip(")")
    settings = ", ".join(one for one in again.split(", ") if one and not one.startswith("mesh="))
    own = f"mesh=mesh['dp_shard'], shard_placement_fn=lambda value: Shard(int(len(value) < {shards}))"
    made = (
        f"for one in experts: fully_shard(one, {', '.join(filter(None, (settings, own)))})",
        "for one in experts:",
        f"    one.set_gradient_divide_factor({plan.ranks})",
        "    one.set_force_sum_reduction_for_comms(True)  # gloo cannot divide while it sums up",
    )
    place = lines.index(block)
    return (*lines[:place], *made, *lines[place:])


def _modules(workload: Workload, strategy: Expert, ranks: int) -> tuple[str, ...]:
    """Name the modules of experts, as the script's model has them."""
    divided = strategy.divide(export_step(workload).exported, ranks).shapes
    names = tuple(dict.fromkeys(one.removeprefix(WRAPPED).rpartition(".")[0] for one in divided))
    model = read_torch(workload, needs_values=False).model
    for name in names:
        one = model.get_submodule(name)
        if not hasattr(one, "num_experts") or len(signature(one.forward).parameters) != 3:
            raise CdmppError(
                f"{_REFUSED} of {name}: a script sends tokens to modules like those of transformers, with num_experts "
                "and a forward(tokens, chosen, weights)"
            )
    return names
