"""Answers without machine code, of a model that reads it: own intervals, a flag, no code from elsewhere."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import cdmpp
from cdmpp import cli
from cdmpp.ast.table import write_asts
from cdmpp.data.derived_table import write_codes
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH
from cdmpp.predict import flags as flags_module
from cdmpp.predict.flags import COUNT_UNKNOWN, NO_MACHINE_CODE
from cdmpp.recipes.train import train
from cdmpp.training.config import Run, TrainConfig
from tests.model.test_code_prior import SHEET, coded_asts
from tests.model.test_models import SMALL
from tests.toy_data import toy_dataset, write_toy_dataset

N = 900


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model of programs whose latency only their machine code tells."""
    dataset, _ = toy_dataset(N)
    asts, cycles = coded_asts(N)
    dataset = replace(dataset, asts=asts, latency_s=cycles / (1e6 * SHEET.spec["clock_mhz"]))
    task = np.unique(dataset.task_ids, return_inverse=True)[1]
    _, split = toy_dataset(N)
    parts = (np.flatnonzero(np.isin(task % 4, part)) for part in ([0, 1], [2], [3]))
    split = replace(split, **dict(zip(("train", "validation", "test"), parts, strict=True)))
    config = TrainConfig.from_dict({"model": SMALL, "trainer": {"epochs": 4, "batch_size": 32, "lr": 3e-3}})
    return dataset, split, train(dataset, split, config, Run(tmp_path_factory.mktemp("run"), 0, False, "cpu"))


@pytest.fixture
def tested(trained):
    dataset, split, result = trained
    return dataset.asts.take(split.test), dataset.latency_s[split.test], cdmpp.load_model(result.model_dir)


def held(intervals, truth, level):
    low, high = intervals[level]
    return ((low <= truth) & (truth <= high)).mean(), np.median(high / low)


def test_both_kinds_of_answers_hold_what_they_promise(tested):
    asts, truth, model = tested
    assert model.reads_code
    with_code, without = model.predict(asts), model.predict(asts, compiled=False)
    for level, off in ((0.8, 0.1), (0.9, 0.07)):
        (share, width), (own_share, own_width) = (held(one.intervals, truth, level) for one in (with_code, without))
        assert abs(share - level) < off and abs(own_share - level) < off
        assert own_width > 3 * width
    ends = (bound / with_code.latency_s * without.latency_s for bound in with_code.intervals[0.8])
    assert held({0.8: tuple(ends)}, truth, 0.8)[0] < 0.7, "as they were before: of the width of answers with code"
    assert all(NO_MACHINE_CODE in flags for flags in without.flags)
    assert not any(NO_MACHINE_CODE in flags for flags in with_code.flags)
    assert without.unlike_training.mean() < 0.1 and model.card["intervals"]["without_machine_code"]


def test_each_program_of_a_mixed_table_has_the_interval_of_its_kind(tested):
    asts, _, model = tested
    codes = asts.codes.copy()
    codes[::2] = np.nan
    mixed, with_code, without = (
        model.predict(asts.with_codes(codes)), model.predict(asts), model.predict(asts, compiled=False),
    )  # fmt: skip
    for level, pair in mixed.intervals.items():
        for end in (0, 1):
            np.testing.assert_allclose(pair[end][1::2], with_code.intervals[level][end][1::2], rtol=1e-4)
            np.testing.assert_allclose(pair[end][::2], without.intervals[level][end][::2], rtol=1e-4)
    assert [NO_MACHINE_CODE in flags for flags in mixed.flags] == [i % 2 == 0 for i in range(len(asts))]


def test_unknown_counts_have_the_interval_of_answers_without_code(tested, monkeypatch):
    asts, _, model = tested
    known = model.predict(asts)
    assert not any(COUNT_UNKNOWN in flags for flags in known.flags)
    monkeypatch.setattr(flags_module, "count_unknown", lambda asts: np.arange(len(asts)) % 2 == 0)
    mixed = model.predict(asts)
    assert [COUNT_UNKNOWN in flags for flags in mixed.flags] == [i % 2 == 0 for i in range(len(asts))]
    np.testing.assert_array_equal(mixed.latency_s, known.latency_s)
    for level in (0.8, 0.9):
        width, usual = (one.intervals[level][1] / one.intervals[level][0] for one in (mixed, known))
        assert np.median(width[::2] / usual[::2]) > 1.3
        np.testing.assert_array_equal(width[1::2], usual[1::2])


@pytest.fixture
def older(trained, tmp_path):
    """The same model as if it had been calibrated by answers with machine code alone."""
    folder = shutil.copytree(trained[2].model_dir, tmp_path / "older")
    config = json.loads((folder / "config.json").read_text())
    del config["calibration_without_code"], config["weights_sha256"], config["config_sha256"]
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in tensors.items() if not name.startswith("calibration_without_code.")}
    assert len(kept) < len(tensors)
    save_file(kept, folder / "model.safetensors")
    return folder


def test_an_older_model_has_no_interval_of_answers_without_code_and_says_so(tested, older, tmp_path, capsys):
    asts, _, _ = tested
    model = cdmpp.load_model(older)
    assert model.predict(asts).intervals and model.predict(asts, compiled=False).intervals == {}
    codes = asts.codes.copy()
    codes[0] = np.nan
    mixed = model.predict(asts.with_codes(codes))
    assert mixed.interval(0) == {} and mixed.interval(1)
    write_asts(tmp_path / "asts.parquet", [f"p{i}" for i in range(len(asts))], asts.with_codes(codes))
    command = ["predict", str(tmp_path / "asts.parquet"), "--device", SHEET.name, "--model", str(older)]
    assert cli.main([*command, "--json"]) == 0
    out, err = capsys.readouterr()
    first, second = json.loads(out)["programs"][:2]
    assert first["intervals_s"] is None and first["flags"][0] == NO_MACHINE_CODE and second["intervals_s"]["0.8"]
    assert "1 of" in err and "have no interval" in err
    assert cli.main([*command, "--rows", "0"]) == 0
    assert any("p0 " in line and " - " in line for line in capsys.readouterr().out.splitlines())


def test_no_compile_sees_no_stored_code(tested, trained, tmp_path, capsys, monkeypatch):
    _, _, model = tested
    monkeypatch.setenv("CDMPP_CACHE", str(tmp_path / "cache"))
    write_toy_dataset(tmp_path / "data", n=40)
    code = np.full(CODE_WIDTH, 20, np.float32)
    write_codes(tmp_path / "data" / "codes" / "part-00000.parquet", {f"record{i:05d}": code for i in range(40)})
    command = [
        "predict",
        str(tmp_path / "data"),
        "--device",
        SHEET.name,
        "--model",
        str(trained[2].model_dir),
        "--json",
    ]

    def answers(*more):
        assert cli.main([*command, *more]) == 0
        out, err = capsys.readouterr()
        return json.loads(out)["programs"], err

    (compiled, _), (plain, told) = answers(), answers("--no-compile")
    asts = toy_dataset(40)[0].asts
    expected = dict(zip([f"record{i:05d}" for i in range(40)], model.predict(asts).latency_s, strict=True))
    for row in plain:
        assert row["latency_s"] == pytest.approx(expected[row["program"]], rel=1e-4)
        assert NO_MACHINE_CODE in row["flags"]
    assert "40 of 40 programs: no machine code" in told
    assert not any(NO_MACHINE_CODE in row["flags"] for row in compiled)
    assert all(a["latency_s"] != b["latency_s"] for a, b in zip(compiled, plain, strict=True))
