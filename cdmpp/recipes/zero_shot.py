"""A model for a device without any record: trained on other devices, with the error that this makes on known ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cdmpp import devices
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.download import pinned
from cdmpp.data.sources import source_devices
from cdmpp.data.splits import Split, make_split
from cdmpp.errors import NoRecordsError
from cdmpp.machine_code.compile import can_have_code
from cdmpp.recipes.left_out import LeftOut, leave_out, split_without
from cdmpp.recipes.settings import RunSettings
from cdmpp.recipes.train import Trained, train
from cdmpp.uncertainty.unseen import fit_unseen


def train_zero_shot(settings: RunSettings, cause: str) -> tuple[LatencyDataset, Split, Trained]:
    """Train on ``settings.sources``, those of ``zero_shot_sources``, after saying why: ``cause``.

    Of several cores among the sources each is left out once, with all its devices (half the epochs), and predicted,
    unless ``settings.leave_one_out`` is False: it gives intervals for unseen ones. The card's ``zero_shot`` has
    these test metrics, ``left_out``, and ``error``, what to expect on the device, in a sentence.
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
    found = _left_out(settings, dataset, alike) if len(alike) > 1 and settings.leave_one_out else {}
    split = make_split(dataset, seed=settings.run.seed, **settings.split)
    trained = train(dataset, split, settings.training, settings.run)
    metrics = {unit: one.metrics for unit, one in found.items()}
    told: dict[str, Any] = {"device": device.name, "sources": names, "same_kind": bool(alike), "left_out": metrics}
    if found:
        residuals, tasks = (
            {unit: getattr(one, key) for unit, one in found.items()} for key in ("log_residuals", "task_ids")
        )
        trained.predictor.unseen = fit_unseen(metrics, residuals, tasks)
        told["error"] = trained.predictor.unseen.expected(device.name)
    else:
        told["error"] = _error_text(device.name, alike)
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


def _left_out(settings: RunSettings, dataset: LatencyDataset, names: list[str]) -> dict[str, LeftOut]:
    """Unit -> figures of a model trained on the other ones, on tasks that it saw on no device."""
    config, run = settings.training, settings.run
    shorter = replace(config.trainer, epochs=max(1, round(config.trainer.epochs / 2)), members=1)
    config = replace(config, trainer=shorter, loss=replace(config.loss, domain="none"))
    found = {}
    for unit, left in units_of(names).items():
        split = split_without(dataset, left, [name for name in names if name not in left], run.seed)
        found[unit] = leave_out(unit, dataset, split, config, replace(run, out=run.out / f"without-{unit}"))
        print(f"without any record of {unit} ({', '.join(left)}): {found[unit].metrics['mape']:.1f} % MAPE")
    return found


def units_of(names: Sequence[str]) -> dict[str, list[str]]:
    """What is left out together, by name: all devices with one core; single devices where there is one core only."""
    units: dict[str, list[str]] = {}
    for name in names:
        units.setdefault(devices.get(name).core or name, []).append(name)
    return units if len(units) > 1 else {name: [name] for name in names}


def _error_text(name: str, alike: list[str]) -> str:
    if len(alike) > 1:
        return f"Its error on {name} was not estimated (leave_one_out=false)"
    reason = "only one source device is of its kind" if alike else "no source device is of its kind"
    return f"Its error on {name} could not be estimated: {reason}"
