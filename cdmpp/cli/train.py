"""Train a latency predictor: ``python scripts/train.py device=a100``. All settings: ``conf/config.yaml``."""

from __future__ import annotations

from typing import Any

from cdmpp.cli.hydra_entry import entry
from cdmpp.data.splits import make_split
from cdmpp.devices import sheets_of
from cdmpp.errors import NoRecordsError
from cdmpp.recipes.cross_calibration import calibrate_by_folds
from cdmpp.recipes.settings import RunSettings
from cdmpp.recipes.training_report import report
from cdmpp.recipes.zero_shot import train_zero_shot
from cdmpp.training.fit import train


@entry("config")
def main(values: dict[str, Any]) -> None:
    run = RunSettings.from_dict(values)
    with run.kept():
        try:
            dataset = run.load()
        except NoRecordsError as error:
            train_zero_shot(run, error)
            return
        split = make_split(dataset, seed=run.seed, **run.split)
        sheets = sheets_of(dataset.devices)
        result = train(
            dataset, split, sheets, run.training, run.out, run.seed, progress=run.progress, accelerator=run.accelerator
        )
        calibrate_by_folds(result, dataset, split, run.training, run.seed, run.accelerator)
        report(dataset, split, result, run)
