"""Many cells: one after the other, in parallel processes or on a cluster, continued where a run was cut off."""

from __future__ import annotations

import datetime
import os
import shutil
import subprocess
import tempfile
import time
import traceback
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from cdmpp.data.splits import make_split
from cdmpp.errors import CdmppError, DataError
from cdmpp.evaluation.cell import Cell, CellOptions
from cdmpp.evaluation.evaluation_data import EvaluationData
from cdmpp.evaluation.forecast import forecast
from cdmpp.evaluation.results import Result, collect, results_of
from cdmpp.evaluation.stored_data import write_data
from cdmpp.execute.executor import is_here, replies_of
from cdmpp.execute.work import FOREVER_S, Work
from cdmpp.platform.files import read_json, write_json, write_text
from cdmpp.platform.workers import Reply
from cdmpp.training.metrics import score
from cdmpp.uncertainty.coverage import coverage

COMMAND = ("-m", "cdmpp.evaluation.worker")


def evaluate(
    data: EvaluationData,
    dataset_name: str,
    splits: Sequence[str],
    seeds: Sequence[int],
    models: Sequence[str],
    options: CellOptions,
    jobs: int = 1,
    progress: bool = True,
) -> list[Result]:
    """Run every (split, seed, model) and return all results of ``options.out`` for this data set.

    Finished cells are kept, so a second call continues; folders ``cells/`` of several machines can be copied together.
    ``jobs`` cells are computed at the same time, in processes of their own; on a cluster as many as it has threads.
    ``DataError``, after all were tried, names those that failed and why.
    """
    cells = [Cell(split, int(seed), model) for split in splits for seed in seeds for model in models]
    several = jobs > 1 or not is_here()
    tried = (
        _elsewhere(data, dataset_name, cells, options, jobs) if several else _here(data, dataset_name, cells, options)
    )
    with closing(tried):
        bar = track(tried, "evaluate", len(cells), console=Console(stderr=True), disable=not progress)
        failures = [failure for failure in bar if failure]
    if failures:
        raise DataError(f"{len(failures)} of {len(cells)} cells failed, the rest is kept: " + "; ".join(failures))
    return results_of(collect(options.out, dataset_name))


def _here(data: EvaluationData, dataset_name: str, cells: Sequence[Cell], options: CellOptions) -> Generator[str]:
    for cell in cells:
        yield try_cell(data, dataset_name, cell, options)


def _elsewhere(
    data: EvaluationData, dataset_name: str, cells: Sequence[Cell], options: CellOptions, jobs: int
) -> Generator[str]:
    """The cells in other processes, which read the data from files in the folder of the results."""
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".data-", dir=options.out) as scratch:
        write_data(data, folder := Path(scratch))
        requests = [cell_request(folder, dataset_name, cell, options) for cell in cells]
        with closing(replies_of(Work(COMMAND, FOREVER_S, jobs), requests, len(cells))) as replies:
            for index, reply in replies:
                yield _reason(cells[index], reply)


def cell_request(folder: Path, dataset_name: str, cell: Cell, options: CellOptions) -> dict[str, Any]:
    """Ask a child process for a cell of the data in ``folder``; all paths are absolute."""
    told = {**asdict(options), "out": str(options.out.resolve())}
    return {"op": "cell", "data": str(folder.resolve()), "name": dataset_name, "cell": str(cell), "options": told,
            "directory": os.getcwd()}  # fmt: skip


def _reason(cell: Cell, reply: Reply) -> str:
    """Return why a cell was not computed, or nothing."""
    if "cause" not in reply:
        return str(reply["failed"])
    if reply.get("status") == -9:
        return f"{cell} (its process was killed, often for want of memory: take fewer jobs)"
    return f"{cell} ({reply.get('message', reply['cause'])})"


def run_cell(data: EvaluationData, dataset_name: str, cell: Cell, options: CellOptions) -> dict[str, Any]:
    """Fit, predict the test part, write the cell's files and return the content of the JSON.

    A finished cell of the same data and overrides is read instead.
    """
    path, fingerprint = cell.path(options.out, dataset_name), cell.fingerprint(data.dataset, options)
    if not options.force and path.is_file() and (finished := read_json(path)).get("fingerprint") == fingerprint:
        return finished
    split = make_split(data.dataset, cell.split, cell.seed)
    started = time.monotonic()
    answer = forecast(data, dataset_name, split, cell, options)
    tasks, true = np.asarray(data.dataset.task_ids)[split.test], data.dataset.latency_s[split.test]
    result = {
        "dataset": dataset_name,
        "device": "+".join(np.unique(np.asarray(data.dataset.devices)[split.test]).astype(str)),
        **vars(cell),
        **score(data.dataset, split.test, answer.latency_s),
        "intervals": coverage(true, answer.intervals, tasks),
        "split_counts": dict(split.counts),
        "noise": {name: asdict(floor) for name, floor in data.noise.items()},
        "seconds": round(time.monotonic() - started, 2),
        "command": options.command,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": _commit(),
        "fingerprint": fingerprint,
    }
    ids = np.asarray(data.dataset.record_ids)[split.test].astype(str)
    arrays = {"record_ids": ids, "true_s": true, "predicted_s": answer.latency_s}
    for level, (lower, upper) in answer.intervals.items():
        arrays |= {f"lower_{level}": lower, f"upper_{level}": upper}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path.with_suffix(".npz"), allow_pickle=False, **arrays)
    write_json(path, result)  # last: a cell is finished once it has one
    return result


def try_cell(data: EvaluationData, dataset_name: str, cell: Cell, options: CellOptions) -> str:
    """Run a cell as ``run_cell`` does; returns why it failed, or nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        run_cell(data, dataset_name, cell, options)
    except CdmppError as error:
        return f"{cell} ({error})"
    except Exception:
        log = options.out / "logs" / f"{dataset_name}-{str(cell).replace('/', '-')}.log"
        write_text(log, traceback.format_exc())
        return f"{cell} (see {log})"
    finally:
        torch.set_num_threads(before)
    return ""


def _commit() -> str:
    """Commit of the checkout that this code runs from; empty where it is installed."""
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / ".git").exists() or not shutil.which("git"):
        return ""
    words = ["git", "-C", str(checkout), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip()
