"""A traced job as JSON: a few kilobytes in place of megabytes of traces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdmpp.errors import DataError
from cdmpp.trace.job import JobExchange, JobGradient, JobOp, JobRank, TracedJob

VERSION = 1


def job_to_dict(job: TracedJob) -> dict[str, Any]:
    """Lists by field; times in microseconds with three decimals, names once. Of a job as it was traced."""
    names = sorted({op.name for rank in job.ranks for op in rank.ops})
    number = {name: place for place, name in enumerate(names)}
    return {
        "version": VERSION,
        "names": names,
        "ranks": [
            {
                "rank": rank.rank,
                "ops": [
                    [number[op.name], op.phase[0], _us(op.duration_s), _us(op.gap_s), list(op.waits), _us(op.spread_s)]
                    + ([list(op.held_by)] if op.held_by else [])
                    for op in rank.ops
                ],
                "gradients": [[one.bytes, one.after] for one in rank.gradients],
                "tail": _us(rank.tail_s),
            }
            for rank in job.ranks
        ],
        "exchanges": [
            {
                "kind": one.kind,
                "bytes": one.bytes,
                "group": one.group,
                "wire": _us(one.wire_s),
                "spread": _us(one.spread_s),
                "on": [[rank, one.after[rank], _us(one.lag_s[rank])] for rank in one.ranks],
            }
            for one in job.exchanges
        ],
        "steps": [_us(seconds) for seconds in job.steps_s],
        "backend": job.backend,
        "workers": job.workers,
        "probed": [[kind, n_bytes, _us(seconds)] for kind, n_bytes, seconds in job.probed],
        "processor_share": round(job.processor_share, 4),
        "waits": [[rank, _us(seconds)] for rank, seconds in sorted((job.waits_s or {}).items())],
        "unprofiled": None if job.unprofiled_s is None else _us(job.unprofiled_s),
    }


def job_from_dict(told: Mapping[str, Any]) -> TracedJob:
    """The inverse; ``DataError`` for anything else."""
    if told.get("version") != VERSION:
        raise DataError(f"a traced job of version {told.get('version')!r}: expected {VERSION}; read its traces again")
    phases = {"f": "forward", "b": "backward", "u": "update"}
    names = told["names"]
    ranks = tuple(
        JobRank(
            rank["rank"],
            tuple(
                JobOp(
                    names[name],
                    phases[phase],
                    1e-6 * took,
                    1e-6 * gap,
                    tuple(waits),
                    1e-6 * spread,
                    tuple(held[0]) if held else (),
                )
                for name, phase, took, gap, waits, spread, *held in rank["ops"]
            ),
            tuple(JobGradient(n_bytes, after) for n_bytes, after in rank["gradients"]),
            1e-6 * rank["tail"],
        )
        for rank in told["ranks"]
    )
    exchanges = tuple(
        JobExchange(
            one["kind"],
            one["bytes"],
            {rank: after for rank, after, _ in one["on"]},
            1e-6 * one["wire"],
            {rank: 1e-6 * lag for rank, _, lag in one["on"]},
            one["group"],
            1e-6 * one["spread"],
        )
        for one in told["exchanges"]
    )
    return TracedJob(
        ranks,
        exchanges,
        tuple(1e-6 * step for step in told["steps"]),
        told["backend"],
        told["workers"],
        tuple((kind, n_bytes, 1e-6 * took) for kind, n_bytes, took in told["probed"]),
        told.get("processor_share", 0.0),
        False,
        {rank: 1e-6 * took for rank, took in told["waits"]},
        None if told["unprofiled"] is None else 1e-6 * told["unprofiled"],
    )


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 3)
