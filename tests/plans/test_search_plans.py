"""What Python is answered about plans, next to what the command line prints."""

from __future__ import annotations

import json

import pytest

import cdmpp
from cdmpp.cli.command import main
from cdmpp.errors import UsageError


def _printed(arguments, capsys):
    assert main([*arguments, "--json"]) in (0, None)
    return json.loads(capsys.readouterr().out)


def test_python_and_the_command_line_give_one_answer(capsys):
    workload = cdmpp.Workload("torchvision:alexnet", precision="bf16")
    found = cdmpp.search_plans(
        workload, device="h100", cluster="dgx-h100", ranks=4, global_batch=16, strategies=["data", "fsdp"],
        progress=False,
    )  # fmt: skip
    arguments = "plan torchvision:alexnet --device h100 --cluster dgx-h100 --gpus 4 --global-batch 16 --precision bf16"
    printed = _printed([*arguments.split(), "--strategies", "data,fsdp"], capsys)
    best = printed["plans"][0]
    assert best["step_s"] == pytest.approx(found.best.step_s, rel=1e-9)


def test_unlike_devices_are_a_mapping(capsys):
    found = cdmpp.search_plans(
        "torchvision:alexnet", device={"a100": 2, "t4": 2}, link="ethernet-25g", global_batch=32, strategies=["data"],
        progress=False,
    )  # fmt: skip
    arguments = "plan torchvision:alexnet --devices a100:2,t4:2 --link ethernet-25g --global-batch 32 --strategies data"
    printed = _printed(arguments.split(), capsys)
    best = printed["plans"][0]
    assert best["step_s"] == pytest.approx(found.best.step_s, rel=1e-9)
    assert found.best.plan.devices == ("a100", "a100", "t4", "t4")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"device": "a100"}, "ranks is missing"),
        ({"device": {"a100": 2}, "ranks": 2}, "leave ranks out"),
        ({"device": "a100", "ranks": 2, "strategies": ["dta"]}, "unknown strategy 'dta'"),
        ({"device": {"a100": -2}}, "a100"),
        ({"device": {}}, "device"),
    ],
)
def test_a_question_that_cannot_be_is_refused(given, message):
    with pytest.raises(UsageError, match=message):
        cdmpp.search_plans("torchvision:alexnet", link="nvlink3", global_batch=8, progress=False, **given)
