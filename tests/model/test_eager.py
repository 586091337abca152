"""The model of framework operators: its roofline is found again, and what is left is learned."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from cdmpp import cli, devices
from cdmpp.ast.table import AstTable, write_asts
from cdmpp.data.batching import ProgramTensors
from cdmpp.data.dataset import join_datasets
from cdmpp.data.loading import load_dataset
from cdmpp.data.records import append_records, write_info, write_tasks
from cdmpp.data.schema import Record
from cdmpp.data.splits import make_split
from cdmpp.errors import CdmppError, DataError, ModelFormatError
from cdmpp.evaluation.baselines import make_baseline
from cdmpp.evaluation.evaluation_data import EvaluationData
from cdmpp.evaluation.trees import TreeSettings
from cdmpp.model.build import build_for
from cdmpp.model.config import model_config
from cdmpp.model.eager_prior import EagerPrior
from cdmpp.model.known_devices import borrowed, places
from cdmpp.operators.operator import KINDS, EagerOperator
from cdmpp.operators.operator_task import operator_task, served_by, task_id
from cdmpp.operators.operator_vector import OPERATOR_NAMES, operator_program
from cdmpp.predict.catalogue import ModelEntry, model_for
from cdmpp.predict.flags import MEASURED_ELSEWHERE, NOT_MEASURED
from cdmpp.predict.model_folder import load
from cdmpp.recipes.compose import compose
from cdmpp.recipes.settings import RunSettings
from cdmpp.recipes.train import train
from cdmpp.training.config import Run, TrainConfig
from cdmpp.uncertainty.conformal import LEVELS
from cdmpp.uncertainty.unseen import Bounds, Unseen
from tests.evaluation.conftest import make_data

NAMES = ("t4", "a100", "mi210")
FLOOR_S, COMPUTE, MEMORY = 2e-5, 0.6, 0.8


def operators(n: int, seed: int) -> list[EagerOperator]:
    rng = np.random.default_rng(seed)

    def size(low: int, high: int) -> int:
        return int(np.exp(rng.uniform(np.log(low), np.log(high))))

    found = []
    for _ in range(n):
        if rng.random() < 0.6:
            sizes = {"rows": size(16, 8192), "inner": size(16, 8192), "cols": size(16, 8192)}
            found.append(EagerOperator("linear", sizes))
        else:
            found.append(EagerOperator("relu", {"rows": size(64, 65536), "cols": size(64, 4096)}))
    return found


def seconds(operator: EagerOperator, device: str) -> float:
    spec = devices.get(device).spec
    matrix = spec["fp32_matrix_tflops"] if operator.name == "linear" else None
    peak = 1e12 * (matrix or spec["fp32_tflops"])
    busy = max(operator.flops / peak / COMPUTE, operator.io_bytes / (1e9 * spec["bandwidth_gbps"]) / MEMORY)
    return FLOOR_S + busy


@pytest.fixture(scope="module")
def programs() -> ProgramTensors:
    chosen = operators(600, 0)
    names = [NAMES[i % 3] for i in range(len(chosen))]
    asts = AstTable.from_asts(operator_program(operator, "gpu") for operator in chosen)
    labels = np.array([seconds(operator, name) for operator, name in zip(chosen, names, strict=True)])
    return ProgramTensors.build(asts, {name: devices.get(name) for name in NAMES}, names, labels)


def test_the_roofline_is_found_again(programs):
    prior = EagerPrior(8, devices.VECTOR_WIDTH)
    prior.fit(programs, np.arange(400))
    batch = programs.batch(np.arange(400, 600))
    assert float((prior(batch) - batch.log_latency).abs().mean()) < 0.08


def test_what_the_roofline_misses_is_learned(programs):
    model = build_for(model_config({"name": "library", "hidden": 32}), programs, np.arange(400))
    batch = programs.batch(np.arange(400))
    bent = batch.log_latency + 0.5 * torch.sin(batch.log_latency)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(150):
        optimiser.zero_grad()
        loss = (model(batch).log_latency - bent).abs().mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss))
    assert losses[-1] < 0.35 * losses[0]


def test_a_program_alone_is_answered_as_among_others(programs):
    model = build_for(model_config({"name": "library", "hidden": 32}), programs, np.arange(400)).eval()
    together, alone = (model(programs.batch(rows)).log_latency for rows in (np.arange(8), np.arange(3, 4)))
    assert float(together[3]) == pytest.approx(float(alone[0]), abs=1e-5)


def test_beyond_the_sizes_of_the_training_the_roofline_alone_goes_on(programs):
    model = build_for(model_config({"name": "library", "hidden": 32}), programs, np.arange(400)).eval()
    huge = [EagerOperator("relu", {"rows": rows, "cols": 4096}) for rows in (1 << 24, 1 << 28)]
    asts = AstTable.from_asts(operator_program(one, "gpu") for one in huge)
    batch = ProgramTensors.build(asts, {"t4": devices.get("t4")}, ["t4", "t4"]).batch(np.arange(2))
    correction = model(batch).log_latency - model.prior(batch)
    assert float(correction[0]) == pytest.approx(float(correction[1]), abs=1e-5)
    assert float((model.prior(batch)[1] - model.prior(batch)[0]).exp()) == pytest.approx(16, rel=0.05)


def test_no_product_is_faster_than_the_peak_of_its_type(programs):
    model = build_for(model_config({"name": "library", "hidden": 32}), programs, np.arange(400)).eval()
    model.prior.numbers += 3.0  # shares of twenty times the peak, and a floor to match
    model.prior.numbers[:, 0] -= 10.0
    asked = [EagerOperator.parse("linear", "8192x4096x4096", dtype) for dtype in ("float32", "float16")]
    asked.append(EagerOperator.parse("conv2d", "8x64x64x56x3"))
    asts = AstTable.from_asts(operator_program(one, "gpu") for one in asked)
    batch = ProgramTensors.build(asts, {"t4": devices.get("t4")}, ["t4"] * 3).batch(np.arange(3))
    rate = np.array([one.flops for one in asked]) / model(batch).log_latency.detach().exp().numpy() / 1e12
    spec = devices.get("t4").spec
    np.testing.assert_allclose(rate[:2], [spec["fp32_tflops"], 0.945 * spec["fp16_matrix_tflops"]], rtol=1e-5)
    without = ProgramTensors.build(asts, {"p4": devices.get("p4")}, ["p4"] * 3).batch(np.arange(2))
    seconds_of = model(without).log_latency.detach().exp()
    assert torch.allclose(seconds_of[0], seconds_of[1]), "a P4 computes in single precision"
    assert rate[2] > spec["fp32_tflops"], "Winograd's algorithm makes fewer operations"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data set of measured operators, as an import writes it."""
    chosen = operators(300, 1)
    records = [
        Record(f"{i:016x}", task_id(one), NAMES[i % 3], "{}", served_by("torch"), (label,), label)
        for i, one in enumerate(chosen)
        for label in [seconds(one, NAMES[i % 3])]
    ]
    out = tmp_path_factory.mktemp("library") / "operators"
    write_info(out, name="operators", features="library", complete=True)
    write_tasks(out, [operator_task(one, "random") for one in chosen])
    append_records(out, records)
    table = AstTable.from_asts(operator_program(one, "gpu") for one in chosen)
    write_asts(out / "asts" / "part-00000.parquet", [one.record_id for one in records], table, "library")
    return out


