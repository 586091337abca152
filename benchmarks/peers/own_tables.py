"""Tables of Calculon's own question: who answers it how fast and how well, and how single plans differ."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.own_question import BATCH, PARTS, RANKS, Answer, Pair, median_ratio

_WHY = {
    "compute": "the same seconds of blocks, added up by both",
    "update": "under ZeRO-1 Calculon's memory is less efficient, since each rank's part of a layer is small",
    "bubble": "Calculon's has messages and exchanges of edge blocks; under interleaving ours follows the lists without "
    "them, and what messages delay is in the open with the other exchanges",
    "tensor parallel": "Calculon adds the device's own accesses to memory to each all-reduce",
    "stages": "the first stage receives nothing forward, the last nothing backward; Calculon counts a message each way "
    "for each stage of a rank",
    "replicas": "DDP's buckets overlap with the last micro-batch's backward pass; Calculon lets as many micro-batches "
    "as stages hide the earlier ones of several stages a rank, and memory accesses hide nothing. PyTorch's ZeRO-1 "
    "all-reduces and broadcasts, Calculon scatters and gathers",
    "step": "the sum",
    "memory": "under PyTorch's ZeRO-1 gradients are whole, with as much again in DDP's buckets; Calculon keeps a "
    "rank's "
    "share of them, and those of one block in float32",
}
_GROUPS = (("", "recomputed"), ("DDP", "ZeRO-1"), ("1F1B", "interleaved"))


def answer_table(found: Sequence[Answer], commands: list[str]) -> dict[str, Any]:
    """Make the table of both sides' answers; the ratio is of plans a CPU second to all plans of Calculon."""
    base = next(one for one in found if one.judge == "Calculon, all")
    note = (
        f"The best way to train GPT-3 175B on {RANKS} H100s with {BATCH} examples a step, from the same seconds "
        "and bytes "
        "of a block (Calculon's, float16, at each micro-batch and each number of ranks that divide its operators) and "
        "the same two networks, 80 GiB each. Plans have tensor parallelism without shared sequences, pipelines of all "
        "numbers of stages a rank, replicas with whole or sharded optimizers, all micro-batches. *All* of "
        "Calculon's are "
        "its own list without offloading and overlap, each once, tensor parallelism inside nodes where it fits. "
        "A third "
        "of them recomputes attention alone, which ours has not; ours refuses numbers of micro-batches that PyTorch's "
        "interleaved schedule refuses, and 64 ranks that do not divide 96 heads. Of its 6,582,816 plans the rest "
        "(offloading, overlap of tensor parallelism, sequences that are shared, and which network each kind of "
        "parallelism takes) has no setting here, and was not asked. CPU seconds of one process and one run. "
        "*Blocks read "
        "first* evaluates the layers of Calculon at each size; *first 100* lets Calculon evaluate the first plans of "
        "our order. Ours prices replicas as PyTorch runs them (below), so that its order is another one. *Its "
        "best, by Calculon*: seconds of a step, memory as "
        "Calculon counts it."
    )
    rows = [
        [
            one.judge, f"{one.plans:,}", f"{one.fit:,}", f"{one.cpu_s:.2f}", f"{one.plans / one.cpu_s:,.0f}",
            f"{one.plans / one.cpu_s * base.cpu_s / base.plans:.2f}", one.best, _seconds(one.theirs_s),
        ]
        for one in found
    ]  # fmt: skip
    columns = ["judge", "plans", "that fit", "CPU seconds", "plans a CPU second", "ratio", "its best plan",
               "its best, by Calculon, s"]  # fmt: skip
    return {"title": "Calculon's own question", "note": note, "commands": commands, "columns": columns, "rows": rows}


def pair_tables(found: Sequence[Pair], commands: list[str]) -> list[dict[str, Any]]:
    """Make the tables of single plans: part by part, and kind of plan by kind."""
    title = "Single plans from the same blocks, part by part"
    note = (
        f"{len(found)} plans drawn from those of the question above that have a pipeline and divide operators inside a "
        "node (seed 0), whatever memory they need. Exchanges of replicas overlap with both. Ours by Calculon's: "
        "median, "
        "and the middle 80 %."
    )
    rows = []
    for part in PARTS:
        middle, low, high = median_ratio(found, part)
        share = sorted(one.theirs[part] / one.theirs["step"] for one in found)[len(found) // 2]
        rows.append(
            [part, "–" if part == "memory" else f"{100 * share:.1f} %", f"{middle:.3f}", f"{low:.2f}", f"{high:.2f}",
             _WHY[part]]
        )  # fmt: skip
    columns = ["part", "of a step, by Calculon", "ours by theirs", "10 %", "90 %", "what differs"]
    first = {"title": title, "note": note, "commands": commands, "columns": columns, "rows": rows}
    rows = []
    for group in itertools.product((False, True), repeat=3):
        own = [one for one in found if one.group == group]
        if own:
            name = ", ".join(words[is_so] for words, is_so in zip(_GROUPS, group, strict=True) if words[is_so])
            ratios = [median_ratio(own, part)[0] for part in ("step", "bubble", "replicas", "memory")]
            rows.append([name, f"{len(own)}", *(_seconds(one) for one in ratios)])
    columns = ["plans", "number", "step", "bubble", "replicas", "memory"]
    note = "Medians of ours by theirs."
    return [first, {"title": title, "note": note, "commands": [], "columns": columns, "rows": rows}]


def _seconds(value: float) -> str:
    return "–" if value != value else f"{value:.3f}"
