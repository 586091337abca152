"""Processes that measure beside the engine: layers by themselves, and data parallel training."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from benchmarks.partition.layer_profile import profile
from benchmarks.partition.tasks import TRAININGS, accuracy
from cdmpp.partition.processes.task import Task
from cdmpp.synchrony.processes.child import begin
from cdmpp.synchrony.processes.wire import tell


def _meet(rank: int, count: int, meeting: str) -> None:
    begin(None, rank)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if count > 1:
        store = dist.FileStore(meeting, count)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=timedelta(seconds=120))


def profiled(
    pipe: Connection, rank: int, count: int, meeting: str, network: str, seed: int, parts: Sequence[int]
) -> None:
    """Time the layers of a network, for so many micro-batches a step; several processes do so at the same time."""
    _meet(rank, count, meeting)
    training = TRAININGS[network]
    task = Task(training.build, training.data_of(seed, training.examples), training.loss, training.optimizer)
    found = {}
    for number in parts:
        torch.manual_seed(seed)
        model = training.build()
        if count > 1:
            dist.barrier()
        data = training.data_of(seed, training.examples // number)
        found[str(number)] = profile(model, task.loss_of, training.optimizer, data)
    if count > 1:
        dist.barrier()
    tell(pipe, parts=found)
    os._exit(0)


def data_parallel(pipe: Connection, rank: int, count: int, meeting: str, network: str, seed: int, steps: int) -> None:
    """Train with DistributedDataParallel: each process has its part of every batch."""
    _meet(rank, count, meeting)
    training = TRAININGS[network]
    torch.manual_seed(seed)
    model = training.build()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = training.optimizer(model.parameters())
    rate, each, ends_s = optimizer.param_groups[0]["lr"], training.examples // count, []
    for step in range(steps):
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
        point = [steps * training.examples, training.loss(outputs, targets).item(), accuracy(outputs, targets)]
    late = ends_s[len(ends_s) // 4 :]
    tell(pipe, step_s=(late[-1] - late[0]) / (len(late) - 1), held_out=[point])
    os._exit(0)
