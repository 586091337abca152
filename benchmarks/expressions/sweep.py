"""Iterations of language models on H100 from 8 GPUs up, many of them under poor plans: few nodes to more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.expressions.methods import by_cdmpp, by_extrap, by_forest, by_nothing
from benchmarks.expressions.rows import COLUMNS, COMMANDS, by_row, summary
from benchmarks.expressions.split import Split

FACTORS = ("gpus", "nodes", "tp", "dp", "pp", "micro_batch", "grad_accum", "layers", "hidden")
LARGEST_KNOWN = 8


def split(data: Path) -> Split:
    """Runs of at most 8 nodes, and of more, that are whole and of models that were run on both."""
    table = pq.read_table(data / "nanotron-sweep" / "sweep.parquet").to_pydict()
    read = {name: np.array(values) for name, values in table.items()}
    sound = (read["status"] == "ok") & read["consistent"].astype(bool)
    sound &= ~(read["suspect_slow"].astype(bool) | read["also_failed"].astype(bool))
    columns = {name: values[sound] for name, values in read.items()}
    columns["micro_batch"] = columns["mbs"]
    columns |= {name: columns[name].astype(float) for name in FACTORS}
    nodes = columns["nodes"]
    known, asked = nodes <= LARGEST_KNOWN, nodes > LARGEST_KNOWN
    asked &= np.isin(columns["model"], np.unique(columns["model"][known]))
    return Split("sweep", FACTORS, columns, columns["step_s"].astype(float), known, asked)


def tables(data: Path) -> list[dict[str, Any]]:
    """Judge the folder ``nanotron-sweep`` of ``data``."""
    own = split(data)
    alike = ("model", "tp", "pp", "micro_batch")
    found = {
        "nothing": [by_nothing(own, alike, "nodes")],
        "extrap": by_extrap([own], ("gpus", "tp", "pp", "micro_batch", "layers")),
        "forest": [by_forest(own)], "cdmpp": [by_cdmpp(own)],
    }  # fmt: skip
    nodes = own.columns["nodes"]
    note = (
        "Ultra-scale playbook's sweep of nanotron (a copy at github.com/vinjn/nanotron-ultrascale-playbook, 924e4d0, "
        "Apache-2.0): H100 with 8 GPUs a node, 1 to 80 B parameters, 256 samples of 4096 tokens a step. Runs that "
        "failed, contradict themselves or are marked as broken are left out. Fitted on "
        f"{int(own.known.sum())} runs of at most {LARGEST_KNOWN} nodes, asked for {int(own.asked.sum())} of "
        f"{', '.join(f'{one:g}' for one in np.unique(nodes[own.asked]))} nodes. No model: the mean time of the same "
        "model, tensor and pipeline parallelism and micro-batch on the most nodes seen. The sweep is noisy: repeats of "
        "a plan differ by 5 to 25 %, and the two ZeRO stages, which the columns do not tell, by more than a fifth in a "
        "quarter of the plans. Tokens a second span a factor of 300. Worst and median are of single rows. Extra-Deep, "
        "the other peer, is not on PyPI and was not run."
    )
    return [{"title": "Sweep of plans: 8 nodes to more", "note": note, "commands": COMMANDS,
             "columns": list(COLUMNS), "rows": summary(by_row(found))}]  # fmt: skip
