"""How often intervals of the shipped models hold, and how wide they are, on each kind of programs left out.

``python -m benchmarks.publish.intervals [data=datasets,FOLDER] [models=cpus,a100]`` writes
``docs/results/intervals.md``. A model whose records are not below ``data`` is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.publish.command_line import run
from benchmarks.publish.markdown import table, write_page
from benchmarks.publish.model_data import data_of, same_parts
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.splits import Split
from cdmpp.errors import DataError
from cdmpp.predict.model_folder import load, pretrained_names
from cdmpp.predict.predictor import Predictor
from cdmpp.predict.rows import examine_rows
from cdmpp.recipes.train import coded_rows, groups_of
from cdmpp.uncertainty.calibration import Calibration, Examined, scale_inputs
from cdmpp.uncertainty.conformal import fit_conformal
from cdmpp.uncertainty.coverage import coverage

_FOLDS = 5
_TESTED_ON = {"by_task": "unseen tasks", "held_out": "unseen networks", "by_network": "unseen networks"}
_HEADINGS = ["model", "left out", "answered", "programs", "tasks", "80 % holds", "by task", "width", "90 % holds",
             "by task", "width"]  # fmt: skip
_PREFACE = """# Intervals

Written by `python -m benchmarks.publish.intervals`; do not edit by hand. Percentages of programs whose measured latency
lies inside the interval, the mean of the tasks' percentages ("by task", which is what calibration promises), and the
median ratio of upper to lower bound.

- *unseen tasks (validation)*: five times a fifth of the tasks of the validation part, by intervals calibrated on the
  other four fifths: new tasks of networks that training knows.
- *unseen tasks (test)*, *unseen networks (test)*: the test part of the split in the model's card, by the intervals that
  ship. Nothing was chosen by it.
- *unseen core or GPU*: a model that had no record of it, by the bounds that the other left-out ones give (from the
  model's card, made when it was shipped).
- *without code*: the same programs answered without their machine code, by the intervals of such answers.

A validation part of 100 tasks tells a level to about 3 points (standard error), a test part of 190 tasks to 2: the
percentages of one model scatter by as much around the promise.
"""
Row = list[object]


def rows_of(name: str, predictor: Predictor, dataset: LatencyDataset, split: Split) -> Iterator[Row]:
    """Yield a row of the validation and one of the test part, with machine code and without."""
    assert predictor.calibration
    kinds: list[tuple[str, LatencyDataset, Calibration | None]] = [("", dataset, predictor.calibration)]
    if predictor.reads_code:
        blind = replace(dataset, asts=dataset.asts.with_codes(None))
        own = predictor.calibration
        kinds = [("with code", dataset, own), ("without code", blind, own.without_code)]
    tested = _TESTED_ON.get(str(predictor.card["split"]["name"]), str(predictor.card["split"]["name"]))
    for answered, data, calibration in kinds:
        if calibration is None:
            yield [name, "validation and test", answered, *["no intervals"], *[""] * 7]
            continue
        for kind, rows in (("unseen tasks (validation)", split.validation), (f"{tested} (test)", split.test)):
            kept = rows if answered == "without code" else rows[coded_rows(predictor, data, rows)]
            seen, tasks = examine_rows(predictor, data, kept), data.task_ids[kept]
            groups, truth = groups_of(data, kept), data.latency_s[kept]
            held = (
                coverage(truth, calibration.intervals(seen, groups.tolist()), tasks)
                if kind.endswith("(test)")
                else _crossed(calibration, seen, truth, tasks, groups)
            )
            yield [name, kind, answered, f"{len(kept):,}", f"{len(np.unique(tasks)):,}", *_figures(held)]


def _crossed(
    calibration: Calibration, seen: Examined, truth: np.ndarray, tasks: np.ndarray, groups: np.ndarray
) -> dict[str, dict[str, float]]:
    """Each fifth of the tasks by intervals of the others."""
    names = np.random.default_rng(0).permutation(np.unique(tasks))
    inputs, bounds = scale_inputs(seen, calibration.novelty), dict[float, np.ndarray]()
    for fold in range(_FOLDS):
        own = np.isin(tasks, names[fold::_FOLDS])
        arrays = (one[~own] for one in (seen.log_prediction, np.log(truth), tasks, inputs, groups))
        fitted = fit_conformal(*arrays).intervals(seen.log_prediction[own], inputs[own], groups[own])
        for level, ends in fitted.items():
            bounds.setdefault(level, np.empty((2, len(tasks))))[:, own] = ends
    return coverage(truth, {level: (low, high) for level, (low, high) in bounds.items()}, tasks)


def left_out_rows(name: str, predictor: Predictor) -> Iterator[Row]:
    """Yield rows of the devices left out when the model was shipped, as its card has them, and the units' mean."""
    units = predictor.card.get("left_out") or {}
    for key, answered in (
        ("intervals", "with code" if predictor.reads_code else ""),
        ("intervals_without_code", "without code"),
    ):
        held = {unit: figures[key] for unit, figures in units.items() if figures.get(key)}
        mean = {
            level: {one: float(np.mean([each[level][one] for each in held.values()])) for one in told}
            for level, told in next(iter(held.values()), {}).items()
        }
        for unit, figures in {**held, **({"mean": mean} if len(held) > 1 else {})}.items():
            yield [name, f"unseen core or GPU: {unit}", answered, "", "", *_figures(figures)]


def _figures(held: Mapping[str, Mapping[str, float]]) -> list[str]:
    keys = (("coverage", ".1f"), ("task_coverage", ".1f"), ("width", ".2f"))
    return [format(held[level][key], form) for level in ("0.8", "0.9") for key, form in keys]


def main(data: str, models: str, out: str) -> None:
    """Write the page."""
    rows, notes = list[Row](), list[str]()
    for name in models.split(",") if models else pretrained_names():
        predictor = load(name)
        try:
            dataset, split = data_of(predictor, [Path(root) for root in data.split(",")])
        except DataError as error:
            notes.append(f"- `{name}` has only what its card says of devices left out: {error}.")
        else:
            rows += rows_of(name, predictor, dataset, split)
            if not same_parts(predictor, split):
                parts = ", ".join(f"{len(getattr(split, part)):,} {part}" for part in ("train", "validation", "test"))
                notes.append(f"- `{name}`: by a sample of the records of its training ({parts}).")
        rows += left_out_rows(name, predictor)
    write_page(Path(out), [_PREFACE, *table(_HEADINGS, rows, left=3), "", *notes])


if __name__ == "__main__":
    run(main, data="datasets", models="", out="docs/results/intervals.md")
