"""Selective checkpointing: the policies of a model's regions are asked about each kernel, in the order of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdmpp.programs.regions import recomputed_in


class Asked:
    """It asks one policy about the kernels of one node."""

    def __init__(self, policy: Any) -> None:
        """Begin with a function as ``create_selective_checkpoint_contexts`` takes it."""
        self.policy = policy
        self.keeps = False
        """The policy keeps the result of the last kernel that makes a new tensor."""

    def ask(self, func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        """Ask about a kernel, as torch does it once the kernel ran."""
        import torch
        from torch.utils import checkpoint

        if func in checkpoint.SAC_IGNORED_OPS:
            return
        context = checkpoint.SelectiveCheckpointContext(is_recompute=False, op_output=result)
        answer = self.policy(context, func, *args, **kwargs)
        if not func.is_view and func is not torch.ops.aten._unsafe_view.default:  # which makes no tensor either
            kept = (checkpoint.CheckpointPolicy.MUST_SAVE, checkpoint.CheckpointPolicy.PREFER_SAVE)
            self.keeps = answer is True or answer in kept


class Policies:
    """Those of one run of a graph: each region has a policy of its own, which may count what it saw."""

    def __init__(self) -> None:
        """Begin a run."""
        self.made: dict[int, Any] = {}

    def of(self, node: Any) -> Asked | None:
        """Return what asks the policy of the region around a node; None: no policy keeps anything of it."""
        for region in recomputed_in(node):
            if region.context_fn is not None:
                if region.number not in self.made:
                    self.made[region.number] = region.context_fn()[0].policy_fn
                return Asked(self.made[region.number])
        return None
