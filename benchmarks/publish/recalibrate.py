"""Intervals of answers without machine code for a shipped model whose training did not fit any.

``python -m benchmarks.publish.recalibrate model=a100 data=datasets,FOLDER`` fits them to the validation part of the
split that its card names, by the records at hand, which may be a sample of those of its training.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.publish.command_line import run
from benchmarks.publish.model_data import data_of, same_parts
from cdmpp.data.subsample import sample_rows
from cdmpp.errors import DataError
from cdmpp.platform.files import plain
from cdmpp.predict.catalogue import SHIPPED
from cdmpp.predict.model_folder import load
from cdmpp.predict.predictor import Predictor
from cdmpp.predict.rows import examine_rows, predict_rows_with_intervals
from cdmpp.recipes.train import groups_of
from cdmpp.uncertainty.calibration import Calibration, calibrate
from cdmpp.uncertainty.coverage import coverage

_SKETCHED = 20_000


def without_code(predictor: Predictor, roots: list[Path]) -> tuple[Calibration, str]:
    """The calibration and what it was made of, in a sentence. ``DataError``: a data set of its card is missing."""
    dataset, split = data_of(predictor, roots)
    blind = replace(dataset, asts=dataset.asts.with_codes(None))
    rows, sketched = split.validation, sample_rows(split.train, _SKETCHED)
    training, validation = (examine_rows(predictor, blind, part) for part in (sketched, rows))
    tasks, names = dataset.task_ids[rows], dataset.devices[rows]
    made = calibrate(training, validation, np.log(dataset.latency_s[rows]), tasks, groups_of(dataset, rows))
    counts = [f"{int((names == one).sum())} of {one}" for one in np.unique(names)]
    told = (
        f"{len(rows)} programs of {len(np.unique(tasks))} validation tasks, {', '.join(counts)}, answered without code"
    )
    return made, told


def coverage_of_test(predictor: Predictor, roots: list[Path]) -> dict[str, dict[str, float]] | None:
    """How often the intervals hold on the test programs, some of which have no code; None where not all are at hand."""
    dataset, split = data_of(predictor, roots)
    if not same_parts(predictor, split):
        return None
    intervals = predict_rows_with_intervals(predictor, dataset, split.test)[1]
    return coverage(dataset.latency_s[split.test], intervals, np.asarray(dataset.task_ids)[split.test])


def main(model: str, data: str) -> None:
    """The shipped model has them afterwards, and its card says of what they were made."""
    folder: Path = SHIPPED / model
    predictor = load(folder)
    if predictor.calibration is None or not predictor.reads_code:
        raise DataError(f"{model} has no intervals, or reads no machine code: there is nothing to add")
    made, told = without_code(predictor, [Path(root) for root in data.split(",")])
    predictor.calibration = replace(predictor.calibration, without_code=made)
    described = {"without_machine_code": made.conformal.describe(), "without_machine_code_calibrated_on": told}
    predictor.card["intervals"] = plain({**predictor.card["intervals"], **described})
    tested = "test" in predictor.card and coverage_of_test(predictor, [Path(root) for root in data.split(",")])
    if tested:
        predictor.card["test"]["intervals"] = plain(tested)
    predictor.save(folder, half=True)
    print(f"{folder}: {told}")


if __name__ == "__main__":
    run(main, model="???", data="datasets")
