"""Recompute code: what a script has to say of the parts of a model that its backward pass runs again."""

from __future__ import annotations

from cdmpp.errors import CdmppError
from cdmpp.network.source.torch_network import read_torch
from cdmpp.network.workload import Workload
from cdmpp.plans.plan import Plan
from cdmpp.programs.checkpointed import blocks_of

ATTENTION = """
class AttentionAgain(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.nn.functional.scaled_dot_product_attention:
            return checkpoint(function, *args, use_reentrant=False, **(kwargs or {}))
        return function(*args, **(kwargs or {}))

"""
"""While it is entered, the backward pass runs attention again."""


def check_recompute(workload: Workload, plan: Plan, refused: str) -> None:
    """Raise ``CdmppError``, which begins with ``refused``, for a recomputation that a script of PyTorch cannot have."""
    if workload.recompute == "op":
        raise CdmppError(
            f"{refused} of recompute op: give a file that ends in .toml, for torchtitan, full or attention"
        )
    if workload.recompute == "attention" and plan.degrees.pp > 1:
        raise CdmppError(
            f"{refused} of recompute attention in a pipeline: stages that torch cuts call operators in place of "
            "torch.nn.functional; give recompute full"
        )
    if workload.recompute == "attention" and plan.degrees.tp > 1:
        raise CdmppError(f"{refused} of recompute attention with degrees.tp: give recompute full")


def recomputed_blocks(workload: Workload) -> tuple[str, ...]:
    """Name the blocks that ``recompute full`` of a workload runs again; none for another recomputation."""
    if workload.recompute != "full":
        return ()
    model = read_torch(workload, needs_values=False).model
    own = {id(one) for one in blocks_of(model)}
    return tuple(name for name, one in model.named_modules() if id(one) in own)
