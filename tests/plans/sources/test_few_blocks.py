"""A source that reads a few of the blocks of a network, and one that reads all of them: they know the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cdmpp import devices
from cdmpp.network.source.blocks import LEAST
from cdmpp.network.workload import Workload
from cdmpp.plans.combinations import combination
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.sources.predicted import PredictedSource

pytest.importorskip("transformers")
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": LEAST, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    "config, settings, strategies",
    [
        ({"model_type": "llama"}, {"precision": "bf16"}, ("fsdp", "tp", "cp")),
        ({"model_type": "llama"}, {"precision": "bf16-fsdp", "recompute": "full"}, ("fsdp",)),
        ({"model_type": "mixtral", "num_local_experts": 4, "sliding_window": None}, {"precision": "bf16"}, ("ep+tp",)),
    ],
    ids=["llama", "recomputed", "mixtral"],
)
def test_the_same_work(
    config: dict[str, object], settings: dict[str, str], strategies: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, **config}))
    workload = Workload(f"hf:{tmp_path}", sequence=32, mode="training_step", **settings)
    device = devices.get("h100")
    few, every = (PredictedSource(workload, device, few_blocks=is_few) for is_few in (True, False))
    assert few.limits() == every.limits()
    assert len(few._export(1).exported.graph.nodes) < 0.8 * len(every._export(1).exported.graph.nodes)
    for name in strategies:
        made = combination(name)
        degrees = ParallelDegrees(**dict.fromkeys((one.degrees[0] for one in made.operators), 2))
        for batch in (1, 3):
            own, expected = (one.work(batch, degrees, made.operators) for one in (few, every))
            assert own == expected, (name, batch)
            times = [one.times(batch, degrees, made.operators) for one in (few, every)]
            assert times[0] is not None
            assert times[1] is not None
            assert times[0].ops == times[1].ops
            np.testing.assert_allclose(times[0].seconds, times[1].seconds, rtol=1e-6)
            assert times[0].exchanged_bytes.tolist() == times[1].exchanged_bytes.tolist()
