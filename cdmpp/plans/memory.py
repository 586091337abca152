"""Memory: the most bytes that a rank holds at a time under a plan. An estimate from what kernels read and write."""

from __future__ import annotations

from dataclasses import dataclass

from cdmpp.network.training_step import StepMemory
from cdmpp.plans.plan import Plan
from cdmpp.steps.step_graph import RankGraph
from cdmpp.steps.transforms.recompute import run_order


@dataclass(frozen=True)
class Memory:
    """Of one rank by itself, and what is needed to tell it under a plan."""

    held: StepMemory
    rank: RankGraph
    """What its ops write and read, its gradients and modules."""

    def live_bytes(self, recomputed: tuple[str, ...] = (), with_gradients: bool = True) -> int:
        """Most bytes of results alive at a time, those of the update left out: it writes in place.

        A result lives until its last reader has run. Inside a unit that is recomputed it lives twice: until its last
        reader in the forward pass, and from the second run on.

        Args:
            recomputed: names of units.
            with_gradients: whether gradients live to the end; else each goes to a place of its own at once.
        """
        runs = [run for run in run_order(self.rank, recomputed) if self.rank.ops[run[0]].phase != "update"]
        latest = dict[int, int]()
        """Place -> the run whose result is read."""
        last = list(range(len(runs)))
        for number, (place, _) in enumerate(runs):
            for source in self.rank.ops[place].inputs:
                last[latest[source]] = number
            latest[place] = number
        if with_gradients:
            gradients = {one.ready_after for one in self.rank.gradients}
            for number, (place, _) in enumerate(runs):
                if place in gradients:
                    last[number] = len(runs)
        freed = [0] * (len(runs) + 1)
        for number, (place, _) in enumerate(runs):
            freed[last[number]] += self.rank.ops[place].output_bytes
        alive = most = 0
        for number, (place, _) in enumerate(runs):
            alive += self.rank.ops[place].output_bytes
            most = max(most, alive)
            alive -= freed[number]
        return most

    def peak_bytes(self, plan: Plan, ranks: int) -> int:
        """Parameters, states, gradients and results, with the buffers of the scheme; those of NCCL are not told."""
        held, adds = self.held, plan.micro_steps > 1
        whole, alive = held.buffer_bytes + held.input_bytes, self.live_bytes(plan.recomputed, False)
        if plan.scheme == "fsdp" and ranks > 1:
            parts = -(-(held.parameter_bytes + held.state_bytes + held.gradient_bytes) // ranks)
            return whole + parts + max(self._gathered_bytes(plan) + alive, -(-held.update_bytes // ranks))
        whole += held.parameter_bytes + held.state_bytes
        if plan.scheme == "ddp" and ranks > 1:
            whole += held.gradient_bytes  # the buckets
        if plan.scheme == "ps" and ranks > 1:
            whole += -(-held.gradient_bytes // (plan.servers or ranks))  # sums of a server
        if plan.bucket_view and ranks > 1:
            return whole + max(alive, held.update_bytes)
        if adds:
            return whole + held.gradient_bytes + max(alive, held.update_bytes)
        alive = self.live_bytes(plan.recomputed) + self._unmade_bytes
        return whole + max(alive, held.gradient_bytes + held.update_bytes)

    def _gathered_bytes(self, plan: Plan) -> int:
        """Parameters of two units and the root, or all; and the gradients of the largest unit."""
        sizes = sorted((unit.bytes for unit in self.rank.modules if not unit.is_kept), reverse=True)
        root = sum(unit.bytes for unit in self.rank.modules if unit.is_kept)
        gathered = sum(sizes[:2]) + root if plan.reshard else self.held.parameter_bytes
        return gathered + max([*sizes, root], default=0)

    @property
    def _unmade_bytes(self) -> int:
        """Of gradients that no call writes, where the backward pass is a ratio of the forward pass."""
        return max(0, self.held.live_bytes - self.live_bytes())
