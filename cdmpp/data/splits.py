"""Train, validation and test programs of a data set, fixed by a name and a seed (definitions in ``conf/split/``)."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from cdmpp.data.split_rules import KINDS
from cdmpp.data.thinning import OPTIONS, thinned
from cdmpp.errors import DataError
from cdmpp.paths import conf_folder

if TYPE_CHECKING:
    from cdmpp.data.dataset import LatencyDataset


@dataclass(frozen=True)
class Split:
    """Index arrays into one data set; no two of them overlap."""

    name: str
    seed: int
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    counts: Mapping[str, Any] = field(default_factory=dict)
    """Programs and tasks of each part, held-out networks, shared tasks: what a report prints."""
    pool: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Programs of the target domain whose tasks are in no other part: unlabelled ones to adapt to, candidates to
    measure. Empty where the split has no target domain."""


def make_split(dataset: LatencyDataset, name: str, seed: int, **options: Any) -> Split:
    """Split ``dataset`` by a rule of ``split_rules`` or a definition of ``conf/split/<name>.yaml``.

    Args:
        dataset: needs ``record_ids``, ``task_ids`` (n,), ``tasks`` and ``asts``.
        name: ``random``, ``by_task``, ``by_network``, ``by_device`` or the name of a definition.
        seed: every choice is a hash of the seed and an id, so it holds while a data set grows.
        options: override the definition: ``kind``, ``test_fraction``, ``validation_fraction``,
            for networks ``test_networks``, ``train_networks``, ``shared``, ``unlabelled_fraction``, ``test_labels``,
            for devices ``target``, ``sources``, ``paired``; for all ``train_tasks`` and ``train_schedules``, the
            shares of the training part that are used.

    Raises:
        DataError: unknown name or option, or too few programs, tasks, networks or devices.
    """
    settings = {**split_definition(name), **options}
    kind = str(settings.pop("kind", name))
    settings.pop("name", None)
    if kind not in KINDS:
        raise DataError(f"unknown split kind {kind!r}; known: {', '.join(KINDS)}")
    if len(dataset.record_ids) < 3:
        raise DataError(
            f"split {name!r} needs at least 3 programs (train, validation, test); the data set holds "
            f"{len(dataset.record_ids)}. Measure or import more records"
        )
    less = {option: float(settings.pop(option)) for option in OPTIONS if settings.get(option) is not None}
    allowed = (*tuple(inspect.signature(KINDS[kind]).parameters)[3:], *OPTIONS)
    if unknown := sorted(set(settings) - set(allowed)):
        raise DataError(f"split {name!r}: kind {kind!r} has no option {unknown}; it has {list(allowed)}")
    found = KINDS[kind](dataset, name, seed, **settings)
    if less:
        ids = np.asarray(dataset.task_ids), np.asarray(dataset.record_ids)
        shares = tuple(less.get(option, 1.0) for option in OPTIONS)
        found = found._replace(train=thinned(found.train, *ids, seed, *shares))
    parts = {"train": found.train, "validation": found.validation, "test": found.test}
    if len(found.pool):
        parts["pool"] = found.pool
    task_ids, counts = np.asarray(dataset.task_ids), dict(found.counts)
    for part, index in parts.items():
        counts[f"{part}_programs"] = len(index)
        counts[f"{part}_tasks"] = len(np.unique(task_ids[index]))
    return Split(name, seed, found.train, found.validation, found.test, counts, found.pool)


def split_names() -> tuple[str, ...]:
    """Names of the definitions in ``conf/split/``."""
    return tuple(sorted(path.stem for path in (conf_folder() / "split").glob("*.yaml")))


def split_definition(name: str) -> dict[str, Any]:
    """Options of ``conf/split/<name>.yaml``; of a bare kind without such a file, nothing."""
    path = conf_folder() / "split" / f"{name}.yaml"
    if path.is_file():
        return dict(yaml.safe_load(path.read_text()) or {})
    if name in KINDS:
        return {}
    known = sorted({*split_names(), *KINDS})
    near = difflib.get_close_matches(name, known, n=3) or known
    raise DataError(f"unknown split {name!r}; nearest: {', '.join(near)}; all are in conf/split/")