def test_a_few_calls_tell_the_numbers_of_a_new_device(programs):
    model = build_for(model_config({"name": "library", "hidden": 32}), programs, np.arange(400)).eval()
    sheet = devices.get("l4")
    chosen = [one for one in operators(200, 5) if one.name == "linear"]  # of one family: the other moves with it
    slow = [3 * seconds(one, "l4") for one in chosen]
    asts = AstTable.from_asts(operator_program(one, "gpu") for one in chosen)
    new = ProgramTensors.build(asts, {"l4": sheet}, ["l4"] * len(chosen), np.array(slow))
    rest = np.arange(6, len(chosen))

    def error(one):
        batch = new.batch(rest)
        return float((one(batch).log_latency - batch.log_latency).abs().mean())

    known = programs.batch(np.arange(400, 450))
    before, others = error(model), model(known).log_latency.detach()
    factors = model.scale_device(new, np.array([5, 3, 0, 1, 4, 2]), np.ones(6))
    assert error(model) < 0.5 * before and error(model) < 0.25
    assert min(factors["compute"], factors["power"]) < 0.7
    assert torch.equal(model(known).log_latency, others)


def test_what_other_devices_alone_have_told_is_known_by_device_operator_and_type(programs):
    asked = [EagerOperator.parse("linear", "64x64x64", dtype) for dtype in ("float32", "float16")]
    asked += [EagerOperator.parse(name, "64x64") for name in ("relu", "gelu")]
    codes = np.stack([operator_program(one, "gpu").code for one in asked])
    relu = programs.codes_of(np.arange(600))[:, OPERATOR_NAMES.index("is_relu")].bool().cpu().numpy()
    rows = np.flatnonzero(~(relu & (np.arange(600) % 3 == NAMES.index("mi210"))))
    model = build_for(model_config({"name": "library", "hidden": 32}), programs, rows)
    elsewhere = {name: model.measured_elsewhere(codes, devices.get(name).vector()).tolist() for name in (*NAMES, "l4")}
    assert elsewhere == {name: [False, False, name == "mi210", False] for name in elsewhere}
    assert model.never_measured(codes).tolist() == [False, True, False, True]


