"""Steps that ASTRA-sim runs from our Chakra traces, beside our own replay of them on the same links.

python -m benchmarks.astra_sim --binary AstraSim_Analytical_Congestion_Aware --revision 518bd51 --publish
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import cdmpp
from benchmarks.publish.measured import change, measured
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted
from cdmpp.simulate.engine import simulate
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.step_graph import Op, RankGraph, StepGraph
from cdmpp.steps.tasks import step_ends_s, step_tasks
from cdmpp.trace.chakra import read_chakra, write_chakra
from cdmpp.units import shown

LATENCY_NS, BANDWIDTH = 500, 50
"""The link of ASTRA-sim's example of 8 devices; it counts 2^30 bytes as a gigabyte."""
LINK = AlphaBeta(1e-9 * LATENCY_NS, 1.0 / (BANDWIDTH * 2**30))
SYSTEMS = {"free memory": (1, 0, 10**9), "memory of 1,600 GB/s": (1, 0, 1600), "its example": (4, 10, 1600)}
"""Name -> parts that a collective is cut into, nanoseconds at each end of a message, GB/s of the memory."""
KINDS = ("all_reduce", "all_gather", "reduce_scatter")
OP_S = 1e-3
CRITICAL = re.compile(r"sys\[\d+\] finished, (\d+) cycles")


def collective_of(kind: str, n_bytes: int, ranks: int) -> StepGraph:
    """One collective between two ops of a millisecond."""
    ops = (Op("before", "forward", OP_S), Op("after", "update", OP_S))
    each = range(ranks)
    exchange = Exchange(kind, n_bytes, dict.fromkeys(each, 0), dict.fromkeys(each, (1,)))
    return StepGraph(tuple(RankGraph(rank, ops) for rank in each), (exchange,))


def step_of(network: str, batch: int, strategy: str, ranks: int, **given: Any) -> StepGraph:
    """A training step of predicted kernels, with the exchanges of its strategy."""
    workload = cdmpp.Workload(network, batch=batch, mode="training_step", **given)
    step = cdmpp.predict_step(workload, device="a100", runtime="torch", progress=False)
    graph = cdmpp.replay_step(step, ranks=ranks, link="nvlink3", strategy=strategy).graph
    assert graph is not None
    return graph


def ours_s(graph: StepGraph) -> float:
    """Seconds of the first step, as ASTRA-sim runs one."""
    topology = fitted(LINK, len(graph.ranks), "nccl")
    timeline = simulate(step_tasks(graph, topology, steps=1), rates=topology.rates)
    return step_ends_s(timeline, len(graph.ranks), 1)[0]


