"""The readable reference of the planner: every chain of sets of layers on every order of devices, one by one."""

from __future__ import annotations

import itertools
import math

import numpy as np

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.partition.devices import HostCosts, StageDevice
from cdmpp.partition.graph import Layer, Parameter, PartitionGraph
from cdmpp.partition.problem import PartitionProblem
from cdmpp.plans.schedules import SCHEDULES


def random_problem(seed: int, most_devices: int = 4, schedule: str | None = None, **settings) -> PartitionProblem:
    """A graph of 3 to 6 layers, devices that may differ in speed, memory and link, sometimes a tied parameter."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(3, 7))
    layers = []
    for place in range(count):
        several = int(draw.integers(1, 3))
        inputs = sorted(set(draw.integers(0, place, several).tolist())) if place and draw.random() < 0.9 else []
        layers.append(
            Layer(
                f"layer {place}", tuple(inputs), int(draw.integers(0, 40)), bool(draw.random() < 0.8),
                int(draw.integers(0, 30)), int(draw.integers(0, 20)),
            )
        )  # fmt: skip
    parameters = [Parameter(f"weight {place}", int(draw.integers(1, 30)), (place,)) for place in range(count)]
    if draw.random() < 0.4:
        pair = tuple(sorted(draw.choice(count, 2, replace=False).tolist()))
        parameters.append(Parameter("tied", int(draw.integers(1, 30)), pair))
    graph = PartitionGraph(tuple(layers), tuple(parameters), int(draw.integers(0, 20)))
    base, kinds = draw.random((2, count)), int(draw.integers(1, 4))
    made = []
    for number in range(kinds):
        speed = draw.uniform(0.5, 2, count) if draw.random() < 0.5 else draw.uniform(0.5, 2)
        link = AlphaBeta(float(draw.uniform(0, 0.1)), float(draw.uniform(0, 0.02)))
        memory = float(draw.integers(150, 600)) if draw.random() < 0.6 else math.inf
        copies = float(draw.uniform(50, 500))
        host = HostCosts(*(draw.uniform(0, 0.1, 4) if draw.random() < 0.5 else np.zeros(4)).tolist())
        made.append(StageDevice(f"kind {number}", base[0] / speed, base[1] / speed, link, 0.1, memory, copies, host))
    names = [one.name for one in SCHEDULES]
    chosen = SCHEDULES[schedule or names[int(draw.integers(len(names)))]]()
    devices = tuple(made[int(draw.integers(kinds))] for _ in range(int(draw.integers(2, most_devices + 1))))
    own = {
        "micro_batches": int(draw.integers(1, 5)), "overlap": bool(draw.random() < 0.5),
        "recompute": bool(draw.random() < 0.3), "replicas": bool(draw.random() < 0.25), **settings,
    }  # fmt: skip
    if not own["replicas"]:
        devices = devices[:count]
    return PartitionProblem(graph, devices, chosen, **own)


def best_s(problem: PartitionProblem) -> float:
    """Seconds of the slowest stage of the best chain that fits; infinite where none does."""
    return min((slowest for slowest, missing in _every(problem) if not missing), default=math.inf)


def least_missing(problem: PartitionProblem) -> float:
    """Fewest bytes by which some chain exceeds a device."""
    return min(missing for _, missing in _every(problem))


def _every(problem):
    count = problem.graph.count
    sets = [
        frozenset(own)
        for size in range(count + 1)
        for own in itertools.combinations(range(count), size)
        if all(set(problem.graph.layers[one].inputs) <= set(own) for one in own)
    ]
    whole, known = frozenset(range(count)), {}
    for stages in range(1, len(problem.devices) + 1):
        shares = _shares(problem, stages)
        for between in _chains(sets, stages - 1):
            ends = (frozenset(), *between, whole)
            for kinds, many in shares:
                slowest, missing = 0.0, 0.0
                for at in range(stages):
                    after = sum(many[at + 1 :])
                    key = (
                        ends[at], ends[at + 1], kinds[at], kinds[max(at - 1, 0)], kinds[min(at + 1, stages - 1)],
                        after, many[at],
                    )  # fmt: skip
                    if key not in known:
                        known[key] = stage(problem, *key)
                    seconds, over = known[key]
                    slowest, missing = max(slowest, seconds), max(missing, over)
                yield slowest, missing


def _chains(sets, length, after=None):
    if not length:
        yield ()
        return
    for own in sets:
        if own and len(own) < max(map(len, sets)) and (after is None or after < own):
            for rest in _chains(sets, length - 1, own):
                yield (own, *rest)


def _shares(problem, stages):
    """Kinds of devices of the stages, and how many each has."""
    found = []
    most = max(problem.counts) if problem.replicas else 1
    for kinds in itertools.product(range(len(problem.kinds)), repeat=stages):
        for many in itertools.product(range(1, most + 1), repeat=stages):
            used = [sum(m for k, m in zip(kinds, many, strict=True) if k == kind) for kind in range(len(problem.kinds))]
            if all(one <= there for one, there in zip(used, problem.counts, strict=True)):
                found.append((kinds, many))
    return found


def stage(problem, begin, end, kind, before, after, devices_after, many):
    """Seconds of one stage with exposed messages, and the bytes by which it exceeds its device."""
    graph, device, own = problem.graph, problem.kinds[kind], end - begin
    forward_s = sum(device.forward_s[one] for one in own)
    backward_s = sum(device.backward_s[one] for one in own) + (forward_s if problem.recompute else 0.0)
    held, shared = 0, 0.0
    far = 2 * device.link.alpha_s
    for one in graph.parameters:
        if set(one.readers) & own:
            held += one.bytes
            if not set(one.readers) <= own:
                shared += 2 * (far + one.bytes * device.link.beta_s)
    update_s = device.update_s * held / graph.parameter_bytes + shared + device.host.update_s
    layers_s = backward_s
    forward_s, backward_s = forward_s + device.host.pass_s, backward_s + device.host.pass_s
    if problem.overlap:
        for crossed, forth_s, back_s in (
            (begin, device.host.receive_s, device.host.send_s),
            (end, device.host.send_s, device.host.receive_s),
        ):
            forward_s += forth_s * _messages(graph, crossed, False)
            backward_s += back_s * _messages(graph, crossed, True)
    if many > 1 and held:
        sums_s = 2 * (many - 1) * (far + held / many * device.link.beta_s)
        update_s += max(0.0, sums_s - layers_s) if problem.overlap else sums_s
    rate = 1 / many if problem.schedule.updates_each else 1 / problem.micro_batches
    has_two = problem.schedule.passes_side_by_side
    forward_s = forward_s / many + (rate * held / device.copy_bytes_per_s if has_two else 0.0)
    backward_s = backward_s / many + rate * update_s

    def message(crossed, other, is_backward):
        sizes, messages = _sizes(graph, crossed, is_backward), _messages(graph, crossed, is_backward)
        link = problem.kinds[other].link
        alpha_s, beta_s = link.alpha_s + device.link.alpha_s, max(link.beta_s, device.link.beta_s)
        return messages * alpha_s + sum(sizes) * beta_s

    seconds = [message(begin, before, False), message(end, after, False), message(begin, before, True),
               message(end, after, True)]  # fmt: skip
    if not problem.overlap:
        forward_s, backward_s = forward_s + sum(seconds[:2]) / many, backward_s + sum(seconds[2:]) / many
    taken_s = max(forward_s, backward_s) if has_two else forward_s + backward_s
    if problem.overlap:
        sent = sum(_sizes(graph, end, False)) + sum(_sizes(graph, begin, True))
        received = sum(_sizes(graph, begin, False)) + sum(_sizes(graph, end, True))
        busy = max(*seconds, device.link.beta_s * max(sent, received)) / many
        taken_s = max(taken_s, busy)
    inputs = sum(_sizes(graph, begin, False)) if begin else graph.input_bytes
    saved, ranks = sum(graph.layers[one].saved_bytes for one in own), math.ceil((devices_after + many) / many)
    stream = math.ceil(problem.micro_batches / many) if problem.schedule.flushes else 100
    live = problem.schedule.live_micro_batches(0, ranks, stream)
    front = 1 if begin else 0
    versions = problem.schedule.weight_versions(front, front + ranks)
    stash = live * inputs + saved if problem.recompute else live * (inputs + saved)
    back = sum(_sizes(graph, begin, True)) + sum(_sizes(graph, end, True))
    size = held * (versions + 1 + problem.states) + stash + back + max(graph.layers[one].work_bytes for one in own)
    return taken_s, max(0.0, size - device.memory_bytes)


def _messages(graph, crossed, is_backward):
    messages = len([size for size in _sizes(graph, crossed, is_backward) if size])
    return max(messages, 1) if not is_backward and crossed and len(crossed) < graph.count else messages


def _sizes(graph, crossed, is_backward):
    return [
        one.output_bytes
        for place, one in enumerate(graph.layers)
        if place in crossed
        and any(place in other.inputs for number, other in enumerate(graph.layers) if number not in crossed)
        and (one.has_gradient or not is_backward)
    ]
