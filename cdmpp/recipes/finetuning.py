"""One fine-tuning run as ``cdmpp model finetune`` is asked for it: choose tasks, get labels, train, judge."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np

from cdmpp.data.codes import derive_codes
from cdmpp.data.dataset import LatencyDataset, join_datasets
from cdmpp.data.loading import load_dataset
from cdmpp.data.records import read_records
from cdmpp.data.sources import load_device, load_devices
from cdmpp.data.splits import Split, make_split
from cdmpp.errors import DataError, NoRecordsError
from cdmpp.measure.chosen import measure_settings, measure_tasks
from cdmpp.measure.disturbance import Disturbance
from cdmpp.platform.files import plain, read_json, write_json
from cdmpp.predict.model_folder import load
from cdmpp.predict.predictor import Predictor
from cdmpp.predict.rows import predict_rows
from cdmpp.recipes.adapted import adapt
from cdmpp.recipes.candidates import candidates
from cdmpp.recipes.cross_calibration import cross_calibrate
from cdmpp.recipes.fine_tune import errors_by_device
from cdmpp.recipes.finetune_settings import FinetuneSettings
from cdmpp.recipes.train import train
from cdmpp.training.metrics import score
from cdmpp.training.processes import one_writer
from cdmpp.training.sampling import choose_tasks

CHOICE = "chosen_tasks.json"
"""A file in the folder of the new records: which tasks were chosen and which are for the test. A rerun keeps to it."""


def finetune(settings: FinetuneSettings) -> dict[str, Any] | None:
    """Leave ``model/`` and ``finetune.json`` in ``settings.run.out`` and return the figures.

    None where a kit was built: its results come first. ``DataError``: neither records of the device nor a way to get
    them, no source device, or a budget larger than the tasks there are.
    """
    dataset, split = _data(settings)
    if settings.measure.how == "local" and not settings.measure.force:
        Disturbance.now().check("measure.force=true")  # not only after the minutes of training
    with one_writer(settings.run.out):  # not before: where data lacks, no folder is left
        start = base_model(settings, dataset, split)
        if not settings.measure.how:
            return _tuned(settings, dataset, split, start, _chosen(settings, dataset, split.pool, start))
        chosen, tested = _choice(settings, dataset, split, start)
        if not _measure(settings, dataset, [chosen, tested]):
            return None
        if start.reads_code:  # what it starts from would be missing of the new programs alone
            derive_codes(settings.measure.out, progress=settings.run.progress)
        dataset, split, chosen = _joined(settings, dataset, split, chosen, tested)
        return _tuned(settings, dataset, split, start, chosen)


def _tuned(
    settings: FinetuneSettings, dataset: LatencyDataset, split: Split, start: Predictor, tasks: list[str]
) -> dict[str, Any]:
    """``tasks``: those chosen, whose labels are in the pool of ``split``."""
    run = settings.run
    sources = sorted({str(name) for name in dataset.devices[split.train]})
    print(f"{len(tasks)} tasks of {settings.device.name} chosen by {settings.sampler}; from {'+'.join(sources)}")
    before, out = _figures(start, dataset, split), replace(run, out=run.out / "tuning")
    adapted = adapt(start, dataset, split, tasks, settings.tuning, out, settings.training.loss)
    tuned = adapted.predictor
    if adapted.errors:
        told = ", ".join(f"{way} {error:.1f}" for way, error in adapted.errors.items())
        print(f"{adapted.way} errs least on the chosen tasks, held out in turn (MAPE %): {told}")
    tuned.card["intervals"] = cross_calibrate(adapted, dataset, split)
    figures = plain(
        {
            "device": settings.device.name,
            "sources": sources,
            "start": settings.start or "trained on the sources",
            "sampler": settings.sampler,
            "budget": len(tasks),
            "tasks": tasks,
            "programs": int(np.isin(dataset.task_ids[split.pool], tasks).sum()),
            "test_networks": split.counts.get("test_networks", []),
            "test_tasks_seen_on_sources": (
                "unknown: the start was given" if settings.start else split.counts.get("test_tasks_seen_on_sources", 0)
            ),
            "way": adapted.way,
            "held_out_mape": dict(adapted.errors),
            "before": before,
            "after": _figures(tuned, dataset, split),
        }
    )
    tuned.card["fine_tuning"] = figures
    tuned.save(run.out / "model")
    write_json(run.out / "finetune.json", figures)
    return figures


def base_model(settings: FinetuneSettings, dataset: LatencyDataset, split: Split, name: str = "base") -> Predictor:
    """Return the model to start from: the one named, or one trained on the sources' part of ``split``."""
    if settings.start:
        start = load(settings.start)
        if start.features != dataset.features:
            raise DataError(f"{settings.start} reads {start.features} vectors, the records hold {dataset.features}")
        return start
    run = replace(settings.run, out=settings.run.out / name, seed=split.seed)
    return train(dataset, split, settings.training, run).predictor


def device_split(settings: FinetuneSettings, dataset: LatencyDataset, sources: list[str], seed: int) -> Split:
    """Split by device: the new one is tested on, and its other tasks are the pool."""
    same = {name: getattr(settings, name) for name in ("paired", "test_fraction", "test_networks")}
    return make_split(dataset, "by_device", seed, target=settings.device.name, sources=sources, **same)


