"""What the values of conf/measure.yaml become, and what is refused."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import pytest

from cdmpp.cli.data import measure  # noqa: F401  (it offers the defaults to Hydra)
from cdmpp.cli.settings_help import settings_help
from cdmpp.errors import CdmppError, DataError
from cdmpp.measure.settings import MeasureSettings
from cdmpp.programs.zoo import expand_zoo
from cdmpp.recipes.compose import compose


def settings(device: str, *words: str) -> MeasureSettings:
    return MeasureSettings.from_dict(compose("measure", [f"device={device}", *words]))


def test_the_configuration_holds_no_default_of_its_own() -> None:
    composed = settings("xeon-icelake")
    assert composed == MeasureSettings("xeon-icelake", zoo=composed.zoo)
    assert set(composed.device_networks()) < set(expand_zoo(composed.zoo)), "no float16 on this device"


def test_every_setting_is_explained() -> None:
    shown = settings_help("cdmpp data measure", "measure")
    for field in dataclasses.fields(MeasureSettings):
        assert re.search(rf"^  {field.name}=.*\n      \S", shown, re.MULTILINE), field.name


def test_words_of_the_command_line_become_what_they_mean() -> None:
    told = settings("h200", "kit=build", "kit_python=3.12", "networks=[mlp@fp16]", "kit_folder=there")
    assert told.kit_python == "3.12" and told.parts_folder == Path("there")
    assert told.data_folder == Path("datasets/h200")
    assert list(told.device_networks()) == ["mlp@fp16"]


def test_programs_run_on_as_many_cores_as_the_target_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert settings("xeon-icelake").threads == 1
    assert settings("xeon-icelake-2c", "tasks_from=there").threads == 2
    with pytest.raises(DataError, match="32 cores, this process may use 2"):
        settings("epyc-7452")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a100"], "a100 is a gpu"),
        (["mi300x", "kit=build"], "kits are made for CPUs and NVIDIA GPUs"),
        (["xeon-icelake", "networks=[resnet81]"], "nearest: resnet18"),
        (["xeon-icelake", "runner=ssh"], "runner is 'ssh'; one of local, rpc"),
        (["xeon-icelake", "kit=send"], "kit is 'send'; one of null, build, merge"),
        (["xeon-icelake", "bach=3"], "bach"),
        (["xeon-icelake", "+colour=red"], "colour"),
        (["xeon-icelake", "batch=many"], "batch"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(words: list[str], message: str) -> None:
    with pytest.raises(CdmppError, match=message):
        settings(*words)
