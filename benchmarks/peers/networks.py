"""GPT-3 175B as a source of steps: blocks whose seconds are given, and the network itself with predicted kernels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from cdmpp import devices
from cdmpp.collectives.topology import Topology, topology_of
from cdmpp.network.training_step import StepMemory
from cdmpp.network.workload import Workload
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.plans.sources.source import RankWork, StepSource, StepTimes
from cdmpp.steps.from_layers import Layer, graph_of_layers

BLOCKS, WIDTH, HEADS, TOKENS, WORDS = 96, 12288, 96, 2048, 51200
DEVICE, CLUSTER = "h100", "dgx-h100"
FLOPS_PER_S = 3e13
"""What a device reaches in float32, where seconds are given."""


class Blocks(StepSource):
    """Equal blocks of a transformer, an op a pass each."""

    def __init__(self) -> None:
        self._of_one = list[StepTimes]()

    def work(self, batch: int, degrees: ParallelDegrees) -> RankWork:  # noqa: ARG002
        numbers = 12 * WIDTH**2
        forward_s, output = 2 * numbers * TOKENS * batch / FLOPS_PER_S, 4 * TOKENS * WIDTH * batch
        layers = [Layer(f"h.{i}", forward_s, 2 * forward_s, 4 * numbers, output) for i in range(BLOCKS)]
        rank = graph_of_layers(layers, update_s=0.1).ranks[0]
        rows = ((12 * WIDTH, 4 * WIDTH),)
        rank = replace(rank, modules=tuple(replace(one, rows=rows) for one in rank.modules))
        total = 4 * numbers * BLOCKS
        return RankWork(rank, (), StepMemory(total, total, 2 * total, 0, 8 * TOKENS * batch, output * BLOCKS, 0))

    def times(self, batch: int, degrees: ParallelDegrees) -> StepTimes:
        if not self._of_one:
            self._of_one.append(StepTimes.of(self.work(1, degrees)))
        (one,) = self._of_one
        return replace(one, seconds=one.seconds * np.where(one.is_update, 1, batch))

    def limits(self) -> Mapping[str, int]:
        return {"pp": BLOCKS}


def predicted(folder: Path) -> PredictedSource:
    """The whole language model, without values for its weights; its config is written into ``folder``."""
    config = {
        "model_type": "gpt2", "n_embd": WIDTH, "n_layer": BLOCKS, "n_head": HEADS, "n_positions": TOKENS,
        "vocab_size": WORDS,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    workload = Workload(f"hf:{folder}", loss="model", sequence=TOKENS, optimizer="adam")
    return PredictedSource(workload, devices.get(DEVICE))


def links(ranks: int) -> Topology:
    return topology_of(ranks, devices.get(DEVICE), cluster=CLUSTER, can_grow=True)
