"""Points a second of a sweep over batches, against single questions: seconds of one core, whatever else runs."""

from __future__ import annotations

import time
from typing import Any

import torch
from timing import finish

import cdmpp

NETWORKS = {"hf:bert-base-uncased": 128, "hf:gpt2": 256, "torchvision:resnet50": None}
"""Network -> tokens of each example."""
_ON: dict[str, Any] = {"device": "a100-pcie-40gb", "runtime": "torch", "progress": False}
_POINTS, _SINGLE = 100, 10


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for network, tokens in NETWORKS.items():
        workload = cdmpp.Workload(network, sequence=tokens)
        single = [cdmpp.Workload(network, batch=2 + place, sequence=tokens) for place in range(_SINGLE + 1)]
        calls = cdmpp.predict_network(single.pop(), **_ON).to_dict()["calls"]
        few_s = _seconds(lambda workload=workload: cdmpp.sweep_network(workload, axes={"batch": [2, 3]}, **_ON))
        sizes = list(range(2, 4 + _POINTS))
        many_s = _seconds(lambda workload=workload, sizes=sizes: _swept(workload, sizes))
        alone_s = sum(_seconds(lambda one=one: cdmpp.predict_network(one, **_ON)) for one in single)
        rows.append({
            "network": network, "calls": calls, "first_s": few_s, "swept_per_s": _POINTS / (many_s - few_s),
            "single_per_s": _SINGLE / alone_s,
        })  # fmt: skip
    finish(rows)


def _swept(workload: Any, sizes: list[int]) -> None:
    found = cdmpp.sweep_network(workload, axes={"batch": sizes}, **_ON)
    assert not found.notes, found.notes


def _seconds(action: Any) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


if __name__ == "__main__":
    main()
