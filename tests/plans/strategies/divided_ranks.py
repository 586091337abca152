"""Several ranks in one process run a divided graph with real numbers, and exchange them where it says so."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch.fx import map_arg

from cdmpp.network.eager.divided import ROLES, WEIGHT_PARTS, DividedExport
from cdmpp.network.eager.step import ExportedStep
from cdmpp.operators.aten import name_of
from cdmpp.plans.strategies.tensor_graph import BLOCKS


class Ranks:
    """Ranks have places along each degree (``degrees``: name -> ranks), along ``spatial`` in a grid of ``factors``."""

    def __init__(
        self, step: ExportedStep, divided: DividedExport, degrees: Mapping[str, int], factors: tuple[int, ...] = ()
    ) -> None:
        self.step, self.divided, self.degrees, self.factors = step, divided, dict(degrees), factors
        self.shape = tuple(self.degrees.values())
        self.ranks = range(math.prod(self.shape))
        self.state = {name: one.detach().clone() for name, one in step.exported.state_dict.items()}
        self.fetched: dict[str, int] = {}
        """Halo -> bytes that a rank with neighbours on all sides fetched."""

    def place(self, rank: int, degree: str) -> int:
        return int(np.unravel_index(rank, self.shape)[list(self.degrees).index(degree)])

    def block(self, rank: int) -> tuple[int, ...]:
        """Place of a rank in the grid of the images."""
        return tuple(map(int, np.unravel_index(self.place(rank, "spatial"), self.factors)))

    def groups(self, degree: str) -> list[list[int]]:
        """Groups of ranks along a degree."""
        numbers = np.moveaxis(np.arange(len(self.ranks)).reshape(self.shape), list(self.degrees).index(degree), -1)
        return numbers.reshape(-1, self.degrees[degree]).tolist()

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
        if WEIGHT_PARTS in node.meta:
            for degree, axis in node.meta[WEIGHT_PARTS].items():
                if degree == "tp":  # a part of each block, such as of queries, keys and values
                    own, place = whole.split(node.meta[BLOCKS], axis), self.place(rank, degree)
                    whole = torch.cat([piece.chunk(self.degrees[degree], axis)[place] for piece in own], axis)
                    continue
                size = whole.shape[axis] // self.degrees[degree]
                whole = whole.narrow(axis, self.place(rank, degree) * size, size)
            assert whole.shape == node.meta["val"].shape
            return whole
        local = node.meta["val"].shape if hasattr(node.meta["val"], "shape") else None
        if local is None or tuple(local) == tuple(whole.shape):
            return whole
        for axis, place in enumerate(self.block(rank)):
            size = local[axis - len(self.factors)]
            whole = whole.narrow(axis - len(self.factors), place * size, size)
        return whole

    def call(self, node, values):
        args = [map_arg((node.args, node.kwargs), own.__getitem__) for own in values]
        roles = node.meta.get(ROLES, {})
        if len(roles) > 1:
            assert {role[0] for role in roles.values()} == {"sum"}
        for degree, (role, *more) in roles.items():
            if role in ("halo", "slice", "gather", "scatter", "offset", "max"):
                found: list = [None] * len(args)
                for group in self.groups(degree):
                    own = getattr(self, role)(node, degree, group, [args[rank] for rank in group], *more)
                    for rank, value in zip(group, own, strict=True):
                        found[rank] = value
                return found
        if any(role[0] == "sum" for role in roles.values()):  # one rank adds the bias
            args = [
                (a, k)
                if all(self.place(rank, one) == 0 for one in roles)
                else ((0 * a[0], *a[1:]) if name_of(node) == "addmm" else self.without_bias(node, a), k)
                for rank, (a, k) in enumerate(args)
            ]
        found = [node.target(*a, **k) for a, k in args]
        for degree, (role, *_) in roles.items():
            for group in self.groups(degree):
                own, count = [found[rank] for rank in group], len(group) if role == "mean" else 1
                for rank in group:
                    found[rank] = sum(own) / count
        return found

    def without_bias(self, node, args):
        has_bias = len(args) > 2 and (name_of(node) == "linear" or "conv" in name_of(node))
        return (*args[:2], None, *args[3:]) if has_bias else args

    def slice(self, node, degree, group, args, axis):
        (x, _, _, size), _ = args[0]
        return [own[0][0].narrow(axis, place * size, size) for place, own in enumerate(args)]

    def scatter(self, node, degree, group, args, axis, blocks):
        whole = [one[0][0].split(blocks, axis) for one in args]
        return [torch.cat([one.chunk(len(group), axis)[i] for one in own], axis) for i, own in enumerate(whole)]

    def offset(self, node, degree, group, args, many):
        return [own[0][0] - place * many for place, own in enumerate(args)]

    def max(self, node, degree, group, args):
        return [torch.stack([node.target(*a, **k) for a, k in args]).amax(0)] * len(args)

    def gather(self, node, degree, group, args, axis, blocks=()):
        own = [one[0][0][0] for one in args]
        if blocks:
            cut = [one.split([size // len(group) for size in blocks], axis) for one in own]
            return [torch.cat([one[i] for i in range(len(blocks)) for one in cut], axis)] * len(own)
        if degree != "spatial":
            return [torch.cat(own, axis) for _ in own]
        along = axis + len(self.factors)
        lines = [[own[self.rank_at(self.block(rank), along, i)] for i in range(self.factors[along])] for rank in group]
        return [torch.cat(line, axis) for line in lines]

    def rank_at(self, place, axis, number):
        return int(np.ravel_multi_index([number if i == axis else p for i, p in enumerate(place)], self.factors))

    def halo(self, node, degree, group, args, halos):
        parts, fill = [own[0][0] for own in args], args[0][0][2]
        local, axes = parts[0].shape[-len(halos) :], len(halos)
        joined = joined_along(parts, self.factors)
        most = max(max(pair) for pair in halos)
        padded = torch.nn.functional.pad(joined, [most] * 2 * axes, value=fill)
        found = []
        for rank in group:
            one = padded
            for axis, (before, behind) in enumerate(halos):
                start = most + self.block(rank)[axis] * local[axis] - before
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


def check_gradients(job: Ranks) -> None:
    """Losses and gradients of the ranks are those of one device."""
    exported = job.step.exported
    names = [name for name, one in exported.state_dict.items() if one.requires_grad]
    for name in names:
        job.state[name].requires_grad_()
    losses = job.run()
    whole = exported.module()
    (expected,) = whole(*exported.example_inputs[0])
    ranks = len(losses)
    assert [one.item() for one in losses] == pytest.approx([expected.item()] * ranks, rel=1e-5)
    got = torch.autograd.grad(sum(losses) / ranks, [job.state[name] for name in names])
    expected = torch.autograd.grad(expected, [dict(whole.named_parameters())[name] for name in names])
    for name, one, other in zip(names, got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5, msg=name)
