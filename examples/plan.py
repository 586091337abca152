"""Which settings let a step on four GPUs fit into less memory, and what do they cost? Needs torch, no TVM."""

from pathlib import Path

import torch
from torch import nn

import cdmpp
from cdmpp.plans.plan_file import read_plan, save_plan
from cdmpp.report import to_text

network = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(12)])
workload = cdmpp.Workload(network, torch.zeros(512, 1024), loss="mse", optimizer="sgd")
step = cdmpp.predict_step(workload, device="h100", runtime="torch")

found = cdmpp.optimize_step(step, ranks=4, link="pcie4", memory_limit_bytes=896_000_000)  # 678 MB: context, NCCL
print(to_text(found))

save_plan(found.plan, Path("plan.yaml"))  # also `cdmpp step ... --plan plan.yaml`
again = cdmpp.replay_step(step, link="pcie4", plan=read_plan(Path("plan.yaml")))
default = cdmpp.replay_step(step, ranks=4, link="pcie4")
print(f"{default.iteration_s * 1e3:.2f} ms with the defaults, {again.iteration_s * 1e3:.2f} ms with this plan")
