"""The rules by which programs fall into train, validation, test and pool: at random, by task, network or device."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cdmpp.data.held_out import hold_out, program_groups, shuffled
from cdmpp.errors import DataError
from cdmpp.programs.task import network_family

if TYPE_CHECKING:
    from cdmpp.data.dataset import LatencyDataset

SHARED_RULES = ("leave_training", "leave_test")


@dataclass(frozen=True)
class Split:
    """A split is index arrays into one data set; no two of them overlap."""

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


def _random(dataset: LatencyDataset, name: str, seed: int, test_fraction: float, validation_fraction: float) -> Split:
    groups = program_groups(dataset)
    names = np.unique(groups)
    test, rest = hold_out(names, test_fraction, seed, "test", name, "different programs", keep=2)
    validation, train = hold_out(rest, validation_fraction, seed, "validation", name, "different programs")
    return _split(name, seed, groups, {"groups": len(names)}, train=train, validation=validation, test=test)


def _by_task(dataset: LatencyDataset, name: str, seed: int, test_fraction: float, validation_fraction: float) -> Split:
    task_ids = np.asarray(dataset.task_ids)
    test, rest = hold_out(np.unique(task_ids), test_fraction, seed, "test", name, "tasks", keep=2)
    validation, train = hold_out(rest, validation_fraction, seed, "validation", name, "tasks")
    return _split(name, seed, task_ids, {}, train=train, validation=validation, test=test)


def _largest(dataset: LatencyDataset, name: str, seed: int, test_fraction: float, validation_fraction: float) -> Split:
    """Hold out the tasks of each operator class that have most arithmetic; validation is by task among the others."""
    task_ids = np.asarray(dataset.task_ids)
    tasks = np.unique(task_ids)
    classes = np.array([dataset.tasks[task].op_class for task in tasks.tolist()])
    flops = np.array([dataset.tasks[task].flops for task in tasks.tolist()])
    test = []
    for one in np.unique(classes):
        of_class = np.flatnonzero(classes == one)
        test.append(tasks[of_class[flops[of_class] > np.quantile(flops[of_class], 1 - test_fraction)]])
    in_test = np.sort(np.concatenate(test))
    if not len(in_test):
        raise DataError(f"split {name!r}: all tasks of a class have the same arithmetic, so none is the largest")
    validation, train = hold_out(np.setdiff1d(tasks, in_test), validation_fraction, seed, "validation", name, "tasks")
    return _split(name, seed, task_ids, {}, train=train, validation=validation, test=in_test)


def _by_network(
    dataset: LatencyDataset,
    name: str,
    seed: int,
    test_networks: Sequence[str] | None,
    train_networks: Sequence[str] | None,
    shared: str,
    test_fraction: float,
    validation_fraction: float,
    unlabelled_fraction: float,
    test_labels: int,
) -> Split:
    """Hold out networks; validation is by task inside the training networks.

    ``unlabelled_fraction`` of the held-out networks' tasks become the pool instead of test. ``test_labels`` programs of
    each test task train instead: the case of a user who measures a few schedules of each operator.
    """
    if shared not in SHARED_RULES:
        raise DataError(f"split {name!r}: shared={shared!r} is not one of {', '.join(SHARED_RULES)}")
    task_ids = np.asarray(dataset.task_ids)
    networks_of = _networks_of(dataset)
    networks = sorted(set().union(*networks_of.values()))
    held_out = set(test_networks or ())
    if not held_out:
        if len(networks) < 2:
            raise DataError(f"split {name!r} needs at least two networks; the data set names {networks or 'none'}")
        held_out = set(hold_out(np.array(networks), test_fraction, seed, "test", name, "networks")[0].tolist())
    sources = set(train_networks or ()) or set(networks) - held_out
    _check_names(name, "task of network", held_out | sources, networks)
    if held_out & sources:
        raise DataError(f"split {name!r}: {sorted(held_out & sources)} is both a test and a training network")

    in_test = {task for task in networks_of if networks_of[task] & held_out}
    # Without an explicit list a task that names no network may train: it cannot belong to a held-out one.
    in_train = {t for t in networks_of if networks_of[t] & sources or (not train_networks and not networks_of[t])}
    both = in_test & in_train
    if shared == "leave_training":
        in_train -= both
    else:
        in_test -= both
    if not in_test:
        raise DataError(f"split {name!r}: no task is left for test after {len(both)} shared tasks went to training")
    tasks = np.array(sorted(in_train))
    validation, train = hold_out(tasks, validation_fraction, seed, "validation", name, "training tasks")
    counts = {
        "test_networks": sorted(held_out),
        "train_networks": sorted(sources),
        "shared_tasks": len(both),
        "shared_rule": shared,
        "unused_tasks": len(set(networks_of) - in_test - in_train),
    }
    test, pool = np.array(sorted(in_test)), np.array([], dtype=str)
    if unlabelled_fraction:
        pool, test = hold_out(test, unlabelled_fraction, seed, "pool", name, "tasks of held-out networks")
    split = _split(name, seed, task_ids, counts, train=train, validation=validation, test=test, pool=pool)
    return _with_labels_of_test(split, dataset, test_labels) if test_labels else split


def _networks_of(dataset: LatencyDataset) -> dict[str, set[str]]:
    """Task -> its networks; one and its variants (other inputs) stand on one side: ``resnet50@b4`` is resnet50."""
    tasks = np.unique(np.asarray(dataset.task_ids)).tolist()
    return {task: set(map(network_family, dataset.tasks[task].networks)) for task in tasks}


def _with_labels_of_test(split: Split, dataset: LatencyDataset, labels: int) -> Split:
    """``labels`` programs of each test task go to training; equal programs stay on one side."""
    task_ids, groups = np.asarray(dataset.task_ids), program_groups(dataset)
    moved = np.zeros(len(groups), bool)
    for task in np.unique(task_ids[split.test]):
        names = np.unique(groups[task_ids == task])
        if len(names) > labels:
            moved |= (task_ids == task) & np.isin(groups, shuffled(names, split.seed, "test_labels")[:labels])
    labelled, counts = np.flatnonzero(moved), {**split.counts, "labels_of_each_test_task": labels}
    train, test = np.union1d(split.train, labelled), np.setdiff1d(split.test, labelled)
    return replace(split, train=train, test=test, counts=counts)


def _by_device(
    dataset: LatencyDataset,
    name: str,
    seed: int,
    target: str | None,
    sources: Sequence[str] | None,
    paired: bool,
    test_networks: Sequence[str] | None,
    test_fraction: float,
    validation_fraction: float,
) -> Split:
    """Learn from source devices, test on another one, on tasks that no source programs in training implement.

    Test: programs of ``target`` in held-out tasks, which are all those of ``test_networks`` where given. Training and
    validation: programs of ``sources`` in other tasks. Pool: programs of ``target`` in tasks of neither test nor
    validation. With ``paired`` the sources' programs of the held-out tasks train, too: the case of a task that was
    measured on another device.
    """
    names, task_ids = np.asarray(dataset.devices), np.asarray(dataset.task_ids)
    present = sorted({str(device) for device in names})
    if target is None:
        raise DataError(f"split {name!r} needs a target device; the data set holds {', '.join(present)}")
    chosen = list(dict.fromkeys(sources)) if sources else [device for device in present if device != target]
    _check_names(name, "program of device", {target, *chosen}, present)
    if target in chosen:
        raise DataError(f"split {name!r}: {target} is both the target and a source device")
    if not chosen:
        raise DataError(f"split {name!r} needs a source device; the data set holds {target} alone")
    of_target, of_sources = names == target, np.isin(names, chosen)
    of_networks, tasks = dict[str, Any](), np.unique(task_ids[of_target])
    if test_networks:
        networks_of, held_out = _networks_of(dataset), set(test_networks)
        networks = sorted(set().union(*(networks_of[task] for task in tasks.tolist())))
        _check_names(name, f"task of {target} in network", held_out, networks)
        # Also those that only a source has: a network is unknown where none of its tasks trains.
        test = np.array([task for task in networks_of if networks_of[task] & held_out])
        shared = sum(bool(networks_of[task] - held_out) for task in test.tolist())
        rule = "paired" if paired else "leave_training"
        of_networks = {"test_networks": sorted(held_out), "shared_tasks": shared, "shared_rule": rule}
    else:
        test, _ = hold_out(tasks, test_fraction, seed, "test", name, f"tasks of {target}")
    in_test = np.isin(task_ids, test)
    rest = np.unique(task_ids[of_sources & ~in_test])
    validation, _ = hold_out(rest, validation_fraction, seed, "validation", name, "source tasks outside test")
    in_validation = np.isin(task_ids, validation)
    training = of_sources & ~in_validation & (paired | ~in_test)
    counts = {
        "target": target,
        "sources": chosen,
        "paired": paired,
        "test_tasks_seen_on_sources": len(np.intersect1d(task_ids[of_target & in_test], task_ids[training])),
        **of_networks,
    }
    of_pool = of_target & ~in_test & ~in_validation
    train, validation_rows, test_rows = map(np.flatnonzero, (training, of_sources & in_validation, of_target & in_test))
    return Split(name, seed, train, validation_rows, test_rows, counts, np.flatnonzero(of_pool))


def _check_names(split: str, what: str, wanted: set[str], present: Sequence[str]) -> None:
    for one in sorted(wanted - set(present)):
        near = difflib.get_close_matches(one, present, n=3)
        nearest = f"nearest: {', '.join(near)}; " if near else ""
        held = ", ".join(present) or "none"
        raise DataError(f"split {split!r}: no {what} {one!r} in this data set; {nearest}it holds {held}")


_RULES: tuple[Callable[..., Split], ...] = (_random, _by_task, _largest, _by_network, _by_device)
KINDS = {rule.__name__.removeprefix("_"): rule for rule in _RULES}


def _split(name: str, seed: int, labels: np.ndarray, counts: dict[str, Any], **parts: np.ndarray) -> Split:
    """``parts`` are the labels (groups or tasks) in each part."""
    rows = {part: np.flatnonzero(np.isin(labels, chosen)) for part, chosen in parts.items()}
    return Split(name, seed, counts=counts, **rows)