def astra_s(graph: StepGraph, binary: Path, chunks: int, delay_ns: int, memory: int) -> float:
    """Seconds at which the last rank ends in ASTRA-sim."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_chakra(graph, folder)
        assert read_chakra(folder).ranks == graph.ranks
        ring = {f"{kind.replace('_', '-')}-implementation": ["ring"] for kind in (*KINDS, "all_to_all")}
        system = {
            "scheduling-policy": "LIFO", "endpoint-delay": delay_ns, "active-chunks-per-dimension": 1,
            "preferred-dataset-splits": chunks, **ring, "collective-optimization": "localBWAware",
            "local-mem-bw": memory, "boost-mode": 0, "roofline-enabled": 0, "peak-perf": 900,
        }  # fmt: skip
        (folder / "system.json").write_text(json.dumps(system))
        (folder / "memory.json").write_text(json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}))
        (folder / "network.yml").write_text(
            f"topology: [ Ring ]\nnpus_count: [ {len(graph.ranks)} ]\nbandwidth: [ {BANDWIDTH}.0 ]\n"
            f"latency: [ {LATENCY_NS}.0 ]\n"
        )
        groups = folder / "step.groups.json"
        ran = subprocess.run(
            [
                binary, f"--workload-configuration={folder / 'step'}",
                f"--system-configuration={folder / 'system.json'}",
                f"--remote-memory-configuration={folder / 'memory.json'}",
                f"--network-configuration={folder / 'network.yml'}",
                f"--comm-group-configuration={groups if groups.exists() else 'empty'}",
            ],
            capture_output=True, text=True, timeout=300, check=True, cwd=folder,
        )  # fmt: skip
    ends = [int(found) for found in CRITICAL.findall(ran.stdout)]
    assert len(ends) == len(graph.ranks), ran.stdout[-2000:]
    return 1e-9 * max(ends)


def collectives(binary: Path) -> list[list[str]]:
    rows = []
    for kind in KINDS:
        for ranks in (4, 8, 16):
            for n_bytes in (64 * 2**10, 2**20, 64 * 2**20):
                graph = collective_of(kind, n_bytes, ranks)
                own = ours_s(graph) - 2 * OP_S
                others = [astra_s(graph, binary, *system) - 2 * OP_S for system in SYSTEMS.values()]
                size = f"{n_bytes // 2**20} MiB" if n_bytes >= 2**20 else f"{n_bytes // 2**10} KiB"
                ratios = [f"{own / other:.3f}" for other in others]
                rows.append([kind, str(ranks), size, shown(own, "s", 5), shown(others[0], "s", 5), *ratios])
    return rows


STEPS = {
    "VGG-16, 32 images a rank, DDP": ("torchvision:vgg16", 32, "ddp", 8, {}),
    "ResNet-50, 32 images a rank, DDP": ("torchvision:resnet50", 32, "ddp", 8, {}),
    "VGG-16, 32 images a rank, FSDP": ("torchvision:vgg16", 32, "fsdp", 8, {}),
}


def steps(binary: Path) -> list[list[str]]:
    rows = []
    for name, (network, batch, strategy, ranks, given) in STEPS.items():
        graph = step_of(network, batch, strategy, ranks, **given)
        own, other = ours_s(graph), astra_s(graph, binary, *SYSTEMS["free memory"])
        nodes = sum(len(rank.ops) for rank in graph.ranks)
        counts = (str(ranks), f"{nodes:,}", str(len(graph.exchanges)))
        rows.append([name, *counts, shown(own, "s", 5), shown(other, "s", 5), f"{own / other:.4f}"])
    return rows


def tables(binary: Path, revision: str) -> list[dict[str, Any]]:
    """All tables of the page."""
    link = f"a ring of links of {BANDWIDTH} GiB/s and {LATENCY_NS} ns"
    alone = (
        f"{datetime.date.today()}, ASTRA-sim {revision} with its analytical back end that knows congestion, on {link}; "
        "ours on the same link. Seconds of the collective between two ops of 1 ms, and ours over those of ASTRA-sim. "
        "Both count a ring of messages, each a start and its bytes: ours in a closed form, ASTRA-sim by "
        "events in whole nanoseconds.\n\n"
        "*Free memory*: a collective is one part, nothing but the link takes time: the two agree. *Memory of 1,600 "
        "GB/s*: ASTRA-sim then adds what the sums of each message take in memory; ours has that in its measured tables "
        "of a link, and not in two numbers. *Its example* (`Ring_4chunks.json`): four parts, of which each begins when "
        "the one before it has ended and pays all starts again, and 10 ns at either end of a message; NCCL overlaps "
        "its parts."
    )
    head = ["kind", "ranks", "bytes", "ours", "ASTRA-sim, free memory", *(f"ratio, {name}" for name in SYSTEMS)]
    whole = (
        f"One step from its start, predicted kernels of A100s, on {link}: `write_chakra` wrote their traces. ASTRA-sim "
        "runs one exchange of a rank at a time, takes compute nodes in whole microseconds, and does not simulate "
        "broadcasts: they last what the trace says, which is nothing (ResNet-50 sends buffers of batch norms)."
    )
    columns = ["step", "ranks", "ops", "exchanges", "ours", "ASTRA-sim, free memory", "ratio"]
    name = "AstraSim_Analytical_Congestion_Aware"
    command = f"python -m benchmarks.astra_sim --binary {name} --revision {revision} --publish"
    return [
        {"title": "Collectives", "note": alone, "columns": head, "rows": collectives(binary), "commands": [command]},
        {"title": "Training steps", "note": whole, "columns": columns, "rows": steps(binary), "commands": [command]},
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=Path, required=True, help="ASTRA-sim's analytical back end, built from source")
    parser.add_argument("--revision", required=True, help="the commit of ASTRA-sim that it was built from")
    parser.add_argument("--publish", action="store_true", help="write docs/measured/astra-sim.json and its page")
    given = parser.parse_args()
    found = tables(given.binary.absolute(), given.revision)
    print(measured(found))
    if given.publish:
        change("astra-sim", lambda _: found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
