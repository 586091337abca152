"""Baselines learn from the training part alone and beat the constant where there is something to learn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cdmpp import devices
from cdmpp.ast.pooling import compress, expand, pool_per_store
from cdmpp.ast.table import TARGET_KINDS
from cdmpp.data.splits import make_split
from cdmpp.errors import DataError
from cdmpp.evaluation.baselines import BASELINES, NEED_PER_STORE, make_baseline
from cdmpp.evaluation.evaluation_data import EvaluationData
from cdmpp.evaluation.trees import TreeSettings
from cdmpp.machine_code.cpu.code_features import CODE_NAMES, CODE_WIDTH
from cdmpp.machine_code.gpu.gpu_code_features import GPU_CODE_NAMES
from cdmpp.model import code_prior
from cdmpp.training.metrics import latency_metrics
from tests.evaluation.conftest import make_data

SMALL = TreeSettings(depths=(3, 4), rounds=40)


def mape(data, split, name):
    baseline = BASELINES[name](SMALL)
    baseline.fit(data, split, 0)
    test, predicted = data.dataset.take(split.test), baseline.predict(data, split.test)
    return latency_metrics(test.latency_s, predicted, test.task_ids, test.devices)["mape"]


OF_OPERATORS = ("library_costs", "library_roofline", "xgb_library")


@pytest.mark.parametrize("name", sorted(set(BASELINES) - set(OF_OPERATORS)))
def test_every_baseline_predicts_seconds(data, name):
    split = make_split(data.dataset, "random", 0)
    error = mape(data, split, name)
    assert np.isfinite(error)
    if name in ("xgb_ours", "roofline"):
        assert error < 0.8 * mape(data, split, "constant")


def test_the_roofline_recovers_a_roofline(data):
    flops = np.array([data.dataset.tasks[t].flops for t in data.dataset.task_ids])
    kernels = np.diff(data.dataset.asts.kernel_offsets)
    exact = replace(data.dataset, latency_s=3e-6 * kernels + flops / 5e12)
    assert mape(EvaluationData(exact), make_split(exact, "by_task", 0), "roofline") < 2


@pytest.mark.parametrize("name", ["constant", "roofline", "analytic", "simulated", "xgb_per_store"])
def test_labels_outside_training_and_validation_change_nothing(data, name):
    split = make_split(data.dataset, "by_task", 1)
    spoiled = data.dataset.latency_s.copy()
    spoiled[split.test] *= 1000
    predictions = []
    for latency in (data.dataset.latency_s, spoiled):
        baseline = BASELINES[name](SMALL)
        changed = EvaluationData(replace(data.dataset, latency_s=latency), data.per_store)
        baseline.fit(changed, split, 0)
        predictions.append(baseline.predict(changed, split.test))
    np.testing.assert_array_equal(*predictions)


def test_one_program_without_machine_code_does_not_take_it_from_the_others(data):
    split = make_split(data.dataset, "random", 0)
    latency, rows = data.dataset.latency_s, len(data.dataset.latency_s)
    codes = np.repeat(np.log2(1e9 * latency)[:, None], CODE_WIDTH, axis=1).astype(np.float32)  # tells the label
    errors = []
    for missing in ([], [split.train[0]]):
        codes[missing] = np.nan
        assert np.isnan(codes[:, 0]).sum() == len(missing) < rows
        asts = data.dataset.asts.with_codes(codes.copy())
        errors.append(mape(EvaluationData(replace(data.dataset, asts=asts)), split, "xgb_ours"))
    assert errors[1] < 1.5 * errors[0]


def test_missing_per_store_features_are_named(data):
    with pytest.raises(DataError, match="per-store features"):
        make_baseline(NEED_PER_STORE, SMALL).fit(EvaluationData(data.dataset), make_split(data.dataset, "random", 0), 0)


def test_an_unknown_baseline_lists_the_known_ones():
    with pytest.raises(DataError, match="xgb_ours"):
        make_baseline("xgboost", SMALL)


def test_pooling_of_per_store_rows_by_hand():
    rows = np.zeros((2, 164))
    rows[0, 0], rows[1, 0], rows[1, 20] = 2.0, 3.0, 1.0  # 3 and 7 operations
    pooled = pool_per_store(rows)
    assert pooled.shape == (657,)
    assert (pooled[0], pooled[164], pooled[2 * 164], pooled[2 * 164 + 20], pooled[-1]) == (5, 3, 3, 1, 2)
    assert pooled[3 * 164] == pytest.approx(np.log2(1 + 3 + 7))


def test_compress_undoes_expand():
    values = np.array([-3.0, 0.0, 0.5, 20.0])
    np.testing.assert_allclose(compress(expand(values)), values)


@pytest.mark.parametrize("name", ["code_costs", "simulated"])
def test_it_is_the_analytic_time_where_nothing_was_compiled(data, name):
    split = make_split(data.dataset, "by_task", 0)
    found = []
    for one in ("analytic", name):
        baseline = BASELINES[one](SMALL)
        baseline.fit(data, split, 0)
        found.append(baseline.predict(data, split.test))
    np.testing.assert_allclose(*found)


@pytest.mark.parametrize("name", ["code_costs", "simulated"])
def test_gpu_programs_are_timed_by_their_own_columns(data, name):
    """Nine tenths of the simulated cycles at the sheet's clock, and 4 us for each kernel: two numbers to find."""
    made, rng = data.dataset, np.random.default_rng(5)
    kernels = np.diff(made.asts.kernel_offsets)
    amounts = np.zeros((len(made), CODE_WIDTH))
    amounts[:, GPU_CODE_NAMES.index("cycles_simulated")] = 10 ** rng.uniform(3, 6, len(made))
    amounts[:, GPU_CODE_NAMES.index("kernels")] = kernels
    codes = np.log2(1 + amounts).astype(np.float32)
    asts = replace(made.asts.with_codes(codes), kernel_features=0 * made.asts.kernel_features)
    clock_hz = 1e6 * devices.get("a100").spec["clock_mhz"]
    seconds = 0.9 * amounts.sum(1) / clock_hz
    seconds += 4e-6 * kernels - 0.9 * kernels / clock_hz
    coded = replace(made, asts=asts, latency_s=seconds)
    assert set(coded.devices) == {"a100"} and (asts.target_kinds == TARGET_KINDS.index("gpu")).all()
    assert mape(EvaluationData(coded), make_split(coded, "by_task", 0), name) < 5