@pytest.mark.parametrize(("name", "limit"), [("library_costs", 12), ("xgb_library", 25), ("library_roofline", 100)])
def test_baselines_of_operators(folder, name, limit):
    data = EvaluationData(join_datasets([load_dataset(folder, one) for one in NAMES]))
    split = make_split(data.dataset, "by_task", 0)
    baseline = make_baseline(name, TreeSettings(depths=(4,), rounds=200))
    baseline.fit(data, split, 0)
    error = np.abs(baseline.predict(data, split.test) / data.dataset.latency_s[split.test] - 1)
    assert 100 * error.mean() < limit


def test_baselines_of_operators_refuse_other_programs():
    made_up = make_data()
    with pytest.raises(DataError, match="features=cdmpp"):
        make_baseline("library_costs", TreeSettings()).fit(made_up, make_split(made_up.dataset, "random", 0), 0)


@pytest.fixture(scope="module")
def model(folder, tmp_path_factory):
    """The folder of a model that was trained by the settings."""
    out = tmp_path_factory.mktemp("trained")
    values = compose(
        "config",
        [
            *("model=library", "features=library", "device=t4", "sources=[t4,a100,mi210]", "split=by_task"),
            *("trainer=quick", "progress=false", f"data.path=[{folder}]", f"out={out}"),
        ],
    )
    settings = RunSettings.from_dict(values)
    dataset = settings.load()
    split = make_split(dataset, seed=0, **settings.split)
    return train(dataset, split, settings.training, settings.run).model_dir


def test_a_trained_model_is_loaded_and_answers(model):
    predictor = load(model)
    asked = AstTable.from_asts([operator_program(EagerOperator.parse("linear", "1024x1024x4096"), "gpu")])
    answer = predictor.predict(asked, device="a100").latency_s[0]
    assert answer == pytest.approx(seconds(EagerOperator.parse("linear", "1024x1024x4096"), "a100"), rel=0.4)
    with pytest.raises(CdmppError, match="some of these programs are none"):
        predictor.predict(asked.with_codes(None), device="a100")


def test_what_other_devices_alone_have_told_is_answered_as_of_an_unknown_one(model):
    predictor = load(model)
    asked = [EagerOperator.parse(name, "4096x512") for name in ("relu", "relu", "gelu")]
    asked[0] = EagerOperator.parse("linear", "1024x1024x4096")
    before = predictor.predict(asked, device="mi210")
    library = predictor.models[0]
    place = places(torch.from_numpy(devices.get("mi210").vector())[None], library.prior.known)
    library.learned[place, list(KINDS).index("relu")] = 0
    predictor.unseen = Unseen({"t4": {"mape": 9.0, "median_ape": 9.0}}, Bounds(dict.fromkeys(LEVELS, (-2.0, 2.0))))
    after = predictor.predict(asked, device="mi210")
    assert [MEASURED_ELSEWHERE in flags for flags in after.flags] == [False, True, False]
    np.testing.assert_array_equal(after.latency_s, before.latency_s)
    assert set(after.intervals) == set(before.intervals) == set(LEVELS)
    for level, ends in after.intervals.items():
        for end, known, factor in zip(ends, before.intervals[level], (np.exp(-2), np.exp(2)), strict=True):
            assert (end == known).tolist() == [True, False, False], "gelu was measured nowhere"
            assert end[1] == pytest.approx(factor * after.latency_s[1])
    assert not any(MEASURED_ELSEWHERE in flags for flags in predictor.predict(asked, device="t4").flags)


