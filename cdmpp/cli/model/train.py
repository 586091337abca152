"""Train a latency predictor: ``cdmpp model train device=a100``. All settings: ``conf/config.yaml``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from cdmpp.cli.hydra_entry import entry
from cdmpp.cli.model.training_report import report
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.splits import Split, make_split
from cdmpp.errors import NoRecordsError
from cdmpp.evaluation.baselines import BASELINES
from cdmpp.platform.limits import check_choice
from cdmpp.recipes.cross_calibration import calibrate_by_folds
from cdmpp.recipes.settings import RunSettings
from cdmpp.recipes.train import Trained, train
from cdmpp.recipes.zero_shot import train_zero_shot, zero_shot_sources
from cdmpp.report.metric_table import metric_table
from cdmpp.report.text import print_table
from cdmpp.training.threads import FreeThreads


@entry("config")
def main(values: dict[str, Any]) -> None:
    """Train, calibrate, judge; without records of the device, learn from others."""
    FreeThreads().adapt()
    settings = read_settings(values)
    if settings.training.trainer.devices > 1:  # Lightning starts the other processes by what the main module is called
        sys.modules["__main__"].__spec__ = find_spec("cdmpp.cli.model.train")
    try:
        dataset = settings.load()
    except NoRecordsError as error:
        settings = replace(settings, sources=zero_shot_sources(settings, error))
        with settings.kept():
            _report_zero_shot(settings, *train_zero_shot(settings, str(error)))
        return
    with settings.kept():
        split = make_split(dataset, seed=settings.run.seed, **settings.split)
        trained = train(dataset, split, settings.training, settings.run)
        calibrate_by_folds(trained, dataset, split, settings.training, settings.run)
        report(dataset, split, trained, settings)


def read_settings(values: Mapping[str, Any]) -> RunSettings:
    """Read the settings of a run; ``CdmppError`` where one cannot be."""
    settings = RunSettings.from_dict(values)
    for name in settings.baselines:
        check_choice("baselines", name, tuple(BASELINES))
    return settings


def _report_zero_shot(settings: RunSettings, dataset: LatencyDataset, split: Split, trained: Trained) -> None:
    told = trained.predictor.card["zero_shot"]
    print(f"trained on {' and '.join(settings.sources)}, not on {settings.device.name}")
    report(dataset, split, trained, settings)
    if told["left_out"]:
        print_table(metric_table("zero-shot: each device left out and predicted", told["left_out"], ""))
    print(
        f"zero-shot: no labelled program of {settings.device.name} is within reach, this model was trained on "
        f"{', '.join(settings.sources)}. {told['error']}"
    )


if __name__ == "__main__":
    from cdmpp.cli.command import main as run_command

    sys.exit(run_command(["model", "train", *sys.argv[1:]]))
