"""The phase of a training step to which each call belongs, and what crosses from one to the next."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from cdmpp.network.graph import NetworkGraph
from cdmpp.network.liveness import peak_of


def phases_of(graph: NetworkGraph, kept: Iterable[int], gradients: Iterable[int]) -> tuple[str, ...]:
    """Return the phase of each call.

    A call belongs to the first phase whose results need it: forward where the loss or a new buffer (``kept``: the
    places of their calls) depends on it, backward where a gradient does, else update. A fused kernel has the phase of
    its result. That is the phase of all its operators: one is fused only with what all its readers lead through, so
    whatever result needs the one needs the other, and results of the step stay outside.
    """
    forward = _before(graph, kept)
    backward = _before(graph, gradients) - forward
    places = range(len(graph.calls))
    return tuple("forward" if i in forward else "backward" if i in backward else "update" for i in places)


def saved_places(graph: NetworkGraph, phases: Sequence[str], inputs: Iterable[int | None] = ()) -> set[int]:
    """Return the calls whose results live from the forward into the backward pass, without parameters and inputs.

    Args:
        graph: calls of the whole step.
        phases: phase of each call.
        inputs: numbers, as in ``Call.resident``, of examples and targets, where calls make copies of weights that
            autograd has as views, as programs of TVM do. Results that come only from weights are then not among them.
    """
    given = set(inputs)
    varies = list[bool]()
    for call in graph.calls:
        reads = any(number in given for number, _ in call.resident)
        varies.append(not given or reads or any(varies[place] for place in call.inputs))
    backward = [call for call, phase in zip(graph.calls, phases, strict=True) if phase == "backward"]
    return {place for call in backward for place in call.inputs if phases[place] == "forward" and varies[place]}


def saved_bytes(graph: NetworkGraph, phases: Sequence[str], inputs: Iterable[int | None] = ()) -> int:
    """Sum the bytes of ``saved_places``, which takes the same arguments."""
    saved = saved_places(graph, phases, inputs)
    sizes = ((graph.calls[place].saved_bytes, graph.calls[place].output_bytes) for place in saved)
    return sum(whole if part is None else part for part, whole in sizes)


def live_bytes(
    graph: NetworkGraph, phases: Sequence[str], gradients: Iterable[int], recomputed: Collection[int] = ()
) -> int:
    """Return the most bytes of results alive while calls run in order; gradients live to the end.

    An update writes in place: its results are the parameters and states that are there already. Calls ``recomputed``
    are of the backward pass, but run one of the forward pass again.
    """
    return peak_of(graph.calls, runs_of_passes(phases, recomputed), tuple(gradients))


def runs_of_passes(phases: Sequence[str], recomputed: Collection[int] = ()) -> list[tuple[int, bool]]:
    """Return the runs of both passes, as ``Lifetimes.of`` takes them; arguments as of ``live_bytes``."""
    return [
        (place, phase == "backward" and place not in recomputed)
        for place, phase in enumerate(phases)
        if phase != "update"
    ]


def _before(graph: NetworkGraph, ends: Iterable[int]) -> set[int]:
    """Places of ``ends`` and of all calls that they depend on."""
    found, waiting = set[int](), list(ends)
    while waiting:
        place = waiting.pop()
        if place not in found:
            found.add(place)
            waiting += graph.calls[place].inputs
    return found
