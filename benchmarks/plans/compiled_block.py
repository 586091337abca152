"""One block of a language model as ``torch.compile`` runs it: seconds of its kernels but products and attention."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cached_property

import cdmpp
from benchmarks.plans.language_models import LanguageModel, workload_of
from cdmpp import devices
from cdmpp.devices import Device
from cdmpp.plans.sources.sustained import CLOCKED, PRODUCTS
from cdmpp.platform.paths import cache_root

_FEW = (2, 3)
"""Blocks of the networks that are read: a further one takes what the second has more than the first."""
FLOAT8 = 1280 / 720
"""Speed of products in float8 by that of bfloat16 on an H100 at 700 W, on the shapes of a language model (SemiAnalysis,
"MI300X vs H100 vs H200, training", 2024)."""
_CAST_BYTES = 5
"""Bytes that a factor's element moves on its way to float8: it is read for its largest value, read and written."""
_BANDWIDTH = 0.73
"""Share of the memory's bandwidth that a large copy reaches, as ``cdmpp.plans.device_copies`` has it."""


@dataclass(frozen=True)
class Block:
    """A block in the forward and the backward pass of so many examples."""

    model: LanguageModel
    sequence: int
    batch: int
    device: str
    spec: tuple[tuple[str, float], ...]
    recompute: str

    @property
    def sheet(self) -> Device:
        """Return the device."""
        return devices.get(self.device).with_spec(**dict(self.spec))

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Seconds at the full clock: ``products``, and ``torch`` and ``torch-compile``, all but what is clocked."""
        text = json.dumps([1, asdict(self)], sort_keys=True)
        path = cache_root() / "fsdp-jobs" / f"block-{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"
        if not path.exists():
            found = dict[str, float]()
            for runtime in ("torch", "torch-compile"):
                few, more = (self._spent(many, runtime) for many in _FEW)
                found[runtime] = sum(more[kind] - few[kind] for kind in {*few, *more} if kind not in CLOCKED)
                products = [kind for kind, what in CLOCKED.items() if what == PRODUCTS]
                found[PRODUCTS] = sum(more[kind] - few[kind] for kind in products)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(found))
        stored: dict[str, float] = json.loads(path.read_text())
        return stored

    def _spent(self, blocks: int, runtime: str) -> Counter[str]:
        """Seconds of both passes by kind of kernel, of a network of so many blocks."""
        settings = {"precision": "bf16-fsdp", "recompute": self.recompute, "optimizer": "adamw-fused"}
        workload = workload_of(self.model, self.sequence, blocks, batch=self.batch, **settings)
        step = cdmpp.predict_step(workload, device=self.sheet, runtime=runtime)
        spans, found = step.prediction.timeline.spans, Counter[str]()
        for call in step.step.calls:
            if call.phase != "update":
                span = spans[call.call.name]
                found[span.task.label] += span.end_s - span.start_s
        return found

    @property
    def cast_s(self) -> float:
        """Seconds in which factors become float8, fused by the compiler, in both passes.

        Inputs are cast for the forward pass and, along the other axis, for gradients of weights; so are gradients of
        outputs, and weights for both products that read them.
        """
        own = self.model
        head = own.width // own.heads
        keys = head * (own.kv_heads or own.heads)
        inputs = 3 * own.width + own.inner
        outputs = 3 * own.width + 2 * keys + 2 * own.inner
        weights = 2 * own.width**2 + 2 * own.width * keys + 3 * own.width * own.inner
        items = self.sequence * self.batch * (2 * inputs + 2 * outputs) + 2 * weights
        return _CAST_BYTES * items / (_BANDWIDTH * 1e9 * (self.sheet.spec["bandwidth_gbps"] or 1.0))
