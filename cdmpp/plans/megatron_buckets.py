"""Megatron buckets: when its distributed optimizer exchanges what, where that overlaps with computing.

As Megatron-core's ``param_and_grad_buffer.py`` says (read, not recorded).
"""

from __future__ import annotations

from collections.abc import Sequence

from cdmpp.errors import CdmppError
from cdmpp.steps.exchange import START, Exchange
from cdmpp.steps.step_graph import Gradient, StepGraph

_LEAST, _EACH = 40_000_000, 1_000_000


def megatron_buckets(gradients: Sequence[Gradient], ranks: int) -> list[list[Gradient]]:
    """Return buckets of parameters, the last of the model first: one is closed once it has so many elements.

    So many are 40 million, or a million for each of ``ranks`` if that is more.
    """
    found, filled = list[list[Gradient]](), 0
    for one in reversed(gradients):
        if not found or filled >= max(_LEAST, _EACH * ranks):
            found.append([])
            filled = 0
        found[-1].append(one)
        filled += one.bytes // (2 if one.dtype in ("bfloat16", "float16") else 4)
    return found


def megatron_exchanges(
    graph: StepGraph, ranks: int, gathered_share: float, gathers_ahead: bool, shift: int
) -> list[Exchange]:
    """List a reduce-scatter for each bucket, once its gradients are there; with ``gathers_ahead`` an all-gather too.

    The first all-gather leaves as the step begins, each later one where a module first reads the bucket before, which
    waits for its own.

    Args:
        graph: ranks that do the same.
        ranks: that share the parameters.
        gathered_share: bytes of a parameter that is gathered by those of its gradient.
        gathers_ahead: True if parameters are gathered while the next forward pass runs.
        shift: the first forward pass of the step stands so many places before the one that ``readers`` name.

    Raises:
        CdmppError: nobody knows which ops read a parameter.
    """
    found, firsts = list[Exchange](), list[dict[int, int]]()
    buckets = megatron_buckets([one for one in graph.ranks[0].gradients if one.is_used], ranks)
    each = [{one.name: one for one in rank.gradients} for rank in graph.ranks]
    places = [rank.rank for rank in graph.ranks]
    for number, bucket in enumerate(buckets):
        size, names = sum(one.bytes for one in bucket), [one.name for one in bucket]
        ready = (max(own[name].ready_after for name in names) for own in each)
        found.append(Exchange("reduce_scatter", size, dict(zip(places, ready, strict=True)), name=f"bucket {number}"))
    if not gathers_ahead:
        return found
    ahead = list[Exchange]()
    for bucket in reversed(buckets):
        read = [[place for one in bucket for place in own[one.name].readers] for own in each]
        if not all(read):
            raise CdmppError("zero.overlap_param_gather: nothing says which ops read the parameters; leave it out")
        first = {place: min(own) - shift for place, own in zip(places, read, strict=True)}
        after = {place: begin - 1 for place, begin in firsts[-1].items()} if firsts else dict.fromkeys(places, START)
        size = round(gathered_share * sum(one.bytes for one in bucket))
        name = f"parameters of bucket {len(buckets) - 1 - len(firsts)}"
        ahead.append(Exchange("all_gather", size, after, {place: (own,) for place, own in first.items()}, name))
        firsts.append(first)
    return [*ahead, *found]
