"""One rank of a training job on the GPU at hand, recorded: ``python -m benchmarks.gpu_job FOLDER NETWORK``.

DistributedDataParallel over NCCL with SGD and a loss that is read every step. ``cdmpp trace FOLDER`` replays it.
``python -m benchmarks.gpu_job predict DEVICE`` predicts the steps instead; no GPU is needed. What the wrapper of one
rank adds is among them: each gradient is copied into its bucket and back, and its hooks take the host's time.
``predict h100 --publish`` writes them to ``docs/results/training-steps.md``, beside those that were measured.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.distributed_jobs.networks import gpt
from benchmarks.distributed_jobs.rank import loss_of
from benchmarks.publish.measured import publish
from cdmpp import Workload, devices
from cdmpp.network.compose import compose
from cdmpp.network.eager.eager_network import EagerNetwork
from cdmpp.network.eager.runtime import EagerRuntime
from cdmpp.network.graph import Call
from cdmpp.network.training_step import StepCall
from cdmpp.operators.operator import EagerOperator
from cdmpp.operators.operator_task import task_id
from cdmpp.platform.torch_pair import import_torchvision
from cdmpp.trace import record

TRACED, PLAIN, SETTLE = 7, 15, 5
_WRAPPER_S, _HOOK_S = 190e-6, 3.9e-6
"""Seconds of the host in DistributedDataParallel, for a step and for a parameter (``benchmarks.host_costs``)."""
LARGE = {"width": 768, "depth": 12, "tokens": 32000, "length": 512}


JOBS = {
    ("gpt", "fp32"): ("GPT, 12 layers of 768, 16 x 512 tokens", 144.3),
    ("resnet50", "fp32"): ("ResNet-50, 64 images, without TF32", 85.4),
    ("gpt_small", "fp32"): ("GPT, 4 layers of 256, 8 x 64 tokens", 7.5),
    ("resnet50", "tf32"): ("ResNet-50, 64 images, with TF32", 45.0),
}
"""Name of a network and precision -> the job, and the median milliseconds of a step on an H100 without a profiler.
``_small``: so little work that the host decides."""


def made(name: str, place: str) -> tuple[torch.nn.Module, torch.Tensor]:
    """Network and batch on ``cuda`` or ``cpu``."""
    with torch.device(place):
        torch.manual_seed(0)
        if name == "gpt":
            return gpt(**LARGE), torch.randint(0, LARGE["tokens"], (16, LARGE["length"]))
        if name == "gpt_small":
            return gpt(), torch.randint(0, 2048, (8, 64))
        return import_torchvision().models.resnet50(weights=None), torch.rand(64, 3, 224, 224)


def main(folder: Path, name: str) -> None:
    """Run and record."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1"}
    torch.backends.cudnn.allow_tf32 = False  # as the operators that models learn from; PyTorch would use it
    dist.init_process_group("nccl")
    network, batch = made(name, "cuda")
    wrapped = torch.nn.parallel.DistributedDataParallel(network, device_ids=[0])
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-4, momentum=0.9)

    def step() -> float:
        optimizer.zero_grad()
        loss = loss_of(wrapped(batch))
        loss.backward()
        optimizer.step()
        return loss.item()  # waits for the GPU

    for _ in range(SETTLE):
        step()
    with record(folder, wait=PLAIN, steps=TRACED) as recorder:
        for _ in range(PLAIN + 1 + TRACED + 2 + PLAIN):
            step()
            recorder.step()
    dist.destroy_process_group()


def in_buckets(read: EagerNetwork) -> EagerNetwork:
    """Return a step whose gradients are copied into buckets and back, after its backward pass."""
    assert read.step is not None
    sizes = [one.bytes // 4 for one in read.step.parameters if one.is_used]
    copies = [EagerOperator.flat("copy", size) for _ in ("into", "back") for size in sizes]
    end = sum(one.phase != "update" for one in read.step.calls)
    added = [Call(f"bucket#{place}", task_id(one), (), 0, forward=-1) for place, one in enumerate(copies)]
    step_calls = read.step.calls
    calls = (*step_calls[:end], *(StepCall(one, "backward") for one in added), *step_calls[end:])
    graph = replace(read.graph, calls=tuple(one.call for one in calls))
    operators = {**read.operators, **{task_id(one): one for one in copies}}
    return replace(read, graph=graph, operators=operators, step=replace(read.step, graph=graph, calls=calls))


def predict(device: str, publishes: bool) -> None:
    """Print what each step would take; those of the H100 are published beside the measured ones where asked to."""
    sheet, runtime, rows = devices.get(device), EagerRuntime(), list[list[str]]()
    for (name, precision), (what, measured_ms) in JOBS.items():
        network, batch = made(name, "cpu")
        workload = Workload(network, (batch,), optimizer="sgd", loss=loss_of, mode="training_step", precision=precision)
        read = in_buckets(runtime.read(workload, sheet))
        priced = runtime.price(read, sheet)
        dispatch_s = [*priced.dispatch_s]
        dispatch_s[0] += _WRAPPER_S + _HOOK_S * sum(one.is_used for one in read.step.parameters)
        priced = replace(priced, dispatch_s=dispatch_s)
        found = compose(priced, runtime.launch(priced))
        busy_s, host_s = sum(priced.call_s), sum(dispatch_s)
        parts = f"device {1e3 * busy_s:.1f}, host {1e3 * host_s:.1f}"
        predicted_ms = 1e3 * found.latency_s
        print(f"{name}, {precision}: {predicted_ms:.1f} ms ({parts})", *found.warnings, sep="\n  ")
        off = 100 * (predicted_ms / measured_ms - 1)
        rows.append([what, f"{measured_ms}", f"{predicted_ms:.1f}", f"{off:+.1f}" if abs(off) < 10 else f"{off:+.0f}"])
    if publishes:
        columns = ["job", "measured, ms", "predicted, ms", "off, %"]
        publish("training-steps", "By PyTorch's own kernels", columns, rows)


if __name__ == "__main__":
    if sys.argv[1] == "predict":
        predict(sys.argv[2], sys.argv[2:] == ["h100", "--publish"])
    else:
        main(Path(sys.argv[1]), sys.argv[2])
