"""A model for a device without any record: trained on other devices, with the error that this makes on known ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from cdmpp import devices
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.download import pinned
from cdmpp.data.sources import source_devices
from cdmpp.data.splits import make_split
from cdmpp.devices import sheets_of
from cdmpp.errors import NoRecordsError
from cdmpp.evaluation.cell import score
from cdmpp.machine_code.compile import can_have_code
from cdmpp.predict.rows import predict_rows
from cdmpp.recipes.settings import RunSettings
from cdmpp.recipes.training_report import metric_table, report
from cdmpp.training.fit import train

_SHORTER = 0.5
"""Share of the epochs that the models get which only tell the error."""


def train_zero_shot(run: RunSettings, cause: NoRecordsError) -> dict[str, Any]:
    """Train on all devices of the kind of ``run.device``, or of every kind where none is; returns what the card says.

    The datasheet carries the scale, through the analytic times. Where there are several sources of that kind, each is
    left out once (a shorter training) and predicted: that error stands in the card. A device that cannot have code
    vectors is learned for, and the error told, without those of the sources.

    Raises:
        NoRecordsError: ``cause``, where this is not allowed, was not asked for although public records exist, or there
            is no other device to learn from.
    """
    device, console = run.device, Console()
    names = source_devices(device.name, run.data_paths, run.features)
    wanted = run.allow_zero_shot == "true" or (run.allow_zero_shot == "auto" and not pinned(device.name))
    if run.features != "cdmpp" or run.target or run.sources or not names:
        raise cause
    if not wanted:
        raise NoRecordsError(
            f"{cause}\nTo train on {', '.join(names)} instead, and answer for {device.name} by its datasheet alone:\n"
            f"  python scripts/train.py device={device.name} allow_zero_shot=true"
        ) from cause
    console.print(str(cause), markup=False, soft_wrap=True)
    alike = [name for name in names if devices.get(name).kind == device.kind]
    whole = replace(run, sources=tuple(names))
    first = f"[bold]zero-shot[/]: no labelled program of {device.name} is within reach"
    console.print(f"{first}; training on {', '.join(names)}, {device.name} goes by its datasheet alone", soft_wrap=True)
    console.print("allow_zero_shot=false stops here instead, and says where records were looked for", soft_wrap=True)
    if not alike:
        console.print(f"none of these is a {device.kind}: take the predictions as orders of magnitude", soft_wrap=True)
    dataset = whole.load()
    if not can_have_code(device.target):
        dataset = replace(dataset, asts=dataset.asts.with_codes(None))
        console.print(f"{device.name} is no x86-64 CPU: nothing is learned from machine code", soft_wrap=True)
    left_out = _leave_one_out(whole, dataset, alike, console) if len(alike) > 1 else {}
    split = make_split(dataset, seed=run.seed, **run.split)
    result = train(
        dataset, split, sheets_of(dataset.devices), run.training, run.out, run.seed, run.progress, run.accelerator
    )
    card = {
        "device": device.name,
        "sources": names,
        "same_kind": bool(alike),
        "left_out": left_out,
        "error": _error_text(device.name, alike, left_out),
    }
    result.predictor.card |= {"label": "zero-shot", "zero_shot": card}
    result.predictor.save(result.model_dir)
    console.print(f"on {' and '.join(names)}, not on {device.name}:", soft_wrap=True)
    report(dataset, split, result, whole)
    if left_out:
        console.print(metric_table("zero-shot: each device left out and predicted", left_out, ""))
    console.print(f"{first}, this model was trained on {', '.join(names)}. {card['error']}", soft_wrap=True)
    return card


def _leave_one_out(
    run: RunSettings, dataset: LatencyDataset, names: list[str], console: Console
) -> dict[str, dict[str, float]]:
    """Device -> test metrics of a model trained on the others, on tasks that it saw on no device."""
    trainer = run.training.trainer
    shorter = replace(trainer, epochs=max(1, round(_SHORTER * trainer.epochs)), members=1)
    found = {}
    for name in names:
        others = [other for other in names if other != name]
        split = make_split(dataset, "by_device", run.seed, target=name, sources=others)
        folder = Path(run.out) / f"without-{name}"
        config = replace(run.training, trainer=shorter, loss=replace(run.training.loss, domain="none"))
        fitted = train(
            dataset, split, sheets_of(dataset.devices), config, folder, run.seed, run.progress, run.accelerator
        )
        found[name] = score(dataset, split.test, predict_rows(fitted.predictor, dataset, split.test))["metrics"]
        console.print(f"{name} from {', '.join(others)}: {found[name]['mape']:.1f} % MAPE", soft_wrap=True)
    return found


def _error_text(name: str, alike: list[str], left_out: dict[str, dict[str, float]]) -> str:
    if not left_out:
        reason = "only one source device is of its kind" if alike else "no source device is of its kind"
        return f"Its error on {name} could not be estimated: {reason}"
    mapes, medians = ([row[key] for row in left_out.values()] for key in ("mape", "median_ape"))
    return (
        f"Predicting each of {', '.join(left_out)} without its records was off by {np.mean(mapes):.0f} % on average "
        f"({np.min(mapes):.0f} to {np.max(mapes):.0f} %), by {np.mean(medians):.0f} % in the median; expect no less on "
        f"{name}"
    )
