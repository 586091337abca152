"""A model for a device without any record: trained on other devices, with the error that this makes on known ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cdmpp import devices
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.download import pinned
from cdmpp.data.sources import source_devices
from cdmpp.data.splits import Split, make_split
from cdmpp.errors import NoRecordsError
from cdmpp.machine_code.compile import can_have_code
from cdmpp.recipes.left_out import LeftOut, leave_out
from cdmpp.recipes.settings import RunSettings
from cdmpp.recipes.train import Trained, train


def train_zero_shot(settings: RunSettings, cause: str) -> tuple[LatencyDataset, Split, Trained]:
    """Train on ``settings.sources``, those of ``zero_shot_sources``, after saying why: ``cause``.

    Of several sources of that kind each is left out once (half the epochs) and predicted, unless
    ``settings.leave_one_out`` is False. The card's ``zero_shot`` has these test metrics, ``left_out``, and ``error``,
    what to expect on the device, in a sentence.
    """
    device, names = settings.device, list(settings.sources)
    alike = [name for name in names if devices.get(name).kind == device.kind]
    print(cause)
    print(
        f"zero-shot: no labelled program of {device.name} is within reach; training on {', '.join(names)}, "
        f"{device.name} goes by its datasheet alone"
    )
    print("allow_zero_shot=false stops here instead, and says where records were looked for")
    if not alike:
        print(f"none of these is a {device.kind}: take the predictions as orders of magnitude")
    dataset = settings.load()
    if not can_have_code(device.target):
        dataset = replace(dataset, asts=dataset.asts.with_codes(None))
        print(f"{device.name} is no x86-64 CPU: nothing is learned from machine code")
    found = _leave_one_out(settings, dataset, alike) if len(alike) > 1 and settings.leave_one_out else {}
    split = make_split(dataset, seed=settings.run.seed, **settings.split)
    trained = train(dataset, split, settings.training, settings.run)
    metrics = {name: one.metrics for name, one in found.items()}
    error = _error_text(device.name, alike, metrics)
    told = {"device": device.name, "sources": names, "same_kind": bool(alike), "left_out": metrics, "error": error}
    trained.predictor.card |= {"label": "zero-shot", "zero_shot": told}
    trained.predictor.save(trained.model_dir)
    return dataset, split, trained


def zero_shot_sources(settings: RunSettings, cause: NoRecordsError) -> tuple[str, ...]:
    """All devices of the kind of ``settings.device``, or of every kind where none is.

    ``cause`` is raised where this is not allowed, public records exist, or there is no other device to learn from.
    """
    name = settings.device.name
    names = source_devices(name, settings.data_paths, settings.features)
    if settings.features != "cdmpp" or settings.target or settings.sources or not names:
        raise cause
    if settings.allow_zero_shot == "false" or (settings.allow_zero_shot == "auto" and pinned(name)):
        raise NoRecordsError(
            f"{cause}\nTo train on {', '.join(names)} instead, and answer for {name} by its datasheet alone:\n"
            f"  cdmpp train device={name} allow_zero_shot=true"
        ) from cause
    return tuple(names)


def _leave_one_out(settings: RunSettings, dataset: LatencyDataset, names: list[str]) -> dict[str, LeftOut]:
    """Device -> figures of a model trained on the others, on tasks that it saw on no device."""
    config, run = settings.training, settings.run
    shorter = replace(config.trainer, epochs=max(1, round(config.trainer.epochs / 2)), members=1)
    config = replace(config, trainer=shorter, loss=replace(config.loss, domain="none"))
    found = {}
    for name in names:
        others = [other for other in names if other != name]
        split = make_split(dataset, "by_device", run.seed, target=name, sources=others)
        found[name] = leave_out(name, dataset, split, config, replace(run, out=run.out / f"without-{name}"))
        print(f"{name} from {', '.join(others)}: {found[name].metrics['mape']:.1f} % MAPE")
    return found


def _error_text(name: str, alike: list[str], left_out: dict[str, dict[str, float]]) -> str:
    if not left_out and len(alike) > 1:
        return f"Its error on {name} was not estimated (leave_one_out=false)"
    if not left_out:
        reason = "only one source device is of its kind" if alike else "no source device is of its kind"
        return f"Its error on {name} could not be estimated: {reason}"
    mapes, medians = ([row[key] for row in left_out.values()] for key in ("mape", "median_ape"))
    return (
        f"Predicting each of {', '.join(left_out)} without its records was off by {np.mean(mapes):.0f} % on average "
        f"({np.min(mapes):.0f} to {np.max(mapes):.0f} %), by {np.mean(medians):.0f} % in the median; expect no less on "
        f"{name}"
    )
