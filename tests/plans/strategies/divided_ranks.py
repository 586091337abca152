"""Several ranks in one process run a divided graph with real numbers, and exchange them where it says so."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.fx import map_arg

from cdmpp.network.eager.divided import ROLE, WEIGHT_PART, DividedExport
from cdmpp.network.eager.step import ExportedStep


class Ranks:
    """Ranks with places along the axes of an image (``factors``), or of its channels: ``(ranks,)``."""

    def __init__(self, step: ExportedStep, divided: DividedExport, factors: tuple[int, ...], images: bool) -> None:
        self.step, self.divided, self.factors, self.images = step, divided, factors, images
        self.ranks = range(math.prod(factors))
        self.places = [np.unravel_index(rank, factors) for rank in self.ranks]
        self.state = {name: one.detach().clone() for name, one in step.exported.state_dict.items()}
        self.fetched: dict[str, int] = {}
        """Halo -> bytes that a rank with neighbours on all sides fetched."""

    def run(self) -> list[torch.Tensor]:
        """Return the loss of each rank."""
        signature = self.step.exported.graph_signature
        given = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        inputs = iter(self.step.exported.example_inputs[0])
        values: list[dict] = [{} for _ in self.ranks]
        for node in self.divided.graph.nodes:
            if node.op == "placeholder":
                whole = self.state[given[node.name]] if node.name in given else next(inputs)
                found = [self.part(node, whole, rank) for rank in self.ranks]
            elif node.op == "output":
                return [values[rank][node.args[0][-1]] for rank in self.ranks]
            elif node.op == "get_attr":
                found = [getattr(self.divided.graph_module, node.target)] * len(self.ranks)
            else:
                found = self.call(node, values)
            for rank, value in enumerate(found):
                values[rank][node] = value
        raise AssertionError("no output")

    def part(self, node, whole, rank):
        if WEIGHT_PART in node.meta:
            axis = node.meta[WEIGHT_PART]
            size = node.meta["val"].shape[axis]
            return whole.narrow(axis, rank * size, size)
        local = node.meta["val"].shape if hasattr(node.meta["val"], "shape") else None
        if local is None or tuple(local) == tuple(whole.shape):
            return whole
        for axis, place in enumerate(self.places[rank]):
            size = local[axis - len(self.factors)]
            whole = whole.narrow(axis - len(self.factors), int(place) * size, size)
        return whole

    def call(self, node, values):
        args = [map_arg((node.args, node.kwargs), own.__getitem__) for own in values]
        role, *more = node.meta.get(ROLE, ("",))
        if role == "halo":
            return self.halo(node, [own[0][0] for own in args], more[0], args[0][0][2])
        if role == "slice":
            x, axis, _, size = args[0][0]
            return [own[0][0].narrow(axis, rank * size, size) for rank, own in enumerate(args)]
        if role == "gather":
            own = [one[0][0][0] for one in args]
            if not self.images:
                return [torch.cat(own, more[0]) for _ in own]
            axis = more[0] + len(self.factors)
            lines = [[own[self.rank_at(place, axis, i)] for i in range(self.factors[axis])] for place in self.places]
            return [torch.cat(line, more[0]) for line in lines]
        if role == "sum":  # one rank adds the bias
            args = [
                ((*a[:2], a[2] if rank == 0 else None, *a[3:]) if len(a) > 2 else a, k)
                for rank, (a, k) in enumerate(args)
            ]
        found = [node.target(*a, **k) for a, k in args]
        if role in ("sum", "mean"):
            return [sum(found) / (len(found) if role == "mean" else 1) for _ in found]
        return found

    def rank_at(self, place, axis, number):
        return int(np.ravel_multi_index([number if i == axis else p for i, p in enumerate(place)], self.factors))

    def halo(self, node, parts, halos, fill):
        local, axes = parts[0].shape[-len(halos) :], len(halos)
        joined = joined_along(parts, self.factors)
        most = max(max(pair) for pair in halos)
        padded = torch.nn.functional.pad(joined, [most] * 2 * axes, value=fill)
        found = []
        for place in self.places:
            one = padded
            for axis, (before, behind) in enumerate(halos):
                start = most + int(place[axis]) * local[axis] - before
                one = one.narrow(axis - axes, start, local[axis] + before + behind)
            found.append(one)
        self.fetched[node.name] = 4 * (found[0].numel() - parts[0].numel())
        assert tuple(found[0].shape) == tuple(node.meta["val"].shape)
        return found


def joined_along(parts, factors):
    """Put the parts of an image together: places along its last axes, the last one fastest."""
    for axis in reversed(range(len(factors))):
        lines = [parts[i : i + factors[axis]] for i in range(0, len(parts), factors[axis])]
        parts = [torch.cat(line, axis - len(factors)) for line in lines]
    return parts[0]
