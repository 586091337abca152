"""Plans whose ranks stand on unlike devices, or have unlike shares of the batch, lowered and replayed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.errors import CdmppError
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.lower import lower, lower_work
from cdmpp.plans.plan import Plan, plan_on
from cdmpp.plans.plan_file import plan_from_dict, read_plan, save_plan
from cdmpp.plans.sources.unlike import UnlikeSource
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.steps.replay import replay
from cdmpp.steps.transforms.copies import Copies
from tests.plans.toy_pipeline import FREE, links, plan
from tests.plans.toy_source import ToySource

MS = 1e-3
UNLIKE = UnlikeSource({"fast": ToySource(4), "slow": ToySource(4, forward_s=2e-3)})
"""A layer takes 1 ms forward and 2 ms backward for an example on the fast device, and twice that on the slow one."""
CUTS = {2: ("layer.2",), 4: ("layer.1", "layer.2", "layer.3")}
UPDATE = 0.1 * MS
"""Of all layers, on both devices."""


def cut(pp: int, micro_batches: int, devices: tuple[str, ...], dp: int = 1, cuts=None, **settings) -> Plan:
    base = {"strategy": DDP(overlap=False), "degrees": ParallelDegrees(pp=pp, dp_replicate=dp)} | settings
    return Plan(model_parallel=(Pipeline("1f1b", micro_batches, cuts or CUTS[pp]),), devices=devices, **base)


def step_s(under: Plan, batch: int, wire: AlphaBeta = FREE, source=UNLIKE, **how) -> float:
    topology = links(under.ranks, wire)
    return replay(lower(source, under, topology, batch, **how).graph, topology).step_s


def test_a_twice_as_slow_device_in_one_stage_takes_the_known_time():
    """Two layers a stage, 8 micro-batches: passes of the fast stage take 6 ms, of the slow one 12, the pace."""
    known = (6 + 12 + 7 * 12) * MS
    fast, slow = cut(2, 8, ("fast", "fast")), cut(2, 8, ("fast", "slow"))
    assert step_s(fast, 8) == pytest.approx((8 + 1) * 6 * MS + UPDATE / 2)
    assert step_s(slow, 8) == pytest.approx(known + UPDATE / 2)


def test_a_cut_that_gives_the_fast_device_more_layers_is_faster():
    """1 layer on the slow device takes 6 ms, 3 on the fast one 9, which runs 72 and waits 3 for the first gradient."""
    uneven = cut(2, 8, ("fast", "slow"), cuts=("layer.3",))
    assert step_s(uneven, 8) == pytest.approx((8 * 9 + 3) * MS + 3 / 4 * UPDATE, rel=1e-3)
    assert step_s(uneven, 8) < step_s(cut(2, 8, ("fast", "slow")), 8)


@pytest.mark.parametrize("overlap", [False, True])
def test_replicas_wait_for_the_slow_one_and_shares_relieve_it(overlap):
    """6 accumulation steps each: the slow replica takes 6 x 24 ms; with 8 and 4 both take 96 ms."""
    even = Plan(DDP(overlap=overlap), ParallelDegrees(dp_replicate=2), 6, devices=("fast", "slow"))
    uneven = replace(even, shares=(8, 4))
    assert step_s(even, 12) == pytest.approx(6 * 24 * MS + UPDATE, rel=1e-3)
    assert step_s(uneven, 12) == pytest.approx(96 * MS + UPDATE, rel=1e-3)


def test_shares_of_pipelines_are_micro_batches_of_each():
    devices = ("fast", "slow", "fast", "slow")  # replica 0 is fast on both stages, replica 1 slow
    even, uneven = cut(2, 6, devices, 2), cut(2, 6, devices, 2, shares=(8, 4))
    assert step_s(even, 12) == pytest.approx((2 + 5) * 12 * MS + UPDATE / 2, rel=1e-3)
    assert step_s(uneven, 12) == pytest.approx(max((2 + 7) * 6, (2 + 3) * 12) * MS + UPDATE / 2, rel=1e-3)


@pytest.mark.parametrize("devices", [("fast",) * 8, ("slow",) * 8])
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_like_devices_take_what_a_plan_without_devices_does(devices, pp):
    base = plan_on(8) if pp == 1 else plan(pp, 4, dp=8 // pp)
    own, wire = UNLIKE.sources[devices[0]], AlphaBeta(1e-5, 1e-9)
    assert step_s(replace(base, devices=devices), 64, wire) == step_s(base, 64, wire, own)


@pytest.mark.parametrize(("strategy", "degree"), [("ddp", "dp_replicate"), ("fsdp", "dp_shard")])
def test_permuting_equal_devices_changes_nothing_and_folded_ranks_stand_for_all(strategy, degree):
    wire, names = AlphaBeta(1e-5, 1e-9), ("fast", "slow", "slow", "fast")
    found = set()
    for first in (names, names[::-1], ("fast", "fast", "slow", "slow"), ("slow", "fast", "fast", "slow")):
        settings = {"strategy": plan_on(2, strategy).strategy, "degrees": ParallelDegrees(pp=2, **{degree: 4})}
        under = cut(2, 4, first + ("fast",) * 4, **settings)
        found.add(round(step_s(under, 16, wire), 12))
        assert step_s(under, 16, wire, fold=False) == pytest.approx(step_s(under, 16, wire), rel=1e-9)
        assert step_s(under, 16, wire, merge=True) == pytest.approx(step_s(under, 16, wire), rel=1e-9)
    assert len(found) == 1


def test_tied_and_looped_schedules_run_on_unlike_devices():
    """Interleaved: 2 layers a rank, one at a time; the slow rank sets the pace."""
    pipeline = Pipeline("interleaved1f1b", 8, CUTS[4], stages_per_rank=2)
    base = Plan(DDP(), ParallelDegrees(pp=2), model_parallel=(pipeline,))
    fast, slow = (step_s(replace(base, devices=(one,) * 2), 8) for one in ("fast", "slow"))
    mixed = step_s(replace(base, devices=("fast", "slow")), 8)
    assert slow - 2 * fast == pytest.approx(0.0, abs=2 * UPDATE)
    assert 8 * 12 * MS < mixed < slow
    shared = replace(
        base, degrees=ParallelDegrees(pp=2, dp_replicate=2), devices=("fast", "slow") * 2, shares=(10, 6)
    )  # fmt: skip
    assert step_s(shared, 16) < step_s(replace(shared, shares=()), 16)


def test_a_plan_file_keeps_devices_and_shares(tmp_path: Path):
    under = cut(2, 6, ("fast", "slow", "slow", "slow"), 2, shares=(8, 4))
    save_plan(under, tmp_path / "plan.yaml")
    assert "devices: ['fast:1', 'slow:3']" in (tmp_path / "plan.yaml").read_text()
    assert read_plan(tmp_path / "plan.yaml") == under
    assert plan_from_dict({"degrees": {"dp_replicate": 3}, "devices": ["a", "b:2"]}).devices == ("a", "b", "b")
    assert "devices" not in plan_on(2).to_dict()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"devices": ("fast",)}, "names 1 devices for 4 ranks"),
        ({"shares": (1, 2, 3)}, "3 numbers for 2 replicas"),
        ({"shares": (8, 5)}, "are 13 micro-batches in all.*expected 12"),
        ({"shares": (12, 0)}, "plan.shares is 0"),
        ({"shares": (8, 4), "strategy": plan_on(2, "fsdp").strategy}, "fsdp replicas exchange in each pass"),
        ({"devices": ("fast", "slow", "fast", "other")}, "ranks on other, and nothing tells.*known are fast, slow"),
    ],
)
def test_what_cannot_be_is_refused(settings, told):
    base = {"degrees": ParallelDegrees(pp=2, dp_replicate=2), "strategy": DDP()} | settings
    if base["strategy"].name == "fsdp":
        base["degrees"] = ParallelDegrees(pp=2, dp_shard=2)
    pipeline = Pipeline("1f1b", 6, CUTS[2])
    with pytest.raises(CdmppError, match=told):
        step_s(Plan(**base, model_parallel=(pipeline,)), 12)


def test_unlike_devices_need_cuts_equal_devices_of_a_divided_operator_and_equal_messages():
    with pytest.raises(CdmppError, match="no cuts, which depend on them"):
        step_s(replace(plan(2, 4), devices=("fast", "slow")), 8)
    with pytest.raises(CdmppError, match="ranks 0 and 1 divide the same operators on fast and slow"):
        replace(plan_on(2, "filter"), devices=("fast", "slow"))
    other = UnlikeSource({"fast": ToySource(4), "slow": ToySource(4, output=7)})
    with pytest.raises(CdmppError, match="sends .* bytes from fast.* from slow"):
        step_s(cut(2, 4, ("fast", "slow")), 8, source=other)
    work = ToySource(4).work(1, ParallelDegrees())
    with pytest.raises(CdmppError, match="the work is that of one device"):
        lower_work(work, cut(2, 4, ("fast", "slow")), links(2))


def test_a_step_of_one_device_is_refused_and_code_has_the_shares():
    from cdmpp.plans.torch_settings import torch_settings
    from tests.plans.toy_job import evaluator, layers

    under = Plan(DDP(), ParallelDegrees(dp_replicate=2), 6, devices=("fast", "slow"), shares=(8, 4))
    with pytest.raises(CdmppError, match="names devices, or shares"):
        evaluator(layers((4000, 4000), (1e-3, 1e-3))).evaluate(under)
    lines = "\n".join(torch_settings(under))
    assert "steps = [8, 4][torch.distributed.get_rank()]" in lines and "number % steps == 0" in lines
    assert "targets) / 6).backward()" in lines


def test_each_device_copies_buffers_at_its_own_speed():
    """FSDP copies what it gathers: 16 MB a layer takes 1 ms on the fast device, and nothing is known of the other."""

    class Copying(ToySource):
        def work(self, *asked):
            return replace(super().work(*asked), copies=Copies(1 / 16e9, 0.0))

    source = UnlikeSource({"fast": Copying(4, parameters=16_000_000), "slow": ToySource(4, parameters=16_000_000)})
    under = replace(plan_on(2, "fsdp"), devices=("slow", "fast"))
    lowered = lower(source, under, links(2), 2)
    seconds = {
        name: [op.duration_s for op in lowered.graph.ranks[place].ops if op.name == "copies of gathered parameters"]
        for name, place in zip(under.devices, lowered.places, strict=True)
    }
    assert seconds["fast"] == pytest.approx([1 * MS] * len(seconds["fast"])) and len(seconds["fast"]) >= 4
    assert seconds["slow"] == []
