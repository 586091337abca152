"""GPT-3 175B as a source of steps: blocks whose seconds are given, and the network itself with predicted kernels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from cdmpp import devices
from cdmpp.collectives.topology import Topology, topology_of
from cdmpp.network.training_step import StepMemory
from cdmpp.network.workload import Workload
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.plans.sources.source import RankWork, StepSource, StepTimes
from cdmpp.steps.derived import derived
from cdmpp.steps.from_layers import Layer, graph_of_layers
from cdmpp.steps.step_graph import Op, RankGraph
from cdmpp.steps.strategy import Strategy

BLOCKS, WIDTH, HEADS, TOKENS, WORDS = 96, 12288, 96, 2048, 51200
DEVICE, CLUSTER = "h100", "dgx-h100"
FLOPS_PER_S = 3e13
"""What a device reaches in float32, where seconds are given."""
_NUMBERS = 12 * WIDTH**2
"""Parameters of a block."""


class Blocks(StepSource):
    """Equal blocks of a transformer, an op a pass each."""

    def __init__(self) -> None:
        self._of_one = list[StepTimes]()

    def work(self, batch: int, degrees: ParallelDegrees, strategies: Sequence[Strategy] = ()) -> RankWork:  # noqa: ARG002
        made = {one.ready_after for one in self._one.gradients}
        ops = tuple(
            op if op.phase == "update" or place in made else _scaled(op, batch)
            for place, op in enumerate(self._one.ops)
        )
        total, saved = 4 * _NUMBERS * BLOCKS, 4 * TOKENS * WIDTH * batch * BLOCKS
        rank = derived(self._one, ops=ops)
        return RankWork(rank, (), StepMemory(total, total, 2 * total, 0, 8 * TOKENS * batch, saved, 0))

    @cached_property
    def _one(self) -> RankGraph:
        """One example."""
        forward_s, rows = 2 * _NUMBERS * TOKENS / FLOPS_PER_S, ((12 * WIDTH, 4 * WIDTH),)
        layers = [Layer(f"h.{i}", forward_s, 2 * forward_s, 4 * _NUMBERS, 4 * TOKENS * WIDTH) for i in range(BLOCKS)]
        rank = graph_of_layers(layers, update_s=0.1).ranks[0]
        return replace(rank, modules=tuple(replace(one, rows=rows) for one in rank.modules))

    def times(self, batch: int, degrees: ParallelDegrees, strategies: Sequence[Strategy] = ()) -> StepTimes:  # noqa: ARG002
        if not self._of_one:
            self._of_one.append(StepTimes.of(self.work(1, degrees)))
        (one,) = self._of_one
        return replace(one, seconds=one.seconds * np.where(one.is_update, 1, batch))

    def limits(self) -> Mapping[str, int]:
        return {"pp": BLOCKS}


def _scaled(op: Op, batch: int) -> Op:
    result = None if op.result_bytes is None else op.result_bytes * batch
    return derived(op, duration_s=op.duration_s * batch, output_bytes=op.output_bytes * batch, result_bytes=result)


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
