"""``train``: a network cut into stages, trained by real processes of this machine under a schedule."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load

from cdmpp.errors import UsageError
from cdmpp.partition.processes import checkpoint
from cdmpp.partition.processes.crew import StageCrew
from cdmpp.partition.processes.layers import check_untied, layers_of, spans_of
from cdmpp.partition.processes.record import HeldOut, PartitionRecord, StepLoss, stage_from_dict
from cdmpp.partition.processes.stage import Setting
from cdmpp.partition.processes.task import Task
from cdmpp.partition.processes.worker import Order
from cdmpp.plans.schedules import SCHEDULES
from cdmpp.platform.limits import SEED, Limits, check_all, checked, numbers
from cdmpp.platform.lock import writing
from cdmpp.platform.progress import shown
from cdmpp.steps.schedule import Schedule
from cdmpp.synchrony.processes.crew import check_sendable
from cdmpp.synchrony.processes.place import WorkerPlace

_MOST_STAGES = Limits(1, 64, "stages")


@dataclass(frozen=True, eq=False)
class Trained:
    """A finished run."""

    record: PartitionRecord
    parameters: Mapping[str, torch.Tensor] = field(repr=False)
    """Parameters and buffers by their names in an ``nn.Sequential`` of the layers, for its ``load_state_dict``."""


@checked(
    steps=Limits(1, 2**31, "steps"), micro_batches=Limits(1, 1024, "micro-batches"), seed=SEED,
    held_out_every=Limits(1, 2**31, "steps"), checkpoint_every=Limits(1, 2**31, "steps"),
    warm_up=Limits(0, 2**31, "updates"), clip_norm=numbers(0, 1e9, above=True),
    timeout_s=numbers(1, 1e6, "seconds"),
)  # fmt: skip
def train(
    module: Any,
    cuts: Sequence[Any],
    schedule: Any,
    data: Callable[..., Any],
    loss: Callable[..., Any],
    optimizer: Callable[..., Any],
    steps: int,
    micro_batches: int = 1,
    seed: int = 0,
    held_out: Callable[..., Any] | None = None,
    score: Callable[..., Any] | None = None,
    held_out_every: int | None = None,
    checkpoint_folder: Path | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    places: Sequence[Any] = (),
    warm_up: int = 0,
    clip_norm: float | None = None,
    timeout_s: float = 120.0,
    progress: bool = False,
) -> Trained:
    """Train for ``steps`` with a process for each stage, and return what each of them did.

    Call it below ``if __name__ == "__main__":``, as everything that starts processes. Messages go over gloo. All
    functions are given to other processes: they are functions of a module, or ``functools.partial`` of one.

    A step has ``micro_batches`` micro-batches of equal size. Under a schedule that updates once a step the loss of a
    step is the mean over its examples; under ``pipedream``, ``delayed`` and ``side-by-side`` each micro-batch has an
    update of its own. With one stage, and with ``sequential``, ``gpipe`` and ``1f1b``, the result is that of a plain
    loop. A checkpoint waits for all that is under way: under schedules without flushes the first micro-batches after it
    have fresher weights than later ones, in an uninterrupted run as in one that goes on from it.

    Args:
        module: an ``nn.Sequential`` or list of modules, each of which takes the one tensor that the one before returns;
            or a function that makes it, called on every process after ``torch.manual_seed(seed)``.
        cuts: first layer of each stage but the first one; empty: one stage.
        schedule: a ``Schedule``, or its name.
        data: number of a step, from 0 -> inputs and targets. The first and the last stage both ask.
        loss: outputs and targets -> mean loss.
        optimizer: parameters of a stage -> what trains them.
        steps: of the whole run, with those before a checkpoint.
        micro_batches: of a step.
        seed: of initial weights and of random numbers in forward passes.
        held_out: -> inputs and targets of held-out examples, for loss and ``score`` in the record.
        score: outputs and targets -> one number, such as the accuracy.
        held_out_every: steps between two points of the held-out loss; None: the beginning and the end only.
        checkpoint_folder: where checkpoints are kept; the newest one stays.
        checkpoint_every: steps from one checkpoint to the next; None with a folder: at the end only.
        resume: go on from the checkpoint in the folder, if there is one.
        places: ``WorkerPlace`` of each stage: its share of a core, link and core.
        warm_up: updates in which the learning rate rises to what the optimizer says.
        clip_norm: most norm of a stage's gradient; of each stage by itself.
        timeout_s: seconds that a stage may take for its part before the run ends with an error.
        progress: whether a bar of the steps is shown on standard error.

    Raises:
        UsageError: an argument that cannot be, such as more stages than layers, or a cut through a tied parameter.
        CdmppError: a process that failed, ended or stands still; it names the stage. The checkpoint before stays whole.
    """
    schedule = SCHEDULES[schedule]() if isinstance(schedule, str) else schedule
    stages = len(cuts) + 1
    _check(cuts, schedule, micro_batches, places)
    task = Task(module, data, loss, optimizer, held_out, score)
    for name, value in vars(task).items():
        check_sendable("module" if name == "network" else name, value)
    layers = _layers(module)
    check_untied(layers, spans_of(cuts, len(layers)))
    with ExitStack() as stack:
        meeting = stack.enter_context(tempfile.TemporaryDirectory(prefix="cdmpp-stages-"))
        every = (held_out_every or steps) if held_out else 0
        order = Order(task, tuple(cuts), seed, warm_up, clip_norm, every, timeout_s, f"{meeting}/store")
        settings = [Setting(stage, stages, schedule, micro_batches, steps) for stage in range(stages)]
        own = None
        if checkpoint_folder is not None:
            checkpoint_folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(writing(checkpoint_folder, "training"))
            job = {"schedule": {"name": schedule.name, **asdict(schedule)}, "cuts": list(cuts), "seed": seed}
            job |= {"micro_batches": micro_batches, "warm_up": warm_up, "clip_norm": clip_norm}
            own = _Checkpoints(checkpoint_folder, checkpoint_every or steps, job)
            own.begin(resume, steps)
        crew = StageCrew(order, settings, places or [WorkerPlace()] * stages, stack)
        return _Run(crew, settings[0], seed, cuts, held_out is not None, own, progress).train()


def _check(cuts: Sequence[Any], schedule: Any, micro_batches: int, places: Sequence[Any]) -> None:
    if not isinstance(schedule, Schedule):
        raise UsageError(f"schedule is {schedule!r}: expected one of {', '.join(one.name for one in SCHEDULES)}")
    for number, cut in enumerate(cuts):
        Limits(1, 2**31, "layers").fitting(f"cuts[{number}]", cut)
    if any(after <= before for before, after in pairwise(cuts)):
        raise UsageError(f"cuts are {list(cuts)}: expected the first layer of each later stage, rising")
    stages = _MOST_STAGES.fitting("the number of stages", len(cuts) + 1)
    if why := schedule.why_not(stages, micro_batches):
        raise UsageError(why)
    if places:
        check_all("places", places, WorkerPlace)
        if len(places) != stages:
            raise UsageError(f"{len(places)} places for {stages} stages: give one for each, or none")


def _layers(module: Any) -> list[torch.nn.Module]:
    """Return the layers of a network, of one that is made by a function without memory where it lets itself."""
    if isinstance(module, torch.nn.Module) or not callable(module):
        return layers_of(module)
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                return layers_of(module)
        except UsageError:
            raise
        except Exception:  # such as a function that reads weights from a file, or sets one by its numbers
            return layers_of(module)


@dataclass
class _Checkpoints:
    """The checkpoints of a run."""

    folder: Path
    every: int
    job: Mapping[str, Any]
    found: checkpoint.Checkpoint | None = None

    def begin(self, resume: bool, steps: int) -> None:
        """Look for what is there."""
        path = self.folder / checkpoint.CHECKPOINT_FILE
        if path.exists() and not resume:
            raise UsageError(f"{path} is there: give resume=True to go on from it, or another checkpoint_folder")
        self.job = {**self.job, "checkpoint_every": self.every}
        self.found = checkpoint.newest(self.folder, self.job)
        checkpoint.sweep(self.folder, self.found.folder if self.found else None)
        if self.found and self.found.step > steps:
            raise UsageError(f"{path} is of step {self.found.step}, and steps is {steps}: give at least as many")

    def paths(self, name: str, stages: int) -> list[Path]:
        """Return the files of all stages."""
        return [self.folder / name / f"stage-{stage}.safetensors" for stage in range(stages)]


@dataclass
class _Run:
    """A run, from its processes to its record."""

    crew: StageCrew
    setting: Setting
    seed: int
    cuts: Sequence[int]
    has_held_out: bool
    checkpoints: _Checkpoints | None
    progress: bool

    def __post_init__(self) -> None:
        self.losses = list[dict[str, Any]]()
        self.held_out = list[dict[str, Any]]()

    def train(self) -> Trained:
        """Train stretch by stretch, each until its checkpoint."""
        steps, first = self.setting.steps, self._loaded()
        at, start_s = first, time.monotonic()
        self._bar = shown((step for step in range(first, steps)), "steps", steps - first, self.progress)
        while at < steps:
            until = min(steps, at + self.checkpoints.every) if self.checkpoints else steps
            self.crew.tell_all(do="run", begin=at, end=until, start_s=start_s)
            self.crew.all_done(self._step)
            self._judge()
            at = until
            if self.checkpoints:
                self._save(self.checkpoints, at)
        self._bar.close()
        return self._ended(first)

    def _loaded(self) -> int:
        """Bring all stages to the checkpoint, if there is one; return the steps that were run before."""
        found = self.checkpoints.found if self.checkpoints else None
        if not self.checkpoints or not found:
            return 0
        each = self.setting.micro_batches if self.setting.schedule.updates_each else 1
        paths = self.checkpoints.paths(found.folder, self.setting.stages)
        for stage, (path, rest) in enumerate(zip(paths, found.optimizers, strict=True)):
            self.crew.tell(stage, do="load", path=str(path), rest=rest, updates=found.step * each)
        self.crew.all_done()
        self.losses, self.held_out = list(found.losses), list(found.held_out)
        return found.step

    def _step(self, step: int, examples: int, loss: float) -> None:
        next(self._bar, None)
        self.losses.append({"step": step, "samples": examples * (step + 1), "loss": loss})

    def _judge(self) -> None:
        if self.has_held_out:
            each = self.losses[-1]["samples"] // (self.losses[-1]["step"] + 1)
            self.crew.tell_all(do="judge")
            for steps, loss, score in self.crew.all_done()[-1]["points"]:
                self.held_out.append({"steps": steps, "samples": each * steps, "loss": loss, "score": score})

    def _save(self, own: _Checkpoints, at: int) -> None:
        name = f"step-{at:09d}"
        for stage, path in enumerate(own.paths(name, self.setting.stages)):
            self.crew.tell(stage, do="save", path=str(path))
        rests = [one["rest"] for one in self.crew.all_done()]
        checkpoint.publish(own.folder, checkpoint.Checkpoint(at, name, own.job, rests, self.losses, self.held_out))

    def _ended(self, first: int) -> Trained:
        self.crew.tell_all(do="end")
        parameters: dict[str, torch.Tensor] = {}
        for stage in range(self.setting.stages):
            parameters |= load(self.crew.take_bytes(stage))
        stages = [stage_from_dict(one["record"]) for one in self.crew.all_done()]
        record = PartitionRecord(
            {"name": self.setting.schedule.name, **asdict(self.setting.schedule)},
            tuple(self.cuts),
            self.setting.micro_batches,
            self.seed,
            first,
            tuple(stages),
            tuple(StepLoss(**one) for one in self.losses),
            tuple(HeldOut(**one) for one in self.held_out),
        )
        return Trained(record, parameters)
