"""Train, validation and test programs of a data set, fixed by a name and a seed (definitions in ``conf/split/``).

A name may carry options: ``by_task+train_tasks:0.5``, ``by_network+test_networks:resnet34|bert_tiny+test_labels:4``.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from cdmpp.data.held_out import thinned
from cdmpp.data.split_rules import KINDS, SHARED_RULES, Split
from cdmpp.errors import DataError
from cdmpp.platform.content import read_yaml
from cdmpp.platform.limits import Limits, check_choice, fitting, fitting_values, numbers
from cdmpp.platform.paths import conf_folder

if TYPE_CHECKING:
    from cdmpp.data.dataset import LatencyDataset

_FRACTION = numbers(0, 0.99, above=True)
_HINTS: dict[str, Any] = {
    **dict.fromkeys(("test_fraction", "validation_fraction", "unlabelled_fraction"), float),
    "test_labels": int,
    "paired": bool,
    **dict.fromkeys(("name", "kind", "shared"), str),
    "target": str | None,
    **dict.fromkeys(("test_networks", "train_networks", "sources"), list[str] | None),
    **dict.fromkeys(("train_tasks", "train_schedules"), float),
}
_LIMITS = {
    **dict.fromkeys(("test_fraction", "validation_fraction"), _FRACTION),
    "unlabelled_fraction": numbers(0, 0.99),
    "test_labels": Limits(0, 10**6, "programs of each task"),
    **dict.fromkeys(("train_tasks", "train_schedules"), numbers(0, 1, above=True)),
}
THINNING = ("train_tasks", "train_schedules")  # options of every kind: the shares of the training part that are used


def make_split(dataset: LatencyDataset, name: str, seed: int, **options: Any) -> Split:
    """Split ``dataset`` by the definition ``name`` of ``conf/split/``; ``options`` override it and those behind ``+``.

    Every choice is a hash of ``seed`` and an id, so it holds while a data set grows.

    Raises:
        DataError: unknown name or option, or too few programs, tasks, networks or devices.
    """
    settings = {**split_definition(name), **options}
    check_split(settings)
    kind = settings.pop("kind")
    settings.pop("name", None)
    allowed = (*tuple(inspect.signature(KINDS[kind]).parameters)[3:], *THINNING)
    if unknown := sorted(set(settings) - set(allowed)):
        raise DataError(f"split {name!r}: kind {kind!r} has no option {unknown}; it has {list(allowed)}")
    if len(dataset.record_ids) < 3:
        raise DataError(
            f"split {name!r} needs at least 3 programs (train, validation, test); the data set holds "
            f"{len(dataset.record_ids)}. Measure or import more records"
        )
    shares = {option: float(settings.pop(option)) for option in THINNING}
    split = KINDS[kind](dataset, name, seed, **settings)
    split = replace(split, train=thinned(split.train, dataset, seed, **shares))
    counts, task_ids = dict(split.counts), np.asarray(dataset.task_ids)
    for part in ("train", "validation", "test", *(["pool"] if len(split.pool) else [])):
        counts[f"{part}_programs"] = len(getattr(split, part))
        counts[f"{part}_tasks"] = len(np.unique(task_ids[getattr(split, part)]))
    return replace(split, counts=counts)


def check_split(options: Mapping[str, Any]) -> None:
    """Raise ``CdmppError`` for an impossible option of a split, before data is read; unknown ones are left."""
    fitting_values({key: value for key, value in options.items() if key in _HINTS}, _HINTS, _LIMITS, "split.")
    check_choice("split.kind", options["kind"], tuple(KINDS))
    if "shared" in options:
        check_choice("split.shared", options["shared"], SHARED_RULES)


def split_names() -> tuple[str, ...]:
    """Return the names of the definitions in ``conf/split/``."""
    return tuple(sorted(path.stem for path in (conf_folder() / "split").glob("*.yaml")))


def split_definition(name: str) -> dict[str, Any]:
    """Return every option of ``conf/split/<name>.yaml``, those behind a ``+`` in ``name`` in their place.

    Values are written as in YAML; ``a|b`` is a list.

    Raises:
        DataError: no such definition, or something behind a ``+`` that is no ``option:value`` of it.
    """
    base, *texts = name.split("+")
    if base not in split_names():
        near = difflib.get_close_matches(base, split_names(), n=3) or split_names()
        raise DataError(f"unknown split {base!r}; nearest: {', '.join(near)}; all are in conf/split/")
    settings: dict[str, Any] = {}
    read = dict(_content(conf_folder() / "split" / f"{base}.yaml"))
    for parent in read.pop("defaults", ()):
        settings |= {} if parent == "_self_" else split_definition(parent)
    settings |= read
    for text in texts:
        option, colon, value = text.partition(":")
        if not colon or option not in settings or option in ("name", "kind"):
            allowed = sorted(set(settings) - {"name", "kind"})
            raise DataError(f"split {name!r}: {text!r} is no option:value of {base}; it has {', '.join(allowed)}")
        listed = isinstance(settings[option], list) or option in _LISTS
        settings[option] = value.split("|") if listed else yaml.safe_load(value)
    return {**settings, "name": name}


@cache
def _content(path: Path) -> Mapping[str, Any]:
    return fitting(str(path), read_yaml(path), dict)


_LISTS = ("test_networks", "train_networks", "sources")
