"""OpBytes: what the ops of a rank write, keep and hand on, for one micro-batch or for several that run the same ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.network.liveness import CallBytes
from cdmpp.plans.allocator import taken_bytes
from cdmpp.plans.cut_places import result_bytes
from cdmpp.plans.overlap import Floats
from cdmpp.steps.step_graph import Op


@dataclass(frozen=True)
class OpBytes(CallBytes):
    """The last axis of each array has a number an op; an axis before it, where there is one, is over micro-batches."""

    is_apart: NDArray[np.bool_]
    """Which ops write what is saved into a tensor of its own; no axis over micro-batches."""
    is_whole: NDArray[np.bool_]
    """Which ops hand on all that they write; no axis over micro-batches."""
    has_gradients: NDArray[np.bool_]
    """True for ops that write gradients of parameters beside other results; it has no axis over micro-batches."""

    @classmethod
    def of(cls, calls: Sequence[Any]) -> OpBytes:
        """Read them from the ops of one micro-batch."""
        ops: Sequence[Op] = calls
        sizes = CallBytes.of(ops)
        return cls(
            sizes.written,
            sizes.saved,
            sizes.own,
            sizes.lasting,
            sizes.workspace,
            np.array([result_bytes(op) for op in ops], np.int64),
            np.array([op.saved_bytes is not None for op in ops], np.bool_),
            np.array([op.result_bytes is None for op in ops], np.bool_),
            np.array([op.gradient_bytes is not None for op in ops], np.bool_),
        )

    def taken(self) -> OpBytes:
        """Return the bytes that the allocator takes for them: what is kept and what is not lie apart."""
        own, lasting = taken_bytes(self.own), taken_bytes(self.lasting)
        saved = taken_bytes(self.saved - self.own) + own
        parts = taken_bytes(self.written - self.lasting) + lasting
        written = np.where(self.has_gradients, parts, taken_bytes(self.written))
        written = np.where(self.is_apart, taken_bytes(self.written - self.saved) + saved, written)
        lasting = np.where(self.lasting == self.written, written, lasting)
        results = np.where(self.is_whole, written, taken_bytes(self.results))
        workspace = taken_bytes(self.workspace)
        return replace(
            self, written=written, saved=saved, own=own, lasting=lasting, workspace=workspace, results=results
        )

    def up_to(self, high: OpBytes, shares: Floats) -> OpBytes:
        """Return the bytes of micro-batches between this one (0) and a larger one (1): they grow as these do."""
        values: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        for name in ("written", "saved", "own", "lasting", "workspace", "results"):
            low, most = values[name], getattr(high, name)
            values[name] = np.rint(low + shares[:, np.newaxis] * (most - low)).astype(np.int64)
        return OpBytes(**values)

    def only(self, which: NDArray[np.bool_]) -> OpBytes:
        """Return bytes of which only these ops have any."""
        sizes = ("written", "saved", "own", "lasting", "workspace", "results")
        return replace(self, **{name: np.where(which, getattr(self, name), 0) for name in sizes})
