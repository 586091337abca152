"""Tables of Calculon's own question: who answers it how fast and how well, and how single plans differ."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.all_plans import BYTES, SECONDS, Compared, spread
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


_WHY_BLOCKS = {
    "compute": "the same seconds of blocks, added up by both",
    "update": "states on the host: ours moves them there and back in the update, once a step; Calculon in each "
    "backward pass of each micro-batch (part *host*)",
    "bubble": "it has the waits for the host in its passes",
    "split": "the same exchanges of blocks",
    "messages": "one each way for each stage of a rank by both",
    "replicas": "overlapped ones only. Ours is a queue: blocks are exchanged one after the other as they are ready, "
    "and either the first or the last stage of a rank decides; gathering weights hides behind the next forward pass. "
    "Calculon adds up what stages leave in the open, hides nothing behind accesses to memory, and lets the forward "
    "pass hide nothing",
    "host": "ours moves gradients with each backward pass and states once a step; both directions of the link at once",
    "step": "the sum",
    "device": "with fewer micro-batches than stages a rank holds no more of them than there are",
    "host memory": "as of the device",
}


def answer_tables(
    rows: Sequence[Answer], all_rows: Sequence[Answer], older: Sequence[Answer], commands: list[str]
) -> list[dict[str, Any]]:
    """Make the tables of both sides' answers; the ratio is of plans a CPU second to those of Calculon."""
    title = "Calculon's own question"
    note = (
        f"The best way to train GPT-3 175B on {RANKS} H100s with {BATCH} examples a step, from the same seconds and "
        "bytes of a block (Calculon's, float16, for each way to run one) and the same two networks, 80 GiB each and "
        "512 GiB of the host. CPU seconds of one process and one run. *Blocks read first* evaluates the layers of "
        "Calculon once for each way; *equal blocks* are plans by `benchmarks.peers.equal_blocks`, a closed form made "
        "for this comparison and no part of the product: memory first, then time of those that fit. *Its best, by "
        "Calculon*: seconds of a step, memory as Calculon counts "
        "it.\n\n"
        "All plans of its search: tensor parallelism with whole results, scattered messages or shared sequences, "
        "gathered again or not, overlapped in a ring or in tiles; recomputing of nothing, attention or all; pipelines "
        "of all numbers of stages a rank; replicas with whole or sharded optimizers, overlapped or not; weights, "
        "results and optimizer on the host; any network for each. Both count plans that cannot be. *Its best of all* "
        "is proved: a plan is left out only where a lower bound of its cost by Calculon's formulas is above that of a "
        "known plan. Its search of all was not run: the last row is the rate of a random sample."
    )
    tables = [_answer_table(title, note, all_rows, all_rows[-1], commands)]
    note = (
        "Those of them without offloading, overlap and shared sequences, each once, tensor parallelism inside nodes "
        "where it fits. *Op by op* is the search of `cdmpp plan`, which prices replicas as PyTorch runs them (below), "
        "so that its order is another one; it has no recomputing of attention alone here, refuses numbers of "
        "micro-batches that PyTorch's interleaved schedule refuses, and 64 ranks that do not divide 96 heads. *First "
        "100* lets Calculon evaluate the first plans of our order."
    )
    base = next(one for one in older if one.judge == "Calculon, all")
    return [*tables, _answer_table(title, note, [*rows, *older], base, commands)]


def _answer_table(title: str, note: str, found: Sequence[Answer], base: Answer, commands: list[str]) -> dict[str, Any]:
    rows = [
        [
            one.judge, f"{one.plans:,}", f"{one.fit:,}", f"{one.cpu_s:,.2f}", f"{one.plans / one.cpu_s:,.0f}",
            f"{one.plans / one.cpu_s * base.cpu_s / base.plans:,.2f}", one.best, _seconds(one.theirs_s),
        ]
        for one in found
    ]  # fmt: skip
    columns = ["judge", "plans", "that fit", "CPU seconds", "plans a CPU second", "ratio", "its best plan",
               "its best, by Calculon, s"]  # fmt: skip
    return {"title": title, "note": note, "commands": commands, "columns": columns, "rows": rows}


def compared_table(found: Sequence[Compared], commands: list[str]) -> dict[str, Any]:
    """Make the table of single plans by the closed form of equal blocks and by Calculon's."""
    rows = []
    for part in (*SECONDS, *BYTES):
        count, equal, low, middle, high = spread(found, part)
        rows.append([part, f"{count}", f"{equal}", _seconds(middle), _seconds(low), _seconds(high), _WHY_BLOCKS[part]])
    note = (
        f"{len(found)} plans drawn from all of the question above that fit (seed 0), offloaded, overlapped and "
        "recomputed ones among them. *Have it*: the part is not zero by one of both; *equal*: within 0.1 %. Ours by "
        "Calculon's where that is not zero: median, and the middle 80 %."
    )
    columns = ["part", "have it", "equal", "ours by theirs", "10 %", "90 %", "what differs"]
    title = "100 plans of equal blocks, part by part"
    return {"title": title, "note": note, "commands": commands, "columns": columns, "rows": rows}


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
