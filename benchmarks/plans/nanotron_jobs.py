"""nanotron's sweep of Llamas on up to 512 H100, as plans of the product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.plans.framework_jobs import Cluster, MeasuredPlans, PlanRow
from cdmpp.plans.block_cuts import shared_out
from cdmpp.plans.frameworks import NANOTRON
from cdmpp.plans.transformer_shape import TransformerShape

_DEVICE, _CLUSTER = "h100", "dgx-h100"


@dataclass(frozen=True)
class Row(PlanRow):
    """One configuration that was run."""

    model: str = ""
    nodes: int = 1
    ran: bool = True
    clean: bool = True
    """True if it ran, with as many examples as it says, and no other run of the same plan says otherwise."""

    @property
    def is_cut(self) -> bool:
        """Return True if nanotron's rule leaves no stage empty: of blocks, head, the cast of scores and the loss."""
        each = 4 * self.shape.hidden**2 + 3 * self.shape.hidden * self.shape.inner
        head = self.shape.vocabulary * self.shape.hidden
        return all(shared_out([*[each] * self.shape.layers, head, 0, 0], self.pipeline))


def read(path: Path) -> list[Row]:
    """Read the table."""
    found = []
    for one in pq.read_table(path).to_pylist():
        shape = TransformerShape(
            one["layers"], one["hidden"], one["heads"], one["ffn"], one["vocab"], one["seq_len"], is_gated=True,
            has_bias=False, is_tied=one["tied_embeddings"],
        )  # fmt: skip
        ran = one["status"] == "ok"
        found.append(
            Row(
                shape, one["gpus"], one["mbs"], one["grad_accum"], one["tp"], one["dp"], one["pp"],
                one["step_s"] or float("nan"), one["zero_stage"], one["model"], one["nodes"], ran,
                bool(ran and one["consistent"] and not one["suspect_slow"] and not one["also_failed"]),
            )
        )  # fmt: skip
    return found


Jobs = MeasuredPlans[Row]


def jobs_of(rows: Sequence[Row]) -> Jobs:
    """Return rows as plans."""
    return MeasuredPlans(tuple(rows), Cluster(NANOTRON, _DEVICE, _CLUSTER))
