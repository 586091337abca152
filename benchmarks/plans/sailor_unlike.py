"""Sailor's plans on unlike GPUs: seconds and bytes from the layers of each GPU and the links of nodes, nothing fitted.

Of 6 rows of the cluster `mit` one is left out, whose time, all-reduce and memory its source copied from another plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plans.sailor_data import at_examples, profiles, trained, unlike_links
from benchmarks.plans.sailor_judged import Judged
from benchmarks.plans.sailor_unlike_job import UnlikeJob
from benchmarks.plans.scores import cell, errors, least_absolute

_COMMAND = "python -m benchmarks.plans sailor --data FOLDER --publish"
_GPUS = ("RTX-2080", "RTX-3090", "Titan-RTX")
_LEVEL = 0.8
_OTHER = "the other cluster, of equal GPUs"


def unlike_tables(folder: Path, equal: Judged) -> list[dict[str, Any]]:
    """Judge the plans on unlike GPUs; ``equal`` are those on equal ones, to which alone anything is fitted."""
    links, layers = unlike_links(folder, _GPUS), {gpu: profiles(folder, gpu) for gpu in _GPUS}
    jobs = [
        UnlikeJob(one, {gpu: at_examples(layers[gpu], one.model, one.tensor) for gpu in _GPUS}, links)
        for one in trained(folder, "mit")
    ]
    open_, kept = ([job for job in jobs if job.trained.is_kept is is_kept] for is_kept in (False, True))
    return [*_judged(open_, equal), *([_kept(kept)] if kept else [])]


def _judged(jobs: Sequence[UnlikeJob], equal: Judged) -> list[dict[str, Any]]:
    measured = np.array([job.trained.iteration_s for job in jobs])
    own, slots = np.array([job.step_s() for job in jobs]), np.array([job.slots_s() for job in jobs])
    (host, gpu), spread = _factors(equal), _spread(equal)
    ways = [
        ("examples a node and second of the median plan (trivial)", "the other 4 plans", _per_node(jobs, measured)),
        ("slowest stage, no communication (notes: 28)", "nothing", slots[:, 0]),
        (
            "slowest stage, messages and ring by formulas (the authors' way; notes: 18.5 (23.9))",
            "nothing",
            slots.sum(axis=1),
        ),
        ("**cdmpp**", "nothing", own),
        ("**cdmpp**, two factors", _OTHER, np.array([job.step_s(host, gpu) for job in jobs])),
    ]
    covered = np.abs(np.log(own / measured)) <= spread
    held = np.array([job.held_bytes() for job in jobs])
    peak, (share, constant) = np.array([job.trained.peak_bytes for job in jobs]), _bytes(equal)
    table = {
        "title": "Sailor: unlike GPUs in one job",
        "note": (
            f"{len(jobs)} plans of OPT-350 over nodes of RTX 3090, RTX 2080 Ti and Titan RTX, Megatron-DeepSpeed in "
            "float32; mean (median) of absolute errors in per cent. Layers are those that the authors timed on each "
            "GPU, links their fits. No row here is in any fit. "
            f"Intervals of 80 %, as wide as the errors of 80 % of plans on equal GPUs "
            f"({100 * np.expm1(spread):.0f} %), cover {covered.sum()} of {len(jobs)}. A row of 3 nodes repeats another "
            "row and is left out."
        ),
        "commands": [_COMMAND],
        "columns": ["predicted by", "fitted on", "seconds"],
        "rows": [[way, fitted, cell(found, measured)] for way, fitted, found in ways],
    }
    bytes_ = {
        "title": "Sailor: unlike GPUs, bytes of the GPU that holds most",
        "note": (
            "Mean (median) of absolute errors in per cent; three fitted numbers of the notes: 24 (12). The plans on 2 "
            f"nodes held {peak[0] / 1e9:.1f} and {peak[1] / 1e9:.1f} GB, less than half of what their layers save for "
            f"the backward pass by the authors' table ({held[0] / 1e9:.1f} and {held[1] / 1e9:.1f} GB with parameters "
            "and states), and those on 4 nodes twice as much as the tensors: the source says nothing of either."
        ),
        "commands": [_COMMAND],
        "columns": ["predicted by", "fitted on", "bytes"],
        "rows": [
            ["geometric mean (trivial)", "the other 4 plans", cell(_alike(peak), peak)],
            ["**cdmpp**, tensors alone", "nothing", cell(held, peak)],
            ["**cdmpp**, a share and bytes of a GPU", _OTHER, cell(share * held + constant, peak)],
        ],
    }
    return [table, _parts(jobs, own, measured, spread), bytes_]


def _parts(jobs: Sequence[UnlikeJob], own: np.ndarray, measured: np.ndarray, spread: float) -> dict[str, Any]:
    """Tell the parts of the seconds of each plan, any of which may carry its error."""
    off = np.abs(errors(own, measured))
    worst, others = jobs[int(off.argmax())], float(np.delete(off, off.argmax()).mean())
    pass_s, messages_s, ring_s = worst.slots_s()
    count = worst.trained.micro_batches + worst.trained.stages - 1
    slot_s, worst_pass_s = (worst.trained.iteration_s - ring_s) / count, pass_s / count
    message_s = messages_s / worst.trained.micro_batches
    found = []
    for job, seconds, known in zip(jobs, own, measured, strict=True):
        replayed = job.replayed()
        parts = replayed.critical_s
        slowest = job.lowered().places.index(min(replayed.waits_s, key=lambda place: replayed.waits_s[place]))
        shown = (parts.get("forward", 0.0) + parts.get("backward", 0.0), parts.get("send_recv", 0.0))
        found.append(
            [
                _said(job), f"{job.trained.micro_batches} of {job.trained.micro_batch}", f"{known:.1f}",
                f"{seconds:.1f}",
                f"{seconds / np.exp(spread):.0f}-{seconds * np.exp(spread):.0f}", f"{errors(seconds, known):+.1f}",
                *(f"{value:.1f}" for value in (*shown, parts.get("all_reduce", 0.0))),
                f"node {slowest}, {job.devices[slowest].removeprefix('RTX-')}",
            ]
        )  # fmt: skip
    return {
        "title": "Sailor: unlike GPUs, plan by plan",
        "note": (
            "GPUs of each stage, replicas with a semicolon between them; seconds of the longest chain by part; the "
            "node that waits least. The largest error is one of messages: without its all-reduce a slot of "
            f"{_said(worst)} took {slot_s:.2f} s, about as long as the passes of the slowest stage in the profile "
            f"({worst_pass_s:.2f}), so that its two messages over 1 Gbit/s ({message_s:.2f}) were hidden; those of the "
            f"two pipelines of one replica were not. Nothing public says why. Mean error of the other rows: "
            f"{others:.1f} %. {_choices(jobs, own, measured)}"
        ),
        "commands": [_COMMAND],
        "columns": ["stages", "micro-batches", "s", "cdmpp", "80 %", "%", "passes", "messages", "all-reduce",
                    "awaited"],
        "rows": found,
    }  # fmt: skip


def _choices(jobs: Sequence[UnlikeJob], own: np.ndarray, measured: np.ndarray) -> str:
    """Say on how many clusters the fastest plan was told, and how much slower the chosen ones were."""
    nodes = np.array([job.trained.nodes for job in jobs])
    told, lost = 0, list[float]()
    for count in np.unique(nodes):
        rows = np.flatnonzero(nodes == count)
        chosen, best = rows[own[rows].argmin()], rows[measured[rows].argmin()]
        told += chosen == best
        lost.append(100 * (measured[chosen] / measured[best] - 1))
    clusters = len(lost)
    return (
        f"The fastest plan of as many nodes is told on {told} of {clusters} clusters; the chosen ones are "
        f"{' and '.join(f'{one:.0f}' for one in lost)} % slower than the best."
    )


def _said(job: UnlikeJob) -> str:
    """Say the GPUs of each stage of a plan."""
    return ", then ".join("; ".join(name.removeprefix("RTX-") for name in stage) for stage in job.trained.on)


def _kept(jobs: Sequence[UnlikeJob]) -> dict[str, Any]:
    measured = np.array([job.trained.iteration_s for job in jobs])
    return {
        "title": "Sailor: unlike GPUs, the final test",
        "note": "Rows that nothing above has seen; mean (median) in per cent.",
        "commands": [_COMMAND],
        "columns": ["rows", "seconds"],
        "rows": [[str(len(jobs)), cell(np.array([job.step_s() for job in jobs]), measured)]],
    }


def _factors(equal: Judged) -> tuple[float, float]:
    host, gpu = least_absolute(equal.parts_s[:, :2], equal.parts_s[:, 2], equal.measured_s)
    return float(host), float(gpu)


def _spread(equal: Judged) -> float:
    """Return the error, as a logarithm, that 80 % of the plans on equal GPUs stay within, nothing fitted."""
    off = np.sort(np.abs(np.log(equal.seconds(lambda _: (1.0, 1.0)) / equal.measured_s)))
    return float(off[min(len(off) - 1, int(np.ceil(_LEVEL * (len(off) + 1))) - 1)])


def _bytes(equal: Judged) -> tuple[float, float]:
    columns = np.array([equal.tensors, np.ones(len(equal.jobs))]).T
    share, constant = least_absolute(columns, np.zeros(len(equal.jobs)), equal.measured_bytes)
    return float(share), float(constant)


def _per_node(jobs: Sequence[UnlikeJob], measured: np.ndarray) -> np.ndarray:
    share = np.array([job.trained.global_batch / job.trained.nodes for job in jobs])
    each = measured / share
    return np.array([float(np.median(np.delete(each, place)) * share[place]) for place in range(len(jobs))])


def _alike(measured: np.ndarray) -> np.ndarray:
    logs = np.log(measured)
    return np.array([float(np.exp(np.delete(logs, place).mean())) for place in range(len(measured))])