def test_code_costs_learn_from_coded_training_programs_alone(monkeypatch):
    """Labels are cycles by code vectors: the analytic time cannot know them, and the test part has no say."""
    monkeypatch.setattr(code_prior, "MIN_PROGRAMS", 100)
    made = make_data(device="xeon-icelake").dataset
    rng = np.random.default_rng(3)
    amounts = np.zeros((len(made), CODE_WIDTH))
    amounts[:, CODE_NAMES.index("n_gather")] = 10 ** rng.uniform(5, 8, len(made))
    codes = np.log2(1 + amounts).astype(np.float32)
    asts = replace(made.asts.with_codes(codes), kernel_features=0 * made.asts.kernel_features)
    coded = replace(made, asts=asts, latency_s=2.6 * amounts.sum(1) / 2.8e9 + 1e-6)
    split = make_split(coded, "by_task", 0)
    assert mape(EvaluationData(coded), split, "code_costs") < 0.5 * mape(EvaluationData(coded), split, "analytic")

    spoiled = coded.latency_s.copy()
    spoiled[split.test] *= 1000
    predictions = []
    for latency in (coded.latency_s, spoiled):
        baseline = BASELINES["code_costs"](SMALL)
        baseline.fit(EvaluationData(replace(coded, latency_s=latency)), split, 0)
        predictions.append(baseline.predict(EvaluationData(coded), split.test))
    np.testing.assert_array_equal(*predictions)
