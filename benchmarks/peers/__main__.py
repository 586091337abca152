"""Judge all ways to train GPT-3 175B by closed form, in one process, in turns with Calculon.

python -m benchmarks.peers --calculon FOLDER             # a git clone of https://github.com/calculon-ai/calculon
python -m benchmarks.peers --calculon FOLDER --publish   # writes docs/measured/peers.json and its page
python -m benchmarks.peers --calculon FOLDER --own --publish   # Calculon's own question alone
python -m benchmarks.peers                               # ours alone

Calculon is no package of PyPI (``calculon`` there is another project). Besides what is installed here it imports
pandas.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.all_plans import block_answers, compared
from benchmarks.peers.calculon import MODEL, SYSTEM, URL, Calculon
from benchmarks.peers.networks import BLOCKS, CLUSTER, HEADS, TOKENS, WIDTH
from benchmarks.peers.order import CLEAR, Order, order
from benchmarks.peers.own_question import answers, pairs
from benchmarks.peers.own_tables import answer_tables, compared_table, pair_tables
from benchmarks.peers.rates import BATCH, BATCHES, ROUNDS, Rate, rates
from benchmarks.publish.measured import change, measured
from benchmarks.run import machine
from cdmpp.errors import CdmppError

COMMANDS = [f"git clone {URL}", "python -m benchmarks.peers --calculon calculon --publish"]
Table = dict[str, Any]


def rate_table(found: Sequence[Rate], commit: str) -> Table:
    """The ratio of each row is to Calculon on the same kinds of plans, for as many devices."""
    peers = {one.ranks: one.per_s for one in found if one.judge.startswith("Calculon, same")}
    told = f"Calculon is commit {commit[:12]}" if commit else "Calculon was not run: no `--calculon FOLDER`"
    note = (
        f"{datetime.datetime.now(datetime.UTC).date().isoformat()}, {machine()}. All ways to train GPT-3 175B "
        f"({BLOCKS} blocks, width {WIDTH:,}, {HEADS} heads, {TOKENS:,} tokens) with {BATCH:,} examples a step on "
        f"H100s, eight a node. CPU seconds of one process, in turns, the fewest of {ROUNDS} rounds (the row that "
        f"reads the network: one). {told}.\n\n"
        f"A plan of Calculon is one evaluation of its own search (`llm-all-executions`, `{MODEL}`, `{SYSTEM}`, "
        "float16): time and memory of operators of one block by formulas, exchanges by bandwidth, 1F1B by formulas. "
        "Its space has shared sequences, recomputing of attention alone, offloading, tensor parallelism and "
        "interleaving, which are left out here, and assigns each kind of parallelism to a network; "
        "*same kinds* are those without, *all* a random sample. Its plans that cannot be are counted too, and "
        "cost it less.\n\n"
        "A plan of ours is DDP, ZeRO-1, ZeRO-2, FSDP2 or HSDP and pipelines (GPipe, 1F1B, interleaved and zero "
        "bubble), gradient accumulation and "
        f"recomputing: time from every op, each bucket and module with its overlap, cuts by dynamic programming; "
        f"memory of the heaviest rank; collectives by curves of {CLUSTER}; intervals. In float32. *Given seconds*: "
        "one op a block and pass. *Predicted kernels*: the whole language model as PyTorch runs it, some 6,000 calls "
        "a step; *network read first* includes its export, the kernels of every micro-batch and their prediction, "
        "*network known* is the closed form alone. Nothing else is kept from another question. "
        f"*{len(BATCHES)} global batches*: one question for steps of {', '.join(f'{one:,}' for one in BATCHES)} "
        "examples, whose plans are judged together; what a division of the model costs at a micro-batch is the same at "
        "each. Plans of ours that cannot be are not counted."
    )
    rows = [
        [
            f"{one.ranks:,}", one.judge, f"{one.plans:,}" + (f" of {one.of:,}" if one.of else ""), f"{one.fit:,}",
            f"{one.cpu_s:.2f}", f"{one.per_s:,.0f}",
            f"{one.per_s / peers[one.ranks]:.2f}" if one.ranks in peers else "–",
        ]
        for one in found
    ]  # fmt: skip
    columns = ["devices", "judge", "plans", "that fit", "CPU seconds", "plans a CPU second", "ratio"]
    return {"title": "Plans judged a CPU second", "note": note, "commands": COMMANDS, "columns": columns, "rows": rows}


def order_tables(found: Mapping[int, Order], commit: str) -> list[Table]:
    """All plans, then those of each number of stages."""
    title = "The same plans, by Calculon and by the oracle"
    note = (
        "Seconds of a step of the plans that both can say: replicas (DDP, ZeRO-1) and 1F1B pipelines of equal "
        "numbers of blocks, all of them recomputed or none, any memory. Neither is a measurement. Calculon "
        f"(commit {commit[:12]}) in float32 with the datasheet's peak of an H100, else as its file says; its stages "
        "and replicas use its network between nodes; it has no embedding and no head. Ours with predicted kernels. "
        "What differs, such as ZeRO-1 (Calculon scatters gradients and gathers parameters; PyTorch's "
        "`ZeroRedundancyOptimizer` all-reduces and broadcasts), is left as it is. *Pairs*: those of which both say "
        f"that they differ by over {100 * (CLEAR - 1):.0f} %. *Regret*: our best plan over the best by Calculon's "
        "times, and its best by ours."
    )
    columns = ["devices", "plans", "rank correlation", "pairs in the same order", "ours by theirs, median", "lowest",
               "highest", "our best by theirs", "their best by ours"]  # fmt: skip
    rows, parts = list[list[str]](), list[list[str]]()
    for ranks, one in found.items():
        pairs, alike = one.pairs()
        quotients = sorted(one.ours_s / one.theirs_s)
        rows.append(
            [f"{ranks:,}", f"{len(quotients)}", f"{one.spearman:.4f}", f"{alike:,} of {pairs:,}"]
            + [f"{value:.2f}" for value in (quotients[len(quotients) // 2], quotients[0], quotients[-1])]
            + [f"{value:.3f}" for value in one.regret()]
        )
        parts += [[f"{ranks:,}", f"{stages}", f"{plans}", f"{own:.3f}"] for stages, plans, own in one.within_stages()]
    more = (
        "Stages and recomputing change the time most, so that plans of one number of stages, which differ in "
        "micro-batches, recomputing and ZeRO-1, are harder to order."
    )
    return [
        {"title": title, "note": note, "commands": COMMANDS, "columns": columns, "rows": rows},
        {"title": title, "note": more, "commands": [], "rows": parts,
         "columns": ["devices", "stages", "plans", "rank correlation"]},
    ]  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calculon", type=Path, help="a git clone of Calculon; without it ours is judged alone")
    parser.add_argument("--ranks", type=int, nargs="+", default=[512, 1024, 4096], help="numbers of devices")
    parser.add_argument("--own", action="store_true", help="ask Calculon's own question alone; other tables stay")
    parser.add_argument("--publish", action="store_true", help="write docs/measured/peers.json and its page")
    given = parser.parse_args(words)
    if (given.publish or given.own) and given.calculon is None:
        parser.error("--publish and --own need --calculon FOLDER: the page has both sides of one run")
    try:
        calculon = Calculon(given.calculon) if given.calculon else None
        tables = list[Table]() if given.own else _rates(given.ranks, calculon)
        if calculon is not None:
            answered, judged = answers(calculon)
            few, every, whole = block_answers(calculon)
            own = [
                *answer_tables(few, every, answered, COMMANDS),
                compared_table(compared(calculon, whole), COMMANDS),
                *pair_tables(pairs(calculon, judged), COMMANDS),
            ]
            tables += own
    except (CdmppError, OSError) as error:
        sys.exit(f"error: {error}")
    print(measured(tables))
    if given.publish:
        titles = {one["title"] for one in tables}
        change("peers", lambda stored: [*(one for one in stored if one["title"] not in titles), *tables])
    return 0


def _rates(counts: Sequence[int], calculon: Calculon | None) -> list[Table]:
    """Judge all plans for these numbers of devices, and compare what both can say."""
    found, ordered = list[Rate](), dict[int, Order]()
    with tempfile.TemporaryDirectory() as scratch:
        for ranks in counts:
            rows, network = rates(ranks, calculon, Path(scratch))
            found += rows
            if calculon is not None:
                ordered[ranks] = order(network, ranks, calculon)
    commit = calculon.commit if calculon else ""
    return [rate_table(found, commit), *(order_tables(ordered, commit) if ordered else ())]


if __name__ == "__main__":
    sys.exit(main())
