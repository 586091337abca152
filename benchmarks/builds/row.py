"""Row: one question that both builds are asked, and the target that was set for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_NETWORK = ("network", "torchvision:resnet50", "--json", "--device")
_UNKNOWN = ("network", "torchvision:googlenet", "--json", "--device")
"""A network that is not shipped."""
_PRODUCTS = "at the peak rate of a core the products of the network alone take most of that"


@dataclass(frozen=True)
class Row:
    """A row is a command, or a question of ``questions.py`` that is timed inside its process."""

    title: str
    command: tuple[str, ...] = ()
    """Words behind ``cdmpp``; ``DATASETS`` and ``OUT`` stand for folders."""
    question: str = ""
    cache: str = "kept"
    """``empty``: a new one for each run. ``full``: the same command has run before. ``kept``: it plays no part."""
    runs: int = 3
    unit: str = "s"
    """A figure is shown in this, ``s`` or ``ms``."""
    per: int = 1
    """Programs of a question, whose seconds are those of all."""
    target_s: float | None = None
    """Seconds that were aimed at."""
    times: float | None = None
    """So many times faster than the baseline were ``target_s`` where it was set."""
    share: float | None = None
    """Share of the baseline's seconds that was aimed at."""
    peer_share: float | None = None
    """Share of the seconds that the question's peer takes, which was aimed at."""
    judged_by: str = "cpu_s"
    """``cpu_s``: seconds of processors, which other work on the machine hardly changes; or ``wall_s``."""
    answer: str = "all"
    """This of the output of a command has to agree: all numbers of its JSON, one key of it, or of a file in OUT."""
    tolerance: float = 1e-6
    """Relative difference that answers may have."""
    limit: str = ""
    """What keeps it from its target."""
    threads: int | None = 1
    """OMP_NUM_THREADS; None: as the build chooses."""


def _named(*rows: tuple[str, Row]) -> Mapping[str, Row]:
    return dict(rows)


ROWS = _named(
    ("network-cold", Row(
        "`cdmpp network torchvision:resnet50 --device epyc-genoa`, cache empty (a shipped network)",
        (*_NETWORK, "epyc-genoa"), cache="empty", runs=3, share=0.25, answer="latency_s", tolerance=0.01,
    )),
    ("network-warm", Row(
        "the same question, cache full, new process", (*_NETWORK, "epyc-genoa"), cache="full", runs=5, target_s=1.0,
        answer="latency_s", tolerance=0.01,
    )),
    ("network-cold-unknown", Row(
        "`cdmpp network torchvision:googlenet --device epyc-genoa`, cache empty (not a shipped network)",
        (*_UNKNOWN, "epyc-genoa"), cache="empty", runs=3, share=0.25, answer="latency_s", tolerance=0.01,
        limit="most of it is LLVM, which compiles the drawn programs, and imports of PyTorch and TVM",
    )),
    ("torch-cold", Row(
        "`cdmpp network torchvision:resnet50 --device h100 --runtime torch`, cache empty (a shipped network)",
        (*_NETWORK, "h100", "--runtime", "torch"), cache="empty", runs=5, target_s=2.0, times=6.2 / 2.0,
        limit="most of it is importing PyTorch",
    )),
    ("torch-warm", Row(
        "that of --runtime torch, cache full, new process", (*_NETWORK, "h100", "--runtime", "torch"), cache="full",
        runs=5, target_s=1.0,
    )),
    ("torch-cold-unknown", Row(
        "`cdmpp network torchvision:googlenet --device h100 --runtime torch`, cache empty (not a shipped network)",
        (*_UNKNOWN, "h100", "--runtime", "torch"), cache="empty", runs=5, target_s=2.0, times=6.2 / 2.0,
        limit="torchvision and torch.export are imported, and export it",
    )),
    ("further-device", Row("a further device in one process", question="further_device", runs=3, target_s=0.1)),
    ("further-batch", Row("a second batch in one process", question="further_batch", runs=3, target_s=0.1)),
    ("third-batch", Row("a third batch in one process", question="third_batch", runs=3, target_s=0.1)),
    ("help", Row("`cdmpp --help`, whole process", ("--help",), runs=9, target_s=0.15, unit="ms", answer="none")),
    ("predict-1", Row(
        "a prediction, batch 1", question="predict_one", runs=3, target_s=1 / 1_500, times=1_500 / 158, unit="ms",
    )),
    ("predict-512", Row(
        "a prediction, batch 512, each program", question="predict_many", runs=3, target_s=1 / 25_000,
        times=25_000 / 2_729, unit="ms", per=512, limit=_PRODUCTS,
    )),
    ("predict-512-threads", Row(
        "the same with as many threads as the build takes", question="predict_many", runs=3, target_s=1 / 25_000,
        times=25_000 / 2_729, unit="ms", per=512, judged_by="wall_s", threads=None, limit=_PRODUCTS,
    )),
    ("features", Row(
        "features of a scheduled program, lowered where it has to be (peer: PerStoreFeature)", question="features",
        runs=3, unit="ms", peer_share=1 / 5,
    )),
    ("cpu-code", Row(
        "machine code of a CPU program, replay of its schedule included", question="cpu_code", runs=3, target_s=0.04,
        times=141 / 40, unit="ms",
        limit="LLVM's own passes and code generation, which have to run for the same code, take more than that",
    )),
    ("gpu-code", Row(
        "machine code of a GPU program, twelve together", question="gpu_code", runs=3, target_s=0.2, times=862 / 200,
        unit="ms", limit="NVIDIA's own compiler and disassembler take more than that",
    )),
    ("training", Row(
        "`cdmpp model train` as shipped, from stored ASTs",
        ("model", "train", "data.path=[DATASETS]", "out=OUT", "plots=false", "progress=false", "baselines=[constant]"),
        runs=1, target_s=40.0, times=100 / 40, judged_by="wall_s", answer="model/card.json", tolerance=0.05,
        threads=None,
    )),
    ("training-busy", Row(
        "four epochs of that beside a process that keeps one of the cores busy (peer: the same alone)",
        question="training_beside", runs=1, peer_share=2.5, judged_by="wall_s", tolerance=0.05, threads=None,
    )),
    ("replay", Row("replay of 1,000,000 tasks", question="replay", runs=3, target_s=2.0, share=0.1)),
    ("scoring", Row(
        "scoring of a candidate of a search (peer: XGBModel)", question="scoring", runs=3, unit="ms", peer_share=0.1,
    )),
)  # fmt: skip