def test_operators_are_asked_by_name_and_what_nobody_measured_is_flagged(model, capsys):
    names = ("linear 1024x1024x4096", "relu 4096x512", "gelu 4096x512")
    asked = [EagerOperator.parse(*name.split()) for name in names]
    asked.append(EagerOperator.parse("linear", "1024x1024x4096", "float16"))
    predictor = load(model)
    answer = predictor.predict(asked, device="a100")
    stored = AstTable.from_asts(operator_program(one, "gpu") for one in asked)
    np.testing.assert_array_equal(answer.latency_s, predictor.predict(stored, device="a100").latency_s)
    assert answer.labels == (*names, "linear 1024x1024x4096 float16")
    assert [NOT_MEASURED in flags for flags in answer.flags] == [False, False, True, True]

    words = " ".join(names).split()
    assert cli.main(["predict", "op", *words, "--device", "a100", "--model", str(model), "--json"]) == 0
    told = capsys.readouterr()
    rows = json.loads(told.out)["programs"]
    assert [row["program"] for row in rows] == list(names) and "1 of 3 programs: never measured" in told.err
    np.testing.assert_allclose([row["latency_s"] for row in rows], answer.latency_s[:3], rtol=1e-6)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("op", "needs an operator"),
        ("op linear", "expected linear rowsxinnerxcols"),
        ("op linaer 8x8x8", "did you mean linear"),
        ("op linear 8x8x8 bias=yes", "bias=yes"),
        ("op bias=0 linear 8x8x8", "bias=0"),
        ("op linear 8x8x8 --dtype int8", "int8"),
        ("op linear 8x8x8 dtype=3", "type '3'; one of"),
        ("op linear 8x8x8 name=3", "linear has no name"),
        (f"op linear {'9' * 5000}x8x8", "expected linear rowsxinnerxcols"),
        (f"op linear 8x8x8 bias={'9' * 5000}", "is NAME=NUMBER"),
        ("op linear 8x8x8 --retarget", "of schedules alone"),
        (f"op linear {'9' * 13}x8x8", "In a network take a smaller batch or input"),
        ("a.py --dtype float16", "of operators alone"),
        ("a.py b.py", "one file or folder at a time"),
    ],
)
def test_operators_that_cannot_be_are_refused_in_a_line(model, capsys, words, told):
    assert cli.main(["predict", *words.split(), "--device", "a100", "--model", str(model)]) == 2
    err = capsys.readouterr().err
    assert told in err and len(err.strip().splitlines()) == 1


def test_a_model_of_scheduled_programs_refuses_operators(capsys):
    assert cli.main(["predict", "op", "relu", "64x64", "--device", "a100", "--model", "a100"]) == 2
    assert "not framework operators" in capsys.readouterr().err


def test_each_kind_of_program_has_models_of_its_own(tmp_path):
    mine = ModelEntry("library", tmp_path, ("t4", "a100"), features="library")
    other = ModelEntry("scheduled", tmp_path, ("a100",))
    assert model_for("a100", [mine, other]).name == "scheduled"
    assert model_for("a100", [other, mine], "library").name == "library"
    assert model_for("h100", [other, mine], "library").name == "library"
    with pytest.raises(ModelFormatError, match="features=library model=library"):
        model_for("xeon-icelake", [other, mine], "library")


@pytest.mark.parametrize("swapped", ["model", "data"])
def test_models_and_data_of_other_kinds_do_not_meet(folder, tmp_path, swapped):
    dataset = load_dataset(folder, progress=False)
    config = TrainConfig(model=model_config({"name": "library"}))
    if swapped == "model":
        config = TrainConfig()
    else:
        dataset = dataclasses.replace(dataset, features="cdmpp")
    with pytest.raises(CdmppError, match="model=library features=library"):
        train(dataset, make_split(dataset, "by_task", 0), config, Run(tmp_path / "out", 0, False, "cpu"))
    assert not (tmp_path / "out").exists()


def test_a_device_that_sustains_less_has_a_roofline_of_its_own_and_an_unknown_one_borrows():
    chosen = operators(900, 3)
    names = [NAMES[i % 3] for i in range(len(chosen))]
    slower = {"t4": 2.0, "a100": 1.0, "mi210": 1.0}
    labels = np.array([slower[name] * seconds(one, name) for one, name in zip(chosen, names, strict=True)])
    asts = AstTable.from_asts(operator_program(operator, "gpu") for operator in chosen)
    sheets = {name: devices.get(name) for name in (*NAMES, "l4")}
    programs = ProgramTensors.build(asts, sheets, names, labels)
    prior = EagerPrior(8, devices.VECTOR_WIDTH)
    prior.fit(programs, np.arange(900))
    batch = programs.batch(np.arange(900))
    assert float((prior(batch) - batch.log_latency).abs().mean()) < 0.08
    assert int((~prior.known.isinf().any(1)).sum()) == 3

    unknown = ProgramTensors.build(asts, sheets, ["l4"] * 900).batch(np.arange(900))
    lent = borrowed(unknown.device_vectors[:1], prior.known, prior.own)[0]
    assert (prior.own[:3].amin(0) - 1e-6 <= lent).all() and (lent <= prior.own[:3].amax(0) + 1e-6).all()
    with_own = prior(unknown)
    prior.own.zero_()
    assert not torch.allclose(with_own, prior(unknown))
    assert not torch.allclose(prior(batch), batch.log_latency, atol=0.3)
