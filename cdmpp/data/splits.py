"""Train, validation and test programs of a data set, fixed by a name and a seed (definitions in ``conf/split/``)."""

from __future__ import annotations

import difflib
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import yaml

from cdmpp.data.thinning import OPTIONS, thinned
from cdmpp.errors import DataError
from cdmpp.programs.task import network_family

if TYPE_CHECKING:
    from cdmpp.data.dataset import LatencyDataset

SHARED_RULES = ("leave_training", "leave_test")


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
    """Split ``dataset`` by a rule of this module or a definition of ``conf/split/<name>.yaml``.

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
    return tuple(sorted(path.stem for path in _conf_folder().glob("*.yaml")))


def split_definition(name: str) -> dict[str, Any]:
    """Options of ``conf/split/<name>.yaml``; of a bare kind without such a file, nothing."""
    path = _conf_folder() / f"{name}.yaml"
    if path.is_file():
        return dict(yaml.safe_load(path.read_text()) or {})
    if name in KINDS:
        return {}
    known = sorted({*split_names(), *KINDS})
    near = difflib.get_close_matches(name, known, n=3) or known
    raise DataError(f"unknown split {name!r}; nearest: {', '.join(near)}; all are in conf/split/")


def _conf_folder() -> Path:
    package = Path(__file__).parents[1]
    inside = package / "conf" / "split"
    return inside if inside.is_dir() else package.parent / "conf" / "split"


class Parts(NamedTuple):
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    counts: dict[str, Any]
    pool: np.ndarray = np.zeros(0, np.int64)


def _random(
    dataset: LatencyDataset, name: str, seed: int, test_fraction: float = 0.2, validation_fraction: float = 0.1
) -> Parts:
    groups = _program_groups(dataset)
    names = np.unique(groups)
    test, rest = _hold_out(names, test_fraction, seed, "test", name, "different programs", keep=2)
    validation, train = _hold_out(rest, validation_fraction, seed, "validation", name, "different programs")
    return _parts(groups, train, validation, test, {"groups": len(names)})


def _by_task(
    dataset: LatencyDataset, name: str, seed: int, test_fraction: float = 0.2, validation_fraction: float = 0.15
) -> Parts:
    task_ids = np.asarray(dataset.task_ids)
    test, rest = _hold_out(np.unique(task_ids), test_fraction, seed, "test", name, "tasks", keep=2)
    validation, train = _hold_out(rest, validation_fraction, seed, "validation", name, "tasks")
    return _parts(task_ids, train, validation, test, {})


def _by_network(
    dataset: LatencyDataset,
    name: str,
    seed: int,
    test_networks: Sequence[str] | None = None,
    train_networks: Sequence[str] | None = None,
    shared: str = "leave_training",
    test_fraction: float = 0.2,
    validation_fraction: float = 0.15,
    unlabelled_fraction: float = 0.0,
    test_labels: int = 0,
) -> Parts:
    """Hold out networks; validation is by task inside the training networks.

    ``unlabelled_fraction`` of the held-out networks' tasks become the pool instead of test. ``test_labels`` programs of
    each test task train instead: the case of a user who measures a few schedules of each operator.
    """
    if shared not in SHARED_RULES:
        raise DataError(f"split {name!r}: shared={shared!r} is not one of {', '.join(SHARED_RULES)}")
    task_ids = np.asarray(dataset.task_ids)
    tasks = np.unique(task_ids)
    networks_of = {task: set(dataset.tasks[task].networks) for task in tasks}
    # A network and its variants (other inputs) stand on one side: `resnet50@b4` is resnet50.
    networks_of = {task: {network_family(network) for network in networks_of[task]} for task in tasks}
    known = sorted(set().union(*networks_of.values()))
    held_out = set(test_networks or ())
    if not held_out:
        if len(known) < 2:
            raise DataError(f"split {name!r} needs at least two networks; the data set names {known or 'none'}")
        held_out = set(_hold_out(np.array(known), test_fraction, seed, "test", name, "networks")[0].tolist())
    sources = set(train_networks or ()) or {network for network in known if network not in held_out}
    for wanted in sorted(held_out | sources):
        if wanted not in known:
            near = difflib.get_close_matches(wanted, known, n=3) or known
            raise DataError(f"split {name!r}: no task of network {wanted!r} in this data set; it holds {near}")
    if held_out & sources:
        raise DataError(f"split {name!r}: {sorted(held_out & sources)} is both a test and a training network")

    in_test = {task for task in tasks if networks_of[task] & held_out}
    # Without an explicit list a task that names no network may train: it cannot belong to a held-out one.
    in_train = {t for t in tasks if networks_of[t] & sources or (not train_networks and not networks_of[t])}
    both = in_test & in_train
    if shared == "leave_training":
        in_train -= both
    else:
        in_test -= both
    if not in_test:
        raise DataError(f"split {name!r}: no task is left for test after {len(both)} shared tasks went to training")
    remaining = np.array(sorted(in_train))
    validation, train = _hold_out(remaining, validation_fraction, seed, "validation", name, "training tasks")
    counts = {
        "test_networks": sorted(held_out),
        "train_networks": sorted(sources),
        "shared_tasks": len(both),
        "shared_rule": shared,
        "unused_tasks": len(set(tasks) - in_test - in_train),
    }
    test, pool = np.array(sorted(in_test)), np.array([], dtype=str)
    if unlabelled_fraction:
        pool, test = _hold_out(test, unlabelled_fraction, seed, "pool", name, "tasks of held-out networks")
    found = _parts(task_ids, train, validation, test, counts, pool)
    return _with_labels_of_test(found, dataset, seed, test_labels) if test_labels else found


def _with_labels_of_test(parts: Parts, dataset: LatencyDataset, seed: int, labels: int) -> Parts:
    """``labels`` programs of each test task go to training; equal programs stay on one side."""
    task_ids, groups = np.asarray(dataset.task_ids), _program_groups(dataset)
    moved = []
    for task in np.unique(task_ids[parts.test]):
        names = np.unique(groups[task_ids == task])
        if len(names) > labels:
            chosen, _ = _hold_out(names, labels / len(names), seed, "test_labels", "by_network", "programs")
            moved.append(np.flatnonzero((task_ids == task) & np.isin(groups, chosen)))
    known = np.concatenate(moved) if moved else np.zeros(0, np.int64)
    counts = {**parts.counts, "labels_of_each_test_task": labels}
    train, test = np.union1d(parts.train, known), np.setdiff1d(parts.test, known)
    return parts._replace(train=train, test=test, counts=counts)


def _by_device(
    dataset: LatencyDataset,
    name: str,
    seed: int,
    target: str | None = None,
    sources: Sequence[str] | None = None,
    paired: bool = False,
    test_fraction: float = 0.2,
    validation_fraction: float = 0.15,
) -> Parts:
    """Learn from source devices, test on another one, on tasks that no source programs in training implement.

    Test: programs of ``target`` in held-out tasks. Training and validation: programs of ``sources`` in other tasks.
    Pool: programs of ``target`` in tasks of neither test nor validation. With ``paired`` the sources' programs of the
    test tasks train, too: the case of a task that was measured on another device.
    """
    names, task_ids = np.asarray(dataset.devices), np.asarray(dataset.task_ids)
    known = sorted({str(device) for device in names})
    if target is None:
        raise DataError(f"split {name!r} needs a target device; the data set holds {', '.join(known)}")
    chosen = list(dict.fromkeys(sources)) if sources else [device for device in known if device != target]
    for wanted in (target, *chosen):
        if wanted not in known:
            near = difflib.get_close_matches(wanted, known, n=3) or known
            raise DataError(f"split {name!r}: no program of device {wanted!r} in this data set; it holds {near}")
    if target in chosen:
        raise DataError(f"split {name!r}: {target} is both the target and a source device")
    if not chosen:
        raise DataError(f"split {name!r} needs a source device; the data set holds {target} alone")
    of_target, of_sources = names == target, np.isin(names, chosen)
    test, _ = _hold_out(np.unique(task_ids[of_target]), test_fraction, seed, "test", name, f"tasks of {target}")
    in_test = np.isin(task_ids, test)
    rest = np.unique(task_ids[of_sources & ~in_test])
    validation, _ = _hold_out(rest, validation_fraction, seed, "validation", name, "source tasks outside test")
    in_validation = np.isin(task_ids, validation)
    training = of_sources & ~in_validation & (paired | ~in_test)
    counts = {
        "target": target,
        "sources": chosen,
        "paired": paired,
        "test_tasks_seen_on_sources": len(np.intersect1d(test, task_ids[training])),
    }
    return Parts(
        np.flatnonzero(training),
        np.flatnonzero(of_sources & in_validation),
        np.flatnonzero(of_target & in_test),
        counts,
        np.flatnonzero(of_target & ~in_test & ~in_validation),
    )


KINDS: dict[str, Callable[..., Parts]] = {
    "random": _random,
    "by_task": _by_task,
    "by_network": _by_network,
    "by_device": _by_device,
}


def _parts(
    labels: np.ndarray,
    train: np.ndarray,
    validation: np.ndarray,
    test: np.ndarray,
    counts: dict[str, Any],
    pool: np.ndarray | None = None,
) -> Parts:
    """Programs of the labels (groups or tasks) in each part."""
    rest = np.zeros(0, np.int64) if pool is None else _members(labels, pool)
    return Parts(_members(labels, train), _members(labels, validation), _members(labels, test), counts, rest)


def _members(labels: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.isin(labels, chosen))


def _program_groups(dataset: LatencyDataset) -> np.ndarray:
    """(n,) group of each program. Equal programs share one, so that none is on both sides.

    Equal means the same record id, or the same task and compact AST: traces that differ in text often lower to one
    program, and the same program may be measured on several devices.
    """
    asts, seen, by_record = dataset.asts, dict[bytes, str](), dict[str, str]()
    groups = []
    order = np.argsort(np.asarray(dataset.record_ids), kind="stable")
    for i in order:
        leaves = slice(asts.leaf_offsets[i], asts.leaf_offsets[i + 1])
        kernels = slice(asts.kernel_offsets[i], asts.kernel_offsets[i + 1])
        digest = hashlib.blake2b(str(dataset.task_ids[i]).encode(), digest_size=16)
        digest.update(np.ascontiguousarray(asts.leaf_features[leaves]).tobytes())
        digest.update(np.ascontiguousarray(asts.kernel_features[kernels]).tobytes())
        record = str(dataset.record_ids[i])
        group = by_record.get(record) or seen.get(digest.digest()) or record
        by_record[record] = seen[digest.digest()] = group
        groups.append(group)
    result = np.empty(len(order), dtype=object)
    result[order] = groups
    return result.astype(str)


def _hold_out(
    names: np.ndarray, fraction: float, seed: int, part: str, split: str, what: str, keep: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Take ``fraction`` of ``names`` (at least one) and leave at least ``keep``."""
    if not 0.0 < fraction < 1.0:
        raise DataError(f"split {split!r}: the {part} fraction must lie between 0 and 1, not {fraction}")
    if len(names) < keep + 1:
        raise DataError(f"split {split!r} needs at least {keep + 1} {what} to choose {part} from; found {len(names)}")
    keys = [hashlib.blake2b(f"{seed}/{part}/{name}".encode(), digest_size=8).digest() for name in names]
    order = np.array(sorted(range(len(names)), key=keys.__getitem__))
    count = min(max(1, round(fraction * len(names))), len(names) - keep)
    return names[order[:count]], names[order[count:]]
