"""Processes that measure beside the engine: messages, layers by themselves, and data parallel training."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from multiprocessing.connection import Connection

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.partition.layer_profile import profile
from benchmarks.partition.tasks import TRAININGS, accuracy
from cdmpp.partition.processes.messages import BACKWARD_TAG, FORWARD_TAG, Inbox, Outbox
from cdmpp.synchrony.processes.child import begin
from cdmpp.synchrony.processes.wire import tell

_SIZES = (1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 21)
_TRIPS, _WARM = 60, 10


def _meet(rank: int, count: int, meeting: str) -> None:
    begin(None, rank)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if count > 1:
        store = dist.FileStore(meeting, count)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=timedelta(seconds=120))


def messages(pipe: Connection, rank: int, count: int, meeting: str) -> None:
    """Send tensors to and fro with the engine's own boxes; alpha and beta of a message one way."""
    _meet(rank, count, meeting)
    tags = (FORWARD_TAG, BACKWARD_TAG)
    out, into = Outbox(1 - rank, tags[rank], 1), Inbox(1 - rank, tags[1 - rank])
    medians = []
    for size in _SIZES:
        message, seconds = torch.zeros(size // 4), []
        into.expect(_TRIPS)
        for _ in range(_TRIPS):
            begin_s = time.perf_counter()
            if rank:
                into.take(message)
                out.put(message)
            else:
                out.put(message)
                into.take(message)
            seconds.append((time.perf_counter() - begin_s) / 2)
        out.clear()
        medians.append(float(np.median(seconds[_WARM:])))
    # relative errors, so that small messages count
    weights = 1 / np.array(medians)
    matrix = np.stack([np.ones(len(_SIZES)), np.array(_SIZES, float)], 1)
    alpha_s, beta_s = np.linalg.lstsq(matrix * weights[:, None], np.ones(len(_SIZES)), rcond=None)[0]
    fit = {
        "alpha_s": max(0.0, float(alpha_s)) / 2,
        "beta_s": max(0.0, float(beta_s)),
    }  # a message has both ends' starts
    tell(pipe, fit=fit, sizes=_SIZES, seconds=medians)
    os._exit(0)


def profiled(pipe: Connection, rank: int, count: int, meeting: str, network: str, examples: int) -> None:
    """Time the layers of a network; with several processes all do so at the same time."""
    _meet(rank, count, meeting)
    training = TRAININGS[network]
    torch.manual_seed(0)
    model = training.build()
    inputs, targets = training.data(0, examples, 0)
    if count > 1:
        dist.barrier()
    found = profile(model, training.loss, training.optimizer, inputs, targets)
    if count > 1:
        dist.barrier()
    tell(pipe, **found)
    os._exit(0)


def data_parallel(pipe: Connection, rank: int, count: int, meeting: str, network: str, seed: int) -> None:
    """Train with DistributedDataParallel: each process has its part of every batch."""
    _meet(rank, count, meeting)
    training = TRAININGS[network]
    torch.manual_seed(seed)
    model = training.build()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = training.optimizer(model.parameters())
    rate, each, ends_s = optimizer.param_groups[0]["lr"], training.examples // count, []
    for step in range(training.steps):
        inputs, targets = (one[rank * each : (rank + 1) * each] for one in training.data(seed, training.examples, step))
        training.loss(parallel(inputs), targets).backward()
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / (training.warm_up + 1))
        optimizer.step()
        optimizer.zero_grad()
        ends_s.append(time.monotonic())
    model.eval()
    with torch.no_grad():
        inputs, targets = training.held_out(seed)
        outputs = model(inputs)
        point = [training.steps * training.examples, training.loss(outputs, targets).item(), accuracy(outputs, targets)]
    late = ends_s[len(ends_s) // 4 :]
    tell(pipe, step_s=(late[-1] - late[0]) / (len(late) - 1), held_out=[point])
    os._exit(0)
