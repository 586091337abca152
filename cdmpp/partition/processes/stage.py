"""Stage: the passes and updates of one stage, in the order of its schedule."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from cdmpp.errors import UsageError
from cdmpp.partition.processes.messages import (
    BACKWARD_TAG,
    FORWARD_TAG,
    Inbox,
    Outbox,
    receive_header,
    send_header,
)
from cdmpp.partition.processes.record import KINDS
from cdmpp.partition.processes.stash import Kept, Stash
from cdmpp.partition.processes.task import Batch, Task
from cdmpp.partition.processes.weights import Weights
from cdmpp.partition.stream import Stream
from cdmpp.platform.limits import shown
from cdmpp.steps.schedule import FORWARD, Schedule

_COUNTED = 4
"""The micro-batches under way are counted in full this many times; later ones have the bytes of those."""


@dataclass(frozen=True)
class Setting:
    """Where a stage stands, and what it follows."""

    stage: int
    stages: int
    schedule: Schedule
    micro_batches: int
    steps: int
    """The steps of the whole run."""

    @property
    def is_first(self) -> bool:
        """Return True for the stage that reads inputs."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Return True for the stage that computes the loss."""
        return self.stage == self.stages - 1

    @property
    def staleness(self) -> int:
        """Return the updates by which the weights of a forward pass are older than its own update."""
        return self.schedule.staleness(self.stage, self.stages)

    @property
    def live(self) -> int:
        """Return the micro-batches under way at a time, at most."""
        return self.live_on(self.stage)

    def live_on(self, stage: int) -> int:
        """Return the micro-batches under way on a stage at a time, at most."""
        many = self.micro_batches if self.schedule.flushes else self.micro_batches * self.steps
        return self.schedule.live_micro_batches(stage, self.stages, many)


