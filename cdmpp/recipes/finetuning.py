"""One fine-tuning run as ``scripts/finetune.py`` is asked for it: choose tasks, get labels, train, say what it gave."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

import cdmpp
from cdmpp.data.codes import derive_codes
from cdmpp.data.dataset import LatencyDataset, join_datasets
from cdmpp.data.files import read_json, write_json
from cdmpp.data.loading import load_dataset
from cdmpp.data.records import read_records
from cdmpp.data.sources import load_device, load_devices
from cdmpp.data.splits import Split, make_split
from cdmpp.devices import sheets_of
from cdmpp.errors import DataError, NoRecordsError
from cdmpp.evaluation.cell import score
from cdmpp.measure.chosen import collector_settings, measure_tasks
from cdmpp.predict.predictor import Predictor
from cdmpp.predict.rows import predict_rows
from cdmpp.recipes.candidates import candidates
from cdmpp.recipes.cross_calibration import cross_calibrate
from cdmpp.recipes.fine_tune import errors_by_device, fine_tune
from cdmpp.recipes.finetune_settings import FinetuneSettings
from cdmpp.recipes.training_report import metric_table
from cdmpp.training.fit import FitResult, train
from cdmpp.training.sampling import choose_tasks

CHOICE = "chosen_tasks.json"
"""In the folder of the new records: which tasks were chosen and which are for the test. A rerun keeps to it."""


@dataclass(frozen=True)
class Prepared:
    """Everything that fine-tuning starts from."""

    dataset: LatencyDataset
    split: Split
    start: Predictor
    tasks: tuple[str, ...]
    """Chosen ones, whose labels are in the pool of ``split``."""


def finetune(settings: FinetuneSettings) -> dict[str, Any] | None:
    """Print the figures, leave ``model/`` and ``finetune.json`` in ``settings.out`` and return the figures.

    None where a kit was built: its results come first.

    Raises:
        DataError: no records of the device and no way given to get them, no source device, or a budget larger than
            the tasks there are.
    """
    console = Console()
    prepared = _from_measuring(settings, console) if settings.measure.how else _from_records(settings)
    if prepared is None:
        return None
    dataset, split, start, tasks = prepared.dataset, prepared.split, prepared.start, prepared.tasks
    sources = sorted({str(name) for name in np.asarray(dataset.devices)[split.train]})
    told = f"{len(tasks)} tasks of {settings.device.name} chosen by {settings.sampler}"
    console.print(f"{told}; from {'+'.join(sources)}")
    before = _figures(start, dataset, split)
    tuned = fine_tune(
        start, dataset, split, tasks, settings.tuning, settings.out / "tuning", settings.seed,
        settings.training.loss, settings.progress, settings.accelerator,
    )  # fmt: skip
    told = cross_calibrate(
        tuned.predictor, start, dataset, split, tasks, settings.tuning, settings.out / "folds", settings.seed,
        settings.tuning.folds, settings.accelerator,
    )  # fmt: skip
    tuned.predictor.card["intervals"] = told
    after = _figures(tuned.predictor, dataset, split)
    figures = {
        "device": settings.device.name,
        "sources": sources,
        "start": settings.start or "trained on the sources",
        "sampler": settings.sampler,
        "sample_by": settings.sample_by,
        "budget": len(tasks),
        "tasks": list(tasks),
        "programs": int(np.isin(np.asarray(dataset.task_ids)[split.pool], tasks).sum()),
        "test_tasks_seen_on_sources": _seen(settings, split),
        "before": before,
        "after": after,
    }
    _save(settings, tuned, figures)
    _print(console, settings, figures)
    return figures


def base_model(settings: FinetuneSettings, dataset: LatencyDataset, split: Split, name: str = "base") -> Predictor:
    """The model to start from: the one named, or one trained on the sources' part of ``split``."""
    if settings.start:
        start = cdmpp.load(settings.start)
        if start.features != dataset.features:
            raise DataError(f"{settings.start} reads {start.features} vectors, the records hold {dataset.features}")
        return start
    sheets = sheets_of(dataset.devices)
    fitted = train(
        dataset, split, sheets, settings.training, settings.out / name, split.seed, settings.progress,
        settings.accelerator,
    )  # fmt: skip
    return fitted.predictor


