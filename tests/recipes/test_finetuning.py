"""``scripts/finetune.py`` from records or a faked measurement to a model folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import cdmpp
from cdmpp.ast.table import write_asts
from cdmpp.cli.model.finetune import _print_figures
from cdmpp.data.records import append_records, read_tasks, write_info, write_tasks
from cdmpp.data.schema import Record
from cdmpp.data.splits import split_definition
from cdmpp.errors import CdmppError, DataError, NoRecordsError, UnknownDeviceError
from cdmpp.measure import chosen as measuring
from cdmpp.platform.files import read_json
from cdmpp.predict.predictor import Predictor
from cdmpp.recipes import finetuning
from cdmpp.recipes.compose import compose
from cdmpp.recipes.finetune_settings import FinetuneSettings
from cdmpp.recipes.finetuning import finetune
from tests.toy_data import toy_dataset, write_toy_dataset

NEW = "xeon-icelake-avx2"
SMALL = [
    "model.width=32", "model.heads=4", "model.feedforward=32", "model.hidden=32", "model.layers=1",
    "trainer.epochs=3", "tuning.steps=5", "accelerator=cpu", "progress=false", "budget=4",
]  # fmt: skip


def settings(folder: Path, *overrides: str, device: str = NEW) -> FinetuneSettings:
    given = [*SMALL, f"device={device}", f"data.path=[{folder}/data]", f"out={folder}/out", f"measure.out={folder}/new"]
    given.append("measure.force=true")  # whatever else runs meanwhile
    return FinetuneSettings.from_dict(compose("finetune", [*given, *overrides]))


@pytest.fixture
def one_device(tmp_path: Path) -> Path:
    write_toy_dataset(tmp_path / "data" / "old", 300)
    return tmp_path


@pytest.fixture
def two_devices(one_device: Path) -> Path:
    write_toy_dataset(one_device / "data" / "new", 300, NEW, factor=1.7, prefix="new-")
    return one_device


def in_another_network(folder: Path, n: int) -> set[str]:
    """So many tasks of the data set are of the network ``other`` too; returns their ids."""
    tasks = list(read_tasks(folder).values())[:n]
    write_tasks(folder, [replace(task, networks={"other": 1}) for task in tasks])
    return {task.task_id for task in tasks}


def test_from_records_to_a_model_with_its_card(two_devices: Path):
    figures = finetune(settings(two_devices, "sampler=kmeans"))
    assert figures["sources"] == ["xeon-icelake"] and len(set(figures["tasks"])) == 4
    assert figures["test_tasks_seen_on_sources"] == 0
    for moment in ("before", "after"):
        assert np.isfinite(figures[moment]["test"]["metrics"]["mape"])
        assert set(figures[moment]["sources"]) == {"xeon-icelake"}
    loaded = cdmpp.load_model(two_devices / "out" / "model")
    assert set(loaded.trained_on) == {"xeon-icelake", NEW}
    assert loaded.card["fine_tuning"]["sampler"] == "kmeans" and loaded.card["fine_tuning"]["budget"] == 4
    assert read_json(two_devices / "out" / "finetune.json")["tasks"] == figures["tasks"]


def test_from_a_model_that_is_given(two_devices: Path):
    finetune(settings(two_devices))
    start = two_devices / "out" / "base" / "model"
    figures = finetune(settings(two_devices, f"start={start}", f"out={two_devices}/again", "paired=true"))
    assert "unknown" in figures["test_tasks_seen_on_sources"]
    assert not (two_devices / "again" / "base").exists()


def test_what_a_given_model_knows_cannot_be_kept_without_records(two_devices: Path):
    with pytest.raises(DataError, match="a100 has learned from a100, h100, and no record of these is in reach"):
        finetune(settings(two_devices, "start=a100"))


class FakeCollector:
    """Records every planned task at once: what a real one does, without a machine."""

    seen: list = []
    lost = 0
    """So many tasks at the beginning of the plan cannot be measured."""

    def __init__(self, chosen, folder):
        self.chosen, self.folder = chosen, Path(folder)

    def run(self):
        FakeCollector.seen.append(self.chosen)
        dataset, _ = toy_dataset(300)
        order = read_json(self.folder / "plan.json")["order"]
        assert set(order) <= set(read_tasks(self.folder))
        rows = np.flatnonzero(np.isin(dataset.task_ids, order[self.lost :]))
        if len(rows) == 0:
            write_info(self.folder, name="new")
            return {"programs": 0}
        ids = [f"measured-{i}" for i in rows]
        records = [
            Record(key, str(dataset.task_ids[i]), NEW, "{}", "[[],[]]", (), float(2 * dataset.latency_s[i]))
            for key, i in zip(ids, rows, strict=True)
        ]
        write_info(self.folder, name="new")
        append_records(self.folder, records)
        write_asts(self.folder / "asts" / "part-00000.parquet", ids, dataset.asts.take(rows))
        return {"programs": len(records), "parts": 1, "next": "carry it"}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch):
    FakeCollector.seen, FakeCollector.lost = [], 0
    monkeypatch.setattr(measuring, "Collector", FakeCollector)
    return FakeCollector


def test_measuring_the_chosen_tasks_on_the_device(one_device: Path, collector, monkeypatch):
    compiled: list[Path] = []
    monkeypatch.setattr(finetuning, "derive_codes", lambda folder, progress: compiled.append(folder))
    monkeypatch.setattr(Predictor, "reads_code", True)
    figures = finetune(settings(one_device, "measure.how=local", "measure.test_tasks=3"))
    (asked,) = collector.seen
    assert asked.device == NEW and asked.zoo == {} and asked.time_limit_min == 20 and asked.runner == "local"
    order = read_json(one_device / "new" / "plan.json")["order"]
    assert set(figures["tasks"]) < set(order) and len(order) == 4 + 3
    assert figures["after"]["test"]["n_tasks"] == 3
    assert compiled == [one_device / "new"], "the new programs have code vectors, as those of the sources"
    assert {NEW, "xeon-icelake"} == set(cdmpp.load_model(one_device / "out" / "model").trained_on)


def test_a_rerun_keeps_to_the_tasks_chosen_before(one_device: Path, collector, monkeypatch):
    options = ["measure.how=local", "measure.test_tasks=2", "sampler=random"]
    first = finetune(settings(one_device, *options))
    monkeypatch.setattr(finetuning, "choose_tasks", lambda *_: pytest.fail("chosen again"))
    again = finetune(settings(one_device, *options, f"out={one_device}/again"))
    assert again["tasks"] == first["tasks"]


def test_tasks_that_could_not_be_measured_are_left_out(one_device: Path, collector, capsys):
    options = ["measure.how=local", "measure.test_tasks=2", "sampler=random"]
    collector.lost = 1
    figures = finetune(settings(one_device, *options))
    assert figures["budget"] == len(figures["tasks"]) == 3 and "have no record" in capsys.readouterr().out
    collector.lost = 99
    with pytest.raises(DataError, match="no records"):
        finetune(settings(one_device, *options, f"measure.out={one_device}/none", f"out={one_device}/none-out"))


def test_a_kit_is_built_and_its_merged_records_are_taken(one_device: Path, monkeypatch, capsys):
    FakeCollector.seen, FakeCollector.lost = [], 0
    monkeypatch.setattr(measuring, "KitBuilder", FakeCollector)
    options = ["measure.how=kit", f"measure.kit_folder={one_device}/kit"]
    assert finetune(settings(one_device, *options)) is None
    assert "carry it" in capsys.readouterr().out and FakeCollector.seen[0].kit is not None
    (one_device / "kit").rename(one_device / "kit-done")
    for name in ("dataset.json", "tasks.parquet", "records", "asts"):
        (one_device / "kit-done" / name).rename(one_device / "new" / name)
    figures = finetune(settings(one_device, *options))
    assert figures["budget"] == 4 and len(FakeCollector.seen) == 1


def test_what_cannot_be_done_is_said(one_device: Path, two_devices: Path):
    with pytest.raises(DataError, match="budget=99: .* has records of"):
        finetune(settings(two_devices, "budget=99"))
    with pytest.raises(DataError, match="no other device has records"):
        finetune(settings(two_devices / "data" / "old", "data.path=[]", "measure.how=local"))


def test_a_device_without_records_or_a_way_to_measure(one_device: Path):
    with pytest.raises(NoRecordsError, match="(?s)no labelled programs of device graviton2.*measure.how=local"):
        finetune(settings(one_device, device="graviton2"))
    with pytest.raises(DataError, match="is a gpu"):
        finetune(settings(one_device, "measure.how=local", device="v100"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["sampler=kmaens"], "kmeans"),
        (["budget=0"], "budget is 0: expected a whole number from 1"),
        (["budget=many"], "budget is .many.: expected a whole number"),
        (["test_networks=gpt2"], "test_networks=gpt2: it is a list of networks.*held_out"),
        (["test_networks=by_task"], "test_networks=by_task: it is a list of networks.*held_out"),
        (["seed=abc"], "seed is .abc.: expected a whole number"),
        (["measure.how=usb"], "local, rpc, kit"),
        (["+measure.hours=1"], "measure.hours"),
        (["+colour=red"], "colour"),
        (["+tuning.epochs=1"], "tuning.epochs"),
        ([f"sources=[{NEW}]"], "its own sources"),
    ],
)
def test_mistaken_settings_are_named(tmp_path: Path, overrides, message):
    with pytest.raises(CdmppError, match=message):
        settings(tmp_path, *overrides)


def test_unknown_sources_get_the_nearest_names(tmp_path: Path):
    with pytest.raises(UnknownDeviceError, match="a100"):
        settings(tmp_path, "sources=[a1000]")


def test_networks_are_held_out(two_devices: Path, capsys):
    other = in_another_network(two_devices / "data" / "old", 7)
    asked = settings(two_devices, "test_networks=[other]")
    figures = finetune(asked)
    assert figures["test_networks"] == ["other"] and not other & set(figures["tasks"])
    assert figures["after"]["test"]["n_tasks"] == 7
    counts = cdmpp.load_model(two_devices / "out" / "base" / "model").card["split"]
    assert counts["test_networks"] == ["other"] and counts["test_tasks_seen_on_sources"] == 0
    assert counts["train_tasks"] + counts["validation_tasks"] == 30 - 7, "the sources know none of its tasks either"
    _print_figures(asked, figures)
    assert "70 programs of 7 tasks of other, held out" in " ".join(capsys.readouterr().out.split())


def test_test_tasks_are_measured_of_the_networks_held_out(one_device: Path, collector):
    other = in_another_network(one_device / "data" / "old", 7)
    figures = finetune(settings(one_device, "measure.how=local", "measure.test_tasks=3", "test_networks=[other]"))
    order = set(read_json(one_device / "new" / "plan.json")["order"])
    assert len(order & other) == figures["after"]["test"]["n_tasks"] == 3 and order - other == set(figures["tasks"])
    card = cdmpp.load_model(one_device / "out" / "model").card
    assert figures["test_networks"] == card["split"]["test_networks"] == ["other"]


@pytest.mark.parametrize("how", [[], ["measure.how=local"]])
def test_unknown_networks_get_the_names_there_are(two_devices: Path, how):
    in_another_network(two_devices / "data" / "old", 7)
    with pytest.raises(DataError, match="network 'othr' in this data set; nearest: other; it holds net, other"):
        finetune(settings(two_devices, "test_networks=[net,othr]", *how))


def test_a_split_names_the_networks(tmp_path: Path):
    listed = split_definition("held_out")["test_networks"]
    assert settings(tmp_path, "test_networks=held_out").test_networks == tuple(listed)
    assert settings(tmp_path, "test_networks=[gpt2]").test_networks == ("gpt2",)
    assert settings(tmp_path).test_networks == ()
