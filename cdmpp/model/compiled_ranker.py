"""The compiled library computes what a ranker says of many programs, and its gradients, without torch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from weakref import finalize

import numpy as np
from torch import Tensor, nn

from cdmpp.model.native import native_network
from cdmpp.model.ranker import CLIP, MEMBERS, WIDTH, Ranker

_WEIGHTS = 6  # of a member


class CompiledRanker:
    """The weights of a ranker are copied once."""

    def __init__(self, ranker: Ranker) -> None:
        layers = [[layer for layer in member.children() if isinstance(layer, nn.Linear)] for member in ranker.members]
        tensors = [[ranker.mean], [ranker.scale]]
        for same in zip(*layers, strict=True):
            tensors += [[layer.weight for layer in same], [layer.bias for layer in same]]
        arrays = [np.concatenate([one.detach().cpu().float().numpy() for one in some]) for some in tensors]
        places = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        self._inputs = len(arrays[0])
        self._made = ctypes.c_void_p(native_network().network_ranker_new(places, self._inputs, WIDTH, MEMBERS, CLIP))
        finalize(self, native_network().network_ranker_delete, self._made)

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """Score (n, inputs) float32 rows as ``Ranker`` does, (n,) float32."""
        rows, found = np.ascontiguousarray(rows, np.float32), np.empty(len(rows), np.float32)
        assert rows.shape == (len(rows), self._inputs)
        native_network().network_ranker_scores(self._made, rows.ctypes.data, len(rows), found.ctypes.data)
        return found


class _Tasks(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("inputs", "goal", "rows", "starts")),
        *((name, ctypes.c_int64) for name in ("inputs_width", "tasks", "width")),
        ("seed", ctypes.c_uint64),
        ("dropout", ctypes.c_float),
    )


class _Member(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p * _WEIGHTS) for name in ("weights", "gradients"))


class RankerGradient:
    """Puts gradients of the listwise loss where torch would put them, for all members of a ranker side by side."""

    def __init__(self, members: Sequence[Sequence[Tensor]], inputs: Tensor, goal: Tensor, dropout: float) -> None:
        """Take the weights of each member in the order of torch, each with a ``grad`` to write.

        ``inputs`` (n, in) float32 of all programs as members read them, ``goal`` (n,) float32: what their scores should
        be, but for a constant in each task.
        """
        assert all(one.is_contiguous() and one.grad is not None for own in members for one in own)
        assert inputs.is_contiguous() and goal.is_contiguous()
        self._kept = members, inputs, goal
        self._dropout = dropout
        self._members = (_Member * len(members))()
        for to, own in zip(self._members, members, strict=True):
            for place, one in enumerate(own):
                assert one.grad is not None
                to.weights[place], to.gradients[place] = one.data_ptr(), one.grad.data_ptr()

    def put(self, tasks: Sequence[Sequence[np.ndarray]], seeds: Sequence[int], threads: int) -> None:
        """Write the gradients of the loss of each member's ``tasks``, rows of their programs; ``seeds`` of dropout."""
        inputs, goal = self._kept[1:]
        given = (_Tasks * len(tasks))()
        kept = []
        for to, own, seed in zip(given, tasks, seeds, strict=True):
            rows, starts = np.concatenate(own), np.cumsum([0, *map(len, own)])
            kept += [rows, starts]
            places = (inputs.data_ptr(), goal.data_ptr(), rows.ctypes.data, starts.ctypes.data)
            to.inputs, to.goal, to.rows, to.starts = places
            to.inputs_width, to.tasks, to.width = inputs.shape[1], len(own), WIDTH
            to.seed, to.dropout = seed, self._dropout
        native_network().network_ranker_gradients(given, self._members, len(tasks), threads)
