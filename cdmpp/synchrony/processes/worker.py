"""A worker: a process that trains, asks after each batch whether to commit, and exchanges its parameters if so."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from cdmpp.synchrony.processes.namespaces import Place
from cdmpp.synchrony.processes.training import TrainFunction, flattened
from cdmpp.synchrony.processes.wire import call, exchange, tell, told, view

WARM_UP = 2
"""Batches before the clock starts; what they change is thrown away."""


def work(
    pipe: Connection, train: TrainFunction, seed: int, worker: int, workers: int, place: Place | None, core: int | None
) -> None:
    """Run one worker until the process that started it is gone; what it raises is told there."""
    torch.set_num_threads(1)
    try:
        if place is not None:
            place.enter()
        if core is not None:
            os.sched_setaffinity(0, {core})
        training = train(seed, worker, workers)
        local = flattened(training.parameters)
        pulled = local.clone()
        losses = [training.batch()[1] for _ in range(WARM_UP)]
        tell(pipe, count=local.numel(), loss=losses[0], has_loss=hasattr(training, "loss"))
        start = told(pipe)
        connections = [call(address, port, worker) for address, port in start["servers"]]
        _train(pipe, training, local, pulled, connections, start["bounds"])
    except (EOFError, ConnectionError):
        os._exit(0)  # the job is over
    except BaseException:
        tell(pipe, error=traceback.format_exc())


def _train(
    pipe: Connection,
    training: Any,
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
        exchange(connections, outgoing, incoming)
        local.copy_(pulled)
        tell(pipe, event="pulled")
        told(pipe)
        while True:
            samples, loss = training.batch()
            tell(pipe, event="batch", samples=samples, loss=loss)
            if told(pipe)["commits"]:
                break
        torch.sub(local, pulled, out=update)


def evaluate(pipe: Connection, train: TrainFunction, seed: int, workers: int) -> None:
    """Answer each vector of parameters with the loss on held-out samples, as worker 0 sees it."""
    torch.set_num_threads(1)
    training: Any = train(seed, 0, workers)
    local = flattened(training.parameters)
    try:
        while True:
            pipe.recv_bytes_into(view(local))
            tell(pipe, loss=training.loss())
    except EOFError:
        pass
