"""A network of equal blocks from a few of them: op by op as the whole network is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.plans.language_models import LanguageModel, source_of, workload_of
from cdmpp import devices
from cdmpp.errors import CdmppError
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.plans.sources.repeated import FEW, repeated
from cdmpp.steps.step_graph import Op
from tests.plans.toy_source import ToySource

ONE = ParallelDegrees()
EXACT = (
    "phase", "kind", "inputs", "held", "waits", "forward", "output_bytes", "saved_bytes", "own_saved_bytes",
    "result_bytes", "gradient_bytes", "workspace_bytes", "is_recomputed", "stream",
)  # fmt: skip


@pytest.mark.parametrize("family, recompute, precision", [("llama", "op", "bf16"), ("gpt2", "full", "bf16-autocast")])
def test_all_blocks(
    family: str, recompute: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path))
    model = LanguageModel(family, FEW + 3, 64, 4, 500, 96)  # type: ignore[arg-type]
    settings = {"recompute": recompute, "precision": precision, "optimizer": "adamw-fused"}
    device = devices.get("a100")
    source = source_of(model, 32, device, **settings)
    whole = PredictedSource(workload_of(model, 32, **settings), device)
    own, expected = source.work(2, ONE), whole.work(2, ONE)

    def exact(op: Op) -> list[object]:
        return [getattr(op, name) for name in EXACT]

    passes = [place for place, op in enumerate(expected.rank.ops) if op.phase != "update"]
    assert len(own.rank.ops) == len(expected.rank.ops)
    for place in passes:
        one, two = own.rank.ops[place], expected.rank.ops[place]
        assert exact(one) == exact(two), (place, two.name)
        assert one.duration_s == pytest.approx(two.duration_s, rel=1e-5)
    assert own.rank.modules == expected.rank.modules
    assert own.rank.gradients == expected.rank.gradients
    assert own.memory == expected.memory
    assert source.limits() == whole.limits()


def test_other_networks() -> None:
    few, more = (ToySource(layers).work(1, ONE) for layers in (FEW, FEW + 1))
    with pytest.raises(CdmppError, match="6 blocks cannot be repeated: expected 5"):
        repeated(more, more, 1)
    ops = [replace(op, duration_s=2 * op.duration_s) if place == 3 else op for place, op in enumerate(few.rank.ops)]
    with pytest.raises(CdmppError, match="is another op in the next block"):
        repeated(replace(few, rank=replace(few.rank, ops=tuple(ops))), more, 1)
