"""Hypothetical changes: a traced step with settings changed, as words of the command line say it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cdmpp.collectives.collective import MOST_RANKS
from cdmpp.errors import CdmppError
from cdmpp.platform.limits import Limits, numbers
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.transforms.links import scale_bandwidth, scale_latency
from cdmpp.steps.transforms.rebucket import rebucket
from cdmpp.steps.transforms.scale import scale_kernel, scale_ranks
from cdmpp.steps.transforms.straggler import straggler, without_straggler
from cdmpp.trace.exchange_events import unknown

_FACTOR = numbers(1e-6, 10**6, "times what it was")
_OF_BYTES = ("bandwidth", "latency", "bucket_mb", "ranks")
_LIMITS = {
    "ranks": Limits(2, MOST_RANKS, "ranks"),
    "bucket_mb": numbers(0, 10**6, "MiB", above=True),
    "latency": numbers(0, 10**6, "times what it was"),
    "link_gbps": numbers(0, 10**6, "Gbit/s", above=True),
}


def changed(graph: StepGraph, settings: Mapping[str, str]) -> StepGraph:
    """Change the step by ``{"bandwidth": "0.5", "bucket_mb": "1"}``, in order; ``CdmppError`` names what may be set.

    ``link_gbps`` says what the traced links carry, for ``bandwidth``.
    """
    link_gbps = _number("link_gbps", settings["link_gbps"]) if "link_gbps" in settings else None
    if link_gbps is not None and "bandwidth" not in settings:
        raise CdmppError("--what-if link_gbps: it says what the traced links carry, for bandwidth=FACTOR")
    settings = {key: text for key, text in settings.items() if key != "link_gbps"}
    makers: dict[str, Callable[[StepGraph, str], StepGraph]] = {
        "ranks": lambda graph, text: scale_ranks(graph, _number("ranks", text)),
        "bucket_mb": lambda graph, text: rebucket(graph, round(2**20 * _number("bucket_mb", text))),
        "bandwidth": lambda graph, text: scale_bandwidth(graph, _number("bandwidth", text), link_gbps),
        "latency": lambda graph, text: scale_latency(graph, _number("latency", text)),
        "straggler": _without_straggler,
    }
    if not graph.exchanges and (asked := [key for key in makers if key in settings]):
        raise CdmppError(
            f"--what-if {asked[0]}: the traced steps hold no exchange between ranks, so nothing says what it changes"
        )
    hidden = unknown(graph.exchanges)
    if hidden and len(hidden) == len(graph.exchanges) and (asked := [key for key in _OF_BYTES if key in settings]):
        raise CdmppError(
            f"--what-if {asked[0]}: the trace does not say how many bytes any of its {len(hidden):,} exchanges carry; "
            "record with record_shapes=True, or with a PyTorch that writes them into its traces"
        )
    for key, text in settings.items():
        if key.startswith("kernel:") and key.removeprefix("kernel:").strip():
            graph = scale_kernel(graph, key.partition(":")[2], _number(key, text))
        elif key not in makers:
            raise CdmppError(f"--what-if {key}: expected {', '.join(makers)}, link_gbps or kernel:NAME")
    for key, maker in makers.items():
        if key in settings:
            graph = maker(graph, settings[key])
    return graph


def doubts(graph: StepGraph, settings: Mapping[str, str]) -> list[str]:
    """Say what an answer cannot tell: exchanges of unknown bytes stay as they are."""
    hidden = unknown(graph.exchanges)
    if not hidden or not any(key in settings for key in _OF_BYTES):
        return []
    took_s = sum(one.measured_s for one in hidden)
    return [
        f"the bytes of {len(hidden):,} of {len(graph.exchanges):,} exchanges ({1e3 * took_s:.4g} ms a step) are "
        "unknown: the what-if leaves those as they are"
    ]


def _number(key: str, text: str) -> Any:
    limits = _LIMITS.get(key, _FACTOR)
    try:
        return limits.fitting(key, float(text) if not limits.whole else int(text))
    except ValueError:
        raise CdmppError(f"--what-if {key}={text}: expected {limits}") from None


def _without_straggler(graph: StepGraph, text: str) -> StepGraph:
    if text not in ("no", "none", "0"):
        raise CdmppError(f"--what-if straggler={text}: expected no")
    if straggler(graph) is None:
        raise CdmppError(f"--what-if straggler={text}: no two of the {len(graph.ranks)} ranks do the same")
    return without_straggler(graph)
