"""What the host took in recorded steps of one image, beyond the dispatch of their kernels.

``python -m benchmarks.host_steps DEVICE ...``: reads ``datasets/DEVICE-torch/networks.jsonl``. Where a forward and
backward pass is at least twice as long as its kernels, the host decides. Prints, as Markdown, how much longer it is
than the dispatch of its calls, by calls of the forward pass, nodes of the backward pass and gradients; and the median
over networks that ``cdmpp.network.eager.host.DEFAULT`` has. ResNet-50 is left out: it is one of the jobs to predict.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import torch

from benchmarks.library_network_times import made
from benchmarks.publish.markdown import table
from cdmpp import Workload, devices
from cdmpp.network.eager.runtime import EagerRuntime

LEFT_OUT, LEAST = ("resnet50",), 2.0


def main(*names: str) -> None:
    """Print the table and the median."""
    lines, each = [], []
    for name in names:
        sheet, runtime = devices.get(name), EagerRuntime("torch-gpus", host=None)
        for row in map(json.loads, Path(f"datasets/{name}-torch/networks.jsonl").read_text().splitlines()):
            job, measured_s = row["job"], statistics.median(row["seconds"])
            if job["batch"] > 1 or not job["train"] or job["network"] in LEFT_OUT:
                continue
            with torch.device("meta"):
                network, given = made(job["network"], job["batch"])
            workload = Workload(network, (given,), mode="training_step", optimizer=None, loss=torch.sum)
            priced = runtime.price(read := runtime.read(workload, sheet), sheet)
            if measured_s < LEAST * sum(priced.call_s) or read.step is None:
                continue
            calls = [one.call for one in read.step.calls if one.phase == "forward"]
            nodes = {one.call.forward for one in read.step.calls if one.phase == "backward"}
            count = len(calls) + len(nodes) + sum(one.is_used for one in read.step.parameters)
            dispatch_s = sum(priced.dispatch_s)
            each.append((measured_s - dispatch_s) / count)
            times = (f"{1e3 * seconds:.1f}" for seconds in (measured_s, sum(priced.call_s), dispatch_s))
            lines.append([f"`{name}`", job["network"], *times, count, f"{1e6 * each[-1]:.1f}"])
    heads = [
        "device",
        "network",
        "measured, ms",
        "kernels, ms",
        "dispatch, ms",
        "calls, nodes, gradients",
        "us for each",
    ]
    print(*table(heads, lines), sep="\n")
    print(f"median: {1e6 * statistics.median(each):.1f} us")


if __name__ == "__main__":
    main(*sys.argv[1:])
