"""The closed form of a partition under its schedule: least seconds of a step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cdmpp.partition.chain import Chain
from cdmpp.partition.devices import pair_link
from cdmpp.steps.schedule import Schedule


def closed_form_s(chain: Chain) -> float:
    """Return the least seconds of a step by formula, which no replay in steady state is below.

    With flushes the most of: the way of one micro-batch to the end and back; each stage that runs all of its
    micro-batches, with the way of the first one to it and of the last one back; each direction of each cut with all of
    its messages, and the way before and after them; as many round trips behind a stage as its micro-batches need, of
    which it has so many under way at a time; and what a schedule says by a formula of its own. The first stage then
    updates. Without flushes: the slowest stage; or the round trip of a micro-batch from a stage to the end and back,
    divided among those that the stage has under way.
    """
    problem, costs = chain.problem, chain.costs
    shares = [one.replicas for one in chain.parts]
    messages_s = [sum(_messages_s(chain, place)) for place in range(len(costs) - 1)]
    both_s = [one.forward_s + one.backward_s for one in costs]
    trips_s = [sum(both_s[place:]) + sum(messages_s[place:]) for place in range(len(costs))]
    if not problem.schedule.flushes:
        each = zip(trips_s, costs, shares, strict=True)
        return problem.micro_batches * max(chain.slowest_s, *(trip_s / (one.live * many) for trip_s, one, many in each))
    least_s = max(_flushed(chain, both_s, messages_s, trips_s))
    if type(problem.schedule).passes_s is not Schedule.passes_s:
        forward_s, backward_s = (
            np.array([[getattr(cost, name) / share for cost, share in zip(costs, shares, strict=True)]])
            for name in ("forward_s", "backward_s")
        )
        exact_s = float(problem.schedule.passes_s(forward_s, backward_s, np.array([problem.micro_batches]))[0])
        least_s = max(least_s, exact_s + (sum(messages_s) if set(shares) == {1} else 0.0))
    return least_s + costs[0].update_s


def _flushed(chain: Chain, both_s: list[float], messages_s: list[float], trips_s: list[float]) -> Iterator[float]:
    """Bounds of a step that ends with a flush, without the update of the first stage."""
    problem, costs = chain.problem, chain.costs
    yield trips_s[0]
    for place, (cost, part) in enumerate(zip(costs, chain.parts, strict=True)):
        before_s, each = trips_s[0] - trips_s[place], -(-problem.micro_batches // part.replicas)
        yield before_s + each * both_s[place]
        yield before_s + -(-each // cost.live) * trips_s[place]
        if not problem.overlap:  # both ends of a message do nothing else: it belongs to the seconds of each micro-batch
            beside = messages_s[max(place - 1, 0) : place + 1]
            front_s = messages_s[place - 1] if place else 0.0
            yield before_s - front_s + each * (both_s[place] + sum(beside))
    for place in range(len(messages_s)):
        if chain.parts[place].replicas == chain.parts[place + 1].replicas == 1:
            for seconds in _messages_s(chain, place):
                yield trips_s[0] + (problem.micro_batches - 1) * seconds


def _messages_s(chain: Chain, place: int) -> tuple[float, float]:
    """Seconds of the messages of a micro-batch over a cut: there, and back."""
    pair, cost = pair_link(chain.link(place), chain.link(place + 1)), chain.costs[place]
    there, back = (
        many * pair.alpha_s + size * pair.beta_s for many, size in zip(cost.messages, cost.message_bytes, strict=True)
    )
    return there, back
