"""Points a second of a sweep over batches, against single questions: seconds of one core, whatever else runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from timing import finish

import cdmpp
from cdmpp.network.eager.kept_reads import kept_reads


@dataclass(frozen=True)
class Case:
    network: str
    tokens: int | None = None
    """Tokens of each example."""
    mode: Any = "inference"
    points: int = 100


CASES = (
    Case("hf:bert-base-uncased", 128),
    Case("hf:gpt2", 256),
    Case("hf:TinyLlama/TinyLlama-1.1B-Chat-v1.0", 256),
    Case("torchvision:resnet50"),
    Case("hf:bert-base-uncased", 128, "training_step", 5),
    Case("torchvision:resnet50", None, "training_step", 5),
)
_DEVICE, _OTHER = "a100-pcie-40gb", "h100"
_ON: dict[str, Any] = {"runtime": "torch", "progress": False}


def main() -> None:
    torch.set_num_threads(1)
    _question(Case("bert_tiny", 16), 2)()  # loads the model, and what torch loads late
    finish([_row(case) for case in CASES])


def _row(case: Case) -> dict[str, Any]:
    fresh_s = _seconds(_question(case, 2))
    device_s = _seconds(_question(case, 2, _OTHER))
    second_s = _seconds(_question(case, 3))
    further_s = min(_seconds(_question(case, batch)) for batch in (4, 5, 6))
    calls = sum(kernel.count for kernel in _question(case, 2)().kernels)
    few_s = _seconds(lambda: _swept(case, [2, 3]))
    many_s = _seconds(lambda: _swept(case, list(range(2, 4 + case.points))))
    return {
        "network": case.network, "mode": case.mode, "calls": calls, "first_s": few_s,
        "swept_per_s": case.points / (many_s - few_s), "fresh_s": fresh_s, "device_s": device_s,
        "second_s": second_s, "further_s": further_s,
    }  # fmt: skip


def _question(case: Case, batch: int, device: str = _DEVICE) -> Callable[[], Any]:
    workload = cdmpp.Workload(case.network, batch=batch, sequence=case.tokens, mode=case.mode)
    if case.mode == "training_step":
        return lambda: cdmpp.predict_step(workload, device=device, **_ON).prediction
    return lambda: cdmpp.predict_network(workload, device=device, **_ON)


def _swept(case: Case, sizes: list[int]) -> None:
    kept_reads.cache_clear()
    workload = cdmpp.Workload(case.network, sequence=case.tokens, mode=case.mode)
    found = cdmpp.sweep_network(workload, axes={"batch": sizes}, device=_DEVICE, **_ON)
    assert not found.notes, found.notes


def _seconds(action: Callable[[], Any]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


if __name__ == "__main__":
    main()
