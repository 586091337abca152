"""A process that answers keeps nothing of a question."""

from __future__ import annotations

import gc
import linecache
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import graph_module

from cdmpp.serve import worker

KINDS = ("Node", "Graph", "Autograd", "ExportedProgram", "LearnedBackward", "FakeTensor", "Tensor", "UntypedStorage")


def _ask(batch: int) -> None:
    asked = {
        "network": "torchvision:resnet18", "batch": batch, "device": "a100", "global_batch": 4 * batch, "ranks": 4,
        "cluster": "dgx-a100", "strategies": ["ddp"], "replays": 1,
    }  # fmt: skip
    reply = worker.ask({"verb": "plan", "questions": [{"asked": asked, "form": "json"}]})
    assert "body" in reply["answers"][0], reply["answers"]


def _alive() -> dict[str, int]:
    gc.collect()
    found = Counter(type(one).__qualname__ for one in gc.get_objects())
    return {kind: found[kind] for kind in KINDS}


def test_ten_plans_leave_no_graph_no_tensor_and_no_source_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torchvision")
    monkeypatch.setattr(worker, "_scratch", tmp_path)
    for batch in (4, 5):
        _ask(batch)
    after_two: dict[str, Any] = {}
    sizes = []
    for batch in range(6, 16):
        _ask(batch)
        after_two = after_two or _alive()
        assert _alive() == after_two, f"batch {batch}"
        sizes.append(worker._resident_bytes())
    assert after_two["Autograd"] == after_two["ExportedProgram"] == after_two["LearnedBackward"] == 0
    assert not [one for one in linecache.cache if one.startswith("<eval_with_key>")]
    assert not graph_module._loader.eval_cache
    grown = min(sizes[5:]) - max(sizes[:5])  # pages come and go in a process that has run other tests
    assert grown < 10e6, [f"{1e-6 * one:.1f} MB" for one in sizes]


def test_hooks_of_autograd_lead_nowhere_once_their_block_ended() -> None:
    from cdmpp.network.eager.kept import told_of_kept

    class Owner:
        """Objects that hold a graph, and are told of it."""

    def run() -> Any:
        import weakref

        owner, seen = Owner(), []
        weight = torch.ones(3, requires_grad=True)

        def tell(tensor: Any) -> None:
            seen.append((owner, tensor.shape))

        with told_of_kept(tell):
            owner.result = weight.exp()  # type: ignore[attr-defined]
        assert [shape for _, shape in seen] == [(3,)]
        return weakref.ref(owner)

    gone = run()
    gc.collect()
    assert gone() is None
