"""One rank of a training job on the GPU at hand, recorded: ``python -m benchmarks.gpu_job FOLDER NETWORK``.

DistributedDataParallel over NCCL with SGD and a loss that is read every step. ``cdmpp trace FOLDER`` replays it.
``python -m benchmarks.gpu_job predict DEVICE`` predicts the steps instead; no GPU is needed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.distributed_jobs.networks import gpt
from benchmarks.distributed_jobs.rank import loss_of
from cdmpp import Workload, predict_step
from cdmpp.platform.torch_pair import import_torchvision
from cdmpp.trace import record

TRACED, PLAIN, SETTLE = 7, 15, 5
LARGE = {"width": 768, "depth": 12, "tokens": 32000, "length": 512}


NETWORKS = ("gpt", "gpt_small", "resnet50")
"""``_small``: so little work that the host decides."""


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


def predict(device: str) -> None:
    """Print what each step would take."""
    for name in NETWORKS:
        network, batch = made(name, "cpu")
        workload = Workload(network, (batch,), optimizer="sgd", loss=loss_of)
        found = predict_step(workload, device=device, runtime="torch")
        print(f"{name}: {1e3 * found.latency_s:.1f} ms", *found.prediction.warnings, sep="\n  ")


if __name__ == "__main__":
    if sys.argv[1] == "predict":
        predict(sys.argv[2])
    else:
        main(Path(sys.argv[1]), sys.argv[2])
