"""Whole networks as PyTorch runs them on the GPU at hand, and what is predicted for them.

``measure OUT`` runs there and appends JSON lines; ``score OUT DEVICE MODEL [MODEL ...]`` runs anywhere. No weight is
downloaded: networks have random ones. An inference is a call in inference mode, a training step forward and backward
(gradients dropped before, no optimiser), each between two synchronisations; the label is the median of the repeats.
Convolutions run without TF32, unless a line says otherwise: such networks of images in float32 are scored as ``tf32``,
which has linear layers in TF32 as well, of which they have one to three.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
import transformers
from torch import nn

from cdmpp.network.workload import Workload

WARM, REPEATS = 4, 15


class Logits(nn.Module):
    """A transformer that returns its first tensor alone."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.inside(tokens)[0]


def _transformer(kind: str, tokens: int, **sizes: Any) -> Callable[[int], tuple[nn.Module, torch.Tensor]]:
    def make(batch: int) -> tuple[nn.Module, torch.Tensor]:
        config = getattr(transformers, f"{kind}Config")(**sizes)
        config._attn_implementation = "eager"
        network = Logits(getattr(transformers, f"{kind}{'LMHeadModel' if kind == 'GPT2' else 'Model'}")(config))
        return network, torch.ones(batch, tokens, dtype=torch.int64)

    return make


def _image(name: str) -> Callable[[int], tuple[nn.Module, torch.Tensor]]:
    return lambda batch: (getattr(torchvision.models, name)(weights=None), torch.rand(batch, 3, 224, 224))


IMAGES = ("resnet50", "vgg16", "mobilenet_v2", "densenet121")
_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_LLAMA = {"hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16, "intermediate_size": 5504}
NETWORKS: dict[str, Callable[[int], tuple[nn.Module, torch.Tensor]]] = {
    "bert_large": _transformer("Bert", 512, **_LARGE),
    "gpt2": _transformer("GPT2", 1024, use_cache=False),
    "llama_8_layers": _transformer("Llama", 1024, use_cache=False, **_LLAMA),
    "vit_b_16": _transformer("ViT", 0, image_size=224),
    **{name: _image(name) for name in IMAGES},
}
BATCHES = {
    **{"bert_large": (1, 8), "gpt2": (1, 8), "llama_8_layers": (1, 4), "vit_b_16": (1, 32)},
    **{"resnet50": (1, 32, 128), "vgg16": (1, 32), "mobilenet_v2": (1, 64), "densenet121": (1, 32)},
}


def made(name: str, batch: int) -> tuple[nn.Module, torch.Tensor]:
    """Network and input, on the default device."""
    network, given = NETWORKS[name](batch)
    return network, torch.rand(batch, 3, 224, 224) if name == "vit_b_16" else given


def jobs() -> list[dict[str, Any]]:
    """What is timed: each network in float32, inference and training, and its inference in float16."""
    runs = ((False, "float32"), (True, "float32"), (False, "float16"))
    return [
        {"network": name, "batch": batch, "train": train, "dtype": dtype}
        for name in NETWORKS
        for batch in BATCHES[name]
        for train, dtype in runs
    ]


def seconds(network: nn.Module, given: torch.Tensor, train: bool) -> list[float]:
    """Return the seconds of each repeat."""

    def run() -> None:
        if not train:
            with torch.inference_mode():
                network(given)
            return
        network.zero_grad(set_to_none=True)
        output = network(given)
        output.backward(torch.ones_like(output))

    times = []
    for repeat in range(WARM + REPEATS):
        torch.cuda.synchronize()
        begin_s = time.perf_counter()
        run()
        torch.cuda.synchronize()
        if repeat >= WARM:
            times.append(time.perf_counter() - begin_s)
    return times


def measure(out: Path) -> None:
    """Append to ``out`` what it does not hold yet."""
    done = [json.loads(line)["job"] for line in out.read_text().splitlines()] if out.exists() else []
    torch.backends.cudnn.allow_tf32 = False  # as the operators that models learn from; PyTorch would use it
    place = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__, "tf32_convolutions": False}
    for job in jobs():
        if job in done:
            continue
        torch.cuda.empty_cache()
        try:
            with torch.device("cuda"):
                network, given = made(job["network"], job["batch"])
            if job["dtype"] == "float16":
                network, given = network.half(), given.half() if given.is_floating_point() else given
            times = seconds(network.train(job["train"]), given, job["train"])
        except RuntimeError as error:  # no memory: the others go on
            print(f"{job}: {error}", flush=True)
            continue
        with out.open("a") as file:
            file.write(json.dumps({"job": job, **place, "seconds": times}) + "\n")
        print(f"{job} {1e3 * statistics.median(times):.3f} ms", flush=True)


def score(out: Path, device: str, models: list[str]) -> None:
    """Print a line a network, and the mean error of each kind of run."""
    from cdmpp import devices, load
    from cdmpp.network.eager.read import read_run
    from cdmpp.network.eager.runtime import EagerRuntime
    from cdmpp.network.eager.step import read_step
    from cdmpp.network.predict import predict_read

    sheet, predictors = devices.get(device), {name: load(name) for name in models}
    errors: dict[str, list[list[float]]] = defaultdict(list)
    for row in map(json.loads, out.read_text().splitlines()):
        job, measured_s = row["job"], statistics.median(row["seconds"])
        is_tf32 = row["tf32_convolutions"] and job["network"] in IMAGES and job["dtype"] == "float32"
        precision = "tf32" if is_tf32 else job["dtype"]
        with torch.device("meta"):
            network, given = made(job["network"], job["batch"])
        workload = Workload(network, (given,), precision=precision)
        if job["train"]:  # gradients take the places of those before, which were dropped
            workload = replace(workload, mode="training_step", optimizer=None, loss=torch.sum)
        read = (read_step if job["train"] else read_run)(workload)
        found = [predict_read(read, sheet, EagerRuntime(one)) for one in predictors.values()]
        off = [100 * (one.latency_s / measured_s - 1) for one in found]
        kind = f"{precision} {'training' if job['train'] else 'inference'}"
        images = "images, " if job["network"] in IMAGES else "tokens, "
        for of in (kind, images + kind, *([images + kind + ", larger batches"] if job["batch"] > 1 else [])):
            errors[of].append([abs(one) for one in off])
        told = "  ".join(f"{1e3 * a.latency_s:9.3f} ms ({by:+.1f} %)" for a, by in zip(found, off, strict=True))
        print(f"{job['network']:15} {job['batch']:4} {kind:20} measured {1e3 * measured_s:9.3f} ms  {told}", flush=True)
    for kind, all_of in errors.items():
        told = ", ".join(f"{name} {mean:.1f}" for name, mean in zip(models, np.mean(all_of, axis=0), strict=True))
        print(f"{device} {kind}: MAPE % of {len(all_of)}: {told}")


if __name__ == "__main__":
    verb, file, *rest = sys.argv[1:]
    measure(Path(file)) if verb == "measure" else score(Path(file), rest[0], rest[1:])
