"""Splits: disjoint, without shared tasks or programs, fixed by the seed, with clear errors."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.layout import KERNEL_WIDTH, LEAF_WIDTH
from cdmpp.ast.table import AstTable
from cdmpp.data.splits import make_split, split_definition, split_names
from cdmpp.errors import CdmppError, DataError


def dataset(task_of, networks_of=None, duplicate_of=None, seed=0):
    """A stand-in with the four fields that splits read; ``duplicate_of[i] = j`` gives program i the AST of j."""
    rng = np.random.default_rng(seed)
    leaves = rng.normal(size=(len(task_of), 1, LEAF_WIDTH)).astype(np.float32)
    for i, j in (duplicate_of or {}).items():
        leaves[i] = leaves[j]
    zero, kernel = np.zeros(1, np.int32), np.zeros((1, KERNEL_WIDTH), np.float32)
    asts = AstTable.from_asts([CompactAST(leaf, zero, zero, zero, kernel, "cpu") for leaf in leaves])
    networks = networks_of or {}
    return SimpleNamespace(
        record_ids=np.array([f"r{i}" for i in range(len(task_of))]),
        task_ids=np.array(task_of),
        devices=np.array([["xeon-icelake", "xeon-icelake-avx2"][i % 2] for i in range(len(task_of))]),
        tasks={t: _task(number, networks.get(t, {})) for number, t in enumerate(sorted(set(task_of)))},
        asts=asts,
    )


def _task(number, networks):
    return SimpleNamespace(networks=networks, op_class=["conv2d", "dense"][number % 2], flops=1e6 * (number + 1))


def parts(split):
    return split.train, split.validation, split.test


def many_tasks(n_tasks=20, each=5):
    return [f"t{i % n_tasks}" for i in range(n_tasks * each)]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 8), min_size=12, max_size=60), st.integers(0, 1000), st.sampled_from(["random", "by_task"])
)
def test_parts_are_disjoint_and_complete(tasks, seed, name):
    if len(set(tasks)) < 3:
        tasks = [*tasks, 100, 101, 102]
    data = dataset([f"t{t}" for t in tasks])
    split = make_split(data, name, seed)
    together = np.concatenate(parts(split))
    assert sorted(together) == list(range(len(tasks)))
    assert all(len(part) for part in parts(split))
    if name == "by_task":
        seen = [set(data.task_ids[part]) for part in parts(split)]
        assert not (seen[0] & seen[1] or seen[0] & seen[2] or seen[1] & seen[2])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sets(st.sampled_from("abcd"), min_size=1), min_size=8, max_size=25),
    st.sampled_from("abcd"),
    st.sampled_from(["leave_training", "leave_test"]),
    st.integers(0, 100),
)
def test_no_task_of_a_network_split_is_on_two_sides(networks, held_out, rule, seed):
    networks = [*networks, {held_out}, *({n} for n in "abcd" if n != held_out)]
    tasks = [f"t{i}" for i in range(len(networks)) for _ in range(3)]
    data = dataset(tasks, {f"t{i}": dict.fromkeys(names, 1) for i, names in enumerate(networks)})
    split = make_split(data, "by_network", seed, test_networks=[held_out], shared=rule)
    train, validation, test = (set(data.task_ids[part]) for part in parts(split))
    assert train and validation and test
    assert not (train & test or train & validation or validation & test)
    touching = {f"t{i}" for i, names in enumerate(networks) if held_out in names}
    only = {f"t{i}" for i, names in enumerate(networks) if names == {held_out}}
    assert test == (touching if rule == "leave_training" else only)
    assert split.counts["shared_tasks"] == len(touching - only)


def test_identical_programs_stay_on_one_side_of_random():
    data = dataset(["t0"] * 40, duplicate_of={i: i - 20 for i in range(20, 40)})
    for seed in range(10):
        split = make_split(data, "random", seed)
        assert split.counts["groups"] == 20
        for part in parts(split):
            assert {i % 20 for i in part if i < 20} == {i % 20 for i in part if i >= 20}


def test_a_repeated_record_stays_on_one_side():
    data = dataset(["t0"] * 30)
    data.record_ids = np.array([f"r{i % 10}" for i in range(30)])
    split = make_split(data, "random", 0)
    kept = [set(data.record_ids[part]) for part in parts(split)]
    assert not (kept[0] & kept[1] or kept[0] & kept[2] or kept[1] & kept[2])


def test_the_seed_fixes_the_split_and_input_order_does_not_matter():
    tasks = many_tasks()
    data, mirrored = dataset(tasks), dataset(tasks[::-1])
    first, again, other = (make_split(data, "by_task", seed) for seed in (3, 3, 4))
    assert all((a == b).all() for a, b in zip(parts(first), parts(again), strict=True))
    assert set(data.task_ids[first.test]) != set(data.task_ids[other.test])
    assert set(data.task_ids[first.test]) == set(mirrored.task_ids[make_split(mirrored, "by_task", 3).test])


def test_growing_the_data_keeps_most_test_programs():
    data, grown = dataset(many_tasks(20)), dataset(many_tasks(22))
    before, after = (set(d.task_ids[make_split(d, "by_task", 0).test]) for d in (data, grown))
    assert len(before & after) >= 3


def test_fractions_count_tasks():
    split = make_split(dataset(many_tasks(20)), "by_task", 0, test_fraction=0.25, validation_fraction=0.2)
    assert (split.counts["test_tasks"], split.counts["validation_tasks"], split.counts["train_tasks"]) == (5, 3, 12)


def test_networks_without_a_list_are_chosen_by_seed():
    names = {f"t{i}": {f"net{i // 2}": 1} for i in range(20)}
    data = dataset([f"t{i}" for i in range(20)], names)
    chosen = {tuple(make_split(data, "by_network", seed).counts["test_networks"]) for seed in range(6)}
    assert all(len(names) == 2 for names in chosen) and len(chosen) > 1


def test_training_networks_leave_the_rest_unused():
    names = {f"t{i}": {"abc"[i % 3]: 1} for i in range(12)}
    data = dataset([f"t{i}" for i in range(12)], names)
    split = make_split(data, "by_network", 0, test_networks=["a"], train_networks=["b"])
    assert split.counts["unused_tasks"] == 4
    assert {next(iter(names[t])) for t in data.task_ids[np.r_[split.train, split.validation]]} == {"b"}


@pytest.mark.parametrize(
    ("tasks", "name", "message"),
    [
        (["t0"], "random", "at least 3 programs"),
        ([], "random", "at least 3 programs"),
        (["t0"] * 10, "by_task", "at least 3 tasks"),
        (["t0", "t1"] * 10, "by_task", "at least 3 tasks"),
        (["t0"] * 10, "by_network", "at least two networks"),
        (many_tasks(), "by_taks", "nearest: by_task"),
    ],
)
def test_too_little_data_says_what_is_missing(tasks, name, message):
    with pytest.raises(DataError, match=message):
        make_split(dataset(tasks), name, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_networks": ["resnet5"]}, "'resnet5' .*nearest: resnet50; it holds bert, resnet50"),
        ({"test_networks": ["resnet50"], "train_networks": ["resnet50"]}, "both a test and a training"),
        ({"test_networks": ["resnet50"], "shared": "maybe"}, "leave_training"),
        ({"test_networks": ["resnet50"], "sharing": "x"}, "has no option"),
        (
            {"test_networks": ["resnet50"], "validation_fraction": 1.5},
            "validation_fraction is 1.5: expected a number above 0",
        ),
    ],
)
def test_network_options_are_checked(options, message):
    names = {f"t{i}": {["resnet50", "bert"][i % 2]: 1} for i in range(10)}
    with pytest.raises(CdmppError, match=message):
        make_split(dataset([f"t{i}" for i in range(10)], names), "by_network", 0, **options)


def test_the_largest_tasks_of_each_class_are_held_out():
    data = dataset(many_tasks())
    split = make_split(data, "largest", 0)
    held_out = {str(task) for task in data.task_ids[split.test]}
    for op_class in ("conv2d", "dense"):
        flops = {name: task.flops for name, task in data.tasks.items() if task.op_class == op_class}
        assert held_out & set(flops) == set(sorted(flops, key=flops.get)[-2:])
    assert not held_out & set(data.task_ids[np.concatenate([split.train, split.validation])])


def test_tasks_of_one_size_have_no_largest():
    data = dataset(many_tasks())
    for task in data.tasks.values():
        task.flops = 1.0
    with pytest.raises(DataError, match="same arithmetic"):
        make_split(data, "largest", 0)


def test_definitions_on_disk_are_usable():
    assert split_names() == ("by_device", "by_network", "by_task", "held_out", "largest", "random")
    networks = ["resnet34", "googlenet", *split_definition("held_out")["test_networks"]]
    names = {f"t{i}": {networks[i % len(networks)]: 1} for i in range(5 * len(networks))}
    data = dataset([*names, *names], names)
    for name in split_names():
        definition = split_definition(name)
        options = {"target": "xeon-icelake-avx2"} if definition["kind"] == "by_device" else {}
        assert definition["name"] == name
        assert make_split(data, name, 0, **options).name == name


def test_a_name_carries_options():
    name = "by_network+test_networks:a|b+train_networks:c+validation_fraction:0.25+shared:leave_test"
    names = {f"t{i}": {"abcd"[i % 4]: 1} for i in range(40)}
    split = make_split(dataset(list(names), names), name, 0)
    assert split.name == name
    assert (split.counts["test_networks"], split.counts["train_networks"]) == (["a", "b"], ["c"])
    assert (split.counts["validation_tasks"], split.counts["shared_rule"]) == (2, "leave_test")
    half, tenth = (make_split(dataset(many_tasks()), f"by_task+train_tasks:{share}", 0) for share in (0.5, 0.1))
    assert len(tenth.train) < len(half.train)
    assert split_definition("held_out+unlabelled_fraction:0.25")["unlabelled_fraction"] == 0.25
    assert split_definition("by_device+target:t4+paired:true+sources:a100")["sources"] == ["a100"]


@pytest.mark.parametrize("name", ["by_task+half", "by_task+target:t4", "by_task+kind:random", "by_task+"])
def test_a_name_with_a_wrong_option_lists_those_there_are(name):
    with pytest.raises(DataError, match="is no option:value of by_task; it has test_fraction, train_schedules, train"):
        split_definition(name)


def test_variants_of_a_network_stand_on_its_side():
    names = {f"t{i}": {["net", "net@b4", "other", "other@r96"][i % 4]: 1} for i in range(40)}
    split = make_split(dataset(list(names), names), "by_network", 0, test_networks=["net"])
    assert {next(iter(names[f"t{i}"])) for i in split.test} == {"net", "net@b4"}
    for seed in range(4):
        counts = make_split(dataset(list(names), names), "by_network", seed).counts
        assert set(counts["test_networks"]) <= {"net", "other"}


def on_devices(*names, n_tasks=20, each=3):
    """``each`` programs of every task on every device."""
    tasks = [f"t{i}" for i in range(n_tasks) for _ in range(each)]
    data = dataset(tasks * len(names))
    data.devices = np.repeat(names, len(tasks))
    return data


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.booleans(), st.integers(2, 4))
def test_a_device_split_shares_no_task_across_devices(seed, paired, n_devices):
    names = ["a100", "v100", "t4", "p100"][:n_devices]
    data = on_devices(*names)
    split = make_split(data, "by_device", seed, target="a100", paired=paired)
    tasks = {name: set(data.task_ids[getattr(split, name)]) for name in ("train", "validation", "test", "pool")}
    assert all(tasks.values())
    assert set(data.devices[split.test]) == set(data.devices[split.pool]) == {"a100"}
    assert set(data.devices[np.r_[split.train, split.validation]]) == set(names[1:])
    assert not tasks["test"] & (tasks["validation"] | tasks["pool"]) and not tasks["validation"] & tasks["train"]
    assert not tasks["validation"] & tasks["pool"]
    assert (tasks["test"] <= tasks["train"]) if paired else not (tasks["test"] & tasks["train"])
    assert split.counts["test_tasks_seen_on_sources"] == (len(tasks["test"]) if paired else 0)


def test_device_splits_pair_the_same_test_and_take_the_named_sources():
    data = on_devices("a100", "v100", "t4")
    strict, paired = (make_split(data, "by_device", 3, target="t4", paired=p) for p in (False, True))
    assert (strict.test == paired.test).all() and (strict.pool == paired.pool).all()
    assert len(paired.train) > len(strict.train)
    only = make_split(data, "by_device", 3, target="t4", sources=["v100"])
    assert set(data.devices[only.train]) == {"v100"} and (only.test == strict.test).all()


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (("a100", "v100"), {}, "needs a target"),
        (("a100", "v100"), {"target": "v10"}, "'v10'.*v100"),
        (("a100", "v100"), {"target": "a100", "sources": ["t4"]}, "no program of device 't4'"),
        (("a100", "v100"), {"target": "a100", "sources": ["a100"]}, "both the target and a source"),
        (("a100",), {"target": "a100"}, "needs a source device"),
    ],
)
def test_device_options_are_checked(names, options, message):
    with pytest.raises(DataError, match=message):
        make_split(on_devices(*names), "by_device", 0, **options)


@pytest.mark.parametrize("rule", ["leave_training", "leave_test"])
def test_the_pool_of_a_network_split_is_apart_from_everything(rule):
    names = {f"t{i}": dict.fromkeys([["a"], ["b"], ["a", "b"], ["c"]][i % 4], 1) for i in range(40)}
    data = dataset([t for t in names for _ in range(2)], names)
    plain, pooled = (
        make_split(data, "by_network", 1, test_networks=["a"], shared=rule, unlabelled_fraction=f) for f in (0.0, 0.3)
    )
    assert len(plain.pool) == 0 and sorted(np.r_[pooled.pool, pooled.test]) == sorted(plain.test)
    assert (plain.train == pooled.train).all()
    assert not set(data.task_ids[pooled.pool]) & set(data.task_ids[np.r_[pooled.test, pooled.train]])
    assert pooled.counts["pool_tasks"] == round(0.3 * plain.counts["test_tasks"])


@pytest.mark.parametrize("option", ["train_tasks", "train_schedules"])
def test_less_training_data_is_contained_in_more_and_leaves_the_rest_alone(option):
    data = dataset(many_tasks(20, 8))
    whole = make_split(data, "by_task", 3)
    half, quarter = (make_split(data, "by_task", 3, **{option: share}) for share in (0.5, 0.25))
    for less in (half, quarter):
        np.testing.assert_array_equal(less.validation, whole.validation)
        np.testing.assert_array_equal(less.test, whole.test)
        assert less.counts["train_programs"] == len(less.train)
    assert set(quarter.train) < set(half.train) < set(whole.train)
    assert len(half.train) == pytest.approx(len(whole.train) / 2, abs=8)
    tasks = len(np.unique(data.task_ids[whole.train]))
    left = len(np.unique(data.task_ids[half.train]))
    assert left == (tasks if option == "train_schedules" else round(tasks / 2))


def test_a_share_of_nothing_is_refused():
    with pytest.raises(CdmppError, match=r"train_tasks is 0\.0: expected a number above 0 to 1"):
        make_split(dataset(many_tasks()), "by_task", 0, train_tasks=0.0)


def test_a_few_labels_of_each_test_task_move_to_training():
    data = dataset(many_tasks(12, 8), {f"t{i}": {"a": 1} if i < 8 else {"b": 1} for i in range(12)})
    options = {"kind": "by_network", "test_networks": ["b"], "train_networks": ["a"]}
    without, some = (make_split(data, "by_network", 1, **options, test_labels=n) for n in (0, 3))
    np.testing.assert_array_equal(without.validation, some.validation)
    moved = np.setdiff1d(some.train, without.train)
    np.testing.assert_array_equal(np.union1d(moved, some.test), without.test)
    assert set(np.unique(data.task_ids[moved], return_counts=True)[1]) == {3}
    assert not np.intersect1d(moved, some.test).size and some.counts["labels_of_each_test_task"] == 3


def with_networks(n_tasks=24):
    """Tasks of network a, a variant of it, b, b and a, c, and none, on two devices; the last eight on one of them."""
    kinds = [["a"], ["a@b4"], ["b"], ["a", "b"], ["c"], []]
    names = {f"t{i}": dict.fromkeys(kinds[i % 6], 1) for i in range(n_tasks)}
    data = on_devices("t4", "v100", n_tasks=n_tasks)
    data.tasks = {task: SimpleNamespace(networks=networks) for task, networks in names.items()}
    kept = (data.devices == "v100") | np.isin(data.task_ids, [f"t{i}" for i in range(16)])
    for name in ("record_ids", "task_ids", "devices"):
        setattr(data, name, getattr(data, name)[kept])
    return data, names


@pytest.mark.parametrize("paired", [False, True])
def test_a_device_split_holds_networks_out_on_every_device(paired):
    data, names = with_networks()
    split = make_split(data, "by_device", 1, target="t4", test_networks=["a"], paired=paired)
    of_a = {task for task, networks in names.items() if {"a", "a@b4"} & set(networks)}
    tasks = {name: set(data.task_ids[getattr(split, name)]) for name in ("train", "validation", "test", "pool")}
    assert tasks["test"] == of_a & {f"t{i}" for i in range(16)} and set(data.devices[split.test]) == {"t4"}
    assert not of_a & (tasks["validation"] | tasks["pool"]) and tasks["validation"] and tasks["pool"]
    assert of_a & tasks["train"] == (of_a if paired else set()), "nor do those train that only the source has"
    counts = split.counts
    assert counts["test_networks"] == ["a"] and counts["shared_tasks"] == 4 and counts["paired"] is paired
    assert counts["test_tasks_seen_on_sources"] == (counts["test_tasks"] if paired else 0)
    other = make_split(data, "by_device", 5, target="t4", test_networks=["a"], test_fraction=0.5, paired=paired)
    np.testing.assert_array_equal(other.test, split.test)


def test_networks_of_a_device_split_must_be_among_those_of_the_target():
    data, _ = with_networks()
    for task in ("t16", "t22"):  # on the source alone
        data.tasks[task].networks = {"elsewhere": 1}
    with pytest.raises(DataError, match="no task of t4 in network 'elsewhere' in this data set; it holds a, b, c"):
        make_split(data, "by_device", 0, target="t4", test_networks=["a", "elsewhere"])
    name = "by_device+target:t4+test_networks:b|c"
    assert make_split(data, name, 0).counts["test_networks"] == ["b", "c"]
