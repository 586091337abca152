"""Many cells: one after the other or in parallel processes, continued where a run was cut off."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.splits import Split
from cdmpp.data.subsample import sample_rows
from cdmpp.errors import CdmppError, DataError
from cdmpp.evaluation.baselines import make_baseline
from cdmpp.evaluation.bundle import load_bundle, save_bundle
from cdmpp.evaluation.cell import Cell, CellOptions, cells_of, run_cell, score
from cdmpp.evaluation.evaluation_data import EvaluationData
from cdmpp.evaluation.rows import ResultRow, collect, result_rows
from cdmpp.evaluation.trees import TreeSettings

_BASELINE_PROGRAMS = 50_000
DEFAULT_MODELS = (
    "constant",
    "roofline",
    "analytic",
    "xgb_per_store_sum",
    "xgb_per_store",
    "xgb_ours",
    "reference",
    "cdmpp",
)


def evaluate(
    data: EvaluationData,
    dataset_name: str,
    splits: Sequence[str],
    seeds: Sequence[int],
    models: Sequence[str],
    options: CellOptions,
    jobs: int = 1,
    progress: bool = True,
) -> list[ResultRow]:
    """Run every (split, seed, model) and return all rows of ``options.out`` for this data set.

    Finished cells are kept, so a second call continues; folders ``cells/`` of several machines can be copied together.

    Args:
        jobs: processes that work at the same time; more than one starts a process a cell from a saved bundle.

    Raises:
        DataError: after all cells were tried, where some failed; names them and their logs.
    """
    cells = cells_of(splits, seeds, models)
    means = [cell for cell in cells if "+" in cell.model]
    single = [cell for cell in cells if "+" not in cell.model]
    failed: list[str] = []
    with _progress_bar(progress) as bar:
        task = bar.add_task("evaluate", total=len(cells))
        if jobs > 1:
            bundle = options.out / "bundle" / dataset_name
            save_bundle(bundle, data, dataset_name)
            for cell, log in _in_processes(bundle, single, options, jobs):
                failed += [f"{cell} (see {log})"] if log else []
                bar.update(task, advance=1, description=str(cell))
        with _torch_threads(options.threads):
            for cell in means if jobs > 1 else cells:
                bar.update(task, description=str(cell))
                try:
                    run_cell(data, dataset_name, cell, options)
                except CdmppError as error:
                    failed.append(f"{cell} ({error})")
                bar.advance(task)
    if failed:
        raise DataError(f"{len(failed)} of {len(cells)} cells failed, the rest is kept: " + "; ".join(failed))
    return result_rows(collect(options.out, dataset_name))


def score_baselines(
    dataset: LatencyDataset, split: Split, names: Sequence[str], seed: int = 0, threads: int = 1
) -> dict[str, dict[str, float]]:
    """Test metrics of the baselines ``names`` on a split: what a training run prints beside its own.

    Trees have one depth here instead of the better of two, and fewer rounds: a training run should not wait for them.
    Of a part of more than ``_BASELINE_PROGRAMS`` they get a sample, since they hold all vectors in memory.
    """
    dataset, split = _sample(dataset, split)
    data, result = EvaluationData(dataset), {}
    for name in names:
        baseline = make_baseline(name, TreeSettings(depths=(6,), rounds=400, threads=threads))
        baseline.fit(data, split, seed)
        result[name] = score(dataset, split.test, baseline.predict(data, split.test))["metrics"]
    return result


def _sample(dataset: LatencyDataset, split: Split) -> tuple[LatencyDataset, Split]:
    parts = {name: getattr(split, name) for name in ("train", "validation", "test")}
    kept = {name: np.sort(sample_rows(rows, _BASELINE_PROGRAMS)) for name, rows in parts.items()}
    if all(len(kept[name]) == len(rows) for name, rows in parts.items()):
        return dataset, split
    rows = np.unique(np.concatenate(list(kept.values())))
    train, validation, test = (np.searchsorted(rows, part) for part in kept.values())
    return dataset.take(rows), replace(split, train=train, validation=validation, test=test)


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _in_processes(bundle: Path, cells: Sequence[Cell], options: CellOptions, jobs: int):
    """Yield (cell, None or the log of its failure) as they end; at most ``jobs`` at a time."""
    waiting, running = list(cells), dict[subprocess.Popen, tuple[Cell, Path]]()
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = waiting.pop(0)
                log = options.out / "logs" / f"{bundle.name}-{str(cell).replace('/', '-')}.log"
                log.parent.mkdir(parents=True, exist_ok=True)
                with log.open("w") as file:
                    process = subprocess.Popen(
                        _command(bundle, cell, options), stdout=file, stderr=subprocess.STDOUT, env=environment
                    )
                running[process] = (cell, log)
            for process in [p for p in running if p.poll() is not None]:
                cell, log = running.pop(process)
                yield cell, log if process.returncode else None
            time.sleep(0.1)
    finally:
        for process in running:
            process.terminate()


def _command(bundle: Path, cell: Cell, options: CellOptions) -> list[str]:
    words = [sys.executable, "-m", "cdmpp.evaluation.run", "--bundle", str(bundle), "--out", str(options.out)]
    words += ["--cells", str(cell), "--threads", str(options.threads), "--accelerator", options.accelerator]
    words += ["--command", options.command, *(["--force"] if options.force else [])]
    return words + [word for override in options.overrides for word in ("--override", override)]


def _progress_bar(enabled: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not enabled)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run cells from a bundle: on a machine without TVM, or as the worker of ``evaluate(jobs=...)``."""
    parser = argparse.ArgumentParser(prog="python -m cdmpp.evaluation.run", description=main.__doc__)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cells", nargs="+", default=[], help="split/seed/model; or use the three lists")
    parser.add_argument("--splits", nargs="+", default=[])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--models", nargs="+", default=list(DEFAULT_MODELS))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--override", action="append", default=[], help="Hydra override for trained models")
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--command", default="")
    parser.add_argument("--force", action="store_true")
    given = parser.parse_args(arguments)
    command = given.command or "python -m cdmpp.evaluation.run " + " ".join(arguments or sys.argv[1:])
    overrides = tuple(given.override)
    options = CellOptions(given.out, given.threads, overrides, given.accelerator, command, given.force)
    try:
        data, name = load_bundle(given.bundle)
        for text in given.cells:
            run_cell(data, name, Cell.parse(text), options)
        if given.splits:
            evaluate(data, name, given.splits, given.seeds, given.models, replace(options), given.jobs)
    except CdmppError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