def device_split(settings: FinetuneSettings, dataset: LatencyDataset, sources: list[str], seed: int) -> Split:
    options = {"target": settings.device.name, "sources": sources, "paired": settings.paired}
    return make_split(dataset, "by_device", seed, test_fraction=settings.test_fraction, **options)


def load_target_and_sources(settings: FinetuneSettings) -> tuple[LatencyDataset, list[str]]:
    """All records of the device and of its sources; ``NoRecordsError`` says how to get labels where it has none."""
    name = settings.device.name
    try:
        target = load_device(name, settings.data_paths)
    except NoRecordsError as error:
        raise NoRecordsError(
            f"{error}\nTo fine-tune, say how labels are to be got: measure.how=local (this machine is {name}), "
            "measure.how=rpc measure.tracker=HOST:PORT, or measure.how=kit for a machine out of reach"
        ) from error
    sources = settings.source_names()
    return join_datasets([load_devices(sources, settings.data_paths), target]), sources


def _from_records(settings: FinetuneSettings) -> Prepared:
    dataset, sources = load_target_and_sources(settings)
    split = device_split(settings, dataset, sources, settings.seed)
    there = len(np.unique(np.asarray(dataset.task_ids)[split.pool]))
    if settings.budget > there:
        raise DataError(
            f"budget={settings.budget}: {settings.device.name} has records of {there} tasks to choose from beside "
            f"{split.counts['test_tasks']} that are kept for the test; ask for at most {there}"
        )
    start = base_model(settings, dataset, split)
    known = candidates(start, dataset, split.pool, settings.device, settings.sample_by, settings.seed)
    return Prepared(dataset, split, start, choose_tasks(settings.sampler, known, settings.budget, settings.seed))


def _from_measuring(settings: FinetuneSettings, console: Console) -> Prepared | None:
    """Choose among the tasks of the sources, measure those, and a few more for the test, on the device."""
    names = settings.source_names()
    collector_settings(settings.device, settings.measure)  # what cannot be measured is said before anything is trained
    sources = load_devices(names, settings.data_paths)
    first = make_split(sources, "by_task", settings.seed, test_fraction=settings.test_fraction)
    start = base_model(settings, sources, first)
    chosen, tested = _choice(settings, sources, first, start)
    folder, name = settings.measure.out, settings.device.name
    measured = bool(read_records(folder, name)) if (folder / "dataset.json").is_file() else False
    if settings.measure.how != "kit" or not measured:
        # Tested tasks in between: where time runs out both sorts have labels.
        order = _interleaved(chosen, tested)
        told = measure_tasks([sources.tasks[task] for task in order], settings.device, settings.measure, settings.seed)
        if settings.measure.how == "kit":
            console.print(f"kit: {told['programs']} programs in {told['parts']} parts. {told['next']} out={folder}")
            console.print("then run this command again: it fine-tunes on the merged records")
            return None
    if start.reads_code:  # what it starts from would be missing of the new programs alone
        derive_codes(folder, progress=settings.progress)
    dataset = join_datasets([sources, load_dataset(folder, name)])
    tasks, new = np.asarray(dataset.task_ids), np.arange(len(dataset)) >= len(sources)
    there = set(tasks[new].tolist())
    labelled = tuple(task for task in chosen if task in there)
    if not labelled:
        raise DataError(f"none of the {len(chosen)} chosen tasks has a record in {folder}: see failures.jsonl there")
    if len(labelled) < len(chosen):
        lost = len(chosen) - len(labelled)
        console.print(f"{lost} of {len(chosen)} chosen tasks have no record: out of time, or failed")
    test, pool = (np.flatnonzero(new & np.isin(tasks, part)) for part in (tested, labelled))
    counts = {"target": name, "sources": sorted(set(np.asarray(sources.devices).tolist())), "test_programs": len(test)}
    split = Split("measured", settings.seed, first.train, first.validation, test, counts, pool)
    return Prepared(dataset, split, start, labelled)


