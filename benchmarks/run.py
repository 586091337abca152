"""All benchmarks, each in a process of its own: ``python -m benchmarks.run`` writes docs/results/benchmarks.md.

``python -m benchmarks.run loading streaming`` runs these sections alone and keeps the other figures, which are in
docs/benchmarks.json. Absolute rates depend on the machine and on what else it does; both sides of a ratio are measured
in turns.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import tables
from benchmarks.publish.markdown import write_page
from cdmpp.platform.files import write_json

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
HEAD = """\
# Benchmarks

Written by `python -m benchmarks.run`; do not edit by hand. The two sides of a ratio come from one run; the rates
themselves vary with the machine, which is named below each title.
"""


class Section(NamedTuple):
    """A benchmark and how the document shows it."""

    title: str
    text: str
    """Filled with the result, where that is a dictionary."""
    measure: Callable[[Path], Any]
    """In a scratch folder."""
    table: Callable[[Any], list[str]]


def main(wanted: Sequence[str] = ()) -> None:
    """Measure the sections ``wanted``, or all, and write both files."""
    if unknown := sorted(set(wanted) - set(SECTIONS)):
        sys.exit(f"unknown sections {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    path = DOCS / "benchmarks.json"
    results = json.loads(path.read_text()) if path.is_file() else {}
    DOCS.mkdir(exist_ok=True)
    for name in wanted or SECTIONS:
        with tempfile.TemporaryDirectory() as folder:
            result = SECTIONS[name].measure(Path(folder))
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        results[name] = {"result": result, "machine": machine(), "date": today}
        write_json(path, results)
        write_page(DOCS / "results" / "benchmarks.md", [document(results)])
    print(document(results))


def document(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The whole of benchmarks.md, of the sections that have results."""
    parts = [HEAD]
    for name, section in SECTIONS.items():
        if name in results:
            result = results[name]["result"]
            text = section.text.format(**result) if isinstance(result, dict) and name == "convergence" else section.text
            parts += [
                f"## {section.title}",
                textwrap.fill(f"{results[name]['date']}, {results[name]['machine']}. {text}", 120),
            ]
            parts += ["\n".join(section.table(result)) + "\n"]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _model(folder: Path) -> dict[str, Any]:
    asts = folder / "asts.parquet"
    _run("stored.py", asts)
    return {name: _run("model.py", folder / f"{name}.json", name, str(asts)) for name in ("cdmpp", "reference")}


def _predictions(folder: Path) -> Any:
    _run("stored.py", folder / "asts.parquet")
    return _run("predictions.py", folder / "result.json", str(folder / "asts.parquet"))


def _sizes(script: str, *sizes: str) -> Callable[[Path], list[Any]]:
    return lambda folder: [_run(script, folder / f"{size}.json", size) for size in sizes]