def load_target_and_sources(settings: FinetuneSettings) -> tuple[LatencyDataset, list[str]]:
    """Load all records of the device and its sources; ``NoRecordsError`` says how to get labels."""
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


def _data(settings: FinetuneSettings) -> tuple[LatencyDataset, Split]:
    """The sources alone where labels are to be measured, else with the records of the device."""
    if settings.measure.how:
        measure_settings(settings.device, settings.measure)  # what cannot be measured is said before any training
        alone, seed = load_devices(settings.source_names(), settings.data_paths), settings.run.seed
        if settings.test_networks:
            return alone, make_split(alone, "by_network", seed, test_networks=settings.test_networks)
        return alone, make_split(alone, "by_task", seed, test_fraction=settings.test_fraction)
    dataset, sources = load_target_and_sources(settings)
    split = device_split(settings, dataset, sources, settings.run.seed)
    available = len(np.unique(dataset.task_ids[split.pool]))
    if settings.budget > available:
        raise DataError(
            f"budget={settings.budget}: {settings.device.name} has records of {available} tasks to choose from beside "
            f"{split.counts['test_tasks']} that are kept for the test; ask for at most {available}"
        )
    return dataset, split


def _chosen(settings: FinetuneSettings, dataset: LatencyDataset, rows: np.ndarray, start: Predictor) -> list[str]:
    choices = candidates(start, dataset, rows, settings.device, settings.run.seed)
    return list(choose_tasks(settings.sampler, choices, settings.budget, settings.run.seed))


def _measure(settings: FinetuneSettings, sources: LatencyDataset, parts: list[list[str]]) -> bool:
    """Measure tasks of the sources on the device; False where only a kit was built."""
    labels, folder = settings.measure, settings.measure.out
    if labels.how == "kit" and (folder / "dataset.json").is_file() and read_records(folder, settings.device.name):
        return True
    # The parts at even distances among each other: where time runs out all sorts have labels.
    places = [((i + 1) / (len(part) + 1), task) for part in parts for i, task in enumerate(part)]
    tasks = [sources.tasks[task] for _, task in sorted(places, key=lambda place: place[0])]
    report = measure_tasks(tasks, settings.device, labels, settings.run.seed)
    if labels.how == "kit":
        print(f"kit: {report['programs']} programs in {report['parts']} parts. {report['next']} out={folder}")
        print("then run this command again: it fine-tunes on the merged records")
    return labels.how != "kit"


def _joined(
    settings: FinetuneSettings, sources: LatencyDataset, split: Split, chosen: list[str], tested: list[str]
) -> tuple[LatencyDataset, Split, list[str]]:
    """The sources with the new records, which are test or pool; the chosen tasks among these."""
    folder, name = settings.measure.out, settings.device.name
    dataset = join_datasets([sources, load_dataset(folder, name)])
    tasks, new = dataset.task_ids, np.arange(len(dataset)) >= len(sources)
    labelled = [task for task in chosen if task in tasks[new]]
    if not labelled:
        raise DataError(f"none of the {len(chosen)} chosen tasks has a record in {folder}: see failures.jsonl there")
    if lost := len(chosen) - len(labelled):
        print(f"{lost} of {len(chosen)} chosen tasks have no record: out of time, or failed")
    test, pool = (np.flatnonzero(new & np.isin(tasks, part)) for part in (tested, labelled))
    counts = {"target": name, "sources": sorted(set(sources.devices.tolist())), "test_programs": len(test)}
    if settings.test_networks:
        counts["test_networks"] = split.counts["test_networks"]
    joined = Split("measured", settings.run.seed, split.train, split.validation, test, counts, pool)
    return dataset, joined, labelled


def _choice(
    settings: FinetuneSettings, sources: LatencyDataset, split: Split, start: Predictor
) -> tuple[list[str], list[str]]:
    """Tasks to learn from and tasks to test on; those of an interrupted run where it asked for the same."""
    asked: dict[str, Any] = {
        **{name: getattr(settings, name) for name in ("budget", "sampler", "start")},
        "device": settings.device.name,
        "seed": settings.run.seed,
        "test_tasks": settings.measure.test_tasks,
        "programs": hashlib.blake2b("\n".join(sources.record_ids[split.train]).encode(), digest_size=8).hexdigest(),
    }
    path = settings.measure.out / CHOICE
    if path.is_file() and (before := read_json(path))["asked"] == asked:
        return before["chosen"], before["tested"]
    chosen = _chosen(settings, sources, split.train, start)
    others = np.unique(sources.task_ids[split.test])
    tested = np.random.default_rng(settings.run.seed).permutation(others)[: settings.measure.test_tasks].tolist()
    write_json(path, {"asked": asked, "chosen": chosen, "tested": tested})
    return chosen, tested


def _figures(predictor: Predictor, dataset: LatencyDataset, split: Split) -> dict[str, Any]:
    """Figures of the test part, the new device's, and of the sources' validation part."""
    figures: dict[str, Any] = {"sources": errors_by_device(predictor, dataset, split.validation)}
    if len(split.test):
        figures["test"] = score(dataset, split.test, predict_rows(predictor, dataset, split.test))
    return figures