class Stage:
    """It knows its neighbours only by their messages. Of two threads one runs forward passes, the other the rest."""

    def __init__(
        self, setting: Setting, task: Task, weights: Weights, ended: Callable[[int, float | None], None]
    ) -> None:
        """Prepare; ``ended``: called after each step with its number and, on the last stage, its loss."""
        self.setting, self.task, self.weights, self._ended = setting, task, weights, ended
        shared = [one for own in weights.copies for one in [*own.parameters(), *own.buffers()]]
        self.stash = Stash(shared)
        self.seconds: dict[str, list[float]] = {kind: [0.0] * setting.steps for kind in KINDS}
        self.ends_s: list[float] = []
        """Clock at the end of each step that this process has run."""
        self.most_stale = 0
        self.examples = 0
        """Examples of a step, where this stage reads them."""
        before, after = setting.stage - 1, setting.stage + 1
        self._results_in, self._gradients_out = Inbox(before, FORWARD_TAG), Outbox(before, BACKWARD_TAG, 1)
        self._results_out, self._gradients_in = Outbox(after, FORWARD_TAG, 1), Inbox(after, BACKWARD_TAG)
        if not setting.is_first:
            self._gradients_out = Outbox(before, BACKWARD_TAG, setting.live_on(before))
        if not setting.is_last:
            self._results_out = Outbox(after, FORWARD_TAG, setting.live)
        self._like_in: torch.Tensor | None = None
        self._like_out: torch.Tensor | None = None
        self._has_gradient = False
        """True if the stage before waits for gradients."""
        self._batch: tuple[int, Batch] | None = None
        self._losses: list[float] = []
        self._loss_type = torch.float32
        self._bytes = 0
        self._forwards = 0
        """Forward passes that have ended in this stretch."""
        self._turn = threading.Condition()

    def run(self, begin: int, end: int, failed: Callable[[BaseException], None]) -> None:
        """Run the steps from ``begin`` on until before ``end``, and let all that is under way come to its end.

        ``failed`` is called by a second thread for what it raises.
        """
        setting, count = self.setting, (end - begin) * self.setting.micro_batches
        stream = Stream(setting.schedule, setting.micro_batches, count)
        self._first, self._base, self._count = begin * setting.micro_batches, self.weights.updates, count
        self._forwards = 0
        self.weights.level()
        if not setting.is_first:
            self._results_in.expect(count)
        self._to_come = count
        actions = list(stream.actions(setting.stage, setting.stages - setting.stage))
        if not setting.schedule.passes_side_by_side:
            self._actions(actions, stream)
        else:
            forward = [one for one in actions if one.kind == FORWARD]

            def ahead() -> None:
                try:
                    self._actions(forward, stream)
                except BaseException as error:
                    failed(error)

            thread = threading.Thread(target=ahead, daemon=True)
            thread.start()
            self._actions([one for one in actions if one.kind != FORWARD], stream)
            thread.join()
        self._results_out.clear()
        self._gradients_out.clear()

    def _actions(self, actions: Iterable[Any], stream: Stream) -> None:
        for _, kind, number in actions:
            if kind == FORWARD:
                self._forward(number)
                continue
            used = self._backward(number)
            if number == stream.lasts(number)[-1]:
                self._update(number, used)
            if number % self.setting.micro_batches == self.setting.micro_batches - 1:
                self._end((self._first + number) // self.setting.micro_batches)

    @contextmanager
    def _timed(self, kind: str, number: int) -> Iterator[None]:
        begin_s = time.perf_counter()
        yield
        self.seconds[kind][(self._first + number) // self.setting.micro_batches] += time.perf_counter() - begin_s

    def _unit(self, number: int) -> int:
        """Tell which update of this stretch has the gradient of a micro-batch."""
        return number if self.setting.schedule.updates_each else number // self.setting.micro_batches

    def _version(self, number: int) -> int:
        """Version of the weights of a forward pass, as old as the schedule says.

        Before this stretch all versions were made equal to the newest.
        """
        return self._base + self._unit(number) - self.setting.staleness

    def _forward(self, number: int) -> None:
        version = self._version(number)
        with self._timed("wait", number), self._turn:
            self._turn.wait_for(lambda: self.weights.updates >= version)
        received = self._received(number)
        targets = self._part(number)[1] if self.setting.is_last else None
        with self._timed("forward", number):
            counts = self._first + number < _COUNTED * self.setting.live or not self._bytes
            module = self.weights.copy_of(version)
            with self.stash.counting(received) if counts else nullcontext() as found:
                result = module(received)
                _check_result(result, self.setting.stage)
                if targets is not None:
                    result = self.task.loss_of(result, targets)
                    self._loss_type = result.dtype
            self._bytes = sum(found.values()) if found is not None else self._bytes
            end = get_gradient_edge(result) if result.requires_grad else None
            kept = Kept(received, end, version, self._bytes)
        if targets is not None:
            self._losses.append(result.item())
        else:
            self._announce(number, result)
        with self._turn:
            self.stash.put(number, kept)
            self._forwards += 1
            self._turn.notify_all()
        if targets is None:
            with self._timed("send", number):
                self._results_out.put(result)

    def _received(self, number: int) -> torch.Tensor:
        if self.setting.is_first:
            return self._part(number)[0]
        with self._timed("receive", number):
            if self._like_in is None:
                self._like_in, self._has_gradient = receive_header(self.setting.stage - 1)
            received = self._results_in.take(self._like_in)
        return received.requires_grad_(self._has_gradient)

    def _part(self, number: int) -> Batch:
        """Inputs and targets of one micro-batch."""
        step, part = divmod(self._first + number, self.setting.micro_batches)
        with self._timed("data", number):
            if self._batch is None or self._batch[0] != step:
                like = self._batch[1] if self._batch else None
                self._batch = step, self.task.batch(step, self.setting.micro_batches, like)
            inputs, targets = self._batch[1]
            self.examples = len(inputs)
            each = len(inputs) // self.setting.micro_batches
            return inputs[part * each : (part + 1) * each], targets[part * each : (part + 1) * each]

    def _announce(self, number: int, result: torch.Tensor) -> None:
        """Say before the first message what messages look like, and expect gradients of all."""
        with self._timed("send", number):
            if self._like_out is None:
                send_header(result, self.setting.stage + 1, result.requires_grad)
                self._like_out = torch.empty_like(result, requires_grad=False)
            like = self._like_out
            if (result.shape, result.dtype) != (like.shape, like.dtype):
                raise UsageError(
                    f"stage {self.setting.stage} returns a tensor of shape {tuple(result.shape)}, and returned "
                    f"{tuple(like.shape)} before: expected the same of all micro-batches"
                )
            if self._to_come and result.requires_grad:
                self._gradients_in.expect(self._to_come)
                self._to_come = 0

    def _backward(self, number: int) -> int:
        """Run the backward pass of a micro-batch; return the version that its forward pass took."""
        with self._timed("wait", number), self._turn:
            self._turn.wait_for(lambda: number in self.stash)
        kept = self.stash.take(number)
        gradient = None
        if kept.end is not None and not self.setting.is_last:
            with self._timed("receive", number):
                assert self._like_out is not None
                gradient = self._gradients_in.take(self._like_out)
        with self._timed("backward", number):
            if kept.end is not None:
                if gradient is None:
                    share = 1.0 if self.setting.schedule.updates_each else 1 / self.setting.micro_batches
                    gradient = torch.tensor(share, dtype=self._loss_type)
                torch.autograd.backward(kept.end, gradient)
            back = kept.received.grad
        with self._turn:
            self.stash.free(number)
        if self._has_gradient:
            with self._timed("send", number):
                self._gradients_out.put(torch.zeros_like(kept.received) if back is None else back)
        self.most_stale = max(self.most_stale, self.weights.updates - max(kept.version, self._base))
        return kept.version

    def _update(self, number: int, used: int) -> None:
        """Update once every forward pass that takes what is overwritten has ended."""
        overwritten = self.weights.updates + 1 - self.weights.versions - self._base
        each = 1 if self.setting.schedule.updates_each else self.setting.micro_batches
        due = min((overwritten + self.setting.staleness + 1) * each, self._count)
        with self._timed("wait", number), self._turn:
            self._turn.wait_for(lambda: self._forwards >= due)
        with self._timed("update", number):
            self.weights.update(used)
        with self._turn:
            self._turn.notify_all()

    def _end(self, step: int) -> None:
        self.ends_s.append(time.monotonic())
        loss = None
        if self.setting.is_last:
            many = self.setting.micro_batches
            loss, self._losses = sum(self._losses[:many]) / many, self._losses[many:]
        self._ended(step, loss)


def _check_result(result: Any, stage: int) -> None:
    if not isinstance(result, torch.Tensor):
        raise UsageError(f"stage {stage} returns {shown(result)}: expected one tensor, which the next layer takes")
