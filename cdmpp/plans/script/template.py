"""Template: the text around what a script says of its plan, and the lines that import what it names."""

from __future__ import annotations

IMPORTS = (
    "import os", "import time", "import torch", "import torch.distributed as dist",
    "from torch.distributed.device_mesh import init_device_mesh",
)  # fmt: skip
IMPORTED = {
    "DistributedDataParallel": "from torch.nn.parallel import DistributedDataParallel",
    "ZeroRedundancyOptimizer": "from torch.distributed.optim import ZeroRedundancyOptimizer",
    "MixedPrecisionPolicy": "from torch.distributed.fsdp import MixedPrecisionPolicy",
    "CPUOffloadPolicy": "from torch.distributed.fsdp import CPUOffloadPolicy",
    "fully_shard": "from torch.distributed.fsdp import fully_shard",
    **{
        one: f"from torch.distributed.tensor.parallel import {one}"
        for one in ("parallelize_module", "ColwiseParallel", "RowwiseParallel", "SequenceParallel", "loss_parallel")
    },
    "Replicate()": "from torch.distributed.tensor import Replicate",
    **dict.fromkeys(("Shard(1)", "Shard(int("), "from torch.distributed.tensor import Shard"),
    "context_parallel": "from torch.distributed.tensor.experimental import context_parallel",
    **{
        one: f"from torch.distributed.tensor.experimental._attention import {one}"
        for one in ("set_rotate_method", "_cp_options")
    },
    "functools": "import functools",
    "checkpoint": "from torch.utils.checkpoint import checkpoint",
    "contextlib": "import contextlib",
    "SplitPoint": "from torch.distributed.pipelining import SplitPoint, pipeline",
    "PipelineStage": "from torch.distributed.pipelining import PipelineStage",
    **{
        one: f"from torch.distributed.pipelining.schedules import {one}"
        for one in (
            "Schedule1F1B", "ScheduleGPipe", "ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble",
            "ScheduleZBVZeroBubble", "ScheduleDualPipeV",
        )
    },
}  # fmt: skip
"""Word of a script -> the line that imports it."""
TEMPLATE = '''\
"""A training step of {network} as cdmpp planned it: {title}.

torchrun --nproc-per-node RANKS_OF_A_NODE --nnodes NODES THIS_FILE      # {ranks} ranks in all

Weights and data are random: put your own into make_model and make_batch.
"""

{imports}

STEPS = int(os.environ.get("STEPS", 10))
BATCH, MICRO_BATCHES = {batch}, {parts}


{network_text}

def move(values, device):
    """Return tensors on a device."""
    return tuple(one.to(device) for one in values) if isinstance(values, tuple) else values.to(device)


def told(number: int, start_s: float, device: torch.device) -> None:
    """Print the seconds of a step on the first rank."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    if dist.get_rank() == 0:
        print(f"step {{number}}: {{time.perf_counter() - start_s:.6f}} s", flush=True)


def main() -> None:
    is_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if is_gpu else torch.device("cpu")
    if is_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if is_gpu else "gloo")
    if dist.get_world_size() != {ranks}:
        raise SystemExit(f"this plan is for {ranks} ranks, and torchrun started {{dist.get_world_size()}}")
{body}
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''
