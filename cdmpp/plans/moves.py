"""Moves: what may be changed in a plan, and which part of the longest chain that may shorten."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cdmpp.plans.judge import Choices
from cdmpp.plans.plan import DEFAULT_BUCKETS, Plan

_LEAST_BYTES, _MOST_BYTES = 2**18, 2**30


@dataclass(frozen=True)
class Move:
    """One kind of change, with all plans that it may lead to."""

    name: str
    cause: str
    """As in ``judge.CAUSES``: a move is not tried where that is nothing on the longest chain."""
    plans: tuple[Plan, ...]


def moves(plan: Plan, choices: Choices, most_micro_steps: int = 1) -> Iterator[Move]:
    """From ``plan``; those without another plan are left out."""
    for name, cause, found in _all(plan, choices, most_micro_steps):
        others = tuple(dict.fromkeys(other for other in found if other != plan))
        if others:
            yield Move(name, cause, others)


def sizes(gradient_bytes: int) -> tuple[int, ...]:
    """Powers of two from 256 KiB up to the first that holds all gradients."""
    found = [_LEAST_BYTES]
    while found[-1] < min(gradient_bytes, _MOST_BYTES):
        found.append(2 * found[-1])
    return tuple(found)


def _all(plan: Plan, choices: Choices, most_micro_steps: int) -> Iterator[tuple[str, str, list[Plan]]]:
    ladder = sizes(choices.gradient_bytes)[::-1]  # of sizes that make the same buckets the largest is taken
    if choices.ranks > 1 and plan.scheme == "ddp":
        caps = [DEFAULT_BUCKETS, *((size,) for size in ladder)]
        yield "bucket size", "communication", [replace(plan, bucket_bytes=cap) for cap in caps]
        last = plan.bucket_bytes[-1]
        firsts = [replace(plan, bucket_bytes=(first, last)) for first in ladder if first != last]
        yield "first bucket", "communication", firsts
        first = plan.bucket_bytes[0]
        rests = [replace(plan, bucket_bytes=(first, rest)) for rest in ladder if rest != first]
        yield "later buckets", "communication", rests
    if choices.ranks > 1 and plan.scheme == "ps":
        yield "partition", "communication", [replace(plan, part_bytes=size) for size in ladder]
        servers = (None, *range(1, choices.ranks))  # None: one a rank
        yield "servers", "communication", [replace(plan, servers=count) for count in servers]
    if choices.ranks > 1 and plan.scheme == "fsdp":
        yield "gathered once", "communication", [replace(plan, reshard=not plan.reshard)]
    if choices.fused_update:
        yield "fused update", "host", [replace(plan, fused_update=True)]
    if choices.bucket_view == "compute":
        yield "bucket view", "compute", [replace(plan, bucket_view=True)]
    if choices.micro_steps:
        counts = [2**power for power in range(most_micro_steps.bit_length()) if 2**power <= most_micro_steps]
        yield "micro-steps", "communication", [replace(plan, micro_steps=count) for count in counts]


def leaner(plan: Plan, choices: Choices) -> Iterator[tuple[str, Plan]]:
    """Plans that may hold less: one setting otherwise, each by name."""
    if choices.bucket_view and not plan.bucket_view and choices.ranks > 1:
        yield "bucket view", replace(plan, bucket_view=True)
    if not plan.reshard:
        yield "gathered again", replace(plan, reshard=True)
    if plan.micro_steps > 1:
        yield "one batch a step", replace(plan, micro_steps=1)
    for name in choices.units:
        if name not in plan.recomputed:
            yield f"recompute {name}", replace(plan, recomputed=with_unit(plan.recomputed, name, choices))


def with_unit(recomputed: tuple[str, ...], name: str, choices: Choices) -> tuple[str, ...]:
    """One more, in the order of the model."""
    return tuple(unit for unit in choices.units if unit in recomputed or unit == name)
