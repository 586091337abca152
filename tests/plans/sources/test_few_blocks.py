"""A source that reads a few of the blocks of a network, and one that reads all of them: they know the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cdmpp import devices
from cdmpp.collectives.topology import Topology, topology_of
from cdmpp.network.source.blocks import LEAST
from cdmpp.network.workload import Workload
from cdmpp.plans.combinations import combination
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.distributed_step import replay_plan
from cdmpp.plans.memory_answer import memory_answer
from cdmpp.plans.oracle import ask
from cdmpp.plans.plan import Plan
from cdmpp.plans.question import Question
from cdmpp.plans.script.torch_script import TorchScript
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.strategies.tensor import Tensor
from cdmpp.report.oracle import oracle_report

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


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[PredictedSource, PredictedSource]:
    """The same Llama, of which a few blocks are read, and all."""
    folder = tmp_path_factory.mktemp("llama")
    (folder / "config.json").write_text(json.dumps({**SIZES, "model_type": "llama"}))
    workload = Workload(f"hf:{folder}", sequence=32, mode="training_step", optimizer="adamw")
    few, every = (PredictedSource(workload, devices.get("h100"), few_blocks=is_few) for is_few in (True, False))
    return few, every


def piped(schedule: str, **settings: int) -> Pipeline:
    return Pipeline(schedule, 4, **settings)


PLANS = {
    "1f1b and fsdp": Plan(FSDP(), ParallelDegrees(pp=2, dp_shard=2), model_parallel=(piped("1f1b"),)),
    "interleaved": Plan(
        DDP(), ParallelDegrees(pp=2, dp_replicate=2),
        model_parallel=(piped("interleaved1f1b", stages_per_rank=2),),
    ),
    "zbv": Plan(FSDP(), ParallelDegrees(pp=2, dp_shard=2), model_parallel=(piped("zbvzerobubble"),)),
    "gpipe and tensor": Plan(DDP(), ParallelDegrees(pp=4, tp=2), model_parallel=(piped("gpipe"), Tensor())),
}  # fmt: skip
"""Plans of pipelines, also with stages that begin in blocks which are not read."""


@pytest.mark.parametrize("name", PLANS)
def test_the_same_pipelines(name: str, both: tuple[PredictedSource, PredictedSource]) -> None:
    plan, links = PLANS[name], topology_of(PLANS[name].ranks, "h100", cluster="dgx-h100")
    few, every = (replay_plan(one, plan, global_batch=16, device="h100", cluster="dgx-h100") for one in both)
    for value in ("iteration_s", "alone_s", "no_overlap_s", "full_overlap_s"):
        assert getattr(few, value) == pytest.approx(getattr(every, value), rel=1e-6), value
    assert (few.exchanges, few.sent_bytes) == (every.exchanges, every.sent_bytes)
    assert few.heaviest == every.heaviest
    own, whole = (memory_answer(one, plan, links, 16, is_gpu=True) for one in both)
    assert own == whole and len(own.ranks) == plan.degrees.pp
    assert [one.first for one in own.ranks][0] != [one.first for one in own.ranks][1]


@pytest.mark.parametrize("name", ["fsdp", "tensor and ddp", "1f1b and fsdp"])
def test_the_same_scripts(name: str, both: tuple[PredictedSource, PredictedSource]) -> None:
    """Every block is named in them, also those that are not read."""
    plan = {
        "fsdp": Plan(FSDP(), ParallelDegrees(dp_shard=2), recompute=("inner.model.layers.1",)),
        "tensor and ddp": Plan(DDP(), ParallelDegrees(dp_replicate=2, tp=2), model_parallel=(Tensor(),)),
        "1f1b and fsdp": Plan(
            FSDP(), ParallelDegrees(pp=2, dp_shard=2), model_parallel=(piped("1f1b"),)
        ),
    }[name]  # fmt: skip
    texts = []
    for one in both:
        work = one.work(2, plan.degrees, plan.model_parallel)
        texts.append(TorchScript(one.workload, plan, 16, work.rank).text)
    assert texts[0] == texts[1]
    last = f"layers.{LEAST - 1}"
    assert last in texts[0] or plan.degrees.pp > 1


def test_the_same_explanations(both: tuple[PredictedSource, PredictedSource]) -> None:
    """All ways are ranked alike, and the second best is held against the best in the same words."""

    def links(ranks: int) -> Topology:
        return topology_of(ranks, "h100", cluster="dgx-h100")

    told = []
    for one in both:
        found = ask(Question(one, links, 4, 16, ("data", "fsdp", "pipeline", "fsdp+pp")), top=6, replays=2)
        report = oracle_report(found, explained="2")
        rows = [row for table in report.tables for row in table.rows]
        told.append(([plan.plan for plan in found.ranked], [plan.step_s for plan in found.ranked], rows))
    assert told[0][0] == told[1][0] and len(told[0][0]) == 6
    np.testing.assert_allclose(told[0][1], told[1][1], rtol=1e-6)
    assert len(told[0][2]) == len(told[1][2])
    for own, expected in zip(told[0][2], told[1][2], strict=True):
        numbers = {key: value for key, value in expected.items() if isinstance(value, float)}
        assert {key: own[key] for key in numbers} == pytest.approx(numbers, rel=1e-6, nan_ok=True)
        assert {key: own[key] for key in expected if key not in numbers} == {
            key: value for key, value in expected.items() if key not in numbers
        }
