"""nanotron's sweep of Llamas on up to 512 H100, as plans of the product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.plans.framework_factors import Factors, Floats
from benchmarks.plans.framework_jobs import PARTS, Cluster, MeasuredPlans, PlanRow
from cdmpp.plans.block_cuts import cut_by_products
from cdmpp.plans.framework_host import FrameworkHost
from cdmpp.plans.frameworks import NANOTRON
from cdmpp.plans.transformer_shape import TransformerShape

_DEVICE, _CLUSTER = "h100", "dgx-h100"
CHECK_S, POLLED_S = 2.5e-4, 0.4
"""Seconds of the host for each exchange and rank of jobs that check exchanges, and of each message of those that poll.
The first is what tensor ranks of pipelines of 1 and 3 billion parameters take. The second is four times the pause of a
tenth of a second with which nanotron's code of 27 December 2024 asks whether a part of a message's description is
there."""
_POLLING_NODES = 64


@dataclass(frozen=True)
class Row(PlanRow):
    """One configuration that was run."""

    model: str = ""
    nodes: int = 1
    ran: bool = True
    clean: bool = True
    """True if it ran, with as many examples as it says, and no other run of the same plan says otherwise."""

    @property
    def host(self) -> FrameworkHost:
        """Return the host under which the job ran, as jobs of 1 and 3 billion parameters tell.

        Pipelines on several nodes check exchanges; on 64 nodes they have the code that polls.
        """
        if self.nodes == 1 or self.pipeline == 1:
            return NANOTRON.host
        host = replace(NANOTRON.host, check_s=CHECK_S)
        return replace(host, message_s=POLLED_S, far_message_s=POLLED_S) if self.nodes == _POLLING_NODES else host

    @property
    def is_cut(self) -> bool:
        """Return True if nanotron's rule leaves no stage empty."""
        each = 4 * self.shape.hidden**2 + 3 * self.shape.hidden * self.shape.inner
        head = self.shape.vocabulary * self.shape.hidden
        return all(cut_by_products([each] * self.shape.layers, head, self.pipeline))


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


class Jobs(MeasuredPlans[Row]):
    """Each row is asked under the host under which it ran."""

    def parts_as_run(self) -> Floats:
        """Return (rows, ``PARTS``) seconds of what a user gets who says so much of the host, and fits nothing."""
        return self._parts([row.host for row in self.rows])

    def unpolled_s(self) -> Floats:
        """Return the seconds of rows where no host polls for messages; (rows,)."""
        told = NANOTRON.host.message_s, NANOTRON.host.far_message_s
        hosts = [replace(row.host, message_s=told[0], far_message_s=told[1]) for row in self.rows]
        return np.asarray(self._parts(hosts).sum(axis=1))

    def _parts(self, hosts: Sequence[FrameworkHost]) -> Floats:
        found = np.zeros((len(self.rows), len(PARTS)))
        for host in dict.fromkeys(hosts):
            own = np.array([one == host for one in hosts])
            parts = self.where(own).parts(Factors.as_declared(host))
            found[own] = np.stack([parts[name] for name in PARTS], axis=1)
        return found


def jobs_of(rows: Sequence[Row]) -> Jobs:
    """Return rows as plans."""
    return Jobs(tuple(rows), Cluster(NANOTRON, _DEVICE, _CLUSTER))
