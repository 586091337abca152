"""Memory: the most bytes that a rank holds at a time under a plan, estimated from what kernels read and write."""

from __future__ import annotations

from dataclasses import dataclass

from cdmpp.network.liveness import peak_of
from cdmpp.network.training_step import StepMemory
from cdmpp.plans.plan import Plan
from cdmpp.steps.step_graph import RankGraph
from cdmpp.steps.transforms.recompute import run_order


@dataclass(frozen=True)
class Memory:
    """One rank holds so many bytes by itself; those that it holds under a plan follow from them."""

    held: StepMemory
    rank: RankGraph
    """The rank's ops with the bytes they write and read, its gradients and modules."""

    def live_bytes(self, recomputed: tuple[str, ...] = (), with_gradients: bool = True) -> int:
        """Return the most bytes of results alive at a time, without those of the update, which writes in place.

        A result lives until its last reader has run. Inside a module that is recomputed it lives twice: until its last
        reader in the forward pass, and from the second run on.

        Args:
            recomputed: names of modules.
            with_gradients: whether gradients live to the end; else each goes to a place of its own at once.
        """
        ops = self.rank.ops
        runs = [
            (place, ops[place].phase == "backward" and not (ops[place].is_recomputed or is_again))
            for place, is_again in run_order(self.rank, recomputed)
            if ops[place].phase != "update"
        ]
        gradients = {one.ready_after for one in self.rank.gradients if one.is_used}
        return peak_of(ops, runs, gradients if with_gradients else ())

    def peak_bytes(self, plan: Plan) -> int:
        """Sum parameters, states, gradients, results and what the strategy adds; buffers of NCCL are unknown."""
        held, recompute = self.held, plan.recompute
        own = plan.strategy.rank_bytes(held, self.rank.modules, plan.ranks)
        kept = held.buffer_bytes + held.input_bytes + own.kept_bytes
        if own.holds_gradients:
            return kept + max(own.gathered_bytes + self.live_bytes(recompute, False), own.update_bytes)
        if plan.gradient_accumulation_steps > 1:
            alive = own.gathered_bytes + self.live_bytes(recompute, False)
            return kept + held.gradient_bytes + max(alive, own.update_bytes)
        alive = own.gathered_bytes + self.live_bytes(recompute) + self._unmade_bytes
        return kept + max(alive, held.gradient_bytes + own.update_bytes)

    @property
    def _unmade_bytes(self) -> int:
        """Bytes of gradients that no call writes, where the backward pass is a ratio of the forward pass."""
        return max(0, self.held.live_bytes - self.live_bytes())
