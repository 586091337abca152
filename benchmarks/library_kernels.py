"""Where the GPU's time goes in transformers as PyTorch runs them, and where it is predicted to go.

``measure OUT`` runs at a GPU, under the profiler, and writes a JSON line for each operator of each shape; ``score OUT
DEVICE MODEL`` runs anywhere and compares the sums of each class. Times are those of kernels: no host, no gaps.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import torch

from benchmarks.library_network_times import BATCHES, IMAGES, NETWORKS, made
from cdmpp.network.workload import Workload

RUNS = 2
_CLASSES = {
    **dict.fromkeys(("addmm", "mm", "linear"), "linear"),
    **dict.fromkeys(("copy_", "copy", "permute", "transpose"), "copies"),
    **{"bmm": "bmm", "_softmax": "softmax", "softmax": "softmax"},
    **dict.fromkeys(("native_layer_norm", "layer_norm"), "norm"),
}
"""Classes of PyTorch's operators and of ours; all else is elementwise."""


def measure(out: Path) -> None:
    """Inference of each transformer with its largest batch, in both types."""
    from torch.profiler import ProfilerActivity, profile

    torch.backends.cudnn.allow_tf32 = False
    with out.open("w") as file:
        for name in NETWORKS:
            for dtype in ("float32", "float16") if name not in IMAGES else ():
                with torch.device("cuda"):
                    network, given = made(name, BATCHES[name][-1])
                if dtype == "float16":
                    network, given = network.half(), given.half() if given.is_floating_point() else given
                with torch.inference_mode():
                    for _ in range(3):
                        network.eval()(given)
                    torch.cuda.synchronize()
                    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as seen:
                        for _ in range(RUNS):
                            network(given)
                        torch.cuda.synchronize()
                for event in seen.key_averages(group_by_input_shape=True):
                    if event.self_device_time_total > 0 and event.key.startswith("aten::"):
                        shapes, device_us = str(event.input_shapes), event.self_device_time_total / RUNS
                        row = [name, BATCHES[name][-1], dtype, event.key, shapes, event.count / RUNS, device_us]
                        file.write(json.dumps(row) + "\n")


def score(out: Path, device: str, model: str) -> None:
    """Print a line a network and class."""
    from cdmpp import devices, load
    from cdmpp.network.eager.read import read_run
    from cdmpp.network.eager.runtime import EagerRuntime
    from cdmpp.network.predict import predict_read

    sheet, predictor = devices.get(device), load(model)
    measured: dict[tuple[str, int, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for name, batch, dtype, operator, _, _, device_us in map(json.loads, out.read_text().splitlines()):
        measured[name, batch, dtype][_CLASSES.get(operator.removeprefix("aten::"), "elementwise")] += 1e-3 * device_us
    print(
        "| network | batch | type | class | measured, ms | predicted, ms | off, % |\n|---|---:|---|---|---:|---:|---:|"
    )
    for (name, batch, dtype), classes in measured.items():
        with torch.device("meta"):
            network, given = made(name, batch)
        read = read_run(Workload(network, (given,), precision=dtype))
        predicted: dict[str, float] = defaultdict(float)
        for kernel in predict_read(read, sheet, EagerRuntime(predictor)).kernels:
            operator = read.operators[kernel.task_id].name
            predicted[_CLASSES.get(operator, "elementwise")] += 1e3 * kernel.total_s
        for of in ("linear", "bmm", "softmax", "norm", "copies", "elementwise", "all"):
            found, told = (sum(one.values()) if of == "all" else one[of] for one in (classes, predicted))
            if found:
                off = f"{100 * (told / found - 1):+.1f}"
                print(f"| {name} | {batch} | {dtype} | {of} | {found:.2f} | {told:.2f} | {off} |")


if __name__ == "__main__":
    verb, file, *rest = sys.argv[1:]
    measure(Path(file)) if verb == "measure" else score(Path(file), *rest)
