"""Pipeline: ranks hold stages of the model one after the other, and micro-batches go through them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import CdmppError
from cdmpp.plans.balance import balanced
from cdmpp.plans.block_cuts import block_cuts
from cdmpp.plans.cut import stages_of
from cdmpp.plans.cut_places import CutPlaces
from cdmpp.plans.divided_backward import AGAIN
from cdmpp.plans.schedules import LOOPED, SCHEDULES
from cdmpp.plans.stages import Stage
from cdmpp.plans.strategies.registry import STRATEGIES
from cdmpp.platform.limits import Limits, check_choice, check_once, fitting, text
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.looped_schedule import LoopedSchedule
from cdmpp.steps.schedule import Schedule
from cdmpp.steps.step_graph import RankGraph, StepGraph
from cdmpp.steps.strategy import Strategy, flag

SendCost = Callable[[NDArray[np.int64]], NDArray[np.float64]]
"""Bytes of messages -> seconds of each."""
MICRO_BATCHES = Limits(1, 1024, "micro-batches")
"""A replay holds the operations of each."""
BALANCES = ("time", "blocks", "products")
STAGES = LoopedSchedule.LIMITS["stages_per_rank"]
_TORCH = {
    "1f1b": "Schedule1F1B", "gpipe": "ScheduleGPipe", "interleaved1f1b": "ScheduleInterleaved1F1B",
    "interleavedzerobubble": "ScheduleInterleavedZeroBubble", "zbvzerobubble": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}  # fmt: skip
"""Schedule -> its class in ``torch.distributed.pipelining``."""


def why_not_with(order: Schedule, replicas: Strategy | None, recomputes: bool, others: Sequence[Strategy] = ()) -> str:
    """Say why a schedule does not go with the rest of a plan; empty if it does.

    Args:
        order: the schedule.
        replicas: the strategy of replicas; None: there is one.
        recomputes: whether modules run again in the backward pass.
        others: strategies that divide the model.
    """
    if not order.divides_backward:
        return ""
    if recomputes:
        return f"divides backward passes, and modules are recomputed: {AGAIN}"
    if replicas is not None and replicas.averages_by_hooks:
        return (
            f"divides backward passes, and {replicas.name} averages gradients in hooks of DistributedDataParallel, "
            "which PyTorch does not run there, so that replicas drift apart: take fsdp, or a schedule that divides "
            "none, such as interleaved1f1b"
        )
    if dividing := [one.name for one in others if not isinstance(one, Pipeline)]:
        return (
            f"divides backward passes, which is not supported with {dividing[0]}: take a schedule that divides none, "
            "such as interleaved1f1b"
        )
    return ""


@STRATEGIES.register
@dataclass(frozen=True)
class Pipeline(Strategy):
    """Results go to the next stage, gradients to the one before, a message a tensor.

    Without ``overlap``, as ``torch.distributed.pipelining`` runs GPipe and 1F1B, a stage receives only when it does
    nothing else, and waits for what it sends before its next pass in the other direction. With it a stage receives
    while it runs the pass before, and never waits for what it sends. Schedules with several stages a rank receive ahead
    and wait for no send, as PyTorch runs them.
    """

    LIMITS = {"micro_batches": MICRO_BATCHES}
    name = "pipeline"
    title = "pipeline parallel"
    degrees = ("pp",)
    divides_model = True
    replicates = False

    schedule: str = field(
        default="1f1b",
        metadata=flag("--pipeline-schedule", text, "order of a pipeline's passes, such as gpipe (default: 1f1b)"),
    )
    """A name of ``SCHEDULES`` or ``LOOPED``."""
    micro_batches: int = field(
        default=1, metadata=flag("--micro-batches", MICRO_BATCHES, "micro-batches of a pipeline (default: 1)")
    )
    """Parts of the batch of a rank, which go through the stages one after the other."""
    cuts: tuple[str, ...] | None = None
    """Names of modules or ops of the forward pass with which the second and later stages begin. None: stages are cut so
    that the slowest is as fast as can be."""
    stages_per_rank: int | None = field(
        default=None,
        kw_only=True,
        metadata=flag(
            "--stages-per-rank", STAGES, "stages of each rank under a schedule that allows several (default: its own)"
        ),
    )
    """None: the schedule's own number."""
    overlap: bool = field(default=False, kw_only=True)
    """True if a stage computes while it sends and receives."""
    balance: str = field(default="time", kw_only=True)
    """This is shared out where nothing names the cuts, one of ``BALANCES``: ``time``, so that the slowest stage is as
    fast as can be; ``blocks``, as many to each stage, as Megatron does; ``products``, as nanotron does: a stage takes
    blocks until what it and those before it multiply exceeds its share, and the head counts."""
    return_outputs: bool = field(default=True, kw_only=True)
    """True if ``schedule.step`` returns the outputs, as by default: the last stage keeps those of all micro-batches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [one.name for one in (*SCHEDULES, *LOOPED) if one.is_in_torch]
        check_choice("pipeline.schedule", self.schedule, names)
        check_choice("pipeline.balance", self.balance, BALANCES)
        if self.cuts is not None:
            object.__setattr__(self, "cuts", fitting("pipeline.cuts", self.cuts, tuple[str, ...]))
            check_once("pipeline.cuts", self.cuts)
            if self.balance != BALANCES[0]:
                raise CdmppError(
                    f"pipeline.balance is {self.balance}, and pipeline.cuts name where stages begin: leave out one of "
                    "the two"
                )
        if self.order.is_looped and self.overlap:
            raise CdmppError(
                f"pipeline.overlap is true, and {self.schedule} receives ahead as it is: leave overlap out"
            )

    @property
    def order(self) -> Schedule:
        """Return the schedule; ``CdmppError`` where it allows no such number of stages of a rank."""
        count, several = self.stages_per_rank, [one.name for one in LOOPED]
        if self.schedule in several:
            kind = LOOPED[self.schedule]
            return kind() if count is None else kind(stages_per_rank=count)
        if count not in (None, 1):
            raise CdmppError(
                f"pipeline.stages_per_rank is {count}, and {self.schedule} has one stage a rank: leave it out, or take "
                f"one of {', '.join(several)}"
            )
        return SCHEDULES[self.schedule]()

    def kept(self, stage: int, stages: int, micro_batches: Any) -> Any:
        """Return of how many micro-batches a stage keeps the outputs to the step's end; of an array one for each."""
        return micro_batches * int(self.return_outputs and stages > 1 and stage == stages - 1)

    def check(self, ranks: int) -> None:
        """Raise ``CdmppError`` where cuts or micro-batches do not fit so many ranks."""
        self.check_cuts(ranks * self.order.stages_per_rank)
        if ranks > 1 and self.order.is_looped and (why := self.order.why_not(ranks, self.micro_batches)):
            raise CdmppError(why)

    def check_cuts(self, stages: int) -> None:
        """Raise ``CdmppError`` where the cuts do not make so many stages."""
        if self.cuts is not None and len(self.cuts) != stages - 1:
            raise CdmppError(f"pipeline.cuts has {len(self.cuts)} names for {stages} stages: expected {stages - 1}")

    def check_with(self, replicas: Strategy | None, recomputes: bool, others: Sequence[Strategy]) -> None:
        """Raise ``CdmppError`` where backward passes are divided and the rest of a plan does not allow it."""
        if why := why_not_with(self.order, replicas, recomputes, others):
            raise CdmppError(f"{self.schedule} {why}")

    def stages(self, rank: RankGraph, count: int, send_s: SendCost | None = None) -> tuple[Stage, ...]:
        """Cut a rank into so many stages.

        Args:
            rank: what one rank runs by itself for one micro-batch.
            count: number of stages.
            send_s: seconds of messages of so many bytes each; they count at a cut with ``overlap`` too, as in closed
                forms. None: no time.

        Raises:
            CdmppError: unknown names, cuts that are not in order, or more stages than there are layers.
        """
        return stages_of(rank, self.cut_places(CutPlaces(rank), count, send_s) if count > 1 else ())

    def cut_places(self, on: CutPlaces, count: int, send_s: SendCost | None = None) -> tuple[int, ...]:
        """Return the places of the ops with which the second and later stages begin; arguments as of ``stages``."""
        if self.cuts is not None:
            self.check_cuts(count)
            found = tuple(on.named(name) for name in self.cuts)
            for (name, place), (after, later) in pairwise(zip(self.cuts, found, strict=True)):
                if later <= place:
                    raise CdmppError(
                        f"pipeline.cuts names {name} before {after}, which does not begin later in the forward pass: "
                        f"expected {', '.join(sorted(self.cuts, key=on.named))}, each at a place of its own"
                    )
            return found
        if self.balance != "time":
            return block_cuts(on, count, counts_head=self.balance == "products")
        places = on.places(count)
        each_s = np.zeros(len(places))
        if send_s is not None:
            each_s = 2 * send_s(on.bytes_at(places))
        chosen = balanced([0.0, *on.until_s[[*places, -1]]], [0.0, *each_s, 0.0], count)
        return tuple(places[number - 1] for number in chosen)

    def exchanges(self, graph: StepGraph, sizes: Mapping[str, int] | None = None) -> tuple[Exchange, ...]:
        """Return nothing: messages between stages come with the micro-batches (``plans.lower``)."""
        return ()

    def describe(self, setting: str) -> str:
        """Describe one setting for a reader."""
        texts: dict[str, Callable[[], str]] = {
            "schedule": lambda: f"schedule {self.schedule}: {self.order.title}",
            "micro_batches": lambda: f"{self.micro_batches} micro-batches",
            "balance": lambda: f"stages share out {self.balance}",
            "cuts": lambda: "balanced stages" if self.cuts is None else f"stages begin with {', '.join(self.cuts)}",
            "stages_per_rank": lambda: f"{self.order.stages_per_rank} stages a rank",
            "overlap": lambda: f"stages compute {'while they' if self.overlap else 'or'} send and receive",
            "return_outputs": lambda: f"outputs are {'' if self.return_outputs else 'not '}returned",
        }
        return texts[setting]()

    @property
    def torch_class(self) -> str:
        """Return the class of the schedule in ``torch.distributed.pipelining.schedules``."""
        return _TORCH[self.schedule]

    @property
    def torch_stages(self) -> str:
        """Return Python for the stages of ``rank`` among ``ranks`` of a ``pipe``."""
        if isinstance(self.order, LoopedSchedule) and self.order.is_in_v:
            return "(rank, pipe.num_stages - 1 - rank)"
        return "range(rank, pipe.num_stages, ranks)"

    def torch_lines(self, axes: str = "", optimizer: str = "torch.optim.AdamW") -> tuple[str, ...]:
        """Cut the model, and run its stages in the order of the schedule."""
        count = self.order.stages_per_rank
        cuts = "" if self.cuts is None else "".join(f'"{one}": SplitPoint.BEGINNING, ' for one in self.cuts)
        asked = "" if self.return_outputs else ", return_outputs=False"
        stages = "pipe.build_stage(rank, device)"
        if self.order.is_looped:
            stages = f"[pipe.build_stage(stage, device, group) for stage in {self.torch_stages}]"
        return (
            f"pipe = pipeline(model, mb_args=(micro_batch,), split_spec={{{cuts.removesuffix(', ')}}})"
            + f"  # {count} stages a rank" * (count > 1),
            f"schedule = {self.torch_class}({stages}, n_microbatches={self.micro_batches}, loss_fn=loss_fn)",
            f"schedule.step(*inputs{asked})",
        )
