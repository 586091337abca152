"""Sailor's public plans: seconds and bytes from measured layers, beside baselines and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plans.sailor_data import (
    GPUS_PER_NODE,
    ITEM_BYTES,
    Trained,
    at_examples,
    links,
    phases,
    profiles,
    trained,
)
from benchmarks.plans.sailor_job import Job
from benchmarks.plans.sailor_judged import Judged
from benchmarks.plans.sailor_phases import OtherRun, factors_of
from benchmarks.plans.sailor_unlike import unlike_tables
from benchmarks.plans.scores import cell, errors, least_absolute, left_out

_COMMAND = "python -m benchmarks.plans sailor --data FOLDER --publish"
_SOURCE = (
    "Megatron-DeepSpeed in float32 on nodes of four GH200, tensor parallel inside each node, pipeline and data "
    "parallel between them; 18 plans without a doubt, 11 of OPT-350 and 7 of GPT-Neo-2.7."
)
OTHERS = "the other 17 plans"
_RATE = 22.93e9
"""Highest bytes a second between two GPUs of unlike nodes that the authors measured."""
_COLUMNS = ["predicted by", "fitted on", "all", "OPT-350", "GPT-Neo-2.7"]


def tables(data: Path) -> list[dict[str, Any]]:
    """Judge plans on the folder ``sailor`` of ``data``."""
    folder = data / "sailor"
    layers, fits, plans = profiles(folder), links(folder), trained(folder)
    jobs = [Job(one, at_examples(layers, one.model, one.tensor), fits) for one in plans]
    open_, kept = ([job for job in jobs if job.trained.is_kept is is_kept] for is_kept in (False, True))
    runs = [OtherRun(one, at_examples(layers, "OPT-350", GPUS_PER_NODE), fits) for one in phases(folder)]
    own = Judged(open_)
    found = [_seconds(own, runs), _bytes(own), _plans(own), *_phases(runs)]
    found += unlike_tables(folder, own)
    return [*found, _kept(own, kept)] if kept else found


def _seconds(own: Judged, runs: Sequence[OtherRun]) -> dict[str, Any]:
    plans, measured, slots = own.plans, own.measured_s, np.array([_slots_s(job) for job in own.jobs])
    again = np.array([one.again_s for one in plans])
    ways = [
        ("examples a GPU and second of the median plan (trivial)", OTHERS, _per_gpu(plans, measured)),
        ("layers, slots of the slowest stage, a ring (notes: 9.7 (6.7))", "nothing", slots),
        ("the same and one factor", OTHERS, _one_factor(slots, measured)),
        ("**cdmpp**", "nothing", own.seconds(lambda i: (1.0, 1.0))),
        ("**cdmpp**, two factors", "phases of another runtime", own.seconds(lambda i: factors_of(runs))),
        ("**cdmpp**, two factors", "plans of the other model", own.seconds(own.factors([one.model for one in plans]))),
        ("**cdmpp**, two factors", OTHERS, own.left_out_s),
        ("the same plan on another day (11 plans)", "", again),
    ]
    note = (
        "The first factor is of time in which a profiled layer waited for its host, the second of all other time of "
        "its passes; links, all-reduce and update have none. Plans of the cluster `mit`, with unlike GPUs in one "
        "job, have tables of their own. Plans on 32 nodes and more are the final test: they are not in the data here."
    )
    return _scores("Sailor: seconds of an iteration", note, plans, measured, ways)


def _bytes(own: Judged) -> dict[str, Any]:
    plans, measured = own.plans, own.measured_bytes
    base = np.array([own.tensors, np.ones(len(plans))]).T
    share, constant = least_absolute(base, np.zeros(len(plans)), measured)
    models = [one.model for one in plans]
    fitted = "three numbers: of a parameter, of an item in flight, of a GPU"
    ways = [
        ("geometric mean (trivial)", OTHERS, _alike(measured)),
        (f"{fitted} (notes: 3.8 (2.2))", OTHERS, own.three_numbers(range(len(plans)))),
        (fitted, "plans of the other model", own.three_numbers(models)),
        ("**cdmpp**, tensors alone", "nothing", own.tensors),
        ("**cdmpp**, a share and bytes of a GPU", "plans of the other model", own.bytes_left(models)),
        ("**cdmpp**, a share and bytes of a GPU", OTHERS, own.left_out_bytes),
        ("the same plan on another day (11 plans)", "", np.array([one.again_bytes for one in plans])),
    ]
    note = (
        f"Fitted to all 18, a GPU holds {share:.2f} times the bytes of tensors, since its allocator keeps blocks, and "
        f"{constant / 1e9:.1f} GB of context and NCCL. GPT-Neo on 8 nodes in 4 stages holds 28.5 GB, and 37.3 on 16 "
        "nodes in the same stages: no cause is known, and it alone is 1.7 of the mean."
    )
    return _scores("Sailor: bytes of the GPU that holds most", note, plans, measured, ways)


def _plans(own: Judged) -> dict[str, Any]:
    off_s, off_bytes = errors(own.left_out_s, own.measured_s), errors(own.left_out_bytes, own.measured_bytes)
    return {
        "title": "Sailor: plan by plan",
        "note": "Predicted by two factors, and by a share and bytes of a GPU, of the other 17 plans.",
        "commands": [_COMMAND],
        "columns": ["plan", "stages x replicas", "micro-batches", "s", "again", "cdmpp", "%", "GB", "cdmpp", "%"],
        "rows": [
            [
                f"{one.model}, {one.nodes} nodes", f"{one.stages} x {one.replicas}",
                f"{one.micro_batches} of {one.micro_batch}", f"{one.iteration_s:.3f}",
                f"{one.again_s:.3f}" if np.isfinite(one.again_s) else "", f"{own.left_out_s[i]:.3f}",
                f"{off_s[i]:+.1f}", f"{one.peak_bytes / 1e9:.1f}", f"{own.left_out_bytes[i] / 1e9:.1f}",
                f"{off_bytes[i]:+.1f}",
            ]
            for i, one in enumerate(own.plans)
        ],
    }  # fmt: skip


def _kept(own: Judged, kept: Sequence[Job]) -> dict[str, Any]:
    """The final test: rows that no published table has, by what all 18 plans say."""
    host, gpu = least_absolute(own.parts_s[:, :2], own.parts_s[:, 2], own.measured_s)
    share, constant = least_absolute(
        np.array([own.tensors, np.ones(len(own.jobs))]).T, np.zeros(len(own.jobs)), own.measured_bytes
    )
    seconds_ = np.array([job.step_s(host, gpu) for job in kept])
    bytes_ = np.array([share * job.held_bytes() + constant for job in kept])
    measured = np.array([[job.trained.iteration_s, job.trained.peak_bytes] for job in kept])
    return {
        "title": "Sailor: the final test",
        "note": "Rows that nothing above has seen, fitted on the 18 plans; mean (median) in per cent.",
        "commands": [_COMMAND],
        "columns": ["rows", "seconds", "bytes"],
        "rows": [[str(len(kept)), cell(seconds_, measured[:, 0]), cell(bytes_, measured[:, 1])]],
    }


def _phases(runs: Sequence[OtherRun]) -> list[dict[str, Any]]:
    def ratio(of: float, by: float) -> str:
        return f"{of / by:.2f}" if np.isfinite(of) and by else ""

    timed = {
        "title": "Sailor: phases of ranks",
        "note": (
            "1,480 rank files of another runtime, Aceso's, of OPT-350 on the same cluster: measured by predicted, "
            "of both passes of all stages, of the all-reduce and the update where one stage has all parameters, "
            "and of the first message. The last columns take the measured passes of each stage: a replay with our "
            "bubble and messages, measured by predicted, and what is missing of each slot. So our terms are off "
            "in this way: passes take 5 to 12 % longer in a run than layer by layer, and 1.5 times as long with 2 "
            "examples on 2 nodes, where hosts are slow; the all-reduce of 4 replicas and more takes 9 to 16 % "
            "longer, that of 2 nearly twice as long; each slot lacks 1 ms without stages, and 1 to 4 ms with "
            "them: stages wait for each other longer than messages take, more on more nodes."
        ),
        "commands": [_COMMAND],
        "columns": ["nodes", "stages x replicas", "micro-batches", "passes", "all-reduce", "update", "first message",
                    "step of measured passes", "missing a slot (ms)"],
        "rows": [
            [
                str(run.phases.nodes), f"{run.phases.stages} x {run.phases.replicas}",
                f"{run.phases.micro_batches} of {run.phases.micro_batch}",
                ratio(run.passes_s, run.parts_s.sum()),
                ratio(run.phases.seconds["backward_params_all_reduce"][0], run.all_reduce_s),
                ratio(run.phases.seconds["optimizer"][0], run.update_s),
                ratio(run.first_send_s, run.message_s),
                ratio(run.step_s, run.replayed_s), f"{1e3 * run.missing_s:.1f}",
            ]
            for run in runs
        ],
    }  # fmt: skip
    held = [(run.phases.held, stage) for run in runs for stage in range(run.phases.stages)]
    context = np.array([each["total_mb"][stage] - each["max_reserved"][stage] for each, stage in held]) / 1e9
    kept = np.array([each["max_reserved"][stage] / each["max_allocated"][stage] for each, stage in held])
    return [
        timed,
        {
            "title": "Sailor: what GPUs hold besides tensors",
            "note": "The same runs: the two parts that are fitted above, measured apart.",
            "commands": [_COMMAND],
            "columns": ["", "least", "median", "most"],
            "rows": [
                [name, *(f"{of(values):.2f}" for of in (np.min, np.median, np.max))]
                for name, values in (
                    ("bytes that the allocator keeps, by those of tensors at their peak", kept),
                    ("GB of the driver without those of the allocator", context),
                )
            ],
        },
    ]


def _scores(
    title: str, note: str, plans: Sequence[Trained], measured: np.ndarray, ways: Sequence[tuple[str, str, np.ndarray]]
) -> dict[str, Any]:
    models = np.array([one.model for one in plans])
    masks = [np.full(len(plans), True), *(models == model for model in _COLUMNS[3:])]
    return {
        "title": title,
        "note": f"Mean (median) of absolute errors in per cent. {_SOURCE} {note}",
        "commands": [_COMMAND],
        "columns": _COLUMNS,
        "rows": [
            [way, fitted, *(_cell(predicted[mask], measured[mask]) for mask in masks)]
            for way, fitted, predicted in ways
        ],
    }


def _per_gpu(plans: Sequence[Trained], measured_s: np.ndarray) -> np.ndarray:
    """Predict that an example takes a GPU as long as in the median of the other plans."""
    share = np.array([one.global_batch / (one.nodes * GPUS_PER_NODE) for one in plans])
    return left_out(range(len(plans)), lambda seen, i: float(np.median((measured_s / share)[seen]) * share[i]))


def _cell(predicted: np.ndarray, measured: np.ndarray) -> str:
    told = np.isfinite(predicted)
    return cell(predicted[told], measured[told]) if told.any() else ""


def _slots_s(job: Job) -> float:
    """Count as many slots as micro-batches and stages but one, each as long as that of the slowest stage."""
    one, layers = job.trained, job.profiles[job.trained.micro_batch]
    ends = np.cumsum(one.layers)
    stages = [layers[end - count : end] for end, count in zip(ends, one.layers, strict=True)]
    slot_s = max(sum(layer.forward_s + layer.backward_s for layer in stage) for stage in stages)
    reduced = max(ITEM_BYTES * sum(layer.parameters for layer in stage) for stage in stages)
    update_s = max(sum(layer.update_s for layer in stage) for stage in stages)
    ring_s = 2 * (one.replicas - 1) / one.replicas * reduced / _RATE
    return (one.micro_batches + one.stages - 1) * slot_s + ring_s + update_s


def _one_factor(predicted: np.ndarray, measured: np.ndarray) -> np.ndarray:
    columns, nothing = predicted[:, None], np.zeros(len(measured))
    return left_out(
        range(len(measured)),
        lambda seen, i: float(predicted[i] * least_absolute(columns[seen], nothing[seen], measured[seen])[0]),
    )


def _alike(measured: np.ndarray) -> np.ndarray:
    return left_out(range(len(measured)), lambda seen, i: float(np.exp(np.log(measured[seen]).mean())))
