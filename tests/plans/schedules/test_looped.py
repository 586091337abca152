"""Schedules with several stages a rank next to the order lists of PyTorch, and what follows from these lists."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from cdmpp.errors import CdmppError
from cdmpp.plans.schedules import LOOPED
from cdmpp.steps.action_lists import ActionLists, Message, code
from cdmpp.steps.list_times import ListTimes, StageSeconds
from cdmpp.steps.native import most_bytes
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
        given = seconds(ranks * count, forward, inputs, weights)
        found = LOOPED[name](count).step_s(given, ranks, np.array([many]))[0]
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
    assert own.step_s(given, ranks, np.full(50, many)) == pytest.approx(whole_s, rel=0.02)


def test_messages_and_what_ends_a_stage_delay_a_step():
    own, free, many = LOOPED["interleaved1f1b"](2), seconds(4), np.array([4])
    base = own.step_s(free, 2, many)[0]
    later = [
        own.step_s(StageSeconds(**{**vars(free), name: np.full((1, 4), 0.5)}), 2, many)[0]
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
    saved = np.zeros((1, 8, 4))
    saved[:, :, [0, 2]] = 1.0  # of each micro-batch, and of the one that runs
    assert most_bytes(own.lists(4, 8), saved, 0).tolist() == [live]


def test_plans_of_several_numbers_of_micro_batches_are_those_of_each():
    own, counts, draw = LOOPED["zbvzerobubble"](2), np.array([40, 3, 8, 40]), np.random.default_rng(1)
    given = StageSeconds(*(draw.uniform(0.5, 1.5, (4, 8)) for _ in range(8)))
    each = [own.step_s(given.taken(np.array([row])), 4, counts[row : row + 1])[0] for row in range(4)]
    assert own.step_s(given, 4, counts).tolist() == each
    busy = own.busy_s(given, 4, counts)
    assert busy[1] * 40 / 3 == pytest.approx(own.busy_s(given, 4, np.full(4, 40))[1])


class Followed:
    """Lists followed pass by pass, as ``ActionLists`` says, in plain Python: for one plan."""

    def __init__(self, lists, given):
        self.lists, self.given, self.ends, self.wires = lists, given, {}, {}

    def of(self, name, stage):
        return float(getattr(self.given, name)[0, stage])

    def run(self, starts):
        """Return when each rank ends; ``starts``: when it begins."""
        lists, now, at = self.lists, list(starts), [0] * self.lists.ranks
        last = {one.stage: one for turns in lists.turns for turn in turns for one in turn if one.kind != FORWARD}
        names = {FORWARD: "forward", BACKWARD: "backward", INPUTS: "inputs", WEIGHTS: "weights"}
        there, links, flat = {}, {}, [[(turn, one) for turn in turns for one in turn] for turns in lists.turns]
        while any(at[rank] < len(flat[rank]) for rank in range(lists.ranks)):
            before = list(at)
            for rank, own in enumerate(flat):
                while at[rank] < len(own):
                    turn, one = own[at[rank]]
                    needed = lists.needed(one)
                    if needed is not None and needed not in there:
                        break
                    now[rank] = max(now[rank], there.get(needed, 0.0)) + self.of(names[one.kind], one.stage)
                    now[rank] += self.of("ending", one.stage) if last[one.stage] == one else 0.0
                    at[rank] += 1
                    message = lists.message(one)
                    if message is not None and not lists.is_sent(message):
                        there[message] = now[rank]
                    for other in turn if one is turn[-1] else ():
                        sent = lists.message(other)
                        if sent is not None and lists.is_sent(sent):
                            link = rank, lists.owners[sent.stage]
                            seconds = self.of("sent" if sent.kind == FORWARD else "returned", sent.stage)
                            links[link] = there[sent] = max(links.get(link, 0.0), now[rank]) + seconds
            assert at != before
        updates = [
            sum(self.of("update", stage) for stage in np.flatnonzero(np.array(lists.owners) == rank))
            for rank in range(lists.ranks)
        ]
        return [end + more for end, more in zip(now, updates, strict=True)]


@pytest.mark.parametrize(("name", "count"), [*MANY, ("interleaved1f1b", 3)])
@pytest.mark.parametrize(("ranks", "many"), [(2, 4), (3, 9), (4, 16), (5, 10)])
def test_the_compiled_follower_and_the_readable_one_agree(name, count, ranks, many):
    own, draw, stages = LOOPED[name](count), np.random.default_rng(many), ranks * count
    for plans in (1, 11):  # more than are followed together
        given = StageSeconds(*(draw.uniform(0.1, 1.5, (plans, stages)) for _ in range(8)))
        first_s, _ = ListTimes(own.lists(ranks, many)).step_s(given, False, ranks)
        second_s, _ = ListTimes(own.lists(ranks, many)).step_s(given, True, ranks)
        for row in range(plans):
            follower = Followed(own.lists(ranks, many), given.taken(np.array([row])))
            ends = follower.run([0.0] * ranks)
            assert first_s[row] == pytest.approx(max(ends), rel=1e-12)
            assert second_s[row] == pytest.approx(max(follower.run(ends)) - max(ends), rel=1e-9)


def test_bytes_of_the_compiled_follower_are_those_of_each_moment():
    """Counted pass by pass: what is saved, what waits for gradients of weights, and the pass that runs."""
    own, ranks, many, draw = LOOPED["interleavedzerobubble"](2), 3, 9, np.random.default_rng(0)
    live, lists = draw.integers(1, 99, (2, 6, 4)).astype(float), LOOPED["interleavedzerobubble"](2).lists(3, 9)
    found = most_bytes(lists, live, many)
    for plan in range(2):
        for rank in range(ranks):
            saved, pending, most = Counter(), Counter(), 0.0
            stages = own.stages_of(rank, ranks)
            for one in own.actions(rank, ranks, many):
                saved[one.stage] -= one.kind != FORWARD
                kept = many - saved[5] - (one.stage == 5) if rank == 2 else 0
                held = sum(saved[at] * live[plan, at, 0] + pending[at] * live[plan, at, 1] for at in stages)
                most = max(most, held + live[plan, one.stage, 2] + max(kept, 0) * live[plan, 5, 3])
                pending[one.stage] += (one.kind == INPUTS) - (one.kind == WEIGHTS)
                saved[one.stage] += one.kind in (FORWARD, INPUTS)
            assert found[plan, rank] == most


def test_lists_that_wait_for_each_other_are_refused():
    """Both ranks begin with a backward pass."""
    codes = [np.array([code(0, BACKWARD), code(0, FORWARD)], np.uint16)] * 2
    lists = ActionLists(tuple(codes), (0, 1), 1)
    with pytest.raises(RecursionError, match="wait for each other"):
        ListTimes(lists).step_s(seconds(2), False, 1)


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
