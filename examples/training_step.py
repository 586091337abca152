"""How long does a training step take, and what do eight GPUs bring? Needs torch, no TVM."""

import torch
from torch import nn

import cdmpp

network = nn.Sequential(*[nn.Sequential(nn.Linear(4096, 4096), nn.ReLU()) for _ in range(4)])
workload = cdmpp.Workload(network, torch.zeros(256, 4096), loss="mse", optimizer="adamw")

step = cdmpp.predict_step(workload, device="h100", runtime="torch")
for phase, seconds in step.phase_s.items():
    print(f"{phase:<10}{seconds * 1e6:8.0f} us")

for strategy in ("ddp", "fsdp"):
    replayed = cdmpp.replay_step(step, ranks=8, cluster="dgx-h100", strategy=strategy)
    print(f"{strategy:<10}{replayed.iteration_s * 1e6:8.0f} us on eight GPUs, each with the same batch")
