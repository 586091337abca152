"""Cut a network of eight blocks over a fast and a slow device, and compare schedules."""

import numpy as np

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.partition.devices import StageDevice
from cdmpp.partition.graph import Layer, PartitionGraph
from cdmpp.partition.question import PartitionQuestion, answer

layers = tuple(Layer(f"block {i}", (i - 1,) if i else (), output_bytes=1_000_000) for i in range(8))
forward_s, link = np.full(8, 5e-3), AlphaBeta(25e-6, 1 / 1.18e8)
fast = StageDevice("fast", forward_s, 2 * forward_s, link, memory_bytes=8e9)
slow = StageDevice("slow", 3 * forward_s, 6 * forward_s, link, memory_bytes=4e9)
found = answer(PartitionQuestion(PartitionGraph(layers), (fast, slow), micro_batch=4))
for one in found.ranked:
    print(f"{one.schedule.name}: {one.step_s:.3f} s a step, stages {[part.layers for part in one.chain.parts]}")
