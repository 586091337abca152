"""Pipeline: ranks hold stages of the model one after the other, and micro-batches go through them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import CdmppError
from cdmpp.plans.balance import balanced
from cdmpp.plans.cut import stages_of
from cdmpp.plans.cut_places import CutPlaces
from cdmpp.plans.schedules import SCHEDULES
from cdmpp.plans.stages import Stage
from cdmpp.plans.strategies.registry import STRATEGIES
from cdmpp.platform.limits import Limits, check_choice, check_once, fitting, text
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.schedule import Schedule
from cdmpp.steps.step_graph import RankGraph, StepGraph
from cdmpp.steps.strategy import Strategy, flag

SendCost = Callable[[NDArray[np.int64]], NDArray[np.float64]]
"""Bytes of messages -> seconds of each."""
MICRO_BATCHES = Limits(1, 1024, "micro-batches")
"""A replay holds the operations of each."""


@STRATEGIES.register
@dataclass(frozen=True)
class Pipeline(Strategy):
    """Results go to the next stage, gradients to the one before, a message a tensor.

    Without ``overlap``, as ``torch.distributed.pipelining`` runs GPipe and 1F1B, a stage receives only when it does
    nothing else, and waits for what it sends before its next pass in the other direction. With it a stage receives
    while it runs the pass before, and never waits for what it sends.
    """

    LIMITS = {"micro_batches": MICRO_BATCHES}
    name = "pipeline"
    title = "pipeline parallel"
    degrees = ("pp",)
    divides_model = True
    replicates = False

    schedule: str = field(
        default="1f1b",
        metadata=flag("--pipeline-schedule", text, "order of a pipeline's passes: 1f1b or gpipe (default: 1f1b)"),
    )
    """A name of ``SCHEDULES``."""
    micro_batches: int = field(
        default=1, metadata=flag("--micro-batches", MICRO_BATCHES, "micro-batches of a pipeline (default: 1)")
    )
    """Parts of the batch of a rank, which go through the stages one after the other."""
    cuts: tuple[str, ...] | None = None
    """Names of modules or ops of the forward pass with which the second and later stages begin. None: stages are cut so
    that the slowest is as fast as can be."""
    overlap: bool = field(default=False, kw_only=True)
    """True if a stage computes while it sends and receives."""
    return_outputs: bool = field(default=True, kw_only=True)
    """True if ``schedule.step`` returns the outputs, as by default: the last stage keeps those of all micro-batches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("pipeline.schedule", self.schedule, [one.name for one in SCHEDULES if one.is_in_torch])
        if self.cuts is not None:
            object.__setattr__(self, "cuts", fitting("pipeline.cuts", self.cuts, tuple[str, ...]))
            check_once("pipeline.cuts", self.cuts)

    @property
    def order(self) -> Schedule:
        """Return the schedule."""
        return SCHEDULES[self.schedule]()

    def kept(self, stage: int, stages: int, micro_batches: Any) -> Any:
        """Return of how many micro-batches a stage keeps the outputs to the step's end; of an array one for each."""
        return micro_batches * int(self.return_outputs and stages > 1 and stage == stages - 1)

    def check(self, ranks: int) -> None:
        """Raise ``CdmppError`` where the cuts do not make so many stages."""
        if self.cuts is not None and len(self.cuts) != ranks - 1:
            raise CdmppError(f"pipeline.cuts has {len(self.cuts)} names for {ranks} stages: expected {ranks - 1}")

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
            self.check(count)
            found = tuple(on.named(name) for name in self.cuts)
            for (name, place), (after, later) in pairwise(zip(self.cuts, found, strict=True)):
                if later <= place:
                    raise CdmppError(
                        f"pipeline.cuts names {name} before {after}, which does not begin later in the forward pass: "
                        f"expected {', '.join(sorted(self.cuts, key=on.named))}, each at a place of its own"
                    )
            return found
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
            "cuts": lambda: "balanced stages" if self.cuts is None else f"stages begin with {', '.join(self.cuts)}",
            "overlap": lambda: f"stages compute {'while they' if self.overlap else 'or'} send and receive",
            "return_outputs": lambda: f"outputs are {'' if self.return_outputs else 'not '}returned",
        }
        return texts[setting]()

    def torch_lines(self) -> tuple[str, ...]:
        """Cut the model, and run its stages in the order of the schedule."""
        name = {"1f1b": "Schedule1F1B", "gpipe": "ScheduleGPipe"}.get(self.schedule, self.schedule)
        cuts = "" if self.cuts is None else "".join(f'"{one}": SplitPoint.BEGINNING, ' for one in self.cuts)
        asked = "" if self.return_outputs else ", return_outputs=False"
        return (
            f"pipe = pipeline(model, mb_args=(micro_batch,), split_spec={{{cuts.removesuffix(', ')}}})",
            f"schedule = {name}(pipe.build_stage(rank, device), n_microbatches={self.micro_batches}, loss_fn=loss_fn)",
            f"schedule.step(*inputs{asked})",
        )
