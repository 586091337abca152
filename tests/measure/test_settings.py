"""What the values of conf/measure.yaml become, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdmpp.errors import DataError
from cdmpp.measure.settings import collect_settings

ROOT = Path(__file__).resolve().parents[2]


def values(device: str, **changes: Any) -> dict[str, Any]:
    """The shipped configuration without Hydra."""
    defaults = yaml.safe_load((ROOT / "conf/measure.yaml").read_text())
    zoo = yaml.safe_load((ROOT / "conf/data/networks.yaml").read_text())
    return {**defaults, **zoo, "device": {"name": device}, **changes}


def test_programs_run_on_as_many_cores_as_the_target_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert collect_settings(values("xeon-icelake")).threads == 1
    assert collect_settings(values("xeon-icelake-2c", tasks_from="there")).threads == 2
    with pytest.raises(DataError, match="32 cores, this process may use 2"):
        collect_settings(values("epyc-7452"))


def test_what_cannot_be_measured_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="a100 is a gpu"):
        collect_settings(values("a100"))
    with pytest.raises(DataError, match="nearest: resnet18"):
        collect_settings(values("xeon-icelake", networks=["resnet81"]))
    with pytest.raises(DataError, match="runner='ssh' is unknown"):
        collect_settings(values("xeon-icelake", runner="ssh"))
