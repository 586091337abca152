"""Schedules with several stages a rank next to the order lists of PyTorch, and what follows from these lists."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from cdmpp.errors import CdmppError
from cdmpp.plans.schedules import LOOPED
from cdmpp.steps.action_lists import Message
from cdmpp.steps.list_times import ListTimes, StageSeconds
from cdmpp.steps.schedule import BACKWARD, FORWARD, INPUTS, WEIGHTS, Action

CLASSES = {
    "interleaved1f1b": "ScheduleInterleaved1F1B", "interleavedzerobubble": "ScheduleInterleavedZeroBubble",
    "zbvzerobubble": "ScheduleZBVZeroBubble", "dualpipev": "ScheduleDualPipeV",
}  # fmt: skip
KINDS = {
    "FORWARD": FORWARD, "FULL_BACKWARD": BACKWARD, "BACKWARD_INPUT": INPUTS, "BACKWARD_WEIGHT": WEIGHTS,
}  # fmt: skip
SIZES = [(ranks, count) for ranks in range(2, 9) for count in range(2, 33)]
MANY = [("interleaved1f1b", 2), ("interleavedzerobubble", 1), ("interleavedzerobubble", 2), ("zbvzerobubble", 2),
        ("dualpipev", 2)]  # fmt: skip


class Named:
    """A stage that knows its number."""

    def __init__(self, stage, stages, ranks):
        self.stage_index, self.num_stages, self.group_size, self.group_rank = stage, stages, ranks, 0
        self.is_first, self.is_last, self.group, self.submod = stage == 0, stage == stages - 1, None, None
        self.stage_index_to_group_rank, self.has_backward, self.is_dynamic = {}, False, False


def of_torch(name, count, ranks, many, monkeypatch):
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    monkeypatch.setattr(schedules, "_check_torch_compile_compatibility", lambda *_: None)
    return getattr(schedules, CLASSES[name])([Named(i, count * ranks, ranks) for i in range(count)], many)


def listed(actions):
    """Compute actions of a list of PyTorch; None is a gap, which stands for nothing."""
    flat = [part for one in actions if one is not None for part in (one.sub_actions or (one,))]
    return [Action(one.stage_index, KINDS[one.computation_type.name], one.microbatch_index) for one in flat]


def posted(actions):
    """Message -> compute actions before its receive."""
    begun, found = 0, {}
    for one in actions:
        kind = one.computation_type.name
        begun += len(one.sub_actions) if one.sub_actions else kind in KINDS
        if kind in ("RECV_F", "RECV_B"):
            way = FORWARD if kind == "RECV_F" else BACKWARD
            found[Message(way, one.stage_index, one.microbatch_index)] = begun
    return found


@pytest.mark.parametrize(("name", "count"), [*MANY, ("interleaved1f1b", 1), ("interleaved1f1b", 3)])
def test_order_lists_receives_and_refusals_are_those_of_pytorch(name, count, monkeypatch):
    own, tried = LOOPED[name](count), 0
    for ranks, many in SIZES:
        try:
            made = of_torch(name, count, ranks, many, monkeypatch)
        except ValueError:
            assert own.why_not(ranks, many)
            continue
        assert not own.why_not(ranks, many)
        posts = own.lists(ranks, many).posts
        for rank in range(ranks):
            assert list(own.actions(rank, ranks, many)) == listed(made.pipeline_order[rank])
            here = {one: place for one, place in posts.items() if own.rank_of(one.stage, ranks) == rank}
            assert here == posted(made.pipeline_order_with_comms[rank])
            tried += 1
    assert tried > 500


@pytest.mark.parametrize(("ranks", "many"), [(2, 4), (3, 9), (4, 8)])
def test_receives_are_those_of_pytorch_where_stages_are_gathered_in_turn(ranks, many, monkeypatch):
    made = of_torch("interleaved1f1b", 5, ranks, many, monkeypatch)
    posts = LOOPED["interleaved1f1b"](5).lists(ranks, many).posts
    for rank in range(ranks):
        here = {one: place for one, place in posts.items() if one.stage % ranks == rank}
        assert here == posted(made.pipeline_order_with_comms[rank])


@pytest.mark.parametrize(("name", "count"), MANY)
def test_each_pass_runs_once_in_order_on_the_rank_of_its_stage(name, count):
    own = LOOPED[name](count)
    for ranks, many in ((2, 4), (4, 8), (3, 9)):
        for rank in range(ranks):
            order = own.actions(rank, ranks, many)
            assert {one.stage for one in order} == {*own.stages_of(rank, ranks)}
            assert max(Counter(order).values()) == 1
            for stage in own.stages_of(rank, ranks):
                for number in range(many):
                    kinds = [one.kind for one in order if (one.stage, one.micro_batch) == (stage, number)]
                    assert kinds in ([FORWARD, BACKWARD], [FORWARD, INPUTS, WEIGHTS])


def test_stages_of_a_v_begin_and_end_on_the_first_rank():
    assert [LOOPED["zbvzerobubble"]().rank_of(stage, 4) for stage in range(8)] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert [LOOPED["interleaved1f1b"]().rank_of(stage, 4) for stage in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert LOOPED["dualpipev"]().stages_of(1, 4) == (1, 6)


def seconds(stages, forward=1.0, inputs=1.0, weights=1.0, plans=1):
    full, none = np.ones((plans, stages)), np.zeros((plans, stages))
    return StageSeconds(
        forward * full, (inputs + weights) * full, inputs * full, weights * full, none, none, none, none
    )


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("rounds", [1, 2, 16])
def test_equal_stages_take_the_closed_forms(ranks, rounds):
    """Slots above the work of a rank, of p ranks with v stages; F, B and W take different times."""
    many, others = 2 * ranks * rounds, ranks - 1
    for name, count, (forward, inputs, weights), bubble in (
        ("interleaved1f1b", 2, (1, 1, 1), 3 * others),
        ("interleaved1f1b", 3, (2, 1, 0.5), 3.5 * others),
        ("interleavedzerobubble", 1, (1, 1, 1), others),  # ZB-H1: (p - 1) (F + B - W)
        ("interleavedzerobubble", 1, (2, 1.5, 1), 2.5 * others),
        ("interleavedzerobubble", 2, (1, 1, 1), others),
        ("interleavedzerobubble", 2, (1, 2, 1), 2 * others),
        ("zbvzerobubble", 2, (1, 1, 1), 0),
    ):
        found = LOOPED[name](count).step_s(seconds(ranks * count, forward, inputs, weights), ranks, many)[0]
        assert found == pytest.approx(many * count * (forward + inputs + weights) + bubble), name
    share = 3 * others / (many * 2 * 3)
    assert share == pytest.approx(others / (2 * many))  # (p - 1) / (v m), as printed for interleaved 1F1B


@pytest.mark.parametrize(("name", "count"), MANY)
@pytest.mark.parametrize("ranks", [2, 4])
def test_long_steps_follow_from_short_ones(name, count, ranks):
    """Rounds are followed one by one up to a few; stages up to three times as slow as others are within 2 %."""
    draw, own, many = np.random.default_rng(0), LOOPED[name](count), 12 * ranks
    forward, inputs, weights = (draw.uniform(0.5, 1.5, (50, ranks * count)) for _ in range(3))
    none = np.zeros_like(forward)
    given = StageSeconds(forward, inputs + weights, inputs, weights, none, none, none, none)
    assert own.alike(ranks, many) < many
    whole_s, _ = ListTimes(own.lists(ranks, many)).step_s(given, True, ranks)
    assert own.step_s(given, ranks, many) == pytest.approx(whole_s, rel=0.02)


def test_messages_and_what_ends_a_stage_delay_a_step():
    own, free = LOOPED["interleaved1f1b"](2), seconds(4)
    base = own.step_s(free, 2, 4)[0]
    later = [
        own.step_s(StageSeconds(**{**vars(free), name: np.full((1, 4), 0.5)}), 2, 4)[0]
        for name in ("sent", "returned", "ending", "update")
    ]
    assert min(later) > base
    assert later[3] == base + 1.0  # the updates of both stages of a rank


@pytest.mark.parametrize(
    ("name", "live"),
    [("interleaved1f1b", [11, 9, 7, 5]), ("interleavedzerobubble", [8, 8, 8, 8]), ("zbvzerobubble", [8, 8, 8, 8])],
)
def test_micro_batches_in_flight_on_4_ranks_with_8_of_them(name, live):
    """As counted from PyTorch's lists, from the forward pass to the gradients of weights."""
    own = LOOPED[name](2)
    assert [own.live_micro_batches(rank, 4, 8) for rank in range(4)] == live
    for rank in range(4):
        most = max(sum(one.saved) + 1 for one in own.lists(4, 8).moments(rank))
        assert most == live[rank]


def test_numbers_that_pytorch_refuses_are_refused_with_its_rule():
    why = LOOPED["interleaved1f1b"]().why_not(4, 11)
    assert why == (
        "interleaved1f1b has 11 micro-batches on 4 ranks, and PyTorch wants a multiple of the 2 rounds (micro-batches "
        "// ranks): give 10 or 8"
    )
    assert "many micro-batches as stages: give 8 or more" in LOOPED["dualpipev"]().why_not(4, 7)
    for name in ("zbvzerobubble", "dualpipev"):
        with pytest.raises(CdmppError, match=f"{name}.stages_per_rank is 3: expected a whole number from 2 to 2"):
            LOOPED[name](3)
    with pytest.raises(CdmppError, match="nearest: dualpipev"):
        LOOPED["dualpipe"]
