"""The closed form of a partition under its schedule: least seconds of a step."""

from __future__ import annotations

import numpy as np

from cdmpp.partition.chain import Chain
from cdmpp.partition.devices import pair_link
from cdmpp.steps.schedule import Schedule


def closed_form_s(chain: Chain) -> float:
    """Return the least seconds of a step by formula, which no replay in steady state is below.

    With flushes: the slowest stage runs all micro-batches between the way of the first one to it and that of the last
    one back; or what a schedule says by a formula of its own, which is exact but for messages. The first stage then
    updates. Without flushes: the slowest stage; or the round trip of a micro-batch from a stage to the end and back,
    divided among those that the stage has under way.
    """
    problem, costs = chain.problem, chain.costs
    shares = [one.replicas for one in chain.parts]
    messages_s = [_messages_s(chain, place) for place in range(len(costs) - 1)]
    both_s = [one.forward_s + one.backward_s for one in costs]
    if not problem.schedule.flushes:
        least_s = chain.slowest_s
        for place, cost in enumerate(costs):
            trip_s = sum(both_s[place:]) + sum(messages_s[place:])
            least_s = max(least_s, trip_s / (cost.live * shares[place]))
        return problem.micro_batches * least_s
    many = problem.micro_batches
    least_s = sum(both_s) + sum(messages_s)
    for place, (own_s, share) in enumerate(zip(both_s, shares, strict=True)):
        before_s = sum(both_s[:place]) + sum(messages_s[:place])
        least_s = max(least_s, before_s + -(-many // share) * own_s)
    if type(problem.schedule).passes_s is not Schedule.passes_s:
        forward_s, backward_s = (
            np.array([[getattr(cost, name) / share for cost, share in zip(costs, shares, strict=True)]])
            for name in ("forward_s", "backward_s")
        )
        exact_s = float(problem.schedule.passes_s(forward_s, backward_s, np.array([many]))[0])
        trips = many if all(one.live == 1 for one in costs) else 1
        least_s = max(least_s, exact_s + (trips * sum(messages_s) if set(shares) == {1} else 0.0))
    return least_s + costs[0].update_s


def _messages_s(chain: Chain, place: int) -> float:
    """Seconds of the messages of a micro-batch over a cut, there and back."""
    pair, cost = pair_link(chain.link(place), chain.link(place + 1)), chain.costs[place]
    pairs = zip(cost.messages, cost.message_bytes, strict=True)
    return sum(many * pair.alpha_s + size * pair.beta_s for many, size in pairs)
