"""Other projects' printed errors on large jobs, with what they need for them, beside those of predictions here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plans.torchtitan import Judged
from benchmarks.plans.torchtitan_data import rows

_COMMAND = "python -m benchmarks.plans large_peers --data FOLDER --publish"
_PEERS = (
    ("vTrain (MICRO'24)", "8.4 % on one node, 14.7 % on several", "its own rows: Megatron, GPT",
     "kernels profiled on the target GPU, a table of collectives"),
    ("Charon (MLSys'26)", "below 5.35 %, training 3.74 %", "its authors' cluster", "its code was not found"),
    ("Zhang et al. (arXiv 2509.22832)", "4.98 % on A100, 9.38 % on GH200", "GPT to 20 billion parameters, 128 GPUs",
     "operators sampled on the target cluster; then CPUs"),
    ("Maya (2025)", "about 5 %", "its authors' jobs", "a trace of the emulated runtime for each plan"),
    ("Sailor (SOSP'25)", "printed with its plans", "clusters of unlike GPUs", "layers profiled on every kind of GPU"),
    ("DistSim", "below 4 %", "its authors' jobs", "a profile of two nodes of the target"),
    ("Echo", "8 %", "96 H800", "a trace of one device; closed"),
)  # fmt: skip
"""Name, printed error, judged on, needs."""


def tables(data: Path) -> list[dict[str, Any]]:
    """Return one table; ``data``: as of ``torchtitan``."""
    judged = Judged([row for row in rows(data / "torchtitan") if row.gpu == "A100-80"])
    off = 100 * np.abs(judged.predicted_s / judged.measured_s - 1)
    here = f"{off.mean():.1f} %, worst {off.max():.1f} %"
    table = [
        ["Phantora (NSDI'26)", "2.9 %, worst 8.5 %", f"{len(off)} rows of torchtitan on 64 A100",
         "one GPU of the target's kind; minutes to hours a plan"],
        ["**cdmpp**", here, f"the same {len(off)} rows", "no GPU and no profile; a minute on two CPU cores a network"],
        *([*peer] for peer in _PEERS),
    ]  # fmt: skip
    note = (
        "As their authors print them; only Phantora's rows are the same as ours. Errors on other tables of this page "
        "stand there, next to what was fitted."
    )
    return [
        {
            "title": "Large jobs: other projects", "note": note, "commands": [_COMMAND],
            "columns": ["project", "error of a step", "judged on", "needs"], "rows": table,
        }
    ]  # fmt: skip