def _run(script: str, output: Path, *arguments: str) -> Any:
    print(f"{script} {' '.join(arguments[:1])}", file=sys.stderr, flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": str(HERE.parent)}
    subprocess.run([sys.executable, str(HERE / script), str(output), *arguments], check=True, env=environment)
    return json.loads(output.read_text()) if output.suffix == ".json" else None


def machine() -> str:
    """This machine's processor, cores and Python."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}"


SECTIONS = {
    "extraction": Section(
        "Feature extraction",
        "Scheduled programs to features, one thread: our compact AST against TVM's PerStoreFeature (164 numbers a "
        "store), in turns, the best of five rounds for each program. Ours after TVM's lowering, which is what models "
        "are trained on, and read from the schedule in one pass, as searches do, with the share of programs whose "
        "vectors are then the same to the last bit.",
        lambda folder: _run("extraction.py", folder / "result.json"),
        tables.extraction,
    ),
    "model": Section(
        "Model",
        "Two CPU threads (one for batch 1), stored compact ASTs of CPU programs of the same operators; training with "
        "each model's own settings. `reference` is the published architecture. Memory is the peak of the whole "
        "process, training included.",
        _model,
        tables.model,
    ),
    "predictions": Section(
        "Predictions beside the baseline",
        "The shipped model `xeon-icelake`, stored compact ASTs of CPU programs of the same operators; this build and "
        "the checkout of the tag `v0.1-baseline`, in turns, a process a turn, the best of three.",
        _predictions,
        tables.predictions,
    ),
    "training_runs": Section(
        "Training beside the baseline",
        "`python scripts/train.py device=xeon-icelake`, whole runs from the start of the process to the test table, "
        "this build beside the checkout of the tag `v0.1-baseline`, in turns; the errors are those of `cdmpp` on the "
        "test part. The last row: an epoch while another process keeps one of the cores busy.",
        _sizes("training_run.py", "0", "1", "neighbour"),
        tables.training_runs,
    ),
    "search_own_time": Section(
        "What a search pays for its cost model",
        "Searches of MetaSchedule on epyc-genoa in which nothing is built or run: seconds of programs are made up from "
        "their structural hash, the same for all models, and what that takes is left out. Processor milliseconds a "
        "trial, of all threads, and of the wall; same task, seed, trials, 16 a batch, two threads. The model's are "
        "those of `predict` and `update`, which is what XGBModel adds to a search; the whole has TVM's evolutionary "
        "search as well, which all cost models share: mutation, replay of schedules, postprocessors, the database. "
        "Ours judges by ASTs alone: it learns, and compiles nothing. XGBModel scores at random until it has 100 "
        "results, and of what it scored so it reads nothing: the last columns count only what a model judged. The "
        "share of the whole is what a user sees beside the measuring.",
        lambda folder: _run("search_own_time.py", folder / "result.json"),
        tables.search_own_time,
    ),
    "convergence": Section(
        "Training time to an error",
        "Both models with their own settings on {programs:,} programs of {device} (split {split}, seed 0), two CPU "
        "threads. The error to reach is the lowest validation MAPE of `reference`, {target_mape:.1f} %, after "
        "{epochs[reference]} epochs. Times are of the epochs; what each fits before them (scalers, analytic factors, "
        "costs of code: some seconds, nearly all of them ours) comes on top.",
        lambda folder: _run("convergence.py", folder / "result.json"),
        tables.convergence,
    ),
    "loading": Section(
        "Loading",
        "From a data set folder with stored compact ASTs to the last batch of the first epoch, one process. Memory is "
        "its peak.",
        _sizes("loading.py", "5000", "50000"),
        tables.loading,
    ),
    "fleet": Section(
        "Measuring a fleet",
        "What the queue and a held session cost a job, against measuring over RPC without them. One tracker and one "
        "server on this machine, a kernel of 64x64x64 in every visit; medians of visits taken in turns. Each change of "
        "the queue is waited for until it is on the disk.",
        lambda folder: _run("fleet.py", folder / "result.json"),
        tables.fleet,
    ),
    "trace_reading": Section(
        "Reading traces",
        "A made-up trace of one GPU, written step after step: one pass over its events, then what becomes steps, "
        "then their median. One process; memory is its peak. Rates are those of its processor time, since other work "
        "may share the cores; where it does, it shares their cache too, and lowers the rates.",
        _sizes("trace_reading.py", "1000"),
        tables.trace_reading,
    ),
    "streaming": Section(
        "Training from files",
        "Vectors stay in mapped files. Of three sizes: load, fit the statistics of the model, take 20 steps, gather "
        "every batch of an epoch; one process. Memory is the peak of what is not a mapped file (Linux: RssAnon). "
        "At the end, by the kernel's smaps: memory of its own (Anonymous), and pages of files in memory (Rss without "
        "these), which stay there only while nothing else wants it.",
        _sizes("streaming.py", "10000", "100000", "1000000"),
        tables.streaming,
    ),
    "importing": Section(
        "Importing tuning records",
        "`cdmpp data import` of a MetaSchedule database: shipped records of 40 tasks of xeon-icelake, repeated under "
        "targets with tags of their own until there are enough, so that traces and latencies are real and all "
        "identities differ. Uninterrupted; killed (SIGKILL) when half of its files were there; and run again. CPU "
        "seconds and peak memory are those of the import, one process. Equal: all files have the same bytes as those "
        "of the uninterrupted one.",
        _sizes("importing.py", "10000", "100000", "1000000"),
        tables.importing,
    ),
    "scoring": Section(
        "Scoring candidates of a search",
        "`predict` of our cost model (frozen to ASTs, with what it learned from 128 candidates) and of MetaSchedule's "
        "XGBModel (trained on the same 128), two threads each, nothing remembered, in turns, the best of three. Then "
        "what ours takes for a candidate: structural hash, reading the scheduled program (two threads), ranker and "
        "pooled features, the online learner; and on one core reading alone beside lowering by TVM and reading that.",
        lambda folder: _run("scoring.py", folder / "result.json"),
        tables.scoring,
    ),
    "gpu_code": Section(
        "Machine code of GPU programs",
        "For sm_80, one core, a mean program of each operator: lowered to its AST, printed as CUDA, compiled and "
        "disassembled twelve together (the elementwise program alone: most of its time is the start of the tools), its "
        "warps executed and timed. Schedules are random ones, many of them unrolled; those of 84 networks are 96 "
        "records of `datasets/h100`, 44 of them untuned.",
        lambda folder: _run("gpu_code.py", folder / "result.json"),
        tables.gpu_code,
    ),
    "network": Section(
        "A whole network",
        "ResNet-50 as a torch module, batch 1, schedule best_of:16 on epyc-genoa, two cores, until the answer. `cold` "
        "begins with an empty cache, `warm` asks again in the same process; a new process includes its imports. Steps "
        "in worker processes overlap.",
        lambda folder: _run("network.py", folder / "result.json"),
        tables.network,
    ),
    "sweep": Section(
        "Sweeps of sizes",
        "Networks of PyTorch on an A100: 100 batches in one `cdmpp.sweep_network`, of training steps five; models "
        "loaded, one thread; seconds are those of one core. The sweep's first answer takes an export with open sizes "
        "and a check against one that has none; the rest is what each further point takes. Beside it single questions "
        "in one process: the first, the same of an H100, one of a second batch, for which the network's Python runs "
        "again, and the fastest of three of further batches.",
        lambda folder: _run("sweep.py", folder / "result.json"),
        tables.sweep,
    ),
    "simulate": Section(
        "Replay",
        "Tasks a CPU second of the event engine, one core: a chain, and layers of tasks on eight queues whose inputs "
        "are two tasks of the layer before. The engine by itself, on tasks as columns, as replays of plans have them "
        "for all steps but the first; with the reading of the columns from tasks; the same engine in readable Python, "
        "of which tests demand the same times, to the last bit; and networkx's longest path in the same graph, which "
        "knows no queues. Spans of single tasks are made when somebody asks for them.",
        lambda folder: _run("simulate.py", folder / "result.json"),
        tables.simulate,
    ),
    "serving": Section(
        "Serving",
        "`cdmpp serve` with its default processes, and the client that sends the requests, share the cores. 200 "
        "requests a second for 15 seconds, each sent when it is due whatever became of those before; milliseconds "
        "count from then to the last byte of the answer. CPU is that of all processes of the server for one "
        "request. Below: requests of every kind of fault in turns, some of which load TVM, and what the server "
        "holds before and after the counted ones.",
        lambda folder: _run("serving.py", folder / "result.json"),
        tables.serving,
    ),
    "cluster": Section(
        "Work on a Dask cluster",
        "10,000 small tasks, each a fixed number of hashes in a child process: by two processes of this machine, "
        "and by a Dask scheduler with two workers, all on this machine too, in turns, the better of two. The "
        "overhead is what the cluster takes more than the two processes, in CPU seconds of all processes together "
        "(client, scheduler, workers, children), and in wall seconds. Real tasks are longer: lowering a program "
        "takes 30 ms, compiling one 300. The goal is at most 15 % for tasks of some milliseconds.",
        lambda folder: _run("cluster.py", folder / "result.json"),
        tables.cluster,
    ),
    "jobs": Section(
        "Replay of jobs with servers",
        "Asynchronous workers, 1,000 commits of each to one server: a drawn batch, a push, the adding and a pull for "
        "each commit. The workers want twice what the server's link carries, so that nearly all share it. One process "
        "for each row.",
        _sizes("job_replay.py", "10", "100", "1000"),
        tables.jobs,
    ),
    "folded": Section(
        "Replay of large jobs",
        "A pipeline of eight stages with 30 layers each, 1F1B, on DGX H100 nodes, one core: seconds to lower the plan "
        "and replay it. All ranks of the job, a rank for each stage in place of all that are alike, and of these with "
        "one op in place of those between which nothing happens. The predicted step is the same to nine digits.",
        lambda folder: _run("folded.py", folder / "result.json"),
        tables.folded,
    ),
}


if __name__ == "__main__":
    main(sys.argv[1:])