def _choice(
    settings: FinetuneSettings, sources: LatencyDataset, split: Split, start: Predictor
) -> tuple[list[str], list[str]]:
    """Tasks to learn from and tasks to test on; those of an interrupted run where it asked for the same."""
    asked: dict[str, Any] = {
        "device": settings.device.name,
        "budget": settings.budget,
        "sampler": settings.sampler,
        "sample_by": settings.sample_by,
        "seed": settings.seed,
        "start": settings.start,
        "test_tasks": settings.measure.test_tasks,
        "programs": hashlib.blake2b("\n".join(sources.record_ids[split.train]).encode(), digest_size=8).hexdigest(),
    }
    path = settings.measure.out / CHOICE
    if path.is_file():
        found = read_json(path)
        if found["asked"] == asked:
            return found["chosen"], found["tested"]
    known = candidates(start, sources, split.train, settings.device, settings.sample_by, settings.seed)
    chosen = list(choose_tasks(settings.sampler, known, settings.budget, settings.seed))
    others = np.unique(np.asarray(sources.task_ids)[split.test])
    tested = np.random.default_rng(settings.seed).permutation(others)[: settings.measure.test_tasks].tolist()
    write_json(path, {"asked": asked, "chosen": chosen, "tested": tested})
    return chosen, tested


def _interleaved(chosen: list[str], tested: list[str]) -> list[str]:
    """The tested ones at even distances among the chosen ones."""
    places = [((i + 1) / (len(chosen) + 1), task) for i, task in enumerate(chosen)]
    places += [((i + 1) / (len(tested) + 1), task) for i, task in enumerate(tested)]
    return [task for _, task in sorted(places, key=lambda place: place[0])]


def _seen(settings: FinetuneSettings, split: Split) -> int | str:
    """How many test tasks the start was trained on, as programs of other devices."""
    return "unknown: the start was given" if settings.start else int(split.counts.get("test_tasks_seen_on_sources", 0))


def _figures(predictor: Predictor, dataset: LatencyDataset, split: Split) -> dict[str, Any]:
    """Of the test part, the new device's, and of the sources' validation part."""
    figures: dict[str, Any] = {"sources": errors_by_device(predictor, dataset, split.validation)}
    if len(split.test):
        figures["test"] = score(dataset, split.test, predict_rows(predictor, dataset, split.test))
    return figures


def _save(settings: FinetuneSettings, tuned: FitResult, figures: Mapping[str, Any]) -> None:
    tuned.predictor.card["fine_tuning"] = _finite(figures)
    tuned.predictor.save(settings.out / "model")
    write_json(settings.out / "finetune.json", _finite(figures))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _print(console: Console, settings: FinetuneSettings, figures: Mapping[str, Any]) -> None:
    name, k = settings.device.name, figures["budget"]
    moments = {"before": "before", "after": f"after {k} tasks"}
    if "test" in figures["after"]:
        test = figures["after"]["test"]
        rows = {label: figures[key]["test"]["metrics"] for key, label in moments.items()}
        title = f"{name}: test, {test['n_programs']:,} programs of {test['n_tasks']} tasks that were not chosen"
        console.print(metric_table(title, rows, moments["after"]))
    else:
        console.print(f"{name}: no task was kept for a test (measure.test_tasks), so its error is not known")
    for source in figures["after"]["sources"]:
        rows = {label: figures[key]["sources"][source] for key, label in moments.items()}
        console.print(metric_table(f"{source}: validation, to see what was forgotten", rows, moments["after"]))
    if isinstance(figures["test_tasks_seen_on_sources"], str):
        console.print("the model started from may have seen the test tasks on other devices")
    folder = settings.out / "model"
    hint = f"cdmpp predict PROGRAMS --device {name} --model {folder}"
    console.print(f"model: [bold]{folder}[/]   ({hint})", soft_wrap=True)
