"""Spans of a replay as a reader sees them: the streams of each rank, titles, times since the start of the step."""

from __future__ import annotations

from cdmpp.steps.keys import Stream, TaskKey
from cdmpp.steps.replay import Replay
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.step_replay import RankSpan


def rank_spans(made: Replay) -> tuple[RankSpan, ...]:
    """List the tasks on each stream in the reported step, with times since its start."""
    critical, start_s = {span.task.key for span in made.critical_path}, made.window_s[0]
    return tuple(
        RankSpan(
            stream.rank, stream.name, title(made.graph, key), span.task.label, span.start_s - start_s,
            span.end_s - start_s, span.task.gap_s, key in critical,
        )
        for key, span in made.spans.items()
        if key.kind != "end" or span.end_s > span.start_s
        for stream in span.task.resources
        if isinstance(stream, Stream)
    )  # fmt: skip


def title(graph: StepGraph, key: TaskKey) -> str:
    """Return the title of a task, for a reader."""
    if key.is_of_exchange:
        exchange = graph.exchanges[key.place].title
        return exchange if key.kind == "exchange" else f"{exchange} {key.kind}"
    if key.kind in ("start", "end"):
        return key.kind
    name = graph.ranks[key.rank].ops[key.place].name
    return f"delay of {name}" if key.kind == "delay" else name
