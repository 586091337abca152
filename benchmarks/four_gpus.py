"""Training steps of GPT on four GPUs, predicted from single calls and collectives, beside measured ones.

python -m benchmarks.four_gpus STEPS LABELS [MODEL]: STEPS is ``four_gpu_steps.csv``, LABELS a folder with NeuSight's
``configs/``, MODEL a model of library operators (``torch-gpus``). Each rank's calls are those of its share of the
network. Nothing overlaps, as in the code that was measured: gradients are exchanged after the backward pass (data
parallel), one batch goes through the stages in turn (pipeline), and each layer waits for its four all-reduces (tensor
parallel).
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import cdmpp
from benchmarks.library_networks import traced
from cdmpp import devices
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.collective_model import shipped
from cdmpp.network.eager.read import read_run
from cdmpp.network.eager.runtime import EagerRuntime
from cdmpp.network.predict import predict_read
from cdmpp.network.workload import Workload

_DEVICES = {"NVIDIA_A100-SXM4-40GB": ("a100", "nvlink3"), "NVIDIA_H100_80GB_HBM3": ("h100", "nvlink4")}
_ELEMENT_BYTES = 4


class _Layer(nn.Module):
    """A rank's share of a GPT layer: some of the heads, some of the columns."""

    def __init__(self, hidden: int, heads: int, ranks: int) -> None:
        super().__init__()
        self.heads, self.width, own = heads // ranks, hidden // heads, hidden // ranks
        self.norms = nn.ModuleList([nn.LayerNorm(hidden), nn.LayerNorm(hidden)])
        self.into, self.out = nn.Linear(hidden, 3 * own), nn.Linear(own, hidden)
        self.up, self.down, self.act = nn.Linear(hidden, 4 * own), nn.Linear(4 * own, hidden), nn.GELU()

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            one.view(batch, length, self.heads, self.width).transpose(1, 2)
            for one in self.into(self.norms[0](x)).chunk(3, -1)
        )
        scores = torch.where(mask, q @ k.transpose(-1, -2) / self.width**0.5, -1e9)
        mixed = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(batch, length, -1)
        x = x + self.out(mixed)
        return x + self.down(self.act(self.up(self.norms[1](x))))


class _Share(nn.Module):
    """A rank's share of GPT with so many layers: the table of words is split as well."""

    def __init__(self, config: dict[str, Any], layers: int, ranks: int) -> None:
        super().__init__()
        hidden, words = config["n_embd"], -(-config["vocab_size"] // ranks)
        self.words, self.places = nn.Embedding(words, hidden), nn.Embedding(config["n_positions"], hidden)
        self.layers = nn.ModuleList(_Layer(hidden, config["n_head"], ranks) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, words, bias=False)

    def forward(self, tokens: torch.Tensor, places: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(places)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


@cache
def share(config: Path, seq: int, batch: int, ranks: int, layers: int) -> Any:
    """Calls of a rank's share of the network."""
    with torch.device("meta"):
        network = _Share(json.loads(config.read_text()), layers, ranks).eval()
        tokens, places = torch.ones(batch, seq, dtype=torch.int64), torch.ones(1, seq, dtype=torch.int64)
        mask = torch.ones(seq, seq, dtype=torch.bool)
    return read_run(Workload(network, {"tokens": tokens, "places": places, "mask": mask}, mode="forward_backward"))


def predicted_s(row: dict[str, str], config: Path, model: str) -> float:
    """Forward and backward pass of the slowest rank, and what is exchanged."""
    device, link = _DEVICES[row["device"]]
    sheet, predictor, ranks = devices.get(device), _loaded(model), int(row["gpus"])
    told = json.loads(config.read_text())
    layers, hidden, seq, batch = told["n_layer"], told["n_embd"], int(row["seq_length"]), int(row["global_batch"])

    def whole(of: Any, *sizes: int) -> float:
        one, two = (predict_read(of(config, *sizes, n), sheet, EagerRuntime(predictor)).latency_s for n in (1, 2))
        return one + (layers - 1) * (two - one)

    def exchanged(kind: str, count: int, parties: int = ranks) -> float:
        collective = Collective(kind, _ELEMENT_BYTES * count, parties)
        return shipped().predict(collective, link).latency_s

    between = batch * seq * hidden  # what a layer hands on
    if row["strategy"] == "dp":
        parameters = layers * 12 * hidden**2 + (told["vocab_size"] + told["n_positions"]) * hidden
        return whole(_traced, seq, batch // ranks) + exchanged("all_reduce", parameters)
    if row["strategy"] == "pp":
        return whole(_traced, seq, batch) + 2 * (ranks - 1) * exchanged("send_recv", between, 2)
    return whole(share, seq, batch, ranks) + 4 * layers * exchanged("all_reduce", between)


def _traced(config: Path, seq: int, batch: int, layers: int) -> Any:
    return traced(config, "train", seq, batch, layers)


@cache
def _loaded(model: str) -> Any:
    return cdmpp.load_model(model)


def main(steps: str, labels: str, model: str = "torch-gpus") -> None:
    """Print a line a measured step, and the mean error of each device."""
    off: dict[str, list[tuple[float, float]]] = defaultdict(list)
    print("| device | network | tokens | batch | plan | measured, ms | predicted, ms | error % | NeuSight, error % |")
    print("|---|---|---:|---:|---|---:|---:|---:|---:|")
    for row in csv.DictReader(Path(steps).read_text().splitlines()):
        measured, theirs = float(row["measured_ms"]), float(row["neusight_predicted_ms"])
        found = 1e3 * predicted_s(row, Path(labels) / "configs" / f"{row['model']}.json", model)
        device = _DEVICES[row["device"]][0]
        errors = 100 * (found / measured - 1), 100 * (theirs / measured - 1)
        off[device].append(errors)
        what = f"| {device} | {row['model']} | {row['seq_length']} | {row['global_batch']} | {row['strategy']} "
        print(f"{what}| {measured:.0f} | {found:.0f} | {errors[0]:+.1f} | {errors[1]:+.1f} |", flush=True)
    for device, errors in (*off.items(), ("all", sum(off.values(), []))):
        ours, theirs = np.abs(errors).mean(0)
        print(f"{device}: MAPE {ours:.1f} %, NeuSight {theirs:.1f} %, of {len(errors)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
