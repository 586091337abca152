"""A worker: a process that trains, asks after each batch whether to commit, and exchanges its parameters if so."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from cdmpp.errors import CdmppError
from cdmpp.synchrony.processes.child import begin
from cdmpp.synchrony.processes.namespaces import Place
from cdmpp.synchrony.processes.training import (
    TrainFunction,
    Training,
    checked_training,
    finite_loss,
    flattened,
    samples_and_loss,
)
from cdmpp.synchrony.processes.wire import call, exchange, tell, told, view

_OURS = frozenset({"cdmpp", "site-packages", "multiprocessing"})
"""Folders of code that is not the user's."""
WARM_UP = 2
"""Batches before the clock starts; what they change is thrown away."""


def work(
    pipe: Connection, train: TrainFunction, seed: int, worker: int, workers: int, place: Place | None, core: int | None
) -> None:
    """Run one worker until the process that started it is gone; what it raises is told there."""
    try:
        begin(place, core)
        training = checked_training(train(seed, worker, workers))
        parameters = list(training.parameters)
        local = flattened(parameters)
        pulled = local.clone()
        batches = _batches(training, worker)
        losses = [next(batches)[1] for _ in range(WARM_UP)]
        shapes = [tuple(one.shape) for one in parameters]
        tell(pipe, count=local.numel(), shapes=shapes, loss=losses[0], has_loss=hasattr(training, "loss"))
        start = told(pipe)
        connections = [call(address, port, worker) for address, port in start["servers"]]
        _train(pipe, batches, local, pulled, connections, start["bounds"])
    except BaseException as error:
        _tell_error(pipe, error)


def _batches(training: Training, worker: int) -> Iterator[tuple[int, float]]:
    """Train a batch with each ``next``; give its samples and loss."""
    for number in count(1):
        yield samples_and_loss(training.batch(), f"call {number} of batch() on worker {worker}")


def _tell_error(pipe: Connection, error: BaseException) -> None:
    """Say what the user's code raised and where; what it was refused for says all by itself.

    Where the job is over nobody reads it. A process cannot tell that from a lost connection of the user's own.
    """
    with suppress(ConnectionError):
        tell(pipe, error=str(error) if isinstance(error, CdmppError) else _raised(error))


def _raised(error: BaseException) -> str:
    """What the user's code raised, with the last of its lines; the whole traceback where no line is the user's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if not _OURS.intersection(Path(one.filename).parts)]
    if not own or isinstance(error, KeyboardInterrupt):
        return traceback.format_exc()
    return f"{type(error).__name__}: {error}, at {own[-1].filename}:{own[-1].lineno}, `{own[-1].line}`"


def _train(
    pipe: Connection,
    batches: Iterator[tuple[int, float]],
    local: torch.Tensor,
    pulled: torch.Tensor,
    connections: Sequence[Any],
    bounds: Sequence[int],
) -> None:
    """Exchange, then train until the next exchange, on and on; ``bounds``: where the part of each server begins.

    The first exchange brings the initial parameters of this worker, which the servers take from one worker only.
    """
    update = pulled.clone()
    parts = list(zip(bounds, bounds[1:], strict=False))
    outgoing = [view(update[begin:end]) for begin, end in parts]
    incoming = [view(pulled[begin:end]) for begin, end in parts]
    while True:
        try:
            exchange(connections, outgoing, incoming)
        except (EOFError, ConnectionError) as error:
            raise CdmppError("a server closed its connection") from error
        local.copy_(pulled)
        tell(pipe, event="pulled")
        told(pipe)
        while True:
            samples, loss = next(batches)
            tell(pipe, event="batch", samples=samples, loss=loss)
            if told(pipe)["commits"]:
                break
        torch.sub(local, pulled, out=update)


def evaluate(pipe: Connection, train: TrainFunction, seed: int, workers: int) -> None:
    """Answer each vector of parameters with the loss on held-out samples, as worker 0 sees it."""
    try:
        begin()
        training: Any = train(seed, 0, workers)
        local = flattened(training.parameters)
        while True:
            pipe.recv_bytes_into(view(local))
            tell(pipe, loss=finite_loss(training.loss(), "loss()"))
    except BaseException as error:
        _tell_error(pipe, error)
