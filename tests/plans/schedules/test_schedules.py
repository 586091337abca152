"""Schedules next to those of PyTorch, which run here on a stage that only notes what is asked of it."""

from __future__ import annotations

import pytest

from cdmpp.errors import CdmppError
from cdmpp.plans.schedules import SCHEDULES
from cdmpp.steps.schedule import BACKWARD, FORWARD, Action

SIZES = [(ranks, count) for ranks in range(2, 9) for count in range(2, 33)]


class Noted:
    """A stage that computes nothing."""

    def __init__(self, rank, ranks):
        self.stage_index, self.num_stages, self.has_backward = rank, ranks, False
        self.is_first, self.is_last, self.group = rank == 0, rank == ranks - 1, None
        self.actions = []

    def forward_one_chunk(self, number, *_, **__):
        self.actions.append(Action(self.stage_index, FORWARD, number))

    def backward_one_chunk(self, number, *_, **__):
        self.actions.append(Action(self.stage_index, BACKWARD, number))

    def __getattr__(self, name):
        if name.startswith("get_"):
            return lambda number: []
        return lambda *_, **__: None


def of_torch(kind, rank, ranks, count):
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    stage = Noted(rank, ranks)
    schedule = {"gpipe": schedules.ScheduleGPipe, "1f1b": schedules.Schedule1F1B}[kind](stage, count)
    schedule._initialize_stage = lambda *_: None
    schedule._step_microbatches([()] * count, [{}] * count, return_outputs=False)
    return tuple(stage.actions)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
def test_actions_are_those_that_pytorch_runs(kind):
    schedule, tried = SCHEDULES[kind](), 0
    for ranks, count in SIZES:
        if kind == "gpipe" or count >= ranks:  # PyTorch refuses others
            for rank in range(ranks):
                assert schedule.actions(rank, ranks, count) == of_torch(kind, rank, ranks, count)
                tried += 1
    assert tried > 700


def test_order_lists_of_pytorch_agree_but_for_the_row_of_1f1b_that_names_forwards_wrongly():
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    for kind, made in (("gpipe", schedules.ScheduleGPipe), ("1f1b", schedules.Schedule1F1B)):
        for ranks, count in ((2, 2), (4, 8), (8, 32)):
            order = made(Noted(0, ranks), count)._get_pipeline_order()
            for rank in range(ranks - (kind == "1f1b")):
                listed = [(one.computation_type.value, one.microbatch_index) for one in order[rank] if one is not None]
                own = SCHEDULES[kind]().actions(rank, ranks, count)
                names = {FORWARD: "F", BACKWARD: "B"}
                assert [one for one in listed if one[0] in "FB"] == [(names[a.kind], a.micro_batch) for a in own]


@pytest.mark.parametrize(("ranks", "count"), SIZES)
def test_1f1b_holds_a_micro_batch_for_each_stage_to_the_end_and_gpipe_all(ranks, count):
    for rank in range(ranks):
        assert SCHEDULES["1f1b"]().live_micro_batches(rank, ranks, count) == min(count, ranks - rank)
        assert SCHEDULES["gpipe"]().live_micro_batches(rank, ranks, count) == count


def test_each_micro_batch_runs_once_each_way_and_forward_first():
    for kind in SCHEDULES:
        for ranks, count in ((1, 3), (4, 2), (3, 7)):
            for rank in range(ranks):
                order = kind().actions(rank, ranks, count)
                every = [Action(rank, way, number) for way in (FORWARD, BACKWARD) for number in range(count)]
                assert sorted(order) == sorted(every)
                for number in range(count):
                    passes = [one.kind for one in order if one.micro_batch == number]
                    assert passes == [FORWARD, BACKWARD]


def test_what_pytorch_refuses_is_said():
    assert SCHEDULES["1f1b"]().warnings(4, 3)[0].startswith("PyTorch refuses 1f1b with 3 micro-batches on 4 stages")
    assert SCHEDULES["1f1b"]().warnings(4, 4) == SCHEDULES["gpipe"]().warnings(4, 2) == ()


def test_unknown_schedules_are_refused_with_the_nearest():
    with pytest.raises(CdmppError, match="unknown pipeline schedule '1b1f'; nearest: 1f1b"):
        SCHEDULES["1b1f"]
