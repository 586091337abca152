"""A model for a device without any record: trained on other devices, with the error that this makes on known ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cdmpp import devices
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.download import pinned
from cdmpp.data.sources import source_devices
from cdmpp.data.splits import Split, make_split
from cdmpp.errors import NoRecordsError
from cdmpp.machine_code.cpu.compile import can_have_code
from cdmpp.recipes.left_out import leave_cores_out, unseen_of
from cdmpp.recipes.settings import RunSettings
from cdmpp.recipes.train import Trained, train


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
    found = {}
    if len(alike) > 1 and settings.leave_one_out:
        found = leave_cores_out(dataset, alike, settings.training, settings.run)
    split = make_split(dataset, seed=settings.run.seed, **settings.split)
    trained = train(dataset, split, settings.training, settings.run)
    metrics = {unit: one.metrics for unit, one in found.items()}
    told: dict[str, Any] = {"device": device.name, "sources": names, "same_kind": bool(alike), "left_out": metrics}
    if found:
        trained.predictor.unseen = unseen_of(found)
        told["error"] = trained.predictor.unseen.expected(device.name)
    else:
        told["error"] = _error_text(device.name, alike)
    trained.predictor.card |= {"label": "zero-shot", "zero_shot": told}
    trained.predictor.save(trained.model_dir)
    return dataset, split, trained


def zero_shot_sources(settings: RunSettings, cause: NoRecordsError) -> tuple[str, ...]:
    """Return all devices of the kind of ``settings.device``, or of every kind where none is.

    ``cause`` is raised where this is not allowed, public records exist, or there is no other device to learn from.
    """
    name = settings.device.name
    names = source_devices(name, settings.data_paths, settings.features)
    if settings.features != "cdmpp" or settings.target or settings.sources or not names:
        raise cause
    if settings.allow_zero_shot == "false" or (settings.allow_zero_shot == "auto" and pinned(name)):
        raise NoRecordsError(
            f"{cause}\nTo train on {', '.join(names)} instead, and answer for {name} by its datasheet alone:\n"
            f"  cdmpp model train device={name} allow_zero_shot=true"
        ) from cause
    return tuple(names)


def _error_text(name: str, alike: list[str]) -> str:
    if len(alike) > 1:
        return f"Its error on {name} was not estimated (leave_one_out=false)"
    reason = "only one source device is of its kind" if alike else "no source device is of its kind"
    return f"Its error on {name} could not be estimated: {reason}"
