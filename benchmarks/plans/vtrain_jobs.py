"""vTrain's measured steps of GPT on A100, as plans of the product."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.plans.framework_jobs import Cluster, MeasuredPlans, PlanRow
from cdmpp.plans.frameworks import MEGATRON
from cdmpp.plans.transformer_shape import TransformerShape

_VOCABULARY = 50257
"""Entries of GPT-2, which Megatron pads."""
MEGATRON_DEEPSPEED = replace(MEGATRON, attention="unfused", shards_state=False, gradient=2)
"""As of 2021 to 2023: scores are stored; gradients are added up and exchanged in 16 bits, each rank updates all."""


@dataclass(frozen=True)
class Row(PlanRow):
    """One measured step."""

    global_batch: int = 0


def read(path: Path) -> list[Row]:
    """Read one of the two tables."""
    found = []
    for row in csv.DictReader(path.read_text().splitlines()):
        number = {name: int(row[name]) for name in row if name not in ("iteration_ms", "params_billion")}
        hidden, tokens, data, micro = (number[name] for name in ("hidden", "seq_length", "dp", "micro_batch"))
        shape = TransformerShape(
            number["layers"], hidden, number["heads"], 4 * hidden, _VOCABULARY, tokens, positions=tokens
        )
        batch = number["global_batch"]
        found.append(
            Row(
                shape, number["gpus"], micro, batch // data // micro, number["tp"], data, number["pp"],
                1e-3 * float(row["iteration_ms"]), global_batch=batch,
            )
        )  # fmt: skip
    return found


Jobs = MeasuredPlans[Row]


def jobs_of(rows: Sequence[Row], recomputes: bool = False, device: str = "a100") -> Jobs:
    """Return rows as plans; ``recomputes``: blocks run forward again in the backward pass."""
    framework = replace(MEGATRON_DEEPSPEED, recompute="full" if recomputes else "none")
    return MeasuredPlans(tuple(rows), Cluster(framework, device, "dgx-a100", recomputes))
