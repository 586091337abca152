"""The compiled library computes what a ranker says of many programs, on one core and without torch."""

from __future__ import annotations

import ctypes
from weakref import finalize

import numpy as np
from torch import nn

from cdmpp.model.native import native_network
from cdmpp.model.ranker import CLIP, MEMBERS, WIDTH, Ranker


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
