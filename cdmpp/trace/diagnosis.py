"""Diagnosis: what makes a step of a traced job long, in seconds that would go without each cause."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from cdmpp.steps.keys import TaskKey
from cdmpp.steps.replay import Replay, replay
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.transforms.gaps import without_gaps
from cdmpp.steps.transforms.links import scale_latency, without_wire_time
from cdmpp.steps.transforms.straggler import straggler, without_straggler
from cdmpp.trace.exchange_events import unknown
from cdmpp.trace.rank_trace import HOST

_SHOWN = 5


@dataclass(frozen=True)
class Cause:
    """A step is long for this reason. Causes overlap: what one takes away, another may not take again."""

    name: str
    seconds: float
    """Seconds by which a step would be shorter without it."""
    advice: str
    spans: tuple[str, ...]
    """Spans of the timeline that show it, longest first."""


def diagnose(graph: StepGraph) -> tuple[Cause, ...]:
    """Find causes, longest first; each replayed without it. Those of less than a thousandth of a step are left out."""
    base = replay(graph)
    slow, hidden = straggler(graph), unknown(graph.exchanges)
    tries: list[tuple[str, Callable[[StepGraph], StepGraph], str, Callable[[Replay], list[str]]]] = [
        (
            "exposed communication",
            without_wire_time,
            f"a faster link, {'' if hidden else 'larger buckets, '}or more to compute a step",
            _waits,
        ),
        (
            "small messages",
            lambda one: scale_latency(one, 0.0),
            "larger buckets: each message has a fixed cost",
            _small,
        ),
        ("idle gaps", without_gaps, "the host is slow to launch: fuse operators, load data ahead", _delays),
    ]
    if hidden:  # without bytes nobody knows which messages are small
        tries = [one for one in tries if one[0] != "small messages"]
    if slow is not None:
        advice = f"rank {slow} computes longest: look at its machine, or give it less"
        tries.append((f"straggler rank {slow}", without_straggler, advice, lambda base: _slower(base, slow)))
    if servers := servers_of(graph):
        tries.append(
            ("server queue", lambda one: _idle_servers(one, servers), "more servers, or smaller parts", _queue)
        )
    found = []
    for name, change, advice, show in tries:
        saved_s = base.step_s - replay(change(graph)).step_s
        if saved_s > 1e-3 * base.step_s:
            found.append(Cause(name, saved_s, advice, tuple(show(base)[:_SHOWN])))
    return tuple(sorted(found, key=lambda cause: -cause.seconds))


def servers_of(graph: StepGraph) -> tuple[int, ...]:
    """List ranks that have no gradients of their own and get messages from others that have."""
    bare = {rank.rank for rank in graph.ranks if not rank.gradients}
    given = {one.peers[1] for one in graph.exchanges if one.peers is not None}
    return tuple(sorted(bare & given)) if len(bare) < len(graph.ranks) else ()


def short(name: str) -> str:
    """Return a kernel's name without namespaces, template arguments and parameters."""
    if not name.startswith("void ") and "<" not in name:
        return name
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.split("[<(]", plain, maxsplit=1)[0].rpartition("::")[2] or name


def _idle_servers(graph: StepGraph, servers: tuple[int, ...]) -> StepGraph:
    """Servers that compute nothing and take messages as they come."""
    ranks = tuple(
        replace(rank, tail_s=0.0, ops=tuple(replace(op, duration_s=0.0, delay_s=0.0) for op in rank.ops))
        if rank.rank in servers
        else rank
        for rank in graph.ranks
    )
    return replace(graph, ranks=ranks)


def _longest(spans: list[tuple[float, str]]) -> list[str]:
    return [text for _, text in sorted(spans, key=lambda pair: -pair[0])]


def _say(seconds: float, what: str) -> tuple[float, str]:
    return seconds, f"{1e3 * seconds:.3f} ms {what}"


def _exchange_text(base: Replay, place: int) -> str:
    one = base.graph.exchanges[place]
    peers = "" if one.peers is None else f", {one.group}"
    size = f"{one.bytes / 1e6:.4g} MB" if one.bytes else "unknown bytes"
    return f"exchange {place} ({one.kind}, {size}{peers})"


def _waits(base: Replay) -> list[str]:
    """Ops that waited for an exchange."""
    spans, found = base.timeline.spans, []
    for key, span in base.spans.items():
        cause = span.cause
        if isinstance(cause, TaskKey) and cause.is_of_exchange and not key.is_of_exchange:
            own = (one for one in span.task.after if isinstance(one, TaskKey) and not one.is_of_exchange)
            before_s = max((spans[one].end_s for one in own), default=0.0)
            what = f"rank{key.rank} waits for {_exchange_text(base, cause.place)}"
            found.append(_say(span.start_s - before_s, what))
    return _longest(found)


def _small(base: Replay) -> list[str]:
    """Exchanges, those of the fewest bytes first."""
    spans = [(key.place, span.end_s - span.start_s) for key, span in base.spans.items() if key.kind == "exchange"]
    spans.sort(key=lambda pair: base.graph.exchanges[pair[0]].bytes)
    return [_say(seconds, _exchange_text(base, place))[1] for place, seconds in spans]


def _delays(base: Replay) -> list[str]:
    found = []
    for key, span in base.spans.items():
        if key.kind == "delay":
            ops = base.graph.ranks[key.rank].ops[key.place :]
            op = next((one for one in ops if one.stream != HOST), ops[0])  # a launch is named by what it starts
            found.append(_say(span.end_s - span.start_s, f"rank{key.rank} before op {key.place}, {short(op.name)}"))
    return _longest(found)


def _slower(base: Replay, slow: int) -> list[str]:
    fast = without_straggler(base.graph).ranks[slow]
    pairs = zip(base.graph.ranks[slow].ops, fast.ops, strict=True)
    return _longest(
        [
            _say(mine.duration_s - its.duration_s, f"longer: op {place}, {short(mine.name)}")
            for place, (mine, its) in enumerate(pairs)
            if mine.duration_s > its.duration_s
        ]
    )


def _queue(base: Replay) -> list[str]:
    found = []
    for number in servers_of(base.graph):
        for place, op in enumerate(base.graph.ranks[number].ops):
            found.append(_say(op.duration_s + op.delay_s, f"server rank {number}, op {place}, {short(op.name)}"))
    return _longest(found)
