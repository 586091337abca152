"""Plans judged by closed form a CPU second: all ways to train a network as large as GPT-3 175B."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from timing import finish

from cdmpp.collectives.topology import topology_of
from cdmpp.network.training_step import StepMemory
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.question import Question
from cdmpp.plans.sources.source import RankWork, StepSource
from cdmpp.steps.from_layers import Layer, graph_of_layers

BLOCKS, WIDTH, TOKENS, BATCH = 96, 12288, 2048, 2048
FLOPS_PER_S = 3e13
"""What a device reaches in float32."""


class Blocks(StepSource):
    """Equal blocks of a transformer, an op a pass each."""

    def work(self, batch: int, degrees: ParallelDegrees) -> RankWork:  # noqa: ARG002
        numbers = 12 * WIDTH**2
        forward_s, output = 2 * numbers * TOKENS * batch / FLOPS_PER_S, 4 * TOKENS * WIDTH * batch
        layers = [Layer(f"h.{i}", forward_s, 2 * forward_s, 4 * numbers, output) for i in range(BLOCKS)]
        rank = graph_of_layers(layers, update_s=0.1).ranks[0]
        rows = ((12 * WIDTH, 4 * WIDTH),)
        rank = replace(rank, modules=tuple(replace(one, rows=rows) for one in rank.modules))
        total = 4 * numbers * BLOCKS
        return RankWork(rank, (), StepMemory(total, total, 2 * total, 0, 8 * TOKENS * batch, output * BLOCKS, 0))

    def limits(self) -> Mapping[str, int]:
        return {"pp": BLOCKS}


def main() -> None:
    rows = []
    for ranks in (512, 1024, 4096):
        question = Question(
            Blocks(), lambda count: topology_of(count, "h100", cluster="dgx-h100", can_grow=True), ranks, BATCH,
            memory_limit_bytes=80e9, is_gpu=True,
        )  # fmt: skip
        start_s = time.process_time()
        judged = question.judged()
        seconds = time.process_time() - start_s
        plans = len(judged.plans)
        rows.append({"ranks": ranks, "plans": plans, "fit": int(judged.fits.sum()), "cpu_s": seconds})
    finish(rows)


if __name__ == "__main__":
    main()
