"""Record a training job (here of one process), replay it, and ask what would make it faster. Needs torch, no TVM."""

import tempfile

import torch
import torch.distributed as dist
from torch import nn

import cdmpp.trace
from cdmpp.steps.replay import replay
from cdmpp.steps.transforms.scale import scale_kernel
from cdmpp.trace.diagnosis import diagnose

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(64, 256)

folder = tempfile.mkdtemp()
with cdmpp.trace.record(folder, wait=2, steps=3) as recorder:  # on every rank of a real job
    for _ in range(10):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        recorder.step()
dist.destroy_process_group()

job = cdmpp.trace.read(folder)
print(f"replayed step {replay(job).step_s * 1e6:.0f} us")
print(f"with linear layers twice as fast {replay(scale_kernel(job, 'linear', 0.5)).step_s * 1e6:.0f} us")
for cause in diagnose(job):
    print(f"{cause.seconds * 1e6:8.0f} us  {cause.name}")
