"""A worker: the process of one stage, which does what the process that started it says."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save

from cdmpp.errors import CdmppError, UsageError
from cdmpp.partition.processes.checkpoint import load_stage, save_stage
from cdmpp.partition.processes.layers import check_untied, layers_of, spans_of, stage_of
from cdmpp.partition.processes.messages import (
    FORWARD_TAG,
    Inbox,
    LostStageError,
    Outbox,
    receive_header,
    send_header,
)
from cdmpp.partition.processes.stage import Setting, Stage
from cdmpp.partition.processes.task import Task
from cdmpp.partition.processes.weights import Weights
from cdmpp.synchrony.processes.child import begin
from cdmpp.synchrony.processes.namespaces import Place
from cdmpp.synchrony.processes.training import finite_loss
from cdmpp.synchrony.processes.wire import tell, told


@dataclass(frozen=True)
class Order:
    """The settings that every process of a run is given."""

    task: Task
    cuts: Sequence[int]
    seed: int
    warm_up: int
    clip_norm: float | None
    held_out_every: int
    """Steps from one copy of the weights for the held-out loss to the next; 0: none is made."""
    timeout_s: float
    meeting: str
    """File by which the processes find each other."""


def work(pipe: Connection, order: Order, setting: Setting, place: Place | None, core: int | None) -> None:
    """Run one stage until the process that started it is gone; what it raises is told there."""
    lock = threading.Lock()

    def failed(error: BaseException) -> None:
        kind = "lost" if isinstance(error, LostStageError) else "failed"
        kind = "refused" if isinstance(error, UsageError) else kind
        text = str(error) if isinstance(error, CdmppError | LostStageError) else traceback.format_exc()
        with lock, suppress(OSError):
            tell(pipe, error=text, kind=kind)  # nobody reads it where the job is over
        os._exit(1)  # gloo's threads would outlive the interpreter

    try:
        begin(place, core)
        _Worker(pipe, order, setting, place, failed).serve()
    except BaseException as error:
        failed(error)


class _Worker:
    def __init__(
        self,
        pipe: Connection,
        order: Order,
        setting: Setting,
        place: Place | None,
        failed: Callable[[BaseException], None],
    ) -> None:
        self.pipe, self.order, self.setting, self.failed = pipe, order, setting, failed
        torch.manual_seed(order.seed)
        layers = layers_of(order.task.network)
        spans = spans_of(order.cuts, len(layers))
        check_untied(layers, spans)
        self.span = spans[setting.stage]
        versions = setting.schedule.weight_versions(setting.stage, setting.stages)
        self.weights = Weights(
            stage_of(layers, self.span), versions, order.task.optimizer, order.warm_up, order.clip_norm
        )
        if setting.stage:  # the first stage goes on as a single process would
            torch.manual_seed(order.seed + setting.stage)
        self.stage = Stage(setting, order.task, self.weights, self._ended)
        self.copies: list[tuple[int, dict[str, torch.Tensor]]] = []
        self.start_s = 0.0
        tell(pipe, layers=len(layers))
        told(pipe)
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0" if place else "lo"
        if setting.stages > 1:
            dist.init_process_group(
                "gloo", store=dist.FileStore(order.meeting, setting.stages), rank=setting.stage,
                world_size=setting.stages, timeout=timedelta(seconds=order.timeout_s),
            )  # fmt: skip
        tell(pipe, event="ready")

    def serve(self) -> None:
        """Do one thing after another."""
        doing: dict[str, Callable[..., dict[str, Any] | None]]
        doing = {"run": self._run, "save": self._save, "load": self._load, "judge": self._judge, "end": self._record}
        while True:
            words = told(self.pipe)
            tell(self.pipe, event="done", **(doing[words.pop("do")](**words) or {}))

    def _run(self, begin: int, end: int, start_s: float) -> None:
        self.start_s = start_s
        if begin == 0:
            self._copy(0)
        self.stage.run(begin, end, self.failed)

    def _ended(self, step: int, loss: float | None) -> None:
        self._copy(step + 1)
        tell(self.pipe, event="step", step=step, loss=loss, examples=self.stage.examples)

    def _copy(self, steps: int) -> None:
        if self.order.held_out_every and steps % self.order.held_out_every == 0:
            self.copies.append((steps, {name: one.clone() for name, one in self.weights.state().items()}))

    def _save(self, path: str) -> dict[str, Any]:
        return {"rest": save_stage(Path(path), self.weights)}

    def _load(self, path: str, rest: Any, updates: int) -> None:
        load_stage(Path(path), self.weights, rest, updates)

    def _judge(self) -> dict[str, Any]:
        """Compute loss and score of the copies on the held-out examples, through all stages."""
        found = []
        own = {name: one.clone() for name, one in self.weights.state().items()}
        inputs, targets = self.order.task.held_out_batch()
        for steps, state in self.copies:
            self.weights.put(state)
            outputs = self._through(inputs)
            if self.setting.is_last:
                loss, score = self.order.task.loss_of(outputs, targets).item(), self.order.task.score
                found.append([steps, loss, None if score is None else finite_loss(score(outputs, targets), "score")])
        self.weights.put(own)
        self.copies.clear()
        return {"points": found}

    def _through(self, inputs: torch.Tensor) -> torch.Tensor:
        stage, module = self.setting.stage, self.weights.copy_of(self.weights.updates)
        if not self.setting.is_first:
            inbox = Inbox(stage - 1, FORWARD_TAG)
            inbox.expect(1)
            inputs = inbox.take(receive_header(stage - 1)[0])
        modes = [(one, one.training) for one in module.modules()]
        module.eval()
        with torch.no_grad():
            outputs = module(inputs)
        for one, mode in modes:
            one.training = mode
        if not self.setting.is_last:
            send_header(outputs, stage + 1, False)
            outbox = Outbox(stage + 1, FORWARD_TAG, 1)
            outbox.put(outputs)
            outbox.clear()
        return outputs

    def _record(self) -> dict[str, Any]:
        """Send the trained weights, then say what was measured."""
        self.pipe.send_bytes(
            save({name: one.detach().clone().contiguous() for name, one in self.weights.state().items()})
        )
        stage = self.stage
        return {
            "record": {
                "stage": self.setting.stage,
                "layers": [self.span.start, self.span.stop],
                "seconds": {kind: own[-len(stage.ends_s) :] for kind, own in stage.seconds.items()},
                "ends_s": [one - self.start_s for one in stage.ends_s],
                "stash_bytes": stage.stash.peak_bytes,
                "live": stage.stash.peak_count,
                "staleness": stage.most_stale,
                "versions": self.weights.versions,
                "parameter_bytes": self.weights.parameter_bytes,
            }
        }
