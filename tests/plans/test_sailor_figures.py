"""Scores and readers of the benchmark on Sailor's public plans, on small rows with right values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.plans.sailor_data import Trained, curve, trained
from benchmarks.plans.scores import cell, errors, least_absolute, left_out

HEAD = (
    "cluster,model,plan,nodes,gpus,gpu_types,dp,pp,tp,mbs,global_batch,layers_per_stage,stage_replicas,iteration_s,"
    "grad_reduce_s,max_mem_bytes,iteration_s_second_visit,max_mem_bytes_second_visit,fault\n"
)
ROW = "clariden,OPT-350,clariden/N8/D2,8,32,GH-96:32,2,4,4,8,512,5 7 7 7,x,2.5,0.01,25e9,{again},,{fault}\n"


def test_errors_and_their_mean_and_median():
    assert errors([1.1, 1.8, 4.0], [1.0, 2.0, 4.0]) == pytest.approx([10.0, -10.0, 0.0])
    assert cell([1.3, 1.8, 4.0], [1.0, 2.0, 4.0]) == "13.3 (10.0)"


def test_fit_finds_the_factors_and_one_far_row_moves_them_little():
    columns = np.array([[1.0, 0.0], [2.0, 1e9], [1.0, 3e9], [5.0, 2e9], [4.0, 1e9]])
    fixed = np.array([0.5, 0.0, 0.25, 0.0, 1.0])
    measured = columns @ [0.5, 2e-9] + fixed
    assert least_absolute(columns, fixed, measured) == pytest.approx([0.5, 2e-9])
    measured[3] *= 3
    assert least_absolute(columns, fixed, measured) == pytest.approx([0.5, 2e-9])


def test_factors_are_never_negative():
    assert least_absolute(np.array([[1.0], [2.0]]), np.array([3.0, 5.0]), np.array([2.0, 4.0])) == pytest.approx([0.0])


def test_a_judged_row_and_its_group_are_not_seen():
    measured = np.array([1.0, 2.0, 4.0, 8.0])

    def mean(seen: np.ndarray, judged: int) -> float:
        assert not seen[judged]
        return float(measured[seen].mean())

    assert left_out(range(4), mean) == pytest.approx([14 / 3, 13 / 3, 11 / 3, 7 / 3])
    assert left_out(["a", "a", "b", "b"], mean) == pytest.approx([6.0, 6.0, 1.5, 1.5])


def test_message_takes_its_bytes_over_the_fitted_rate():
    fitted = curve([0.0, 1.0, 10.0])
    assert fitted.at(2.0**22) == pytest.approx(2.0**22 / (1e9 * (10 + np.log2(2.0**22 / 1e6))))
    assert fitted.at(1.0) == fitted.at(2.0**18)


def test_plans_with_a_doubt_are_left_out(tmp_path: Path):
    rows = ROW.format(again="2.4", fault="") + ROW.format(again="", fault="copied value")
    (tmp_path / "plans.csv").write_text(HEAD + rows)
    (one,) = trained(tmp_path)
    assert (one.micro_batches, one.layers, one.iteration_s, one.again_s) == (32, (5, 7, 7, 7), 2.5, 2.4)
    assert not one.is_kept and np.isnan(one.again_bytes)
    assert trained(tmp_path, "mit") == []
    assert isinstance(one, Trained)
